"""publish → handler → done."""

import asyncio
from collections.abc import Callable
from functools import partial
from pathlib import Path

from postbus.ops.bench.model import Candidate, Column, Effort, RatioColumn, Sample, Tier, Workload
from postbus.ops.bench.sqlite import raw
from postbus.ops.bench.sqlite.publishers import (
    bus_on,
    check_all_done,
    measure_publishers,
    settings_in_force,
    store_in,
)

PUBLISHER_COUNTS = (1, 10, 100, 1000)

Run = Callable[[Path, Effort, str], Sample]
RATE = Column("rate", "events/s", "/s")
BY_COMMIT = RatioColumn("rate", "÷ one commit each", "raw-commit")
BY_GROUP = RatioColumn("rate", "÷ lean groups", "raw-lean")


def run_postbus(publisher_count: int, synchronous: str, folder: Path, effort: Effort) -> Sample:
    """Concurrent publishers and a handler that does nothing."""

    async def run() -> Sample:
        store = store_in(folder, synchronous)
        async with bus_on(store) as bus:
            burst = await measure_publishers(bus, publisher_count, effort)
            await check_all_done(store)
            return Sample(
                figures={"rate": burst.rate, **burst.cpu_figures()}, settings=await settings_in_force(store)
            )

    return asyncio.run(run())


def with_publishers(count: int, synchronous: str, tier: Tier = Tier.QUICK) -> Candidate:
    """So many of them."""
    return Candidate(
        name=f"postbus-{count}",
        label=f"postbus: {count} {'publisher' if count == 1 else 'publishers'}",
        run=partial(run_postbus, count, synchronous),
        tier=tier,
    )


def at_level(name: str, label: str, run: Run, synchronous: str, tier: Tier = Tier.QUICK) -> Candidate:
    """A candidate whose function takes the level of durability."""
    return Candidate(
        name=name, label=label, run=lambda folder, effort: run(folder, effort, synchronous), tier=tier
    )


def commit_each(synchronous: str, tier: Tier = Tier.QUICK) -> Candidate:
    """The raw limit of one publisher."""
    return at_level("raw-commit", "raw: one INSERT and commit per event", raw.commit_each, synchronous, tier)


def commit_groups(synchronous: str, tier: Tier = Tier.QUICK) -> Candidate:
    """The raw limit of many publishers."""
    label = "raw: 100 per commit, inserted and marked done, lean schema"
    return at_level("raw-lean", label, raw.commit_groups, synchronous, tier)


WORKLOAD = Workload(
    name="publish",
    title="publish → handler → done, 200-byte payload",
    candidates=(
        *(with_publishers(count, "FULL") for count in PUBLISHER_COUNTS),
        commit_each("FULL"),
        commit_groups("FULL"),
    ),
    columns=(RATE,),
    ratios=(BY_COMMIT, RatioColumn("rate", "÷ 100 per commit", "raw-lean")),
)
