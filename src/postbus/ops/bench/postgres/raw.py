"""The raw limit: asyncpg doing the least that each job needs, in the fastest way we know.

Ids, times and the JSON of the payload are made inside the loop, as the bus has to.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime

import asyncpg
import msgspec

from postbus import Event, EventStatus
from postbus.ids import new_event_id
from postbus.ops.bench.measuring import EVENT_TYPE, PAYLOAD, log_figures
from postbus.ops.bench.model import Effort, Sample
from postbus.ops.bench.postgres.bursts import Step, repeat_together
from postbus.ops.bench.postgres.ends import Receive, Send
from postbus.ops.bench.postgres.sessions import Session, durability

PAGE_SIZE = 1_000

_CREATE = """
CREATE TABLE IF NOT EXISTS raw_events (
    global_sequence bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    id text NOT NULL UNIQUE,
    event_type text NOT NULL,
    data json NOT NULL,
    created_at timestamptz NOT NULL
);
"""
_COUNT = "SELECT count(*) FROM raw_events"
INSERT = (
    "INSERT INTO raw_events (id, event_type, data, created_at) VALUES ($1, $2, $3, $4) "
    "RETURNING global_sequence"
)
# One statement and so one round trip, with the notification in the transaction of the insert.
_INSERT_AND_NOTIFY = (
    f"WITH stored AS ({INSERT}) SELECT pg_notify('raw_events', global_sequence::text) FROM stored"
)
_INSERT_MANY = (
    "INSERT INTO raw_events (id, event_type, data, created_at) "
    "SELECT * FROM unnest($1::text[], $2::text[], $3::json[], $4::timestamptz[]) RETURNING global_sequence"
)
_COPIED = ("id", "event_type", "data", "created_at")
_FETCH = "SELECT global_sequence, data FROM raw_events WHERE global_sequence > $1 ORDER BY global_sequence"
# All that an event has, in as few columns as the store reads: what most events lack is one of them.
READ = """
SELECT global_sequence, id, event_type, data::text, created_at, stream_id, stream_version,
    CASE WHEN num_nonnulls(metadata, actor_id, purger_id, purged_at, correlation_id, causation_id,
        schema_version) > 0
    THEN json_build_array(metadata, actor_id, purger_id, purged_at, correlation_id, causation_id,
        schema_version)::text END
