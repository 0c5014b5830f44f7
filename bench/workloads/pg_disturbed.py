"""What one subscriber on PostgreSQL gets done beside a gap, a slow subscriber or a stranger."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial

import asyncpg

from postbus import Event
from postbus.ops.bench.measuring import EVENT_TYPE, log_figures
from postbus.ops.bench.model import Column, Effort, RatioColumn, Sample, Workload
from postbus.ops.bench.postgres.buses import BATCHED, Counting
from postbus.ops.bench.postgres.candidates import on_postgres
from postbus.ops.bench.postgres.filling import create, insert
from postbus.ops.bench.postgres.sessions import durability
from postbus.pg import PgEventBus

_COUNT = 200_000

Disturb = Callable[[str, PgEventBus], AbstractAsyncContextManager[None]]


@asynccontextmanager
async def nothing(_dsn: str, _bus: PgEventBus) -> AsyncIterator[None]:
    """A quiet database."""
    yield


@asynccontextmanager
async def open_gap(dsn: str, _bus: PgEventBus) -> AsyncIterator[None]:
    """Somebody has taken the first number, and does not commit."""
    async with _transaction(dsn, "SELECT postbus.publish('bench.late', 'null')"):
        yield


@asynccontextmanager
async def stranger(dsn: str, _bus: PgEventBus) -> AsyncIterator[None]:
    """A long transaction that has nothing to do with events, though it has written."""
    async with _transaction(dsn, "CREATE TABLE strange (number integer)"):
        yield


@asynccontextmanager
async def slow_subscriber(_dsn: str, bus: PgEventBus) -> AsyncIterator[None]:
    """Another subscriber of the same bus takes its time for each event."""

    async def take_time(_event: Event) -> None:
        await asyncio.sleep(0.05)

    bus.subscribe(EVENT_TYPE, take_time, id="slow", checkpoint_mode=BATCHED)
    yield


def run_beside(disturb: Disturb, dsn: str, _effort: Effort) -> Sample:
    """Catch-up of one subscriber, while something else goes on."""

    async def run() -> Sample:
        await create(dsn)
        bus, all_seen = PgEventBus(dsn), Counting(_COUNT)
        bus.subscribe(EVENT_TYPE, all_seen.handle, id="bench", checkpoint_mode=BATCHED)
        async with disturb(dsn, bus):
            await insert(dsn, _COUNT)
            began, cpu_began = time.perf_counter(), time.process_time()
            await bus.start()
            await all_seen.complete()
            figures = log_figures(all_seen.count, _COUNT, began, cpu_began)
            await bus.shutdown()
        return Sample(figures=figures, settings=await durability(dsn))

    return asyncio.run(run())


@asynccontextmanager
async def _transaction(dsn: str, statement: str) -> AsyncIterator[None]:
    connection = await asyncpg.connect(dsn)
    try:
        transaction = connection.transaction()
        await transaction.start()
        await connection.execute(statement)
        yield
        await transaction.rollback()
    finally:
        await connection.close()


_DISTURBANCES: tuple[tuple[str, str, Disturb], ...] = (
    ("quiet", "nothing else goes on", nothing),
    ("gap", "beside an open gap", open_gap),
    ("slow-subscriber", "beside a subscriber that takes 50 ms for each event", slow_subscriber),
    ("stranger", "beside a stranger's long transaction", stranger),
)

WORKLOAD = Workload(
    name="pg-disturbed",
    title=f"PostgreSQL: catch-up of one subscriber, {_COUNT:,} events, checkpoints of 100",
    candidates=tuple(
        on_postgres(name, f"postbus: {label}", partial(run_beside, disturb))
        for name, label, disturb in _DISTURBANCES
    ),
    columns=(Column("rate", "events/s", "/s"), Column("cpu", "CPU per event", "µs")),
    ratios=(RatioColumn("rate", "÷ quiet", "quiet"),),
    needs_postgres=True,
)
