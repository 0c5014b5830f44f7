"""How soon a durable subscriber notices what another process publishes."""

import asyncio
import multiprocessing
import time
from multiprocessing.synchronize import Event as ProcessEvent
from pathlib import Path

from postbus import Event, EventBus
from postbus.ops.bench.measuring import EVENT_TYPE, percentile
from postbus.ops.bench.model import Candidate, Column, Effort, Sample, Workload
from postbus.ops.bench.sqlite.publishers import settings_in_force, store_in

_SECONDS_BETWEEN = 0.02


def run_two_processes(folder: Path, effort: Effort) -> Sample:
    """Another process publishes now and then; the payload is the moment just before."""
    context = multiprocessing.get_context("spawn")
    is_ready = context.Event()
    publisher = context.Process(
        target=_publish, args=(folder, is_ready, effort.warm_up + effort.seconds), daemon=True
    )

    async def run() -> Sample:
        latencies: list[float] = []
        store = store_in(folder)
        bus = EventBus(store)

        async def enter(event: Event[float]) -> None:
            # Both processes read the same clock of the system.
            latencies.append(time.monotonic() - event.payload)

        bus.subscribe(EVENT_TYPE, enter, id="bench", start_from="now")
        async with bus:
            await bus.subscription("bench").caught_up()
            publisher.start()
            is_ready.set()
            await asyncio.to_thread(publisher.join)
            await bus.subscription("bench").caught_up()
            settings = await settings_in_force(store)
        measured = [latency * 1000 for latency in latencies[len(latencies) // 10 :]]
        if publisher.exitcode != 0 or not measured:
            raise AssertionError(
                f"the publisher ended with {publisher.exitcode}, {len(measured)} events came"
            )
        figures = {"wake_p50": percentile(measured, 50), "wake_p99": percentile(measured, 99)}
        return Sample(figures=figures, settings=settings)

    return asyncio.run(run())


def _publish(folder: Path, is_ready: ProcessEvent, seconds: float) -> None:
    async def publish() -> None:
        async with EventBus(store_in(folder)) as bus:
            is_ready.wait()
            deadline = time.monotonic() + seconds
            while time.monotonic() < deadline:
                await bus.publish(EVENT_TYPE, time.monotonic())
                await asyncio.sleep(_SECONDS_BETWEEN)

    asyncio.run(publish())


TWO_PROCESSES = Candidate(
    name="two-processes", label="postbus: two processes on one file", run=run_two_processes
)
TITLE = "publish in one process → handler entered in another, 50 events a second"
COLUMNS = (Column("wake_p50", "p50", "ms"), Column("wake_p99", "p99", "ms"))

WORKLOAD = Workload(name="wake-up", title=TITLE, candidates=(TWO_PROCESSES,), columns=COLUMNS)
