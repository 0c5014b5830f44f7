"""What the benchmark measures is as durable as what the kill tests kill: every event tells how it is stored.

A trigger notes the settings of the connection that writes an event, in the processes that are killed and in
the rows of the benchmark, which print them.
"""

import asyncio
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import asyncpg
import pytest

from bench.pg.server import server_in
from bench.workloads import WORKLOADS
from postbus import PgEventBus, SQLiteStore
from postbus.ops.bench.postgres.candidates import leave_dsn
from postbus.ops.bench.postgres.databases import new_database
from postbus.ops.bench.sqlite.filling import FILE_NAME
from tests.bench.steps import DURABLE, TINY
from tests.end_to_end.history import History
from tests.end_to_end.processes import Child, Killed, wait_until
from tests.postgres.server import Server

_WATCH_FILE = """
CREATE TABLE noted (settings TEXT PRIMARY KEY);
CREATE TRIGGER note AFTER INSERT ON events BEGIN
    INSERT OR IGNORE INTO noted
    SELECT upper(journal_mode) || ', synchronous=' ||
        CASE synchronous WHEN 0 THEN 'OFF' WHEN 1 THEN 'NORMAL' WHEN 2 THEN 'FULL' ELSE 'EXTRA' END
    FROM pragma_journal_mode, pragma_synchronous;
END;
"""
_WATCH_DATABASE = """
-- Without a key, for which a transaction would wait until another one has ended.
CREATE TABLE noted (settings text NOT NULL);
CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    INSERT INTO public.noted VALUES (format(
        'fsync=%s, synchronous_commit=%s', current_setting('fsync'), current_setting('synchronous_commit')
    ));
    RETURN NULL;
END $$;
CREATE TRIGGER note AFTER INSERT ON postbus.events EXECUTE FUNCTION note();
"""
_NOTED = "SELECT settings FROM noted"


def watch_file(path: Path) -> None:
    """Make the file, and have every event that is stored in it tell how."""

    async def make() -> None:
        async with SQLiteStore(path):
            pass

    asyncio.run(make())
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(_WATCH_FILE)


def noted_in_file(path: Path) -> set[str]:
    """What the events told."""
    with closing(sqlite3.connect(path)) as connection:
        return {settings for (settings,) in connection.execute(_NOTED)}


def watch_database(dsn: str) -> None:
    """Make the schema, and have every event that is stored in it tell how."""

    async def make() -> None:
        async with PgEventBus(dsn):
            pass
        connection = await asyncpg.connect(dsn)
        await connection.execute(_WATCH_DATABASE)
        await connection.close()

    asyncio.run(make())


def noted_in_database(dsn: str) -> set[str]:
    """What the events told."""

    async def ask() -> set[str]:
        connection = await asyncpg.connect(dsn)
        rows = await connection.fetch(_NOTED)
        await connection.close()
        return {row["settings"] for row in rows}

    return asyncio.run(ask())


def kill_publisher(path: Path, history: History, folder: Path) -> None:
    """One of the lives of test_kill.py."""
    with Killed("publish_until_killed", path, history.path, "forks", folder=folder) as child:
        process = child.begin("publish")
        child.expect("recovered")
        child.expect("acknowledged")
        child.end(process)


def kill_subscribers(path: Path, history: History, folder: Path) -> None:
    """One of the lives of test_durable_kill.py with its default of durability."""
    with Killed("durable_subscribers", path, history.path, "FULL", folder=folder) as child:
        process = child.begin("work")
        child.expect("begun")
        child.end(process)


@pytest.mark.parametrize("kill", [kill_publisher, kill_subscribers])
def test_events_of_a_killed_process_are_stored_as_the_benchmark_prints(
    path: Path, history: History, tmp_path: Path, kill: Callable[[Path, History, Path], None]
) -> None:
    """On SQLite."""
    watch_file(path)
    kill(path, history, tmp_path)

    assert noted_in_file(path) == {DURABLE["sqlite"]}


@pytest.mark.parametrize(
    "row", ["publish-full/postbus-1", "publish-full/postbus-100", "batch/postbus-done", "latency/postbus-100"]
)
def test_events_of_the_benchmark_are_stored_as_it_prints(tmp_path: Path, row: str) -> None:
    """On SQLite."""
    watch_file(tmp_path / FILE_NAME)
    workload, _, candidate = row.partition("/")
    printed = WORKLOADS[workload].candidate(candidate).run(tmp_path, TINY).settings

    assert noted_in_file(tmp_path / FILE_NAME) == {printed} == {DURABLE["sqlite"]}


def test_what_is_less_durable_prints_so(tmp_path: Path) -> None:
    """The events tell it too: this test would notice."""
    watch_file(tmp_path / FILE_NAME)
    printed = WORKLOADS["publish-normal"].candidate("postbus-100").run(tmp_path, TINY).settings

    assert noted_in_file(tmp_path / FILE_NAME) == {printed} == {"WAL, synchronous=NORMAL"}


def write_gaps(dsn: str, notes: Path, folder: Path) -> None:
    """A few transactions of test_gap_stress.py, on connections of its own and through a bus."""
    with Child("gap_writer", dsn, notes, "1.0", 8, 10.0, 0, folder=folder) as writer:
        assert writer.wait() == 0, writer.errors()


def publish_to_leaders(dsn: str, notes: Path, folder: Path) -> None:
    """A few events of test_leader_kills.py."""
    with Child("leader_publisher", dsn, notes, 150, folder=folder) as publisher:
        wait_until(lambda: notes.exists() and notes.stat().st_size, "an event was acknowledged")
        assert publisher.process.stdin is not None
        publisher.process.stdin.close()
        assert publisher.wait() == 0, publisher.errors()


@pytest.mark.parametrize("write", [write_gaps, publish_to_leaders])
def test_events_on_the_server_of_the_kill_tests_are_stored_as_the_benchmark_prints(
    own_postgres: Server, tmp_path: Path, write: Callable[[str, Path, Path], None]
) -> None:
    """On PostgreSQL."""
    watch_database(own_postgres.dsn())
    write(own_postgres.dsn(), tmp_path / "notes", tmp_path)

    assert noted_in_database(own_postgres.dsn()) == {DURABLE["postgres"]}


@pytest.mark.parametrize("row", ["postbus-1", "postbus-100"])
def test_events_of_the_benchmark_on_its_own_server_are_stored_as_it_prints(tmp_path: Path, row: str) -> None:
    """On PostgreSQL, as `python -m bench` starts it."""
    with server_in(Path("/var/tmp"), None) as server, new_database(server) as dsn:
        watch_database(dsn)
        leave_dsn(tmp_path, dsn)
        printed = WORKLOADS["pg-append"].candidate(row).run(tmp_path, TINY).settings

        assert noted_in_database(dsn) == {printed} == {DURABLE["postgres"]}
