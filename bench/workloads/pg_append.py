"""Single events on PostgreSQL: published, enqueued or inserted, one commit or a shared one."""

import asyncio
from functools import partial

from bench.model import Column, Effort, RatioColumn, Sample, Tier, Workload
from bench.pg import raw
from bench.pg.bursts import repeat_together
from bench.pg.buses import COUNT_EVENTS, publish_step
from bench.pg.candidates import each_peer, of_peer, on_postgres
from postbus.pg import PgEventBus

_PUBLISHER_COUNTS = (
    (1, Tier.QUICK),
    (8, Tier.DEFAULT),
    (32, Tier.DEFAULT),
    (100, Tier.QUICK),
    (256, Tier.DEFAULT),
)
_THREAD_COUNT = 8


def run_postbus(publisher_count: int, dsn: str, effort: Effort) -> Sample:
    """Concurrent publishers in one process; nobody subscribes."""

    async def run() -> Sample:
        async with PgEventBus(dsn) as bus:
            burst = await repeat_together([publish_step(bus)] * publisher_count, effort)
            return await burst.sample(dsn, COUNT_EVENTS)

    return asyncio.run(run())


WORKLOAD = Workload(
    name="pg-append",
    title="PostgreSQL: single events, 200-byte payload, stored for good",
    candidates=(
        *(
            on_postgres(
                f"postbus-{count}",
                f"postbus: {count} {'publisher' if count == 1 else 'publishers'} in one process",
                partial(run_postbus, count),
                tier=tier,
            )
            for count, tier in _PUBLISHER_COUNTS
        ),
        *(
            on_postgres(
                f"raw-{count}",
                f"raw: one INSERT and commit each, {count} connection{'s' if count > 1 else ''}",
                partial(raw.append_each, connection_count=count),
            )
            for count in (1, 8, 32)
        ),
        on_postgres(
            "raw-32-notify",
            "raw: 32 connections, NOTIFY in the transaction",
            partial(raw.append_each, connection_count=32, with_notify=True),
        ),
        *each_peer("append", "one at a time", batch_size=1),
        on_postgres(
            "eventsourcing-threads",
            f"eventsourcing: one at a time in each of {_THREAD_COUNT} threads",
            of_peer("eventsourcing", "append", batch_size=1, thread_count=_THREAD_COUNT),
            tier=Tier.DEFAULT,
        ),
    ),
    columns=(
        Column("rate", "events/s", "/s"),
        Column("cpu", "CPU per event", "µs"),
        Column("p50", "p50", "ms"),
        Column("p99", "p99", "ms"),
    ),
    ratios=(
        RatioColumn("rate", "÷ raw 1", "raw-1"),
        RatioColumn("rate", "÷ raw 8", "raw-8"),
        RatioColumn("rate", "÷ raw 32, NOTIFY", "raw-32-notify"),
    ),
    needs_postgres=True,
)
