"""A file that an older postbus made is brought up to date when it is opened."""

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from postbus.errors import SchemaTooNewError
from postbus.stores.sqlite import SQLiteStore
from postbus.stores.sqlite.schema import VERSION
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
