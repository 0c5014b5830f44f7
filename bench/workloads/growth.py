"""What a publish costs when there are many events in the file already."""

import asyncio
import uuid
from collections.abc import Callable
from functools import partial
from pathlib import Path

from postbus.ids import new_event_id
from postbus.ops.bench.measuring import peak_memory
from postbus.ops.bench.model import Candidate, Column, Effort, RatioColumn, Sample, Tier, Workload
from postbus.ops.bench.sqlite.filling import RANDOM_ID, TIME_ORDERED_ID, fill
from postbus.ops.bench.sqlite.publishers import (
    bus_on,
    check_all_done,
    measure_publishers,
    settings_in_force,
    store_in,
)

PUBLISHER_COUNT = 100
SIZES = (
    ("10k", 10_000, Tier.QUICK),
    ("100k", 100_000, Tier.DEFAULT),
    ("1m", 1_000_000, Tier.DEFAULT),
    ("10m", 10_000_000, Tier.LARGE),
)
_SECONDS_PER_MILLION = 60.0


def prepare(count: int, new_id: str, folder: Path) -> None:
    """A file with so many events that are done."""
    fill(folder, count, new_id=new_id)


def run_postbus(id_factory: Callable[[], object], folder: Path, effort: Effort) -> Sample:
    """Concurrent publishers and a handler that does nothing."""

    async def run() -> Sample:
        store = store_in(folder)
        async with bus_on(store, id_factory=id_factory) as bus:
            memory_before = peak_memory()
            burst = await measure_publishers(bus, PUBLISHER_COUNT, effort)
            memory = peak_memory() - memory_before
            await check_all_done(store)
            figures = {
                "rate": burst.rate,
                "cost": 1e6 / burst.rate,
                "memory": memory / 2**20,
                **burst.cpu_figures(),
            }
            return Sample(figures=figures, settings=await settings_in_force(store))

    return asyncio.run(run())


def _candidates(
    prefix: str, ids: str, new_id: str, id_factory: Callable[[], object]
) -> tuple[Candidate, ...]:
    return tuple(
        Candidate(
            name=f"{prefix}-{name}",
            label=f"postbus: {count:,} events in the file, {ids}",
            prepare=partial(prepare, count, new_id),
            run=partial(run_postbus, id_factory),
            tier=tier,
            time_limit=60.0 + _SECONDS_PER_MILLION * count / 1_000_000,
        )
        for name, count, tier in SIZES
    )


WORKLOAD = Workload(
    name="growth",
    title="100 publishers on a file that is large already, synchronous=FULL",
    candidates=(
        *_candidates("events", "time-ordered ids", TIME_ORDERED_ID, new_event_id),
        *_candidates("uuid4", "uuid4 ids", RANDOM_ID, uuid.uuid4),
    ),
    columns=(
        Column("rate", "events/s", "/s"),
        Column("cost", "per event", "µs"),
        Column("cpu", "CPU per event", "µs"),
        Column("memory", "peak memory above the start", "MB"),
    ),
    ratios=(
        RatioColumn("cost", "cost ÷ at 10k", "events-10k"),
        RatioColumn("cost", "cost ÷ uuid4 at 10k", "uuid4-10k"),
    ),
)
