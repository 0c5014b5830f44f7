"""A file that an older postbus made is brought up to date when it is opened."""

import asyncio
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import pytest

from postbus import DLQInspector
from postbus.errors import SchemaTooNewError
from postbus.stores.sqlite import SQLiteStore
from postbus.stores.sqlite.schema import VERSION
from postbus.testing import ManualClock
from tests.stores.sqlite_version_1 import STATUSES, make_file


@pytest.fixture
def old(tmp_path: Path) -> Path:
    path = tmp_path / "old.db"
    make_file(path)
    return path


def _query(path: Path, statement: str) -> list[tuple[object, ...]]:
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute(statement).fetchall()


def _schema(path: Path) -> list[tuple[object, ...]]:
    return _query(path, "SELECT type, name, tbl_name, sql FROM sqlite_master ORDER BY type, name")


async def _open_and_close(path: Path) -> None:
    async with SQLiteStore(path):
        pass


async def test_an_upgraded_file_has_exactly_the_schema_of_a_new_one(old: Path, tmp_path: Path) -> None:
    """Down to the letter, so that there is one schema to think about."""
    await _open_and_close(old)
    await _open_and_close(tmp_path / "new.db")

    assert _schema(old) == _schema(tmp_path / "new.db")
    assert (await _column_names(old)) == (await _column_names(tmp_path / "new.db"))


async def _column_names(path: Path) -> list[tuple[object, ...]]:
    return _query(path, "SELECT name, type, dflt_value FROM pragma_table_info('events')")


async def test_an_upgrade_keeps_every_event_as_it_was(old: Path) -> None:
    """Nothing is written anew that need not be."""
    columns = "global_sequence, id, type, payload, status, retry_count, metadata, created_at, updated_at"
    before = _query(old, f"SELECT {columns} FROM events ORDER BY 1")
    subscriptions = _query(old, "SELECT * FROM subscriptions")
    await _open_and_close(old)

    assert _query(old, f"SELECT {columns} FROM events ORDER BY 1") == before
    assert _query(old, "SELECT * FROM subscriptions") == subscriptions


async def test_an_upgraded_file_goes_on_where_it_was(old: Path) -> None:
    """With its numbers, of which none is used twice, its dead letters and their count."""
    async with SQLiteStore(old) as store:
        (event,) = await store.append("stream", [("order.paid", {})])
        page = await store.dead_letters.page(10, 0, None)
        await store.dead_letters.resolve("event-4", "somebody", None)
        after = await store.dead_letters.page(10, 0, None)

    assert (event.global_sequence, event.stream_version) == (len(STATUSES) + 2, 1)
    assert (page.total, [letter.id for letter in page.events]) == (2, ["event-5", "event-4"])
    assert (after.total, [letter.id for letter in after.events]) == (1, ["event-5"])


async def test_stores_that_open_an_old_file_at_once_upgrade_it_once(old: Path) -> None:
    """Ten instances of one program start at the same moment."""
    stores = [SQLiteStore(old) for _ in range(5)]
    await asyncio.gather(*[store.open() for store in stores])
    for store in stores:
        await store.close()

    assert _query(old, "SELECT version FROM postbus_schema ORDER BY 1") == [(1,), (VERSION,)]


async def test_an_upgrade_that_fails_leaves_the_file_as_it_was(old: Path) -> None:
    """All of it or nothing: another program has a table under the name of one of ours."""
    with closing(sqlite3.connect(old)) as connection:
        connection.execute("CREATE TABLE postbus_states (mine)")
    before = _schema(old)
    with pytest.raises(Exception, match="postbus_states"):
        await _open_and_close(old)

    assert _schema(old) == before
    assert _query(old, "SELECT max(version) FROM postbus_schema") == [(1,)]


async def test_a_file_of_a_newer_postbus_is_left_alone(tmp_path: Path) -> None:
    """The refusal says which version was found."""
    await _open_and_close(tmp_path / "new.db")
    with closing(sqlite3.connect(tmp_path / "new.db")) as connection, connection:
        connection.execute("INSERT INTO postbus_schema VALUES (?, '')", (VERSION + 1,))
    with pytest.raises(SchemaTooNewError) as caught:
        await _open_and_close(tmp_path / "new.db")

    assert (caught.value.found, caught.value.known) == (VERSION + 1, VERSION)


