"""Made-up results, so that the benchmark's arithmetic is tested without measuring anything."""

from collections.abc import Sequence
from pathlib import Path

from bench.judging import Goal
from postbus.ops.bench.harness import Outcome, Results, Row
from postbus.ops.bench.model import Candidate, Column, Effort, RatioColumn, Sample, Workload

TINY = Effort(seconds=0.01, warm_up=0.001)
# By default; end_to_end/test_same_durability.py shows that the kill tests have the same.
DURABLE = {"sqlite": "WAL, synchronous=FULL", "postgres": "fsync=on, synchronous_commit=on"}


def never_run(folder: Path, effort: Effort) -> Sample:
    raise AssertionError("the tests give the outcomes themselves")


def candidate_named(name: str) -> Candidate:
    return Candidate(name=name, label=f"the {name}", run=never_run)


WORKLOAD = Workload(
    name="work",
    title="some work",
    candidates=tuple(candidate_named(name) for name in ("ours", "raw", "peer")),
    columns=(Column("rate", "events/s", "/s"), Column("p99", "p99", "ms")),
    ratios=(RatioColumn("rate", "÷ raw", "raw"),),
)


def sample(rate: float) -> Sample:
    return Sample(figures={"rate": rate}, settings=DURABLE["sqlite"])


def results_of(**outcomes: Sequence[Outcome]) -> Results:
    return Results([Row(WORKLOAD, WORKLOAD.candidate(name), list(found)) for name, found in outcomes.items()])


def goal(*, against: str | None = None, at_least: float | None = None, at_most: float | None = None) -> Goal:
    return Goal(
        name="a goal",
        workload="work",
        key="rate",
        candidate="ours",
        against=against,
        at_least=at_least,
        at_most=at_most,
    )
