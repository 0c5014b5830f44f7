"""What publishing and catching up cost on PostgreSQL when the log is long."""

import asyncio
from functools import partial

from postbus.ops.bench.measuring import EVENT_TYPE, do_nothing
from postbus.ops.bench.model import Column, Effort, RatioColumn, Sample, Tier, Workload
from postbus.ops.bench.postgres.bursts import repeat_together
from postbus.ops.bench.postgres.buses import batched_config, publish_step
from postbus.ops.bench.postgres.candidates import on_postgres
from postbus.ops.bench.postgres.catch_up import catch_up
from postbus.ops.bench.postgres.filling import fill
from postbus.ops.bench.postgres.sessions import durability
from postbus.pg import PgEventBus

PUBLISHER_COUNT = 100
_SIZES = (
    ("10k", 10_000, Tier.QUICK),
    ("100k", 100_000, Tier.QUICK),
    ("1m", 1_000_000, Tier.DEFAULT),
    ("10m", 10_000_000, Tier.LARGE),
)
_SECONDS_PER_MILLION = 120.0


def run_postbus(count: int, dsn: str, effort: Effort) -> Sample:
    """First a subscriber goes through all of the log, then publishers add to it."""

    async def run() -> Sample:
        subscribed = PgEventBus(dsn, config=batched_config(100))
        subscribed.subscribe(EVENT_TYPE, do_nothing, id="bench")
        caught_up = await catch_up(subscribed, count)
        async with PgEventBus(dsn) as bus:
            burst = await repeat_together([publish_step(bus)] * PUBLISHER_COUNT, effort)
        figures = {
            "catch_up_rate": caught_up["rate"],
            "catch_up_cost": caught_up["cost"],
            "memory": caught_up["memory"],
            "memory_each": caught_up["memory_each"],
            "publish_cost": burst.figures()["cost"],
        }
        return Sample(figures=figures, settings=await durability(dsn))

    return asyncio.run(run())


WORKLOAD = Workload(
    name="pg-growth",
    title=f"PostgreSQL: logs of growing length, checkpoints of 100, then {PUBLISHER_COUNT} publishers",
    candidates=tuple(
        on_postgres(
            f"events-{name}",
            f"postbus: {count:,} events",
            partial(run_postbus, count),
            prepare=partial(fill, count=count),
            tier=tier,
            time_limit=60.0 + _SECONDS_PER_MILLION * count / 1_000_000,
        )
        for name, count, tier in _SIZES
    ),
    columns=(
        Column("catch_up_rate", "catch-up, events/s", "/s"),
        Column("catch_up_cost", "per event", "µs"),
        Column("memory", "peak memory above the start", "MB"),
        Column("memory_each", "memory per event", "B"),
        Column("publish_cost", "per publish", "µs"),
    ),
    ratios=(
        RatioColumn("catch_up_cost", "catch-up ÷ at 100k", "events-100k"),
        RatioColumn("publish_cost", "publish ÷ at 10k", "events-10k"),
    ),
    needs_postgres=True,
)
