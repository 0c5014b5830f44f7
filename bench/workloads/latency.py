"""How long publish takes, and how soon after the commit a handler is entered."""

import asyncio
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TypeVarTuple
from unittest.mock import patch

from postbus import Event
from postbus.doorbell import Doorbell
from postbus.errors import StoreError
from postbus.events import Draft, GlobalSequence
from postbus.ops.bench.measuring import percentile
from postbus.ops.bench.model import Candidate, Column, Effort, RatioColumn, Sample, Workload
from postbus.ops.bench.sqlite.publishers import bus_on, publish_for, settings_in_force, store_in
from postbus.ops.bench.sqlite.raw import commit_each
from postbus.ports import EventQueue, OnStored
from postbus.stores.sqlite import store as sqlite_store

Ts = TypeVarTuple("Ts")


class TimedDoorbell(Doorbell):
    """Knows when the thread rang whose call is answered now."""

    rung_at: float | None = None

    def ring(self, callback: Callable[[*Ts], object], *args: *Ts) -> None:
        """As always, and the moment is kept while the callback runs."""
        moment = time.perf_counter()

        def answer() -> None:
            TimedDoorbell.rung_at = moment
            try:
                callback(*args)
            finally:
                TimedDoorbell.rung_at = None

        super().ring(answer)


class Stopwatch:
    """Takes the time from stored to handler entered; the handler is *enter*."""

    def __init__(self) -> None:
        self._stored_at: dict[str, tuple[float, float | None]] = {}
        self.from_callback: list[float] = []
        self.from_commit: list[float] = []

    def clear(self) -> None:
        """Forget what was timed so far."""
        self.from_callback.clear()
        self.from_commit.clear()

    def stored(self, event_id: str) -> None:
        """The store says so, at this moment."""
        self._stored_at[event_id] = (time.perf_counter(), TimedDoorbell.rung_at)

    async def enter(self, event: Event) -> None:
        """The handler."""
        now = time.perf_counter()
        called_at, committed_at = self._stored_at.pop(event.id)
        self.from_callback.append(now - called_at)
        if committed_at is not None:
            self.from_commit.append(now - committed_at)


class TimedQueue:
    """The EventQueue port, with a stopwatch at its callback."""

    def __init__(self, queue: EventQueue, stopwatch: Stopwatch) -> None:
        self._queue, self._stopwatch = queue, stopwatch
        self.finish: Callable[[GlobalSequence], None] = queue.finish

    def add(self, drafts: Sequence[Draft], on_stored: OnStored) -> None:
        """Store the drafts; on the way back the watch is started."""

        def call_back(
            sequences: Sequence[int | None], versions: Sequence[int | None], error: StoreError | None
        ) -> None:
            for draft in drafts:
                self._stopwatch.stored(draft.id)
            on_stored(sequences, versions, error)

        self._queue.add(drafts, call_back)

    async def fail(self, sequence: GlobalSequence, retry_count: int, last_error: str) -> None:
        """As the queue does."""
        await self._queue.fail(sequence, retry_count, last_error)

    async def bury(self, sequence: GlobalSequence, retry_count: int, last_error: str | None) -> None:
        """As the queue does."""
        await self._queue.bury(sequence, retry_count, last_error)

    async def release(self, sequences: Sequence[GlobalSequence]) -> None:
        """As the queue does."""
        await self._queue.release(sequences)


def run_postbus(publisher_count: int, folder: Path, effort: Effort) -> Sample:
    """Every publish and every way from the store to the handler, timed."""

    async def run() -> Sample:
        stopwatch, store = Stopwatch(), store_in(folder)
        store.queue = TimedQueue(store.queue, stopwatch)  # type: ignore[assignment]
        async with bus_on(store, handler=stopwatch.enter) as bus:
            await publish_for(bus, publisher_count, effort.warm_up)
            stopwatch.clear()
            burst = await publish_for(bus, publisher_count, effort.seconds)
            settings = await settings_in_force(store)
        times = {
            "publish": burst.latencies,
            "dispatch": stopwatch.from_callback,
            "commit_to_handler": stopwatch.from_commit,
        }
        figures = {
            f"{name}_p{percent}": percentile(values, percent) * 1000
            for name, values in times.items()
            for percent in (50, 99)
            if values
        }
        return Sample(figures=figures, settings=settings)

    with patch.object(sqlite_store, "Doorbell", TimedDoorbell):
        return asyncio.run(run())


WORKLOAD = Workload(
    name="latency",
    title="latency, synchronous=FULL",
    candidates=(
        Candidate(name="postbus-1", label="postbus: 1 publisher", run=partial(run_postbus, 1)),
        Candidate(name="postbus-100", label="postbus: 100 publishers", run=partial(run_postbus, 100)),
        Candidate(
            name="raw-commit",
            label="raw: one INSERT and commit per event",
            run=lambda folder, effort: commit_each(folder, effort, "FULL"),
        ),
    ),
    columns=(
        Column("publish_p50", "publish p50", "ms"),
        Column("publish_p99", "publish p99", "ms"),
        Column("dispatch_p50", "dispatch p50", "ms"),
        Column("dispatch_p99", "dispatch p99", "ms"),
        Column("commit_to_handler_p99", "from the commit p99", "ms"),
    ),
    ratios=(RatioColumn("publish_p50", "publish p50 ÷ raw", "raw-commit"),),
    note="publish is to the end of its handler. dispatch: from the store's callback in the event loop to the "
    "handler; from the commit: from the moment at which the writer's thread tells the loop.",
)
