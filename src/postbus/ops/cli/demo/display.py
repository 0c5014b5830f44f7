"""What the demonstration shows while it runs: a live picture, or plain lines off a terminal."""

import time
from types import TracebackType
from typing import Protocol, Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from postbus.ops.cli.demo.process import Stop
from postbus.ops.cli.demo.receipts import Receipts

_SECONDS_BETWEEN_LINES = 1.0
_SECONDS_TO_READ = 1.2
_SECONDS_BETWEEN_LOOKS = 0.05
_BAR_WIDTH = 40


class Display(Protocol):
    """Steps, one after another, each with a bar."""

    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None: ...

    def begin(self, step: str, verb: str, total: int) -> None:
        """A new step; *verb* says what the bar counts."""
        ...

    def advance(self, count: int, receipts: Receipts) -> None:
        """So many of the total are there."""
        ...

    def end(self, result: str, *, is_bad_news: bool = False) -> None:
        """The step is over."""
        ...

    def pause(self, stop: Stop) -> None:
        """Give people time to read, unless they want to stop."""
        ...


class PlainDisplay:
    """A line for each step, and one now and then between them."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._verb, self._total = "", 0
        self._next_at = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        return None

    def begin(self, step: str, verb: str, total: int) -> None:
        """Say what comes."""
        self._verb, self._total = verb, total
        self._next_at = time.monotonic() + _SECONDS_BETWEEN_LINES
        self._console.print(f"{step} ...")

    def advance(self, count: int, receipts: Receipts) -> None:
        """Say how far we are, at most once a second."""
        if time.monotonic() >= self._next_at:
            self._next_at = time.monotonic() + _SECONDS_BETWEEN_LINES
            counts = receipts.counts
            self._console.print(
                f"  {count:,} of {self._total:,} {self._verb}, "
                f"{counts.retry_count:,} retried, {counts.dead_letter_count:,} dead"
            )

    def end(self, result: str, *, is_bad_news: bool = False) -> None:  # noqa: ARG002
        """Say how it ended."""
        self._console.print(f"  {result}")

    def pause(self, stop: Stop) -> None:
        """Nobody is looking."""


class LiveDisplay:
    """All steps so far, the bar of the current one, and what the bus counts."""

    def __init__(self, console: Console, title: str) -> None:
        self._title = Text(title, "bold")
        self._steps: list[RenderableType] = []
        self._current: Spinner | None = None
        self._is_over = False
        self._bar = ProgressBar(width=_BAR_WIDTH)
        self._words, self._counts = Text(), Text()
        # Shown by a thread of its own, so that the spinner turns while we wait.
        self._live = Live(get_renderable=self._picture, console=console, refresh_per_second=12)

    def __enter__(self) -> Self:
        self._live.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._is_over = True
        self._live.__exit__(kind, error, traceback)

    def begin(self, step: str, verb: str, total: int) -> None:
        """Add a step with a spinner."""
        self._bar = ProgressBar(total=total, width=_BAR_WIDTH)
        self._verb, self._total = verb, total
        self._words = Text()
        self._current = Spinner("dots", Text(step), style="cyan")

    def advance(self, count: int, receipts: Receipts) -> None:
        """Move the bar."""
        self._bar.update(completed=count)
        self._words = Text.assemble((f"{count:,}", "bold"), f" of {self._total:,} {self._verb}")
        counts = receipts.counts
        self._counts = Text.assemble(
            *_number("retries", counts.retry_count, "yellow"),
            *_number("dead letters", counts.dead_letter_count, "red"),
            *_number("recovered", len(receipts.recovered), "green"),
        )

    def end(self, result: str, *, is_bad_news: bool = False) -> None:
        """Replace the spinner by a mark."""
        mark = ("✗ ", "bold red") if is_bad_news else ("✓ ", "bold green")
        self._steps.append(Text.assemble(mark, result))
        self._current = None

    def pause(self, stop: Stop) -> None:
        """Let the bad news stand for a moment."""
        ends_at = time.monotonic() + _SECONDS_TO_READ
        while not stop and time.monotonic() < ends_at:
            time.sleep(_SECONDS_BETWEEN_LOOKS)

    def _picture(self) -> RenderableType:
        parts: list[RenderableType] = [self._title, Text(), *self._steps]
        if self._current is not None:
            parts.append(self._current)
        if not self._is_over:
            bar = Table.grid(padding=(0, 1))
            bar.add_row(" ", self._bar, self._words)
            parts += [Text(), bar, self._counts]
        return Group(*parts)


def _number(name: str, count: int, style: str) -> tuple[tuple[str, str], tuple[str, str]]:
    return (f"  {name} ", "dim"), (f"{count:,}", style if count else "dim")
