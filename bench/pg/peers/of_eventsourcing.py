"""eventsourcing: with its PostgreSQL functions switched on."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, asynccontextmanager
from typing import Any
from urllib.parse import unquote, urlsplit
from uuid import uuid4

from eventsourcing.postgres import PostgresTrackingRecorder
from eventsourcing.projection import ApplicationSubscription, Projection, ProjectionRunner

from bench.event_sourced import Log, Published, open_log
from postbus.ops.bench.measuring import Repetition, log_figures, repeat
from postbus.ops.bench.model import Effort, Sample
from postbus.ops.bench.postgres.ends import Receive, Send
from postbus.ops.bench.postgres.sessions import ask, durability

_BATCH_SIZE = 1_000
_PATIENCE = 120.0


class Nothing(Projection):  # type: ignore[misc]
    """Does nothing with an event but to track that it was processed."""

    def process_event(self, _event: Any, tracking: Any) -> None:
        """Called by the runner."""
        self.view.insert_tracking(tracking)


def append(dsn: str, effort: Effort, *, batch_size: int, thread_count: int = 1) -> Sample:
    """Events of one new aggregate in each transaction; in several threads, each with its connection."""
    with _log(dsn, pool_size=thread_count + 1) as log:

        def step() -> int:
            log.insert(batch_size)
            return batch_size

        with ThreadPoolExecutor(thread_count) as threads:
            found = list(threads.map(lambda _: repeat(step, effort), range(thread_count)))
        expected = sum(repetition.total_count for repetition in found)
        return asyncio.run(_append_sample(dsn, log, found, expected))


def deliver(dsn: str, _effort: Effort, *, count: int) -> Sample:
    """A subscription from the beginning of the log; nobody notes how far it has come."""
    with _log(dsn) as log:
        _fill(log, count)
        began, cpu_began, seen = time.perf_counter(), time.process_time(), 0
        with ApplicationSubscription(log, gt=0) as subscription:
            for event, _tracking in subscription:
                seen += event.payload is not None
                if seen == count:
                    break
            figures = log_figures(seen, count, began, cpu_began)
    return Sample(figures=figures, settings=asyncio.run(durability(dsn)))


def deliver_tracked(dsn: str, _effort: Effort, *, count: int) -> Sample:
    """A runner that commits its position after every event."""
    environment = _environment(dsn, pool_size=5)
    with _log(dsn) as log:
        _fill(log, count)
    began, cpu_began = time.perf_counter(), time.process_time()
    with ProjectionRunner(
        application_class=Log,
        projection_class=Nothing,
        view_class=PostgresTrackingRecorder,
        env=environment,
    ) as runner:
        runner.wait(count, timeout=_PATIENCE)
        figures = log_figures(count, count, began, cpu_began)
    return Sample(figures=figures, settings=asyncio.run(durability(dsn)))


@asynccontextmanager
async def sender(dsn: str) -> AsyncIterator[Send]:
    """Blocks its event loop, in which nothing else is to be done."""
    with _log(dsn) as log:

        async def send(moment: float) -> None:
            log.recorder.insert_events([log.mapper.to_stored_event(Published(uuid4(), 1, moment))])

        yield send


@asynccontextmanager
async def receiver(dsn: str, receive: Receive) -> AsyncIterator[None]:
    """A subscription in a thread of its own."""
    with _log(dsn) as log, ApplicationSubscription(log, gt=0) as subscription:

        def follow() -> None:
            for event, _tracking in subscription:
                receive(event.payload)

        thread = threading.Thread(target=follow)
        thread.start()
        try:
            yield
        finally:
            subscription.stop()
            await asyncio.to_thread(thread.join)


def _log(dsn: str, pool_size: int = 5) -> AbstractContextManager[Log]:
    return open_log(_environment(dsn, pool_size))


def _environment(dsn: str, pool_size: int) -> dict[str, str]:
    parts = urlsplit(dsn)
    return {
        "PERSISTENCE_MODULE": "eventsourcing.postgres",
        "POSTGRES_DBNAME": parts.path.lstrip("/"),
        "POSTGRES_HOST": parts.hostname or "127.0.0.1",
        "POSTGRES_PORT": str(parts.port or 5432),
        "POSTGRES_USER": unquote(parts.username or "postgres"),
        "POSTGRES_PASSWORD": unquote(parts.password or ""),
        "POSTGRES_ENABLE_DB_FUNCTIONS": "y",
        "POSTGRES_POOL_SIZE": str(pool_size),
    }


def _fill(log: Log, count: int) -> None:
    for start in range(0, count, _BATCH_SIZE):
        log.insert(min(_BATCH_SIZE, count - start))


async def _append_sample(dsn: str, log: Log, found: list[Repetition], expected: int) -> Sample:
    stored = await ask(dsn, f"SELECT count(*) FROM {log.recorder.events_table_name}")
    if stored != expected:
        raise AssertionError(f"{expected} events were counted, {stored} are stored")
    rate = sum(repetition.rate for repetition in found)
    return Sample(
        figures={"rate": rate, "cost": 1e6 / rate, "cpu": sum(each.cpu for each in found) / len(found)},
        settings=await durability(dsn),
    )