# How other programs write the same moment, or at least the same second.
_SAME_SECOND = {
    "2026-01-10 23:00:00": "2026-01-10T23:00:00.000000+00:00",
    "2026-01-10T23:00:00Z": "2026-01-10T23:00:00.000000+00:00",
    "2026-01-10T23:00:00.120Z": "2026-01-10T23:00:00.120000+00:00",
    "2026-01-11 01:00:00.123456+02": "2026-01-10T23:00:00.123456+00:00",
    "2026-01-10T17:30:00.123456789-05:30": "2026-01-10T23:00:00.123456+00:00",
    "2026-01-10T23:00:00.123457+00:00": "2026-01-10T23:00:00.123457+00:00",
}
# None is one, or is one within our calendar.
_NO_MOMENTS = ["", "yesterday", "1768084800000", "2026-13-01", "0001-01-01T00:00:00+02:00", b"\xff", 17]


def _make_specified(path: Path, moments: Sequence[object]) -> None:
    """The table of the specification, with dead letters that were created at these moments."""
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.executescript(
            """
            CREATE TABLE events (
              id TEXT PRIMARY KEY, type TEXT NOT NULL, payload TEXT NOT NULL,
              status TEXT NOT NULL DEFAULT 'pending', retry_count INTEGER NOT NULL DEFAULT 0,
              last_error TEXT, metadata TEXT, created_at TEXT NOT NULL, updated_at TEXT NOT NULL
            );
            CREATE TABLE subscriptions (
              id TEXT PRIMARY KEY, event_type TEXT NOT NULL, created_at TEXT NOT NULL
            );
            INSERT INTO subscriptions VALUES ('old', 'order.*', 'yesterday');
            """
        )
        connection.executemany(
            "INSERT INTO events (id, type, payload, status, created_at, updated_at)"
            " VALUES (?, 'order.placed', '1', 'dlq', ?, ?)",
            [(f"event-{number}", moment, moment) for number, moment in enumerate(moments)],
        )


class TestMomentsOfOthers:
    """A file with the specification's table, whose texts of moments sort as they were written."""

    async def test_they_are_written_as_ours_and_numbered_in_their_order(self, tmp_path: Path) -> None:
        """Whatever zone and precision they had; those of one moment as they were inserted."""
        path = tmp_path / "specified.db"
        _make_specified(path, list(reversed(_SAME_SECOND)))
        await _open_and_close(path)

        assert _query(path, "SELECT created_at FROM events ORDER BY global_sequence") == [
            (moment,) for moment in sorted(_SAME_SECOND.values())
        ]
        assert _query(path, "SELECT id FROM events ORDER BY global_sequence LIMIT 2") == [
            ("event-4",),
            ("event-5",),
        ]
        assert _query(path, "SELECT * FROM events WHERE updated_at <> created_at") == []

    async def test_a_purge_takes_no_dead_letter_that_is_younger(self, tmp_path: Path) -> None:
        """Compared as texts, an event of eleven at night was older than noon of the same day."""
        path = tmp_path / "specified.db"
        _make_specified(path, [*_SAME_SECOND, "2026-01-10T12:00:00.000Z", "2026-01-10T14:00:01+02:00"])
        clock = ManualClock(datetime(2026, 1, 20, 12, tzinfo=UTC))
        async with SQLiteStore(path, clock=clock) as store:
            purged_count = await DLQInspector(store, clock=clock).purge(older_than_days=10)
            left = await store.dead_letters.page(10, 0, None)

        assert (purged_count, left.total) == (1, len(_SAME_SECOND) + 1)
        assert {event.id for event in left.events} == {
            f"event-{number}" for number in (*range(len(_SAME_SECOND)), len(_SAME_SECOND) + 1)
        }

    async def test_what_is_no_moment_becomes_that_of_taking_over(self, tmp_path: Path) -> None:
        """Nothing is lost: it comes last, as it was inserted, and no purge takes it too early."""
        path = tmp_path / "specified.db"
        _make_specified(path, [*_NO_MOMENTS, "2026-01-10 23:00:00"])
        clock = ManualClock(datetime(2026, 1, 20, 12, tzinfo=UTC))
        async with SQLiteStore(path, clock=clock) as store:
            events = await store.read_all()
            subscriptions = await store.subscriptions.list()
            purged_count = await DLQInspector(store, clock=clock).purge(older_than_days=1)

        assert [event.id for event in events] == [
            f"event-{number}" for number in (len(_NO_MOMENTS), *range(len(_NO_MOMENTS)))
        ]
        assert {event.created_at for event in events[1:]} == {clock.now()}
        assert [row.created_at.year for row in subscriptions] == [1970]
        assert purged_count == 1
