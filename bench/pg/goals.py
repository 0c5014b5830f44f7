"""The goals on PostgreSQL as data: a figure is workload/candidate/key."""

from bench.judging import Goal


def _goal(
    name: str,
    figure: str,
    against: str | None = None,
    *,
    at_least: float | None = None,
    at_most: float | None = None,
) -> Goal:
    workload, candidate, key = figure.split("/")
    return Goal(
        name=f"PostgreSQL: {name}",
        workload=workload,
        key=key,
        candidate=candidate,
        against=against,
        at_least=at_least,
        at_most=at_most,
    )


# Name, workload/candidate, the candidate whose rate it is divided by, the bar.
_RATES = (
    ("1 publisher ÷ raw, 1 connection", "pg-append/postbus-1", "raw-1", 0.9),
    ("100 publishers ÷ raw, 8 connections", "pg-append/postbus-100", "raw-8", 2.5),
    ("100 publishers ÷ raw, 32 connections with NOTIFY", "pg-append/postbus-100", "raw-32-notify", 8),
    ("publish_many of 1000 ÷ raw unnest", "pg-batch/postbus-1000", "raw-unnest-1000", 0.8),
    ("catch-up by 100 ÷ raw read and decode", "pg-catch-up/postbus-batched-100", "raw-decoded", 0.8),
    ("catch-up by 1000 ÷ raw read and decode", "pg-catch-up/postbus-batched-1000", "raw-decoded", 0.8),
    ("catch-up by 1000 ÷ raw, rows only", "pg-catch-up/postbus-batched-1000", "raw-rows", 0.6),
    ("catch-up ÷ eventsourcing's subscription", "pg-catch-up/postbus-batched-1000", "eventsourcing", 1.3),
    ("catch-up ÷ eventsourcing, tracked", "pg-catch-up/postbus-batched-1000", "eventsourcing-tracked", 50),
    ("catch-up ÷ pgqueuer", "pg-catch-up/postbus-batched-1000", "pgqueuer-1000", 7),
    ("catch-up ÷ procrastinate", "pg-catch-up/postbus-batched-1000", "procrastinate", 300),
    ("synchronous checkpoints ÷ raw commits", "pg-catch-up/postbus-synchronous", "raw-checkpoints", 0.9),
    (
        "synchronous checkpoints ÷ eventsourcing, tracked",
        "pg-catch-up/postbus-synchronous",
        "eventsourcing-tracked",
        1.8,
    ),
    ("32 writers, notify after_commit ÷ off", "pg-writers/after_commit-32", "off-32", 0.9),
    ("competing workers, 1 process ÷ pgqueuer", "pg-competing/no-op", "pgqueuer-1000", 1.5),
    ("beside an open gap ÷ quiet", "pg-disturbed/gap", "quiet", 0.95),
    ("beside a slow subscriber ÷ quiet", "pg-disturbed/slow-subscriber", "quiet", 0.95),
    ("beside a stranger's transaction ÷ quiet", "pg-disturbed/stranger", "quiet", 0.95),
)

PG_GOALS = (
    *(_goal(name, f"{row}/rate", against, at_least=bar) for name, row, against, bar in _RATES),
    _goal("transactional in batches, events/s", "pg-catch-up/postbus-transactional/rate", at_least=20_000),
    _goal("5 subscribers ÷ one, deliveries/s", "pg-fan-out/postbus-5/deliveries", "postbus-1", at_least=4),
    _goal(
        "20 subscribers at the head ÷ one, reads per event", "pg-fan-out/head-20/reads", "head-1", at_most=1.1
    ),
    _goal("latency p50 ÷ raw NOTIFY and fetch", "pg-latency/postbus-50/p50", "raw-50", at_most=1.3),
    _goal("latency p50 ÷ eventsourcing", "pg-latency/postbus-50/p50", "eventsourcing-50", at_most=1 / 1.6),
    _goal("latency p99 at 500 events/s, ms", "pg-latency/postbus-500/p99", at_most=10),
    _goal("takeover after a clean exit, ms", "pg-takeover/clean-exit/p50", at_most=50),
    *(
        goal
        for size in ("1m", "10m")
        for goal in (
            _goal(
                f"10k → {size} events: cost per publish, ÷ at 10k",
                f"pg-growth/events-{size}/publish_cost",
                "events-10k",
                at_most=1.2,
            ),
            _goal(
                f"100k → {size} events: catch-up per event, ÷ at 100k",
                f"pg-growth/events-{size}/catch_up_cost",
                "events-100k",
                at_most=1.2,
            ),
            _goal(
                f"catch-up of {size} events in flat memory: MB above the start",
                f"pg-growth/events-{size}/memory",
                at_most=50,
            ),
        )
    ),
)
