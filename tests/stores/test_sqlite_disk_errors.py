"""Errors in the middle of a commit: the publisher hears of them, and nothing is acknowledged after them."""

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest

from postbus.clock import SystemClock
from postbus.errors import StoreError
from postbus.events import GlobalSequence
from postbus.stores.lent_connection import LendableConnection
from postbus.stores.sqlite import SQLiteStore
from tests.contracts.steps import add, make_draft
from tests.stores.test_sqlite_groups import in_one_group


class FailingConnection(LendableConnection):
    """SQLite on a disk that fails, for statements that begin like one of these."""

    failing: ClassVar[set[str]] = set()
    seen: ClassVar[list[str]] = []

    def execute(self, sql: str, *arguments: Any) -> sqlite3.Cursor:
        FailingConnection.seen.append(sql)
        for beginning in FailingConnection.failing:
            if sql.startswith(beginning):
                error = sqlite3.OperationalError("disk I/O error")
                error.sqlite_errorcode = sqlite3.SQLITE_IOERR_FSYNC
                raise error
        return super().execute(sql, *arguments)


@pytest.fixture
async def failing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[SQLiteStore]:
    monkeypatch.setattr("postbus.stores.sqlite.connection.LendableConnection", FailingConnection)
    monkeypatch.setattr(FailingConnection, "failing", set())
    monkeypatch.setattr(FailingConnection, "seen", [])
    async with SQLiteStore(tmp_path / "events.db") as store:
        yield store


async def add_patiently(store: SQLiteStore) -> Sequence[int | None]:
    """The numbers, once it is stored."""
    async with asyncio.timeout(30):
        while True:
            try:
                return await add(store, make_draft())
            except StoreError:
                await asyncio.sleep(0)


async def test_a_sync_that_failed_is_an_error_and_the_log_begins_anew(failing: SQLiteStore) -> None:
    """What was not synced before may be missing in it, and with it all that is acknowledged after it."""
    await add(failing, make_draft())
    FailingConnection.failing = {"INSERT INTO events"}
    with pytest.raises(StoreError, match="disk I/O error"):
        await add(failing, make_draft())
    FailingConnection.failing = set()
    failed_at = len(FailingConnection.seen)

    assert await add_patiently(failing) == [2]
    since = [sql for sql in FailingConnection.seen[failed_at:] if sql.startswith(("INSERT", "PRAGMA wal"))]
    assert since[0] == "PRAGMA wal_checkpoint(RESTART)"
    assert since[1].startswith("INSERT INTO events")


async def test_as_long_as_the_log_cannot_be_copied_nothing_is_stored(failing: SQLiteStore) -> None:
    """The error says so, to whoever asks meanwhile."""
    FailingConnection.failing = {"INSERT INTO events"}
    with pytest.raises(StoreError):
        await add(failing, make_draft())
    FailingConnection.failing = {"PRAGMA wal_checkpoint"}
    for _ in range(3):
        with pytest.raises(StoreError, match="the log has to be copied"):
            await add(failing, make_draft())
    FailingConnection.failing = set()

    assert await add_patiently(failing) == [1]


async def test_all_of_a_group_hear_of_it(failing: SQLiteStore) -> None:
    """None of them is acknowledged."""
    FailingConnection.failing = {"INSERT INTO events"}
    outcomes = await in_one_group(failing, *[add(failing, make_draft()) for _ in range(5)])
    FailingConnection.failing = set()

    assert [type(outcome) for outcome in outcomes] == [StoreError] * 5
    assert await add_patiently(failing) == [1]


class BrokenClock(SystemClock):
    """Fails once, when it is asked for the moment at which events were done."""

    __slots__ = ("is_broken",)

    def __init__(self) -> None:
        self.is_broken = False

    def now(self) -> Any:
        if self.is_broken:
            self.is_broken = False
            raise ZeroDivisionError
        return super().now()


async def test_an_error_that_nobody_expects_does_not_end_the_writer(tmp_path: Path) -> None:
    """What it was about to mark as done is marked by the next commit."""
    clock = BrokenClock()
    async with SQLiteStore(tmp_path / "events.db", clock=clock) as store, asyncio.timeout(30):
        numbers = await add(store, make_draft())
        store.queue.finish(GlobalSequence(numbers[0] or 0))
        clock.is_broken = True
        while clock.is_broken:
            await add(store, make_draft())
        first, *_ = await store.read_all()

    assert first.status == "done"


@pytest.mark.parametrize("count", [1, 5])
async def test_a_group_of_which_a_trigger_ignores_one_event_is_stored_but_for_that(
    tmp_path: Path, count: int
) -> None:
    """Somebody's own trigger on our table: whoever is told of an error has stored nothing."""
    async with SQLiteStore(tmp_path / "events.db") as store:
        await store.write(
            lambda connection: connection.execute(
                "CREATE TRIGGER ignore_it BEFORE INSERT ON events WHEN new.type = 'ignored' "
                "BEGIN SELECT RAISE(IGNORE); END"
            )
        )
        many = [make_draft(), make_draft("ignored"), make_draft()]
        outcomes = await in_one_group(
            store,
            add(store, make_draft("ignored")),
            add(store, *many),
            *[add(store, make_draft(id=str(number))) for number in range(count)],
        )
        stored = {event.id: event.global_sequence for event in await store.read_all()}

    assert [type(outcome) for outcome in outcomes[:2]] == [StoreError] * 2
    assert stored == {str(number): outcomes[2 + number][0] for number in range(count)}


async def test_an_event_whose_id_a_trigger_has_ignored_in_a_group_stays_as_it_was(tmp_path: Path) -> None:
    """It was stored before; what is taken back is only what was stored just now."""
    async with SQLiteStore(tmp_path / "events.db") as store:
        await store.write(
            lambda connection: connection.execute(
                "CREATE TRIGGER ignore_known BEFORE INSERT ON events "
                "WHEN EXISTS (SELECT 1 FROM events WHERE id = new.id) BEGIN SELECT RAISE(IGNORE); END"
            )
        )
        await add(store, make_draft(id="known"))
        outcomes = await in_one_group(
            store, *[add(store, make_draft(id=each)) for each in ("a", "known", "b")]
        )
        stored = {event.id: event.global_sequence for event in await store.read_all()}

    assert type(outcomes[1]) is StoreError
    assert stored == {"known": 1, "a": outcomes[0][0], "b": outcomes[2][0]}


async def test_nothing_is_acknowledged_within_a_transaction_that_somebody_has_begun(tmp_path: Path) -> None:
    """A handler has kept the connection that it was lent."""
    async with SQLiteStore(tmp_path / "events.db") as store:
        assert store._commit is not None
        store._commit.connection.execute("BEGIN")
        with pytest.raises(StoreError, match="transaction"):
            await add(store, make_draft())
        store._commit.connection.execute("ROLLBACK")

        assert await add(store, make_draft()) == [1]
