"""The raw limit of several subscribers: read and decoded once, a call for each, one UPDATE for all."""

import asyncio
import time
from collections.abc import Sequence
from datetime import UTC, datetime

import asyncpg
import msgspec
from msgspec.structs import force_setattr

from postbus import Event, EventStatus
from postbus.ops.bench.measuring import do_nothing, log_figures
from postbus.ops.bench.model import Effort, Sample
from postbus.ops.bench.postgres.raw import CREATE_CHECKPOINTS, PAGE_SIZE, READ, connected
from postbus.ops.bench.postgres.sessions import durability

_CHECKPOINT_EVERY = 100
_ADD_CHECKPOINTS = "INSERT INTO raw_checkpoints SELECT unnest($1::text[]), 0, now()"
_MOVE_ALL = (
    "UPDATE raw_checkpoints SET last_global_sequence = $1, updated_at = $2 WHERE subscriber_id = ANY($3)"
)

_STATUS = EventStatus.DONE
_decode = msgspec.json.Decoder().decode


def run(subscriber_count: int, count: int, dsn: str, _effort: Effort, *, is_copied: bool = False) -> Sample:
    """Page after page to all of them; connecting counts, as it does for the bus.

    All get the same events; or *is_copied*: each its own, and may change the payload.
    """

    async def deliver() -> Sample:
        began, cpu_began, seen, after = time.perf_counter(), time.process_time(), 0, 0
        async with connected(dsn, 1) as [session]:
            names = [f"bench-{number}" for number in range(subscriber_count)]
            await session.execute(CREATE_CHECKPOINTS)
            await session.execute(_ADD_CHECKPOINTS, names)
            await session.execute("SET synchronous_commit = off")
            statement = await session.prepare(READ)
            while rows := await statement.fetch(after, PAGE_SIZE):
                for start in range(0, len(rows), _CHECKPOINT_EVERY):
                    events = _events(rows[start : start + _CHECKPOINT_EVERY])
                    for _ in names:
                        for event in _copies(events) if is_copied else events:
                            await do_nothing(event)
                        seen += len(events)
                    await session.execute(_MOVE_ALL, events[-1].global_sequence, datetime.now(UTC), names)
                after = rows[-1][0]
            figures = log_figures(seen, count, began, cpu_began, subscriber_count=subscriber_count)
        return Sample(figures=figures, settings=await durability(dsn))

    return asyncio.run(deliver())


def _copies(events: Sequence[Event]) -> list[Event]:
    copies = [event.__copy__() for event in events]  # type: ignore[attr-defined]
    for copy in copies:
        force_setattr(copy, "payload", copy.payload.copy())
    return copies


def _events(rows: Sequence[asyncpg.Record]) -> list[Event]:
    return [
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
        for sequence, event_id, event_type, payload, created_at, stream_id, version, _more in rows
    ]
