"""What the demonstration says at its end."""

import os
import shlex
from dataclasses import dataclass
from pathlib import Path

import msgspec
from rich import box
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from postbus.events import Event
from postbus.ops.cli.dead_letter_views import count_of, story_of
from postbus.ops.cli.demo.check import Findings


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """What was promised, what was found, and how it came about."""

    findings: Findings
    order_count: int
    acknowledged_count: int
    killed_after: int | None
    busy_seconds: float
    was_stopped: bool

    @property
    def lost_count(self) -> int:
        """Events with a receipt that are neither done nor a dead letter.

        Of a demonstration that was stopped, what is still pending is not lost:
        the next start delivers it.
        """
        unfinished = 0 if self.was_stopped else self.findings.unfinished_count
        return len(self.findings.missing_ids) + unfinished

    @property
    def events_per_second(self) -> float:
        """While a bus was running, retries included."""
        return self.acknowledged_count / self.busy_seconds if self.busy_seconds else 0.0


def show_summary(console: Console, outcome: Outcome, kept_at: Path | None) -> None:
    """Print the figures, the story of a dead letter, and what to try next."""
    console.print()
    console.print(_figures(outcome))
    if outcome.findings.dead_letters:
        console.print()
        console.print(_story(outcome.findings.dead_letters[-1]))
    console.print()
    console.print(_next_commands(outcome, kept_at))


def _figures(outcome: Outcome) -> Table:
    findings = outcome.findings
    is_lost = outcome.lost_count > 0
    table = Table(
        title=_title(outcome), title_justify="left", title_style="bold", box=box.ROUNDED, show_header=False
    )
    table.add_column(no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    table.add_column(style="dim")
    rows: list[tuple[str, int, str, str]] = [
        ("published and acknowledged", outcome.acknowledged_count, "", "publish returned: a promise"),
        ("processed", findings.done_count, "green", "every handler has seen them"),
        ("retried", findings.retried_count, "yellow", "a handler failed"),
        ("saved by a retry", findings.saved_count, "green", "and succeeded later"),
        ("dead letters", len(findings.dead_letters), "red", "kept with all their errors"),
    ]
    if outcome.killed_after is not None:
        rows.append(("killed after", outcome.killed_after, "", "orders, by SIGKILL, in full flight"))
        rows.append(("recovered", findings.recovered_count, "green", "in flight then, delivered again"))
    if outcome.was_stopped:
        rows.append(("pending", findings.unfinished_count, "", "the next start delivers them"))
    rows.append(("events per second", round(outcome.events_per_second), "", "on disk before acknowledged"))
    for name, count, style, remark in rows:
        table.add_row(name, Text(f"{count:,}", style), remark)
    table.add_section()
    verdict = "see below" if is_lost else "each receipt was looked up"
    table.add_row(
        Text("lost", "bold"),
        Text(f"{outcome.lost_count:,}", "bold red" if is_lost else "bold green"),
        verdict,
    )
    return table


def _title(outcome: Outcome) -> str:
    if outcome.was_stopped:
        return f"Stopped after {count_of(outcome.acknowledged_count, 'order')} of {outcome.order_count:,}"
    return "What became of every order"


def _story(event: Event) -> RenderableType:
    facts = f"{event.id}  {event.type}  {msgspec.json.encode(event.payload).decode()}"
    return Group(Text("The story of a dead letter", "bold"), Text(facts), Text(), story_of(event))


def _next_commands(outcome: Outcome, kept_at: Path | None) -> RenderableType:
    command, url = f"{_runner()}postbus", shlex.quote(str(kept_at or "demo.db"))
    lines = [f"{command} dlq ls --url {url}"]
    for event in outcome.findings.dead_letters[-1:]:
        lines.append(f"{command} dlq show {event.id} --url {url}")
        lines.append(f"{command} dlq retry {event.id} --url {url}")
    if kept_at is None:
        lines.insert(0, f"{command} demo --path {url}")
    return Group(Text("Try next", "bold"), *(Text(f"  {line}") for line in lines))


def _runner() -> str:
    """How this command was started, as far as one has to type it: uv tells its children where it is."""
    uv = os.environ.get("UV")
    if not uv:
        return ""
    path = Path(uv)
    is_here = path.is_relative_to(Path.cwd())
    return f"{path.relative_to(Path.cwd()) if is_here else path.name} run "
