"""Fills a postbus file with events by SQL, so that a large file takes seconds."""

import asyncio
import os
import sqlite3
import time
from pathlib import Path

import msgspec

from postbus import SQLiteStore
from postbus.ops.bench.measuring import EVENT_TYPE, PAYLOAD

FILE_NAME = "events.db"

TIME_ORDERED_ID = "printf('%08x-%04x-7000-8000-%012x', ms >> 16, ms & 65535, n)"
RANDOM_ID = (
    "lower(hex(randomblob(4)) || '-' || hex(randomblob(2)) || '-4' || substr(hex(randomblob(2)), 2) || "
    "'-8' || substr(hex(randomblob(2)), 2) || '-' || hex(randomblob(6)))"
)

# One event each millisecond, the last one a minute ago.
_INSERT = """
INSERT INTO events (id, type, payload, status, created_at, updated_at)
WITH RECURSIVE
    numbers (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < :count),
    moments (n, ms) AS (SELECT n, :last_ms - :count + n FROM numbers),
    texts (n, ms, at) AS (
        SELECT n, ms,
            strftime('%Y-%m-%dT%H:%M:%S', ms / 1000, 'unixepoch') || printf('.%03d000+00:00', ms % 1000)
        FROM moments
    )
SELECT {new_id}, :type, :payload, :status, at, at FROM texts
"""
# By UPDATE, so that whatever the store keeps about dead letters is kept.
_BURY = """
UPDATE events SET status = 'dlq', retry_count = 4, dlq_at = updated_at,
    last_error = '["ValueError: no","ValueError: no","ValueError: no","ValueError: no"]'
"""


def fill(folder: Path, count: int, *, status: str = "done", new_id: str = TIME_ORDERED_ID) -> None:
    """Create the bus's file in a folder, with *count* events in it, and have it on disk."""
    path = folder / FILE_NAME
    asyncio.run(_create(path))
    connection = sqlite3.connect(path, isolation_level=None)
    for setting in ("journal_mode = DELETE", "synchronous = OFF", "cache_size = -1000000"):
        connection.execute(f"PRAGMA {setting}")
    values = {
        "count": count,
        "last_ms": int(time.time() * 1000) - 60_000,
        "type": EVENT_TYPE,
        "payload": msgspec.json.encode(PAYLOAD).decode(),
        "status": "done" if status == "dlq" else status,
    }
    connection.execute("BEGIN")
    connection.execute(_INSERT.format(new_id=new_id), values)
    if status == "dlq":
        connection.execute(_BURY)
    connection.execute("COMMIT")
    connection.close()
    # What the system still has to write would slow down what is measured next.
    with path.open("rb") as file:
        os.fsync(file.fileno())


async def _create(path: Path) -> None:
    async with SQLiteStore(path):
        pass
