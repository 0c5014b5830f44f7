"""The raw limit: sqlite3 doing the least that each job needs, in the fastest way we know.

Ids, times and the JSON of the payload are made inside the loop, as the bus has to.
"""

import asyncio
import sqlite3
import threading
import time
import uuid
from asyncio import Future
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from queue import SimpleQueue

import msgspec

from postbus.doorbell import Doorbell
from postbus.ids import new_event_id
from postbus.ops.bench.measuring import EVENT_TYPE, PAYLOAD, Repetition, percentile, repeat
from postbus.ops.bench.model import Effort, Sample

LEAN_SCHEMA = """
CREATE TABLE events (
    global_sequence INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL UNIQUE,
    type TEXT NOT NULL,
    payload TEXT NOT NULL,
    status TEXT NOT NULL,
    created_at TEXT NOT NULL
);
"""
SPECIFIED_SCHEMA = """
CREATE TABLE events (
    id TEXT PRIMARY KEY,
    type TEXT NOT NULL,
    payload TEXT NOT NULL,
    status TEXT NOT NULL DEFAULT 'pending',
    retry_count INTEGER NOT NULL DEFAULT 0,
    last_error TEXT,
    metadata TEXT,
    created_at TEXT NOT NULL,
    updated_at TEXT NOT NULL
);
CREATE INDEX idx_events_status ON events(status);
CREATE INDEX idx_events_type ON events(type);
"""
GROUP_SIZE = 100
BATCH_SIZE = 1000

INSERT = "INSERT INTO events (id, type, payload, status, created_at) VALUES "
ROW = "(?, ?, ?, ?, ?)"
_INSERT_ONE = INSERT + ROW
_INSERT_GROUP = INSERT + ", ".join([ROW] * GROUP_SIZE)
_SPECIFIED_ROW = "(?, ?, ?, ?, ?, ?)"
_INSERT_SPECIFIED_GROUP = (
    "INSERT INTO events (id, type, payload, status, created_at, updated_at) VALUES "
    + ", ".join([_SPECIFIED_ROW] * GROUP_SIZE)
)
FINISH_RANGE = "UPDATE events SET status = 'done' WHERE global_sequence > ? AND global_sequence <= ?"
_FINISH_IDS = "UPDATE events SET status = 'done', updated_at = ? WHERE id IN (SELECT value FROM json_each(?))"
_LEVELS = ("OFF", "NORMAL", "FULL", "EXTRA")

_encode = msgspec.json.Encoder().encode


@contextmanager
def new_file(folder: Path, synchronous: str, schema: str) -> Iterator[sqlite3.Connection]:
    """A file in WAL mode on which transactions are begun and ended by hand."""
    with closing(
        sqlite3.connect(folder / "raw.db", isolation_level=None, check_same_thread=False)
    ) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute(f"PRAGMA synchronous = {synchronous}")
        connection.executescript(schema)
        yield connection


def settings_of(connection: sqlite3.Connection) -> str:
    """What decides about durability, as this connection reports it."""
    (journal,) = connection.execute("PRAGMA journal_mode").fetchone()
    (level,) = connection.execute("PRAGMA synchronous").fetchone()
    return f"{journal.upper()}, synchronous={_LEVELS[level]}"


def commit_each(folder: Path, effort: Effort, synchronous: str) -> Sample:
    """One INSERT and one commit for each event."""
    latencies: list[float] = []
    with new_file(folder, synchronous, LEAN_SCHEMA) as connection:

        def step() -> int:
            began = time.perf_counter()
            connection.execute(_INSERT_ONE, new_row("done"))
            latencies.append(time.perf_counter() - began)
            return 1

        repetition = repeat(step, effort)
        sample = sample_of(connection, repetition)
    measured = latencies[repetition.warm_up_count :]
    percentiles = {f"publish_p{percent}": percentile(measured, percent) * 1000 for percent in (50, 99)}
    return Sample(figures={**sample.figures, **percentiles}, settings=sample.settings)


def commit_in_thread(folder: Path, effort: Effort, synchronous: str) -> Sample:
    """The same in a thread, awaited in an event loop: the least that costs which never holds up the loop."""

    async def run() -> Sample:
        with new_file(folder, synchronous, LEAN_SCHEMA) as connection:
            loop, jobs = asyncio.get_running_loop(), SimpleQueue[Future[None] | None]()
            bell = Doorbell(loop)
            thread = threading.Thread(target=_commit_jobs, args=(connection, bell, jobs))
            thread.start()

            async def repeat_for(seconds: float) -> int:
                count, deadline = 0, time.perf_counter() + seconds
                while time.perf_counter() < deadline:
                    jobs.put(stored := loop.create_future())
                    await stored
                    count += 1
                return count

            warm_up_count = await repeat_for(effort.warm_up)
            began, cpu_began = time.perf_counter(), time.process_time()
            count = await repeat_for(effort.seconds)
            seconds, cpu = time.perf_counter() - began, time.process_time() - cpu_began
            jobs.put(None)
            thread.join()
            bell.take_down()
            total = warm_up_count + count
            return sample_of(connection, Repetition(warm_up_count, total, count / seconds, cpu / count * 1e6))

    return asyncio.run(run())


