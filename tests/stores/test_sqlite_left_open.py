"""What a transactional handler leaves open, or hides, keeps no publisher of the process waiting."""

import asyncio
import sqlite3
import tracemalloc
from collections.abc import AsyncIterator, Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from postbus import Event, EventBus, RetryPolicy
from postbus.errors import TransactionEndedError
from postbus.events import BatchOutcome
from postbus.stores.lent_connection import LentConnection
from postbus.stores.sqlite import SQLiteStore
from tests.contracts.steps import BEGINNING, MAIL, along, append, make_draft
from tests.patience import PATIENCE

_INSERT = "INSERT INTO effects (event_id) VALUES (?1), (?1 || '!') RETURNING event_id"
# Far less than the minute for which a publisher waits for others.
_AT_ONCE = 10.0


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A file with a table for the effects."""
    path = tmp_path / "events.db"
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("CREATE TABLE effects (event_id TEXT UNIQUE, content BLOB DEFAULT 'old')")
        connection.execute("INSERT INTO effects (event_id) VALUES ('one'), ('two'), ('three')")
    return path


@pytest.fixture
async def store(path: Path) -> AsyncIterator[SQLiteStore]:
    async with SQLiteStore(path) as store:
        yield store


async def _process(store: SQLiteStore, bad: Callable[[Any], object]) -> BatchOutcome:
    """Events a and b, each with an effect; *bad* is done with the transaction of the second."""
    events = await append(store, make_draft(id="a"), make_draft(id="b"))
    owner = await store.checkpoints.claim(MAIL, BEGINNING)

    def handle(event: Event, transaction: Any) -> None:
        transaction.execute("INSERT INTO effects (event_id) VALUES (?)", (event.id,))
        if event.id == "b":
            bad(transaction)

    return await store.checkpoints.process(
        MAIL, owner.epoch, events, handle, along(events), timeout=PATIENCE, time_budget=PATIENCE
    )


async def _effects(store: SQLiteStore) -> list[str]:
    """What handlers have added to the table."""
    rows = await store.read(
        lambda connection: connection.execute("SELECT event_id FROM effects ORDER BY rowid").fetchall()
    )
    return [event_id for (event_id,) in rows[3:]]


async def _publish_after_another_process(path: Path, store: SQLiteStore) -> None:
    """Store an event after one that this store's connection has not seen."""
    async with SQLiteStore(path) as other:
        await append(other, make_draft(id="foreign"))
    await asyncio.wait_for(append(store, make_draft(id="ours")), _AT_ONCE)

    assert [event.id for event in await store.read_all()] == ["a", "b", "foreign", "ours"]


def _read(transaction: Any) -> Any:
    cursor = transaction.execute("SELECT event_id FROM effects")
    cursor.fetchone()
    return cursor


def _write(transaction: Any) -> Any:
    cursor = transaction.execute(_INSERT, ("b2",))
    cursor.fetchone()
    return cursor


def _open_blob(transaction: Any) -> Any:
    blob = transaction.blobopen("effects", "content", 1)
    blob.write(b"new")
    return blob


@pytest.mark.parametrize("open_one", [_read, _write, _open_blob])
async def test_a_publisher_goes_on_beside_an_error_that_holds_what_was_open(
    path: Path, store: SQLiteStore, open_one: Callable[[Any], Any]
) -> None:
    """While its event waits for the next attempt; also after another process has written."""

    def fail(transaction: Any) -> None:
        opened = open_one(transaction)
        raise ValueError(opened)

    outcome = await _process(store, fail)
    await _publish_after_another_process(path, store)

    assert (outcome.done_count, type(outcome.error)) == (1, ValueError)
    assert await _effects(store) == ["a"]


@pytest.mark.parametrize("open_one", [_read, _write, _open_blob])
async def test_a_publisher_goes_on_beside_what_a_handler_keeps(
    path: Path, store: SQLiteStore, open_one: Callable[[Any], Any]
) -> None:
    """What the handler did counts."""
    kept: list[Any] = []
    outcome = await _process(store, lambda transaction: kept.append(open_one(transaction)))
    await _publish_after_another_process(path, store)

    assert outcome == BatchOutcome(2)
    assert await _effects(store) == (["a", "b", "b2", "b2!"] if open_one is _write else ["a", "b"])


