"""What the bus and an application in the same event loop do to each other."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

from postbus.ops.bench.measuring import percentile
from postbus.ops.bench.model import Candidate, Column, Effort, RatioColumn, Sample, Workload
from postbus.ops.bench.sqlite.publishers import bus_on, publish_for, settings_in_force, store_in

PUBLISHER_COUNT = 100
TICK = 0.001
BURN = 0.0005


class Ticker:
    """An application that wants to run every millisecond; *intervals* is when it did, in seconds."""

    def __init__(self) -> None:
        self.intervals: list[float] = []

    async def run(self) -> None:
        """Until cancelled."""
        last = time.perf_counter()
        while True:
            await asyncio.sleep(TICK)
            now = time.perf_counter()
            self.intervals.append(now - last)
            last = now

    def figures(self) -> dict[str, float]:
        """In milliseconds; 1 ms would be perfect."""
        return {
            "ticker_p99": percentile(self.intervals, 99) * 1000,
            "ticker_max": max(self.intervals) * 1000,
        }


class Burner:
    """An application that always has something to compute: half a millisecond at a time."""

    def __init__(self) -> None:
        self._began_at = time.perf_counter()
        self._burnt = 0.0

    async def run(self) -> None:
        """Until cancelled."""
        self._began_at = time.perf_counter()
        while True:
            # Of this thread's own time: it is the same work, whoever else is at work.
            end = time.thread_time() + BURN
            while time.thread_time() < end:
                sum(range(50))
            self._burnt += BURN
            await asyncio.sleep(0)

    def figures(self) -> dict[str, float]:
        """The share of the time that was left to it."""
        return {"application": 100 * self._burnt / (time.perf_counter() - self._began_at)}


class Nothing:
    """No application."""

    async def run(self) -> None:
        """At once."""

    def figures(self) -> dict[str, float]:
        """None."""
        return {}


Application = Ticker | Burner | Nothing


def run_alone(make_application: Callable[[], Application], _folder: Path, effort: Effort) -> Sample:
    """The application without a bus: what this machine's event loop can do at best."""

    async def run() -> Sample:
        application = make_application()
        async with _beside(application.run()):
            await asyncio.sleep(effort.seconds)
            return Sample(figures=application.figures(), settings="no store")

    return asyncio.run(run())


def run_postbus(make_application: Callable[[], Application], folder: Path, effort: Effort) -> Sample:
    """The publishers beside the application."""

    async def run() -> Sample:
        store, application = store_in(folder), make_application()
        async with bus_on(store) as bus:
            await publish_for(bus, PUBLISHER_COUNT, effort.warm_up)
            async with _beside(application.run()):
                burst = await publish_for(bus, PUBLISHER_COUNT, effort.seconds)
                figures = {"rate": burst.rate, **application.figures()}
            return Sample(figures=figures, settings=await settings_in_force(store))

    return asyncio.run(run())


@asynccontextmanager
async def _beside(work: Coroutine[None, None, None]) -> AsyncIterator[None]:
    task = asyncio.get_running_loop().create_task(work)
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])


WORKLOAD = Workload(
    name="loop",
    title="100 publishers and an application in one event loop, synchronous=FULL",
    candidates=(
        Candidate(
            name="postbus-idle", label="postbus: nothing else in the loop", run=partial(run_postbus, Nothing)
        ),
        Candidate(
            name="postbus-ticker", label="postbus: beside a 1 ms ticker", run=partial(run_postbus, Ticker)
        ),
        Candidate(
            name="postbus-busy",
            label="postbus: beside a task that burns 0.5 ms and yields, all the time",
            run=partial(run_postbus, Burner),
        ),
        Candidate(name="ticker-alone", label="the ticker without a bus", run=partial(run_alone, Ticker)),
        Candidate(name="busy-alone", label="the burning task without a bus", run=partial(run_alone, Burner)),
    ),
    columns=(
        Column("rate", "events/s", "/s"),
        Column("ticker_p99", "ticker p99", "ms"),
        Column("ticker_max", "ticker max", "ms"),
        Column("application", "application's share", "%"),
    ),
    ratios=(RatioColumn("rate", "÷ idle loop", "postbus-idle"),),
)