def _commit_jobs(
    connection: sqlite3.Connection, bell: Doorbell, jobs: "SimpleQueue[Future[None] | None]"
) -> None:
    while (stored := jobs.get()) is not None:
        connection.execute(_INSERT_ONE, new_row("done"))
        bell.ring(stored.set_result, None)


def commit_three_times(folder: Path, effort: Effort, synchronous: str) -> Sample:
    """Insert, processing, done: each in a commit of its own."""
    with new_file(folder, synchronous, LEAN_SCHEMA) as connection:

        def step() -> int:
            sequence = connection.execute(_INSERT_ONE, new_row("pending")).lastrowid
            connection.execute(
                "UPDATE events SET status = 'processing' WHERE global_sequence = ?", (sequence,)
            )
            connection.execute("UPDATE events SET status = 'done' WHERE global_sequence = ?", (sequence,))
            return 1

        return sample_of(connection, repeat(step, effort))


def commit_groups(folder: Path, effort: Effort, synchronous: str) -> Sample:
    """100 events a commit, the group before them marked done in the same commit; lean schema."""
    last = 0
    with new_file(folder, synchronous, LEAN_SCHEMA) as connection:

        def finish() -> None:
            connection.execute(FINISH_RANGE, (last - GROUP_SIZE, last))

        def step() -> int:
            nonlocal last
            values = [value for _ in range(GROUP_SIZE) for value in new_row("processing")]
            connection.execute("BEGIN IMMEDIATE")
            finish()
            last = connection.execute(_INSERT_GROUP, values).lastrowid or 0
            connection.execute("COMMIT")
            return GROUP_SIZE

        return sample_of(connection, repeat(step, effort, finish))


def commit_groups_as_specified(folder: Path, effort: Effort, synchronous: str) -> Sample:
    """The same with the specification's schema: random ids as the primary key, full indexes."""
    ids: list[str] = []
    with new_file(folder, synchronous, SPECIFIED_SCHEMA) as connection:

        def finish() -> None:
            connection.execute(_FINISH_IDS, (_now(), _encode(ids).decode()))

        def step() -> int:
            rows = [_new_specified_row() for _ in range(GROUP_SIZE)]
            connection.execute("BEGIN IMMEDIATE")
            finish()
            connection.execute(_INSERT_SPECIFIED_GROUP, [value for row in rows for value in row])
            connection.execute("COMMIT")
            ids[:] = [row[0] for row in rows]
            return GROUP_SIZE

        return sample_of(connection, repeat(step, effort, finish))


def insert_batches(folder: Path, effort: Effort, synchronous: str) -> Sample:
    """executemany of 1000 rows in one transaction; nothing is marked afterwards."""
    with new_file(folder, synchronous, LEAN_SCHEMA) as connection:

        def step() -> int:
            rows = [new_row("done") for _ in range(BATCH_SIZE)]
            connection.execute("BEGIN IMMEDIATE")
            connection.executemany(_INSERT_ONE, rows)
            connection.execute("COMMIT")
            return BATCH_SIZE

        return sample_of(connection, repeat(step, effort))


def insert_and_finish_batches(folder: Path, effort: Effort, synchronous: str) -> Sample:
    """executemany of 1000 rows in one transaction, the 1000 before them marked done in it."""
    last = 0
    with new_file(folder, synchronous, LEAN_SCHEMA) as connection:

        def finish() -> None:
            connection.execute(FINISH_RANGE, (last - BATCH_SIZE, last))

        def step() -> int:
            nonlocal last
            rows = [new_row("processing") for _ in range(BATCH_SIZE)]
            connection.execute("BEGIN IMMEDIATE")
            finish()
            connection.executemany(_INSERT_ONE, rows)
            connection.execute("COMMIT")
            last += BATCH_SIZE
            return BATCH_SIZE

        return sample_of(connection, repeat(step, effort, finish))


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="microseconds")


def new_row(status: str) -> tuple[str, str, str, str, str]:
    """The values of a new event in the lean schema."""
    return new_event_id(), EVENT_TYPE, _encode(PAYLOAD).decode(), status, _now()


def _new_specified_row() -> tuple[str, str, str, str, str, str]:
    now = _now()
    return str(uuid.uuid4()), EVENT_TYPE, _encode(PAYLOAD).decode(), "processing", now, now


def sample_of(connection: sqlite3.Connection, repetition: Repetition) -> Sample:
    """The rate, unless the file shows that the work was not done."""
    (done,) = connection.execute("SELECT count(*) FROM events WHERE status = 'done'").fetchone()
    if done != repetition.total_count:
        raise AssertionError(f"{repetition.total_count} events were counted, {done} are done")
    return Sample(figures={"rate": repetition.rate, "cpu": repetition.cpu}, settings=settings_of(connection))
