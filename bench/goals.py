"""The goals as data, and whether a run reached them."""

import enum
from dataclasses import dataclass

from bench.harness import Results, Row, Summary


class Verdict(enum.StrEnum):
    """What a run says about a goal."""

    REACHED = "reached"
    MISSED = "missed"
    NOT_MEASURED = "not measured"


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """A figure of a candidate, divided by *against*'s where there is one, and the bar for it.

    The median over the rounds counts; a ratio is taken round by round first.
    """

    name: str
    workload: str
    key: str
    candidate: str
    against: str | None = None
    at_least: float | None = None
    at_most: float | None = None

    @property
    def bar(self) -> str:
        """The bar, as text."""
        return f"≥ {self.at_least:,g}" if self.at_least is not None else f"≤ {self.at_most:,g}"


@dataclass(frozen=True, slots=True)
class Judgement:
    """A goal, what was found, and why nothing was if so."""

    goal: Goal
    verdict: Verdict
    found: Summary | None
    reason: str = ""


def judge(goal: Goal, results: Results) -> Judgement:
    """Compare the median with the bar."""
    rows = [results.row(goal.workload, name) for name in (goal.candidate, goal.against) if name is not None]
    reason = next((text for row in rows if (text := _why_not(row))), "")
    if not reason:
        found = _find(goal, results)
        if found is not None:
            return Judgement(goal, _compare(goal, found.median), found)
        reason = "no such figure"
    return Judgement(goal, Verdict.NOT_MEASURED, None, reason)


def _find(goal: Goal, results: Results) -> Summary | None:
    if goal.against is not None:
        return results.ratio(goal.workload, goal.key, goal.candidate, goal.against)
    row = results.row(goal.workload, goal.candidate)
    return None if row is None else row.summary(goal.key)


def _compare(goal: Goal, value: float) -> Verdict:
    is_high_enough = goal.at_least is None or value >= goal.at_least
    is_low_enough = goal.at_most is None or value <= goal.at_most
    return Verdict.REACHED if is_high_enough and is_low_enough else Verdict.MISSED


def _why_not(row: Row | None) -> str:
    if row is None:
        return "not part of this run"
    return "" if row.problem is None else row.problem.reason


def _publish(name: str, publisher_count: int, against: str, at_least: float) -> Goal:
    return Goal(
        name=f"{publisher_count} publisher{'s' if publisher_count > 1 else ''}: {name}",
        workload="publish-full",
        key="rate",
        candidate=f"postbus-{publisher_count}",
        against=against,
        at_least=at_least,
    )


_REFERENCE = "three commits (stand-in for the TypeScript reference)"

