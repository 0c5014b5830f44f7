"""How soon a durable subscriber notices what another process publishes, and what idling costs."""

import asyncio
import multiprocessing
import time
from multiprocessing.synchronize import Event as ProcessEvent
from pathlib import Path

from bench.measuring import EVENT_TYPE, percentile
from bench.model import Candidate, Column, Effort, Sample, Workload
from bench.publishers import settings_in_force, store_in
from postbus import Event, EventBus

_SECONDS_BETWEEN = 0.02
_IDLE_SUBSCRIBER_COUNT = 3


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


def run_idle(folder: Path, effort: Effort) -> Sample:
    """Nothing happens: what does it cost?"""

    async def run() -> Sample:
        store = store_in(folder)
        bus = EventBus(store)
        for number in range(_IDLE_SUBSCRIBER_COUNT):
            bus.subscribe(EVENT_TYPE, _ignore, id=f"idle-{number}")
        async with bus:
            await bus.idle()
            await asyncio.sleep(effort.warm_up)
            began, cpu_began = time.perf_counter(), time.process_time()
            await asyncio.sleep(effort.seconds)
            share = (time.process_time() - cpu_began) / (time.perf_counter() - began)
            return Sample(figures={"idle": share * 100}, settings=await settings_in_force(store))

    return asyncio.run(run())


async def _ignore(event: Event) -> None:
    """Never called."""


def _publish(folder: Path, is_ready: ProcessEvent, seconds: float) -> None:
    async def publish() -> None:
        async with EventBus(store_in(folder)) as bus:
            is_ready.wait()
            deadline = time.monotonic() + seconds
            while time.monotonic() < deadline:
                await bus.publish(EVENT_TYPE, time.monotonic())
                await asyncio.sleep(_SECONDS_BETWEEN)

    asyncio.run(publish())


WORKLOAD = Workload(
    name="wake-up",
    title="publish in one process → handler entered in another, 50 events a second, synchronous=FULL",
    candidates=(
        Candidate(name="two-processes", label="postbus: two processes on one file", run=run_two_processes),
        Candidate(
            name="idle",
            label=f"postbus: {_IDLE_SUBSCRIBER_COUNT} durable subscribers and nothing to do",
            run=run_idle,
        ),
    ),
    columns=(
        Column("wake_p50", "p50", "ms"),
        Column("wake_p99", "p99", "ms"),
        Column("idle", "CPU", "%"),
    ),
)
