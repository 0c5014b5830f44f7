"""The goals as data."""

from bench.judging import Goal
from bench.pg.goals import PG_GOALS


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
    *PG_GOALS,
)  # fmt: skip
