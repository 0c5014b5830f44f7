"""Dead letters as text for a terminal, or as JSON for a program."""

import sys
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any

import click
import msgspec
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from postbus.events import DeadLetter, DeadLetterPage, Event

# Off a terminal there is no line to fit into: ids and types must not be cut.
_WIDE = 1_000
_LONGEST_ERROR = 200


def to_plain(dead_letter: DeadLetter) -> Mapping[str, object]:
    """The dead letter for JSON; its errors are a list, besides the JSON text of last_error."""
    plain: dict[str, object] = msgspec.to_builtins(dead_letter)
    return {**plain, "errors": dead_letter.errors}


def show_json(value: object) -> None:
    """Print a value as indented JSON."""
    click.echo(msgspec.json.format(msgspec.json.encode(value), indent=2).decode())


def show_count(verb: str, count: int, *, as_json: bool) -> None:
    """Print how many dead letters were retried, resolved or deleted."""
    if as_json:
        show_json({verb: count})
    else:
        click.echo(f"{verb} {count_of(count, 'dead letter')}")


def show_page(page: DeadLetterPage, offset: int) -> None:
    """Print two lines for each dead letter: the whole id first, because the other commands take it."""
    if not page.events:
        click.echo("no dead letters" if not page.total else f"no more dead letters, {page.total:,} in all")
        return
    console = new_console()
    for dead in page.events:
        names = f"  {printable(dead.type)}"
        if dead.subscriber_id is not None:
            names += f"  subscriber {printable(dead.subscriber_id)}  event {dead.id}"
        console.print(Text.assemble((dead.dead_letter_id, "bold"), names), soft_wrap=True)
        facts = f"  {_moment(dead.dlq_at)}  {count_of(dead.retry_count, 'attempt')}  "
        line = Text.assemble((facts, "dim"), (_last_error(dead), "red"))
        console.print(line, no_wrap=True, overflow="ellipsis")
    last = offset + len(page.events)
    console.print(f"{offset + 1:,} to {last:,} of {count_of(page.total, 'dead letter')}, newest first")


def show_dead_letter(dead: DeadLetter) -> None:
    """Print the whole story of one dead letter."""
    console = new_console()
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    table.add_row("id", Text(dead.dead_letter_id, "bold"))
    for name, fact in _facts_of(dead):
        table.add_row(name, Text(printable(fact)))
    console.print(table)
    console.print()
    console.print(story_of(dead))


def _facts_of(dead: DeadLetter) -> Iterator[tuple[str, str]]:
    if dead.subscriber_id is not None:
        yield "subscriber", dead.subscriber_id
        yield "event", dead.id
    yield "type", dead.type
    if dead.stream_id is not None:
        yield "stream", f"{dead.stream_id}, version {dead.stream_version}"
    yield "published", _moment(dead.created_at)
    yield "dead since", _moment(dead.dlq_at)
    if dead.last_retry_at is not None:
        yield "last retry", _moment(dead.last_retry_at)
    if dead.resolved_at is not None:
        yield "resolved", f"{_moment(dead.resolved_at)} by {dead.resolved_by}"
    if dead.notes is not None:
        yield "notes", dead.notes
    for key, value in (dead.metadata or {}).items():
        yield "metadata", f"{key}={value}"
    if dead.purged_at is not None:
        yield "purged", f"{_moment(dead.purged_at)} by {dead.purger_id}"
    yield "payload", _indented(dead.payload)


def story_of(event: Event) -> Table:
    """The error of every attempt, oldest first."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    table.add_column("attempt", justify="right")
    table.add_column("error", overflow="fold")
    for number, error in enumerate(event.errors, start=1):
        table.add_row(str(number), Text(printable(error), "red"))
    return table


def new_console() -> Console:
    """Standard output: as wide as the terminal, or wide enough for anything."""
    return Console(width=None if sys.stdout.isatty() else _WIDE, highlight=False)


def printable(text: str) -> str:
    """The text without characters that would steer the terminal; line breaks stay.

    >>> printable("a" + chr(27) + "[2Jb")
    'a\\\\x1b[2Jb'
    """
    return "".join(c if c == "\n" or c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def count_of(count: int, noun: str) -> str:
    """A number and its noun.

    >>> count_of(1, "dead letter"), count_of(2000, "dead letter")
    ('1 dead letter', '2,000 dead letters')
    """
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def _last_error(event: Event) -> str:
    """The first line of it."""
    lines = event.errors[-1].splitlines() if event.errors else []
    return printable(lines[0] if lines else "")[:_LONGEST_ERROR]


def _moment(moment: datetime | None) -> str:
    return "" if moment is None else f"{moment:%Y-%m-%d %H:%M:%S}Z"


def _indented(value: Any) -> str:
    return msgspec.json.format(msgspec.json.encode(value), indent=2).decode()
