"""Runs candidates round by round, and sums up."""

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from postbus.ops.bench.model import Candidate, Sample, Workload

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class NotInstalled:
    """The candidate is a peer that is not there."""

    reason: str


@dataclass(frozen=True, slots=True)
class Failed:
    """The candidate raised or took too long."""

    reason: str


Outcome = Sample | NotInstalled | Failed


@dataclass(frozen=True, slots=True)
class Summary:
    """The median over the rounds, with the lowest and the highest."""

    median: float
    low: float
    high: float
    count: int


@dataclass(slots=True)
class Row:
    """The outcomes of one candidate, one for each round that it took part in."""

    workload: Workload
    candidate: Candidate
    outcomes: list[Outcome] = field(default_factory=list)

    @property
    def problem(self) -> NotInstalled | Failed | None:
        """Why there is a round without a sample."""
        return next((outcome for outcome in self.outcomes if not isinstance(outcome, Sample)), None)

    @property
    def settings(self) -> str:
        """The durability that was in force, each once if the rounds differ."""
        found = [outcome.settings for outcome in self.outcomes if isinstance(outcome, Sample)]
        return "; ".join(dict.fromkeys(found))

    def values(self, key: str) -> list[float | None]:
        """A figure, round by round."""
        return [
            outcome.figures.get(key) if isinstance(outcome, Sample) else None for outcome in self.outcomes
        ]

    def summary(self, key: str) -> Summary | None:
        """A figure over all rounds; None if no round has it."""
        return summarize(value for value in self.values(key) if value is not None)


class Results:
    """All rows of a run."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self.rows = rows
        self._by_name = {(row.workload.name, row.candidate.name): row for row in rows}

    def row(self, workload: str, candidate: str) -> Row | None:
        """The row of a candidate; None if it was not part of this run."""
        return self._by_name.get((workload, candidate))

    def ratio(self, workload: str, key: str, candidate: str, baseline: str) -> Summary | None:
        """One candidate's figure divided by another's, round by round: a noisy moment hits both."""
        over, under = self.row(workload, candidate), self.row(workload, baseline)
        if over is None or under is None:
            return None
        # A candidate that failed sits out the later rounds.
        pairs = zip(over.values(key), under.values(key), strict=False)
        return summarize(a / b for a, b in pairs if a is not None and b)

    def by_workload(self) -> Iterator[tuple[Workload, list[Row]]]:
        """The rows of each workload, in their order."""
        workloads = {row.workload.name: row.workload for row in self.rows}
        for name, workload in workloads.items():
            yield workload, [row for row in self.rows if row.workload.name == name]


def summarize(values: Iterator[float]) -> Summary | None:
    """The median and the spread; None of nothing."""
    found = sorted(values)
    if not found:
        return None
    return Summary(statistics.median(found), found[0], found[-1], len(found))


def order_of_round(items: Sequence[T], round_number: int) -> list[T]:
    """Everyone once a round, and every round someone else goes first: no place is a lucky one."""
    if not items:
        return []
    start = round_number % len(items)
    return [*items[start:], *items[:start]]


def run_rounds(
    selection: Mapping[str, tuple[Workload, Sequence[Candidate]]],
    round_count: int,
    run: Callable[[Workload, Candidate], Outcome],
    report: Callable[[Row, int], None],
    may_begin: Callable[[int], bool] = lambda round_number: True,  # noqa: ARG005
) -> Results:
    """Round after round through all workloads, alternating between the candidates of each.

    The rounds of a workload are minutes apart, so a noisy minute spoils one of them and not the median.
    """
    rows = [
        Row(workload, candidate) for workload, candidates in selection.values() for candidate in candidates
    ]
    for round_number in range(round_count):
        if round_number and not may_begin(round_number):
            break
        for name in selection:
            of_workload = [row for row in rows if row.workload.name == name]
            for row in order_of_round(of_workload, round_number):
                if row.problem is None:
                    row.outcomes.append(run(row.workload, row.candidate))
                    report(row, round_number)
    return Results(rows)
