"""From start() until everything that a crash left in processing is done."""

import asyncio
import sqlite3
import time
from functools import partial
from pathlib import Path

from postbus import Event, EventBus
from postbus.ops.bench.measuring import EVENT_TYPE, peak_memory
from postbus.ops.bench.model import Candidate, Column, Effort, Sample, Tier, Workload
from postbus.ops.bench.sqlite.filling import FILE_NAME, fill
from postbus.ops.bench.sqlite.publishers import settings_in_force, store_in

_COUNT_LEFT = "SELECT count(*) FROM events WHERE status IN ('pending', 'processing')"
_PAUSE = 0.001


def prepare(count: int, folder: Path) -> None:
    """A file as a process leaves it that was killed with so many events in flight."""
    fill(folder, count, status="processing")


def run_postbus(count: int, folder: Path, _effort: Effort) -> Sample:
    """The clock stops when another connection sees everything done."""

    async def run() -> Sample:
        handled = 0

        async def count_one(event: Event) -> None:
            nonlocal handled
            handled += event.retry_count > 0

        onlooker = sqlite3.connect(folder / FILE_NAME)
        store = store_in(folder)
        bus = EventBus(store)
        bus.subscribe(EVENT_TYPE, count_one)
        memory_before = peak_memory()
        began = time.perf_counter()
        await bus.start()
        await bus.idle()
        # "Done" is written a little later than idle() returns, and only the file can tell.
        while onlooker.execute(_COUNT_LEFT).fetchone()[0]:  # noqa: ASYNC110
            await asyncio.sleep(_PAUSE)
        seconds = time.perf_counter() - began
        memory = peak_memory() - memory_before
        settings = await settings_in_force(store)
        onlooker.close()
        await bus.shutdown()
        if handled != count:
            raise AssertionError(f"{handled} of {count} events were delivered")
        figures = {"duration": seconds * 1000, "rate": count / seconds, "memory": memory / 2**20}
        return Sample(figures=figures, settings=settings)

    return asyncio.run(run())


def _candidate(name: str, count: int, tier: Tier) -> Candidate:
    return Candidate(
        name=name,
        label=f"postbus: {count:,} events left in processing",
        prepare=partial(prepare, count),
        run=partial(run_postbus, count),
        tier=tier,
        time_limit=180.0,
    )


WORKLOAD = Workload(
    name="recovery",
    title="recovery: start() until all is done, handler that does nothing, synchronous=FULL",
    candidates=(
        _candidate("stuck-100", 100, Tier.QUICK),
        _candidate("stuck-100k", 100_000, Tier.DEFAULT),
    ),
    columns=(
        Column("duration", "time", "ms"),
        Column("rate", "events/s", "/s"),
        Column("memory", "peak memory above the start", "MB"),
    ),
)
