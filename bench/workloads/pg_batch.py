"""Many events at a time on PostgreSQL, all or none."""

import asyncio
from functools import partial

from bench.measuring import EVENT_TYPE, PAYLOAD
from bench.model import Candidate, Column, Effort, RatioColumn, Sample, Workload
from bench.pg import raw
from bench.pg.bursts import repeat_together
from bench.pg.buses import COUNT_EVENTS
from bench.pg.candidates import each_peer, on_postgres
from postbus.pg import PgEventBus

_SIZES = (100, 1_000)


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


def _candidates(size: int) -> tuple[Candidate, ...]:
    return (
        on_postgres(f"postbus-{size}", f"postbus: publish_many of {size}", partial(run_postbus, size)),
        on_postgres(
            f"raw-unnest-{size}", f"raw: unnest of {size}", partial(raw.append_batches, batch_size=size)
        ),
        on_postgres(f"raw-copy-{size}", f"raw: COPY of {size}", partial(raw.copy_batches, batch_size=size)),
        *each_peer("append", f"{size} at a time", f"-{size}", batch_size=size),
    )


WORKLOAD = Workload(
    name="pg-batch",
    title="PostgreSQL: many events in one transaction",
    candidates=tuple(candidate for size in _SIZES for candidate in _candidates(size)),
    columns=(Column("rate", "events/s", "/s"), Column("cpu", "CPU per event", "µs")),
    ratios=tuple(RatioColumn("rate", f"÷ unnest of {size}", f"raw-unnest-{size}") for size in _SIZES),
    needs_postgres=True,
)
