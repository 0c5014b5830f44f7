"""publish_many of 1000 events at a time."""

import asyncio
import time
from functools import partial
from pathlib import Path

from postbus import EventBus
from postbus.ops.bench.measuring import EVENT_TYPE, PAYLOAD, do_nothing
from postbus.ops.bench.model import Candidate, Column, Effort, RatioColumn, Sample, Workload
from postbus.ops.bench.sqlite.publishers import Handler, bus_on, check_all_done, settings_in_force, store_in
from postbus.ops.bench.sqlite.raw import BATCH_SIZE, insert_and_finish_batches, insert_batches


def run_postbus(handler: Handler | None, folder: Path, effort: Effort) -> Sample:
    """One publisher, batch after batch, until the last event is done."""

    async def run() -> Sample:
        store = store_in(folder)
        async with bus_on(store, handler=handler) as bus:
            await _publish_for(bus, effort.warm_up)
            figures = await _publish_for(bus, effort.seconds)
            await check_all_done(store)
            return Sample(figures=figures, settings=await settings_in_force(store))

    return asyncio.run(run())


async def _publish_for(bus: EventBus, seconds: float) -> dict[str, float]:
    began, cpu_began = time.perf_counter(), time.process_time()
    count = 0
    while True:
        ids = await bus.publish_many([(EVENT_TYPE, PAYLOAD)] * BATCH_SIZE)
        count += BATCH_SIZE
        if time.perf_counter() - began >= seconds:
            await bus.store.get(ids[-1])
            seconds_taken, cpu_seconds = time.perf_counter() - began, time.process_time() - cpu_began
            return {"rate": count / seconds_taken, "cpu": cpu_seconds / count * 1e6}


RATE = Column("rate", "events/s", "/s")

WORKLOAD = Workload(
    name="batch",
    title="1000 events in one transaction, synchronous=FULL",
    candidates=(
        Candidate(
            name="postbus-stored", label="postbus: publish_many, no handler", run=partial(run_postbus, None)
        ),
        Candidate(
            name="postbus-done",
            label="postbus: publish_many → handler → done",
            run=partial(run_postbus, do_nothing),
        ),
        Candidate(
            name="raw-stored",
            label="raw: executemany, inserted only",
            run=lambda folder, effort: insert_batches(folder, effort, "FULL"),
        ),
        Candidate(
            name="raw-done",
            label="raw: executemany, inserted and marked done",
            run=lambda folder, effort: insert_and_finish_batches(folder, effort, "FULL"),
        ),
    ),
    columns=(RATE,),
    ratios=(
        RatioColumn("rate", "÷ raw inserted", "raw-stored"),
        RatioColumn("rate", "÷ raw done", "raw-done"),
    ),
)
