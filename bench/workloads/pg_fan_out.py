"""Several durable subscribers of one bus on PostgreSQL: what one of them reads serves all."""

import asyncio
import time
from functools import partial

from bench.pg import raw_fan_out
from postbus import Event, EventBus
from postbus.events import LogPage
from postbus.ops.bench.measuring import EVENT_TYPE, PAYLOAD, log_figures, percentile
from postbus.ops.bench.model import Candidate, Column, Effort, RatioColumn, Sample, Workload
from postbus.ops.bench.postgres.bursts import repeat_together
from postbus.ops.bench.postgres.buses import BATCHED, Counting
from postbus.ops.bench.postgres.candidates import on_postgres
from postbus.ops.bench.postgres.filling import fill
from postbus.ops.bench.postgres.sessions import durability
from postbus.pg import PgEventBus, PgEventStore

_COUNT = 50_000
_SUBSCRIBER_COUNTS = (1, 5, 20)
_RAW_COUNTS = (1, 5)


def run_catch_up(subscriber_count: int, dsn: str, _effort: Effort) -> Sample:
    """All begin at the beginning, at the same moment."""

    async def run() -> Sample:
        bus, all_seen = PgEventBus(dsn), Counting(_COUNT * subscriber_count)
        for number in range(subscriber_count):
            bus.subscribe(EVENT_TYPE, all_seen.handle, id=f"bench-{number}", checkpoint_mode=BATCHED)
        began, cpu_began = time.perf_counter(), time.process_time()
        async with bus:
            await all_seen.complete()
            figures = log_figures(all_seen.count, _COUNT, began, cpu_began, subscriber_count=subscriber_count)
        return Sample(figures=figures, settings=await durability(dsn))

    return asyncio.run(run())


def run_at_head(subscriber_count: int, dsn: str, effort: Effort) -> Sample:
    """One event after the other, each delivered to all before the next is published."""

    async def run() -> Sample:
        store = PgEventStore(dsn)
        reads = count_reads(store)
        bus = EventBus(store)
        rounds = Rounds(subscriber_count)
        for number in range(subscriber_count):
            bus.subscribe(EVENT_TYPE, rounds.handle, id=f"bench-{number}", checkpoint_mode=BATCHED)
        async with bus:
            await bus.idle()

            async def step() -> int:
                await bus.publish(EVENT_TYPE, PAYLOAD)
                await rounds.complete()
                return 1

            burst = await repeat_together([step], effort)
            # After the last event they look once more, and find nothing.
            await bus.idle()
            figures = {
                "deliveries": burst.count * subscriber_count / burst.seconds,
                "reads": reads() / burst.total_count,
                "p50": percentile(burst.latencies, 50) * 1000,
            }
        return Sample(figures=figures, settings=await durability(dsn))

    return asyncio.run(run())


class Rounds:
    """A handler of several subscribers that says when all of them had the event."""

    def __init__(self, subscriber_count: int) -> None:
        self._subscriber_count, self._count = subscriber_count, 0
        self._is_complete = asyncio.Event()

    async def handle(self, _event: Event) -> None:
        """Called once by each subscriber."""
        self._count += 1
        if self._count == self._subscriber_count:
            self._is_complete.set()

    async def complete(self) -> None:
        """Return when all had it, and begin the next round."""
        await self._is_complete.wait()
        self._is_complete.clear()
        self._count = 0


def count_reads(store: PgEventStore) -> "partial[int]":
    """Have the pages counted that are read from a log; called, it says how many."""
    pages: list[int] = []
    read = store.log.read

    async def counted(*position: object, **options: object) -> LogPage:
        page = await read(*position, **options)  # type: ignore[arg-type]
        pages.append(len(page.events))
        return page

    store.log.read = counted  # type: ignore[method-assign]
    return partial(len, pages)


def _catch_up(count: int) -> Candidate:
    return on_postgres(
        f"postbus-{count}",
        f"postbus: catch-up of {count} subscriber{'s' if count > 1 else ''}, {_COUNT:,} events",
        partial(run_catch_up, count),
        prepare=partial(fill, count=_COUNT),
    )


def _raw(count: int) -> Candidate:
    return on_postgres(
        f"raw-{count}",
        f"raw: the same for {count}, a page and its events shared by all, one UPDATE of all checkpoints",
        partial(raw_fan_out.run, count, _COUNT),
        prepare=partial(fill, count=_COUNT),
    )


def _raw_copied(count: int) -> Candidate:
    return on_postgres(
        f"raw-{count}-copied",
        f"raw: the same for {count}, to each a copy of its own",
        partial(raw_fan_out.run, count, _COUNT, is_copied=True),
        prepare=partial(fill, count=_COUNT),
    )


def _at_head(count: int) -> Candidate:
    label = f"postbus: {count} subscriber{'s' if count > 1 else ''} at the head, one event after the other"
    return on_postgres(f"head-{count}", label, partial(run_at_head, count))


WORKLOAD = Workload(
    name="pg-fan-out",
    title="PostgreSQL: several subscribers of one bus, handlers that do nothing, checkpoints of 100",
    candidates=(
        *map(_catch_up, _SUBSCRIBER_COUNTS),
        *map(_raw, _RAW_COUNTS),
        _raw_copied(5),
        *map(_at_head, _SUBSCRIBER_COUNTS),
    ),
    columns=(
        Column("deliveries", "deliveries/s", "/s"),
        Column("reads", "reads per event", ""),
        Column("p50", "publish → all had it, p50", "ms"),
    ),
    ratios=(
        RatioColumn("deliveries", "÷ one subscriber", "postbus-1"),
        RatioColumn("deliveries", "÷ raw, one", "raw-1"),
    ),
    needs_postgres=True,
)