FROM postbus.events WHERE global_sequence > $1 ORDER BY global_sequence LIMIT $2
"""
CREATE_CHECKPOINTS = """
CREATE TABLE raw_checkpoints (
    subscriber_id text PRIMARY KEY, last_global_sequence bigint NOT NULL, updated_at timestamptz NOT NULL
) WITH (fillfactor = 50);
INSERT INTO raw_checkpoints VALUES ('bench', 0, now());
"""
_MOVE_CHECKPOINT = (
    "UPDATE raw_checkpoints SET last_global_sequence = $1, updated_at = $2 WHERE subscriber_id = 'bench'"
)
_CHECKPOINT = "SELECT last_global_sequence FROM raw_checkpoints"

_STATUS = EventStatus.DONE
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode


@asynccontextmanager
async def connected(dsn: str, count: int) -> AsyncIterator[list[Session]]:
    """So many connections; the first has made the table."""
    async with AsyncExitStack() as stack:
        sessions = [await asyncpg.connect(dsn) for _ in range(count)]
        for session in sessions:
            stack.push_async_callback(session.close)
        await sessions[0].execute(_CREATE)
        yield sessions


def append_each(dsn: str, effort: Effort, *, connection_count: int, with_notify: bool = False) -> Sample:
    """One INSERT and one commit for each event, on each connection one after the other."""
    query = _INSERT_AND_NOTIFY if with_notify else INSERT

    def step_on(session: Session) -> Step:
        async def step() -> int:
            await session.fetchval(query, *_new_row())
            return 1

        return step

    return asyncio.run(_append(dsn, effort, connection_count, step_on))


def append_batches(dsn: str, effort: Effort, *, batch_size: int) -> Sample:
    """All rows of a batch as arrays, in one statement."""

    def step_on(session: Session) -> Step:
        async def step() -> int:
            rows = [_new_row() for _ in range(batch_size)]
            await session.fetch(_INSERT_MANY, *map(list, zip(*rows, strict=True)))
            return batch_size

        return step

    return asyncio.run(_append(dsn, effort, 1, step_on))


def copy_batches(dsn: str, effort: Effort, *, batch_size: int) -> Sample:
    """All rows of a batch by COPY, which does not tell their numbers."""

    def step_on(session: Session) -> Step:
        async def step() -> int:
            rows = [_new_row() for _ in range(batch_size)]
            await session.copy_records_to_table("raw_events", records=rows, columns=_COPIED)
            return batch_size

        return step

    return asyncio.run(_append(dsn, effort, 1, step_on))


def read_log(
    dsn: str, _effort: Effort, *, count: int, is_decoded: bool, checkpoint_every: int | None = None
) -> Sample:
    """Page after page of the log; if it is to be decoded, each row becomes what a handler is given.

    With *checkpoint_every* so many of them are followed by a checkpoint that does not wait for the disk.
    """

    async def read() -> Sample:
        async with connected(dsn, 1) as [session]:
            await session.execute(CREATE_CHECKPOINTS)
            await session.execute("SET synchronous_commit = off")
            statement = await session.prepare(READ)
            began, cpu_began, after, seen = time.perf_counter(), time.process_time(), 0, 0
            while rows := await statement.fetch(after, PAGE_SIZE):
                step = checkpoint_every or len(rows)
                for start in range(0, len(rows), step):
                    if is_decoded:
                        _decode_rows(rows[start : start + step])
                    if checkpoint_every:
                        reached = rows[min(start + step, len(rows)) - 1][0]
                        await session.execute(_MOVE_CHECKPOINT, reached, datetime.now(UTC))
                after = rows[-1][0]
                seen += len(rows)
            figures = log_figures(seen, count, began, cpu_began)
        return Sample(figures=figures, settings=await durability(dsn))

    return asyncio.run(read())


def _decode_rows(rows: Sequence[asyncpg.Record]) -> None:
    for sequence, event_id, event_type, payload, created_at, stream_id, version, _more in rows:
        Event(
            global_sequence=sequence,
            id=event_id,
            type=event_type,
            payload=_decode(payload),
            created_at=created_at,
            status=_STATUS,
            stream_id=stream_id,
            stream_version=version,
        )


def commit_checkpoints(dsn: str, effort: Effort, *, synchronous_commit: str) -> Sample:
    """A checkpoint is moved and committed for each event; nothing is read."""

    async def commit() -> Sample:
        async with connected(dsn, 1) as [session]:
            await session.execute(CREATE_CHECKPOINTS)
            await session.execute(f"SET synchronous_commit = {synchronous_commit}")
            position = 0

            async def step() -> int:
                nonlocal position
                position += 1
                await session.execute(_MOVE_CHECKPOINT, position, datetime.now(UTC))
                return 1

            burst = await repeat_together([step], effort)
            sample = await burst.sample(dsn, _CHECKPOINT)
            return Sample(
                figures=sample.figures, settings=f"fsync=on, synchronous_commit={synchronous_commit}"
            )

    return asyncio.run(commit())


@asynccontextmanager
async def sender(dsn: str) -> AsyncIterator[Send]:
    """Publishes by one INSERT with the notification in it."""
    async with connected(dsn, 1) as [session]:

        async def send(moment: float) -> None:
            row = (new_event_id(), EVENT_TYPE, str(moment), datetime.now(UTC))
            await session.fetchval(_INSERT_AND_NOTIFY, *row)

        yield send


@asynccontextmanager
async def receiver(dsn: str, receive: Receive) -> AsyncIterator[None]:
    """Listens, and fetches what is new whenever it is told so."""
    async with connected(dsn, 2) as [listening, reading]:
        is_told, fetch = asyncio.Event(), await reading.prepare(_FETCH)
        await listening.add_listener("raw_events", lambda *_: is_told.set())

        async def follow() -> None:
            after = 0
            while True:
                await is_told.wait()
                is_told.clear()
                for sequence, data in await fetch.fetch(after):
                    receive(float(data))
                    after = sequence

        following = asyncio.create_task(follow())
        try:
            yield
        finally:
            following.cancel()
            await asyncio.wait([following])
            await listening.reset()


async def _append(
    dsn: str, effort: Effort, connection_count: int, step_on: Callable[[Session], Step]
) -> Sample:
    async with connected(dsn, connection_count) as sessions:
        burst = await repeat_together([step_on(session) for session in sessions], effort)
        return await burst.sample(dsn, _COUNT)


def _new_row() -> tuple[str, str, str, datetime]:
    return new_event_id(), EVENT_TYPE, _encode(PAYLOAD).decode(), datetime.now(UTC)
