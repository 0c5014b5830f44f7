"""procrastinate: on its connector for psycopg 3, with msgspec for its JSON."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
from procrastinate import App, PsycopgConnector

from postbus.ops.bench.measuring import PAYLOAD, log_figures
from postbus.ops.bench.model import Effort, Sample
from postbus.ops.bench.postgres.bursts import repeat_together
from postbus.ops.bench.postgres.ends import Receive, Send
from postbus.ops.bench.postgres.sessions import durability

_BATCH_SIZE = 1_000
_CONCURRENCY = 10

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode


def append(dsn: str, effort: Effort, *, batch_size: int) -> Sample:
    """Jobs that nobody works on, so many at a time."""

    async def run() -> Sample:
        async with _opened(dsn) as app:

            @app.task  # type: ignore[untyped-decorator]
            async def nothing(payload: object) -> None: ...

            async def step() -> int:
                await _defer(nothing, batch_size)
                return batch_size

            burst = await repeat_together([step], effort)
            return await burst.sample(dsn, "SELECT count(*) FROM procrastinate_jobs")

    return asyncio.run(run())


def deliver(dsn: str, _effort: Effort, *, count: int) -> Sample:
    """Until the queue is empty; what is done is deleted."""

    async def run() -> Sample:
        seen = 0
        async with _opened(dsn) as app:

            @app.task  # type: ignore[untyped-decorator]
            async def count_one(payload: object) -> None:
                nonlocal seen
                seen += payload is not None

            for start in range(0, count, _BATCH_SIZE):
                await _defer(count_one, min(_BATCH_SIZE, count - start))
            began, cpu_began = time.perf_counter(), time.process_time()
            await app.run_worker_async(
                wait=False, concurrency=_CONCURRENCY, delete_jobs="always", install_signal_handlers=False
            )
            figures = log_figures(seen, count, began, cpu_began)
        return Sample(figures=figures, settings=await durability(dsn))

    return asyncio.run(run())


@asynccontextmanager
async def sender(dsn: str) -> AsyncIterator[Send]:
    """Defers a moment."""
    async with _opened(dsn, is_new=False) as app:
        enter = app.configure_task("enter")

        async def send(moment: float) -> None:
            await enter.defer_async(payload=moment)

        yield send


@asynccontextmanager
async def receiver(dsn: str, receive: Receive) -> AsyncIterator[None]:
    """A worker that is told of new jobs."""
    async with _opened(dsn) as app:

        @app.task(name="enter")  # type: ignore[untyped-decorator]
        async def enter(payload: float) -> None:
            receive(payload)

        working = asyncio.create_task(
            app.run_worker_async(
                concurrency=_CONCURRENCY, delete_jobs="always", install_signal_handlers=False
            )
        )
        try:
            yield
        finally:
            working.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await working


@asynccontextmanager
async def _opened(dsn: str, *, is_new: bool = True) -> AsyncIterator[App]:
    connector = PsycopgConnector(
        conninfo=dsn,
        min_size=4,
        max_size=_CONCURRENCY + 2,
        json_dumps=lambda value: _encode(value).decode(),
        json_loads=_decode,
    )
    app = App(connector=connector)
    async with app.open_async():
        if is_new:
            await app.schema_manager.apply_schema_async()
        yield app


async def _defer(task: Any, count: int) -> None:
    if count == 1:
        await task.defer_async(payload=PAYLOAD)
    else:
        await task.batch_defer_async(*({"payload": PAYLOAD} for _ in range(count)))
