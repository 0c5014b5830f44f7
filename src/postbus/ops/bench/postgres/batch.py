"""Many events at a time on PostgreSQL, all or none."""

import asyncio
from functools import partial

from postbus.ops.bench.measuring import EVENT_TYPE, PAYLOAD
from postbus.ops.bench.model import Candidate, Column, Effort, RatioColumn, Sample, Workload
from postbus.ops.bench.postgres import raw
from postbus.ops.bench.postgres.bursts import repeat_together
from postbus.ops.bench.postgres.buses import COUNT_EVENTS
from postbus.ops.bench.postgres.candidates import on_postgres
from postbus.pg import PgEventBus

TITLE = "PostgreSQL: many events in one transaction"
RATE = Column("rate", "events/s", "/s")
_SIZE = 1_000


def run_postbus(batch_size: int, dsn: str, effort: Effort) -> Sample:
    """One publisher, batch after batch."""

    async def run() -> Sample:
        async with PgEventBus(dsn) as bus:

            async def step() -> int:
                await bus.publish_many([(EVENT_TYPE, PAYLOAD)] * batch_size)
                return batch_size

            burst = await repeat_together([step], effort)
            return await burst.sample(dsn, COUNT_EVENTS)

    return asyncio.run(run())


def publish_many(size: int) -> Candidate:
    """So many at a time."""
    return on_postgres(f"postbus-{size}", f"postbus: publish_many of {size}", partial(run_postbus, size))


def unnest(size: int) -> Candidate:
    """The raw limit of so many at a time, with their numbers."""
    run = partial(raw.append_batches, batch_size=size)
    return on_postgres(f"raw-unnest-{size}", f"raw: unnest of {size}", run)


def by_unnest(size: int) -> RatioColumn:
    """Divided by that."""
    return RatioColumn("rate", f"÷ unnest of {size}", f"raw-unnest-{size}")


WORKLOAD = Workload(
    name="pg-batch",
    title=TITLE,
    candidates=(publish_many(_SIZE), unnest(_SIZE)),
    columns=(RATE,),
    ratios=(by_unnest(_SIZE),),
    needs_postgres=True,
)
