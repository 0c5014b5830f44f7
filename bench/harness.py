"""Runs candidates round by round, each in a process and a folder of its own, and sums up."""

import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TypeVar

from bench.model import Candidate, Effort, Sample, Workload

ROOT = Path(__file__).parents[1]

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


def run_in_process(
    workload: Workload,
    candidate: Candidate,
    effort: Effort,
    base: Path,
    fill_folder: Callable[[Path], None] = lambda folder: None,  # noqa: ARG005
) -> Outcome:
    """One run in a fresh process and a fresh folder, which is removed whatever happens."""
    with tempfile.TemporaryDirectory(prefix="postbus-bench-", dir=base) as folder:
        data, answer = Path(folder, "data"), Path(folder, "answer.json")
        data.mkdir()
        fill_folder(data)
        order = {
            "workload": workload.name,
            "candidate": candidate.name,
            "effort": asdict(effort),
            "folder": str(data),
            "answer": str(answer),
        }
        steps = ("prepare", "run") if candidate.prepare is not None else ("run",)
        for step in steps:
            problem = _run_step(json.dumps({**order, "step": step}), candidate.time_limit)
            if problem is not None:
                return Failed(problem)
        return read_answer(json.loads(answer.read_text("utf-8")))


def read_answer(answer: Mapping[str, object]) -> Outcome:
    """What the process wrote."""
    missing, figures = answer.get("missing"), answer.get("figures")
    if missing is not None:
        return NotInstalled(str(missing))
    if not isinstance(figures, dict):
        return Failed(f"the candidate gave no figures: {answer!r}")
    return Sample(
        figures={str(key): float(value) for key, value in figures.items()}, settings=str(answer["settings"])
    )


def _run_step(order: str, time_limit: float) -> str | None:
    """Run bench.child with an order; what went wrong, if anything did."""
    process = subprocess.Popen(
        [sys.executable, "-m", "bench.child", order],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        _, errors = process.communicate(timeout=time_limit)
    except subprocess.TimeoutExpired:
        return f"took longer than {time_limit:g} s"
    finally:
        if process.poll() is None:
            # The whole group: a candidate may have children of its own.
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
    if process.returncode == 0:
        return None
    last_line = errors.strip().splitlines()[-1] if errors.strip() else ""
    return f"exit code {process.returncode}: {last_line}"
