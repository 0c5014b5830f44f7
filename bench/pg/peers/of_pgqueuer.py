"""pgqueuer: on asyncpg and on uvloop, as its command line runs it."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import asyncpg
import msgspec
import uvloop
from pgqueuer import AsyncpgDriver, Queries, QueueManager
from pgqueuer.types import QueueExecutionMode

from postbus.ops.bench.measuring import EVENT_TYPE, PAYLOAD, log_figures
from postbus.ops.bench.model import Effort, Sample
from postbus.ops.bench.postgres.bursts import repeat_together
from postbus.ops.bench.postgres.ends import Receive, Send
from postbus.ops.bench.postgres.sessions import Session, durability

_BATCH_SIZE = 1_000

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode


def append(dsn: str, effort: Effort, *, batch_size: int) -> Sample:
    """Jobs that nobody works on, so many at a time."""

    async def run() -> Sample:
        async with _installed(dsn) as (queries, _):

            async def step() -> int:
                await _enqueue(queries, batch_size)
                return batch_size

            burst = await repeat_together([step], effort)
            return await burst.sample(dsn, "SELECT count(*) FROM pgqueuer")

    return _run(run())


def deliver(dsn: str, _effort: Effort, *, count: int, batch_size: int = _BATCH_SIZE) -> Sample:
    """Until the queue is empty."""

    async def run() -> Sample:
        async with _installed(dsn) as (queries, connection):
            for start in range(0, count, _BATCH_SIZE):
                await _enqueue(queries, min(_BATCH_SIZE, count - start))
            await connection.execute("VACUUM (ANALYZE) pgqueuer")
            seen, manager = 0, QueueManager(queries)

            @manager.entrypoint(EVENT_TYPE)  # type: ignore[untyped-decorator]
            async def count_one(job: object) -> None:
                nonlocal seen
                seen += job is not None

            began, cpu_began = time.perf_counter(), time.process_time()
            await manager.run(batch_size=batch_size, mode=QueueExecutionMode.drain)
            figures = log_figures(seen, count, began, cpu_began)
        return Sample(figures=figures, settings=await durability(dsn))

    return _run(run())


@asynccontextmanager
async def sender(dsn: str) -> AsyncIterator[Send]:
    """Enqueues a moment."""
    async with _connected(dsn) as connection:
        queries = Queries(AsyncpgDriver(connection))

        async def send(moment: float) -> None:
            await queries.enqueue(EVENT_TYPE, _encode(moment))

        yield send


@asynccontextmanager
async def receiver(dsn: str, receive: Receive) -> AsyncIterator[None]:
    """A worker that is told of new jobs."""
    async with _installed(dsn) as (queries, _):
        manager = QueueManager(queries)

        @manager.entrypoint(EVENT_TYPE)  # type: ignore[untyped-decorator]
        async def enter(job: "object") -> None:
            receive(_decode(job.payload))  # type: ignore[attr-defined]

        working = asyncio.create_task(manager.run())
        try:
            yield
        finally:
            manager.shutdown.set()
            with contextlib.suppress(asyncio.CancelledError):
                await working


@asynccontextmanager
async def _connected(dsn: str) -> AsyncIterator[Session]:
    connection = await asyncpg.connect(dsn)
    try:
        yield connection
    finally:
        await connection.close()


@asynccontextmanager
async def _installed(dsn: str) -> AsyncIterator[tuple[Queries, Session]]:
    async with _connected(dsn) as connection:
        queries = Queries(AsyncpgDriver(connection))
        await queries.install()
        yield queries, connection


async def _enqueue(queries: Queries, count: int) -> None:
    if count == 1:
        await queries.enqueue(EVENT_TYPE, _encode(PAYLOAD))
    else:
        await queries.enqueue([EVENT_TYPE] * count, [_encode(PAYLOAD) for _ in range(count)], [0] * count)


def _run(work: "asyncio.Future[Sample] | object") -> Sample:
    sample: Sample = uvloop.run(work)
    return sample