async def test_a_publisher_goes_on_beside_a_kept_cursor_of_a_closed_connection(
    path: Path, store: SQLiteStore
) -> None:
    """SQLite keeps a closed connection's transaction for as long as one of its statements is at work."""
    kept: list[Any] = []

    def bad(transaction: Any) -> None:
        kept.append(_write(transaction))
        transaction.close()

    outcome = await _process(store, bad)
    await _publish_after_another_process(path, store)

    assert (outcome.done_count, type(outcome.error)) == (1, TransactionEndedError)
    assert await _effects(store) == ["a"]


@pytest.mark.parametrize("is_failing", [False, True])
async def test_a_transaction_that_can_not_be_ended_costs_its_own_event_only(
    path: Path, store: SQLiteStore, is_failing: bool
) -> None:
    """A cursor that was made without asking the connection; the next transaction is on another one."""
    kept: list[Any] = []

    def hide(transaction: Any) -> None:
        cursor = sqlite3.Cursor(transaction)
        cursor.execute(_INSERT, ("b2",))
        cursor.fetchone()
        kept.append(cursor)
        if is_failing:
            raise ValueError("no")

    outcome = await _process(store, hide)
    await _publish_after_another_process(path, store)

    assert (outcome.done_count, type(outcome.error)) == (
        1, ValueError if is_failing else sqlite3.OperationalError
    )  # fmt: skip
    assert await _effects(store) == ["a"]


async def test_an_event_whose_handler_fails_over_an_open_cursor_becomes_a_dead_letter(path: Path) -> None:
    """And the subscriber goes on with the next, while everybody publishes."""
    bus = EventBus(path)
    called: list[object] = []

    @bus.on("order.*", id="stock", retry=RetryPolicy(max_retries=1, base_delay=0.01))
    def take(event: Event, transaction: sqlite3.Connection) -> None:
        called.append(event.payload)
        changed = transaction.execute("UPDATE effects SET event_id = event_id || '+' RETURNING event_id")
        for (event_id,) in changed:
            if event.payload == "bad":
                raise ValueError(event_id)

    async with bus:
        for payload in ("good", "bad", "good again"):
            await asyncio.wait_for(bus.publish("order.placed", payload), _AT_ONCE)
        await bus.subscription("stock").caught_up(PATIENCE)

        assert called == ["good", "bad", "bad", "good again"]
        assert [letter.payload for letter in (await bus.dlq.list()).events] == ["bad"]
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("SELECT event_id FROM effects ORDER BY rowid").fetchall() == [
            ("one++",), ("two++",), ("three++",)
        ]  # fmt: skip


def test_the_cursor_of_a_script_is_closed_too() -> None:
    """Inside a transaction Python runs scripts only where it has been told to leave that open."""
    connection = sqlite3.connect(":memory:", factory=LentConnection)
    cursor = connection.executescript("CREATE TABLE t (n)").execute("SELECT 1")
    connection.close_opened()

    with closing(connection), pytest.raises(sqlite3.ProgrammingError, match="closed"):
        cursor.fetchone()


def test_of_any_number_of_cursors_those_that_are_kept_are_closed() -> None:
    """And those that are gone are not remembered for ever."""
    connection = sqlite3.connect(":memory:", factory=LentConnection)
    kept = [connection.execute("SELECT 1") for _ in range(1_500)]
    tracemalloc.start()
    for _ in range(20_000):
        connection.execute("SELECT 1").fetchone()
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    connection.close_opened()

    assert most < 1_000_000
    for cursor in kept:
        with pytest.raises(sqlite3.ProgrammingError, match="closed"):
            cursor.fetchone()
    connection.close()


async def test_only_a_handler_pays_for_what_is_remembered(store: SQLiteStore) -> None:
    """What the writer executes by the thousand goes straight to sqlite3; either is a Connection."""
    lent: list[Any] = []
    await _process(store, lambda transaction: lent.extend([type(transaction), transaction]))
    own = await store.write(lambda connection: connection)

    assert own is lent[1]
    assert type(own).execute is sqlite3.Connection.execute
    assert issubclass(lent[0], sqlite3.Connection)
    assert lent[0].execute is not sqlite3.Connection.execute