GOALS = (
    _publish("÷ raw, one commit per event", 1, "raw-commit", 0.6),
    _publish(f"÷ raw, {_REFERENCE}", 1, "raw-three", 1.8),
    _publish("÷ raw, 100 per commit, lean schema", 100, "raw-lean", 0.4),
    _publish("÷ raw, 100 per commit, the specification's schema", 100, "raw-specified", 1.2),
    _publish(f"÷ raw, {_REFERENCE}", 100, "raw-three", 25),
    _publish("÷ huey", 100, "huey", 25),
    _publish("÷ persist-queue", 100, "persist-queue", 25),
    _publish("÷ litequeue", 100, "litequeue", 25),
    Goal(
        name="100 publishers: publish p99, ms",
        workload="latency", key="publish_p99", candidate="postbus-100", at_most=12,
    ),
    Goal(
        name="100 publishers: dispatch p99, ms",
        workload="latency", key="dispatch_p99", candidate="postbus-100", at_most=2,
    ),
    Goal(
        name="100 publishers: 1 ms ticker p99, ms",
        workload="loop", key="ticker_p99", candidate="postbus-ticker", at_most=5,
    ),
    Goal(
        name="publish_many of 1000, no handler ÷ raw executemany, inserted only",
        workload="batch", key="rate", candidate="postbus-stored", against="raw-stored", at_least=0.6,
    ),
    Goal(
        name="publish_many of 1000 → done ÷ raw executemany, inserted and marked done",
        workload="batch", key="rate", candidate="postbus-done", against="raw-done", at_least=0.6,
    ),
    Goal(
        name="100 publishers beside a CPU-bound application ÷ idle loop",
        workload="loop", key="rate", candidate="postbus-busy", against="postbus-idle", at_least=0.3,
    ),
    Goal(
        name="DLQ page, 10k dead letters, ms",
        workload="dead-letters", key="page_p50", candidate="page-10k", at_most=5,
    ),
    Goal(
        name="DLQ page, 1M dead letters, ms",
        workload="dead-letters", key="page_p50", candidate="page-1m", at_most=5,
    ),
    Goal(
        name="recovery of 100, ms",
        workload="recovery", key="duration", candidate="stuck-100", at_most=100,
    ),
    Goal(
        name="recovery of 100,000 in seconds: ms",
        workload="recovery", key="duration", candidate="stuck-100k", at_most=10_000,
    ),
    Goal(
        name="recovery of 100,000 in bounded memory: MB above the start",
        workload="recovery", key="memory", candidate="stuck-100k", at_most=50,
    ),
    Goal(
        name="10k → 1M events in the file: cost per publish, ÷ at 10k",
        workload="growth", key="cost", candidate="events-1m", against="events-10k", at_most=1.3,
    ),
    Goal(
        name="10k → 10M events in the file: cost per publish, ÷ at 10k",
        workload="growth", key="cost", candidate="events-10m", against="events-10k", at_most=1.3,
    ),
    Goal(
        name="catch-up, batched checkpoints, events/s",
        workload="catch-up", key="rate", candidate="postbus-batched", at_least=100_000,
    ),
    Goal(
        name="catch-up, batched checkpoints ÷ raw read and decode",
        workload="catch-up", key="rate", candidate="postbus-batched", against="raw-decoded", at_least=0.6,
    ),
    Goal(
        name="catch-up, 100k → 1M events in the log: cost per event, ÷ at 100k",
        workload="log-growth", key="cost", candidate="log-1m", against="log-100k", at_most=1.2,
    ),
    Goal(
        name="catch-up, 100k → 10M events in the log: cost per event, ÷ at 100k",
        workload="log-growth", key="cost", candidate="log-10m", against="log-100k", at_most=1.2,
    ),
    Goal(
        name="catch-up of 1M events in flat memory: MB above the start",
        workload="log-growth", key="memory", candidate="log-1m", at_most=50,
    ),
    Goal(
        name="another process wakes, p50, ms",
        workload="wake-up", key="wake_p50", candidate="two-processes", at_most=3,
    ),
    Goal(
        name="another process wakes, p99, ms",
        workload="wake-up", key="wake_p99", candidate="two-processes", at_most=50,
    ),
    Goal(
        name="idle with 3 durable subscribers: % of a core",
        workload="wake-up", key="idle", candidate="idle", at_most=1,
    ),
    Goal(
        name="specification: publish, one publisher, events/s",
        workload="publish-full", key="rate", candidate="postbus-1", at_least=1000,
    ),
    Goal(
        name="specification: dispatch p99, ms",
        workload="latency", key="dispatch_p99", candidate="postbus-100", at_most=10,
    ),
    Goal(
        name="specification: DLQ page, 10k dead letters, ms",
        workload="dead-letters", key="page_p50", candidate="page-10k", at_most=50,
    ),
    Goal(
        name="specification: DLQ page, 1M dead letters, ms",
        workload="dead-letters", key="page_p50", candidate="page-1m", at_most=50,
    ),
    Goal(
        name="specification: recovery of 100, ms",
        workload="recovery", key="duration", candidate="stuck-100", at_most=500,
    ),
)  # fmt: skip
