"""Single events on PostgreSQL: published, or inserted one by one."""

import asyncio
from functools import partial

from postbus.ops.bench.model import Candidate, Column, Effort, RatioColumn, Sample, Tier, Workload
from postbus.ops.bench.postgres import raw
from postbus.ops.bench.postgres.bursts import repeat_together
from postbus.ops.bench.postgres.buses import COUNT_EVENTS, publish_step
from postbus.ops.bench.postgres.candidates import on_postgres
from postbus.pg import PgEventBus

TITLE = "PostgreSQL: single events, 200-byte payload, stored for good"
RATE = Column("rate", "events/s", "/s")
BY_ONE = RatioColumn("rate", "÷ raw 1", "raw-1")
BY_EIGHT = RatioColumn("rate", "÷ raw 8", "raw-8")


def run_postbus(publisher_count: int, dsn: str, effort: Effort) -> Sample:
    """Concurrent publishers in one process; nobody subscribes."""

    async def run() -> Sample:
        async with PgEventBus(dsn) as bus:
            burst = await repeat_together([publish_step(bus)] * publisher_count, effort)
            return await burst.sample(dsn, COUNT_EVENTS)

    return asyncio.run(run())


def with_publishers(count: int, tier: Tier = Tier.QUICK) -> Candidate:
    """So many of them in one process."""
    return on_postgres(
        f"postbus-{count}",
        f"postbus: {count} {'publisher' if count == 1 else 'publishers'} in one process",
        partial(run_postbus, count),
        tier=tier,
    )


def with_connections(count: int) -> Candidate:
    """The raw driver on so many connections."""
    return on_postgres(
        f"raw-{count}",
        f"raw: one INSERT and commit each, {count} connection{'s' if count > 1 else ''}",
        partial(raw.append_each, connection_count=count),
    )


WORKLOAD = Workload(
    name="pg-append",
    title=TITLE,
    candidates=(with_publishers(1), with_publishers(100), with_connections(1), with_connections(8)),
    columns=(RATE,),
    ratios=(BY_ONE, BY_EIGHT),
    needs_postgres=True,
)
