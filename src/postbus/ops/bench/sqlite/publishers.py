"""Concurrent publishers on a bus with a handler that does nothing."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from postbus import Event, EventBus, EventStatus, SQLiteStore
from postbus.ids import new_event_id
from postbus.ops.bench.measuring import EVENT_TYPE, PAYLOAD, do_nothing
from postbus.ops.bench.model import Effort
from postbus.ops.bench.sqlite.filling import FILE_NAME
from postbus.ops.bench.sqlite.raw import settings_of
from postbus.ports import Store

Handler = Callable[[Event], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Burst:
    """What the publishers got done; each latency is one publish, in seconds."""

    count: int
    seconds: float
    cpu_seconds: float
    loop_cpu_seconds: float
    latencies: list[float]

    @property
    def rate(self) -> float:
        """Events a second."""
        return self.count / self.seconds

    def cpu_figures(self) -> dict[str, float]:
        """CPU time of each event, in µs: of all threads, and of the one that runs the event loop."""
        return {
            "cpu": self.cpu_seconds / self.count * 1e6,
            "loop_cpu": self.loop_cpu_seconds / self.count * 1e6,
        }


@asynccontextmanager
async def bus_on(
    store: Store, *, handler: Handler | None = do_nothing, id_factory: Callable[[], object] = new_event_id
) -> AsyncIterator[EventBus]:
    """A started bus; without a handler, events are stored as done."""
    bus = EventBus(store, id_factory=id_factory)
    if handler is not None:
        bus.subscribe(EVENT_TYPE, handler)
    async with bus:
        yield bus


def store_in(folder: Path, synchronous: str = "FULL") -> SQLiteStore:
    """The store of a bus; the file is the one that fill() makes."""
    return SQLiteStore(folder / FILE_NAME, synchronous=synchronous)


async def measure_publishers(bus: EventBus, publisher_count: int, effort: Effort) -> Burst:
    """Warm up, begin anew with nothing in flight, and measure until the last event is done."""
    await publish_for(bus, publisher_count, effort.warm_up)
    return await publish_for(bus, publisher_count, effort.seconds)


async def publish_for(bus: EventBus, publisher_count: int, seconds: float) -> Burst:
    """Each publisher has one event in flight at any time; the clock runs until the last one is done."""
    latencies: list[float] = []
    began, cpu_began, loop_cpu_began = time.perf_counter(), time.process_time(), time.thread_time()
    deadline = began + seconds

    async def publish_repeatedly() -> str:
        while True:
            before = time.perf_counter()
            event_id = await bus.publish(EVENT_TYPE, PAYLOAD)
            after = time.perf_counter()
            latencies.append(after - before)
            if after >= deadline:
                return event_id

    last_ids = await asyncio.gather(*(publish_repeatedly() for _ in range(publisher_count)))
    # "Done" is written a little later than publish returns, and reading waits for it.
    event = await bus.store.get(last_ids[-1])
    seconds_taken = time.perf_counter() - began
    cpu_seconds, loop_cpu_seconds = time.process_time() - cpu_began, time.thread_time() - loop_cpu_began
    if event.status is not EventStatus.DONE:
        raise AssertionError(f"{event.id} is {event.status}, expected done")
    return Burst(len(latencies), seconds_taken, cpu_seconds, loop_cpu_seconds, latencies)


async def settings_in_force(store: SQLiteStore) -> str:
    """What the connection that writes reports."""
    return await store.write(settings_of)


async def check_all_done(store: SQLiteStore) -> None:
    """Refuse a figure for work that was not done."""
    query = "SELECT count(*) FROM events WHERE status <> 'done'"
    left: int = await store.read(lambda connection: connection.execute(query).fetchone()[0])
    if left:
        raise AssertionError(f"{left} events are not done")
