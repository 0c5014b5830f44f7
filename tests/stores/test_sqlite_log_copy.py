"""Copying the write-ahead log while others read and write: it stays short, and nobody waits long for it."""

import asyncio
import sqlite3
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from postbus.stores.sqlite import SQLiteStore
from postbus.stores.sqlite.connection import open_connection
from postbus.stores.sqlite.log_copy import LogCopy
from tests.contracts.steps import add, make_draft
from tests.patience import PATIENCE

_RESTART = "PRAGMA wal_checkpoint(RESTART)"
_LONG = 8_200
"""Pages: more than a log is to have."""
_USUAL = 1_000


@pytest.fixture
def seen() -> list[str]:
    """The statements of the connection that writes."""
    return []


@pytest.fixture
def connection(tmp_path: Path, seen: list[str]) -> Iterator[sqlite3.Connection]:
    with closing(open_connection(tmp_path / "events.db", "NORMAL")) as connection:
        connection.execute("CREATE TABLE t (filling BLOB)")
        connection.set_trace_callback(seen.append)
        yield connection


def waits(seen: Sequence[str]) -> list[int]:
    """How many milliseconds SQLite might wait for others whenever the log was to begin anew."""
    found, present = [], _USUAL
    for statement in seen:
        if statement.startswith("PRAGMA busy_timeout = "):
            present = int(statement.split()[-1])
        elif statement == _RESTART:
            found.append(present)
    return found


def busy_timeout(connection: sqlite3.Connection) -> int:
    return int(connection.execute("PRAGMA busy_timeout").fetchone()[0])


def refuse_restart(action: int, *words: str | None) -> int:
    is_restart = action == sqlite3.SQLITE_PRAGMA and words[1] == "RESTART"
    return sqlite3.SQLITE_DENY if is_restart else sqlite3.SQLITE_OK


def write_pages(connection: sqlite3.Connection, count: int) -> None:
    connection.execute("INSERT INTO t VALUES (zeroblob(?))", (count * 4096,))


def log_pages(connection: sqlite3.Connection) -> int:
    return int(connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()[1])


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Another program is in the middle of a read."""
    with closing(sqlite3.connect(path, isolation_level=None)) as stranger:
        stranger.execute("BEGIN")
        stranger.execute("SELECT count(*) FROM sqlite_schema").fetchone()
        yield


def test_nobody_waits_long_for_one_who_reads(
    connection: sqlite3.Connection, tmp_path: Path, seen: list[str]
) -> None:
    """Everything else waits for as long as ever."""
    with reading(tmp_path / "events.db"):
        write_pages(connection, _LONG)
        LogCopy().copy(connection)

    assert [wait <= 10 for wait in waits(seen)] == [True]
    assert busy_timeout(connection) == _USUAL


def test_a_try_that_fails_changes_nothing_for_others(connection: sqlite3.Connection) -> None:
    """The next write waits as long as ever."""
    connection.set_authorizer(refuse_restart)
    write_pages(connection, _LONG)
    with pytest.raises(sqlite3.DatabaseError, match="not authorized"):
        LogCopy().copy(connection)

    assert busy_timeout(connection) == _USUAL


def test_for_the_same_reader_nobody_waits_twice(
    connection: sqlite3.Connection, tmp_path: Path, seen: list[str]
) -> None:
    """However long the read is, and the log becomes."""
    log_copy = LogCopy()
    with reading(tmp_path / "events.db"):
        write_pages(connection, _LONG)
        log_copy.copy(connection)
        # Until it would have its next try, were it not for that.
        tried_at = time.monotonic()
        while time.monotonic() < tried_at + 0.5:
            write_pages(connection, 1)
            log_copy.copy(connection)

    assert len(waits(seen)) == 1


def test_the_log_is_short_again_soon_after_the_reader_is_gone(
    connection: sqlite3.Connection, tmp_path: Path
) -> None:
    """It begins anew with what is written then."""
    log_copy = LogCopy()
    with reading(tmp_path / "events.db"):
        write_pages(connection, _LONG)
        log_copy.copy(connection)
    ends_at = time.monotonic() + PATIENCE
    while log_pages(connection) > _LONG and time.monotonic() < ends_at:
        log_copy.copy(connection)
        write_pages(connection, 1)

    assert log_pages(connection) < 10


def test_with_each_reader_in_the_way_others_wait_a_little_longer(
    connection: sqlite3.Connection, tmp_path: Path, seen: list[str]
) -> None:
    """Many short reads, each begun before another ends, would else keep the log from ever ending."""
    log_copy = LogCopy()
    write_pages(connection, _LONG)
    for count in range(1, 4):
        with reading(tmp_path / "events.db"):
            ends_at = time.monotonic() + PATIENCE
            while len(waits(seen)) < count and time.monotonic() < ends_at:
                write_pages(connection, 1)
                log_copy.copy(connection)
        write_pages(connection, 1)

    assert waits(seen) == sorted(set(waits(seen)))
    assert len(waits(seen)) == 3


async def test_publishers_do_not_wait_for_one_who_reads(tmp_path: Path, seen: list[str]) -> None:
    """Who looks into the file while a bus is at work holds up nobody."""
    path = tmp_path / "events.db"
    async with SQLiteStore(path, synchronous="NORMAL") as store, asyncio.timeout(PATIENCE):
        await store.write(lambda connection: connection.set_trace_callback(seen.append))
        with reading(path):
            while _RESTART not in seen:
                await add(store, make_draft("order.placed", "x" * 200_000))

    assert [wait <= 10 for wait in waits(seen)] == [True]
