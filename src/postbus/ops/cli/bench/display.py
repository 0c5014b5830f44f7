"""What is shown while a benchmark runs. Only between two runs: it must cost nothing that is measured."""

import sys
from types import TracebackType
from typing import Protocol, Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from postbus.ops.bench.harness import Row
from postbus.ops.bench.model import Candidate, Sample, Workload
from postbus.ops.bench.report import number


class Display(Protocol):
    """Told before and after each run."""

    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None: ...

    def begin(self, workload: Workload, candidate: Candidate) -> None:
        """What is measured from now on."""
        ...

    def end(self, row: Row, round_number: int) -> None:
        """What came of it."""
        ...


class PlainDisplay:
    """A line for each run."""

    def __init__(self, console: Console, round_count: int) -> None:
        self._console, self._round_count = console, round_count

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        return None

    def begin(self, workload: Workload, candidate: Candidate) -> None:
        """Nobody is looking."""

    def end(self, row: Row, round_number: int) -> None:
        """Say so."""
        self._console.print(
            f"round {round_number + 1} of {self._round_count}  {row.candidate.label}: {_outcome_of(row)}",
            markup=False,
            soft_wrap=True,
        )


class LiveDisplay:
    """A bar over all runs, what is being measured, and the latest figure."""

    def __init__(self, console: Console, run_count: int) -> None:
        self._progress = Progress(
            TextColumn("[bold]postbus bench"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.description}", markup=False, style="dim"),
            console=console,
            # No thread that draws while something is measured.
            auto_refresh=False,
            transient=True,
        )
        self._task = self._progress.add_task("", total=run_count)

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._progress.stop()

    def begin(self, workload: Workload, candidate: Candidate) -> None:  # noqa: ARG002
        """Name it."""
        self._progress.update(self._task, description=candidate.label, refresh=True)

    def end(self, row: Row, round_number: int) -> None:  # noqa: ARG002
        """Move the bar."""
        words = f"{row.candidate.label}: {_outcome_of(row)}"
        self._progress.update(self._task, advance=1, description=words, refresh=True)


def make_display(round_count: int, candidate_count: int) -> Display:
    """Live on a terminal, plain elsewhere."""
    console = Console(stderr=True, highlight=False)
    if sys.stderr.isatty() and not console.is_dumb_terminal:
        return LiveDisplay(console, round_count * candidate_count)
    return PlainDisplay(console, round_count)


def _outcome_of(row: Row) -> str:
    outcome = row.outcomes[-1]
    if not isinstance(outcome, Sample):
        return outcome.reason
    return ", ".join(
        f"{number(outcome.figures[column.key])} {column.label if column.unit == '/s' else column.unit}"
        for column in row.workload.columns
        if column.key in outcome.figures
    )
