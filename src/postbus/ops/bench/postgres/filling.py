"""Fills a postbus schema with events by SQL, so that a long log takes seconds."""

import asyncio
import contextlib
import time

import asyncpg
import msgspec

from postbus.ops.bench.measuring import EVENT_TYPE, PAYLOAD
from postbus.ops.bench.postgres.sessions import Session
from postbus.pg import PgEventStore
from postbus.stores.postgres.channels import channel_name

# Time-ordered ids; one event each millisecond, the last one a minute ago.
_INSERT = """
INSERT INTO postbus.events (id, event_type, data, created_at)
SELECT
    lpad(to_hex(ms >> 16), 8, '0') || '-' || lpad(to_hex(ms & 65535), 4, '0') || '-7000-8000-'
        || lpad(to_hex(n), 12, '0'),
    $3, $4::text::json, to_timestamp(ms / 1000.0)
FROM (SELECT n, $2::bigint - $1::bigint + n AS ms FROM generate_series(1, $1::bigint) AS n) AS moments
ORDER BY n
"""


def fill(dsn: str, count: int) -> None:
    """Create the tables of a bus with *count* events in them, and have them on disk."""
    asyncio.run(_fill(dsn, count))


async def _fill(dsn: str, count: int) -> None:
    await create(dsn)
    await insert(dsn, count)


async def create(dsn: str) -> None:
    """The tables of a bus."""
    async with PgEventStore(dsn):
        pass


async def announce(dsn: str, count: int) -> None:
    """Events in the tables of a bus, all at once, of which everybody hears."""
    connection = await asyncpg.connect(dsn)
    try:
        async with connection.transaction():
            await _insert(connection, count)
            await connection.execute("SELECT pg_notify($1, $2)", channel_name("postbus"), str(count))
    finally:
        await connection.close()


async def insert(dsn: str, count: int) -> None:
    """Events in the tables of a bus, on disk and known to the planner."""
    connection = await asyncpg.connect(dsn)
    try:
        await _insert(connection, count)
        # What the server still has to do would slow down what is measured next.
        await connection.execute("VACUUM (ANALYZE) postbus.events")
        with contextlib.suppress(asyncpg.InsufficientPrivilegeError):
            await connection.execute("CHECKPOINT")
    finally:
        await connection.close()


async def _insert(connection: Session, count: int) -> None:
    last_ms = int(time.time() * 1000) - 60_000
    payload = msgspec.json.encode(PAYLOAD).decode()
    await connection.execute(_INSERT, count, last_ms, EVENT_TYPE, payload)
