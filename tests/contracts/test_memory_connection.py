"""InMemoryStore.connection: where transactional subscribers write, open to the tests of users."""

import gc
import sqlite3
import weakref
from typing import Any

import pytest

from postbus.errors import StoreError
from postbus.events import BatchOutcome, Event
from postbus.stores.memory import InMemoryStore
from tests.contracts.steps import BEGINNING, MAIL, START, along, append, make_draft


async def _process(store: InMemoryStore, statement: str) -> BatchOutcome:
    events = await append(store, make_draft())
    owner = await store.checkpoints.claim(MAIL, BEGINNING)

    def handle(event: Event, transaction: Any) -> None:
        transaction.execute(statement)

    return await store.checkpoints.process(
        MAIL, owner.epoch, events, handle, along(events), timeout=5, time_budget=5
    )


async def test_a_test_makes_the_tables_and_looks_at_the_effects() -> None:
    """It is the very database that handlers are lent, also after the store was closed."""
    store = InMemoryStore()
    store.connection.execute("CREATE TABLE mails (address TEXT)")
    outcome = await _process(store, "INSERT INTO mails VALUES ('anna')")
    await store.close()
    await store.open()

    assert outcome == BatchOutcome(1)
    assert store.connection.execute("SELECT address FROM mails").fetchall() == [("anna",)]


async def test_a_row_factory_of_the_test_stays() -> None:
    """What a handler changes is undone, what the owner of the store set is not."""
    store = InMemoryStore()
    store.connection.row_factory = sqlite3.Row
    await _process(store, "SELECT 1")

    assert store.connection.row_factory is sqlite3.Row


async def test_a_commit_that_is_refused_leaves_neither_effects_nor_checkpoint() -> None:
    """A constraint that is checked last fails the batch, and the next one works as ever."""
    store = InMemoryStore()
    store.connection.execute("PRAGMA foreign_keys = ON")
    store.connection.execute("CREATE TABLE parents (id INTEGER PRIMARY KEY)")
    store.connection.execute(
        "CREATE TABLE children (parent REFERENCES parents (id) DEFERRABLE INITIALLY DEFERRED)"
    )
    outcome = await _process(store, "INSERT INTO children VALUES (7)")
    checkpoint = await store.checkpoints.load(MAIL)

    assert (outcome.done_count, type(outcome.error)) == (0, sqlite3.IntegrityError)
    assert checkpoint is not None
    assert checkpoint.position == START
    assert await _process(store, "INSERT INTO parents VALUES (7)") == BatchOutcome(1)
    assert store.connection.execute("SELECT count(*) FROM children").fetchone() == (0,)


async def test_a_transaction_that_a_test_left_open_is_told() -> None:
    """Its statements must not be committed with those of a handler; no handler is called."""
    store = InMemoryStore()
    store.connection.execute("BEGIN")
    with pytest.raises(StoreError, match="left a transaction open"):
        await _process(store, "SELECT 1")
    store.connection.execute("ROLLBACK")

    assert await _process(store, "SELECT 1") == BatchOutcome(1)


async def test_a_cursor_that_a_test_has_open_stays_open() -> None:
    """Only what a handler opened is closed after it."""
    store = InMemoryStore()
    numbers = store.connection.execute("SELECT 1 UNION ALL SELECT 2")
    numbers.fetchone()
    await _process(store, "SELECT 1")

    assert numbers.fetchone() == (2,)


async def test_a_transaction_that_can_not_be_ended_is_the_error_of_its_event() -> None:
    """A handler has made a cursor without asking the connection; once it is gone, all is well."""
    store = InMemoryStore()
    store.connection.execute("CREATE TABLE mails (address TEXT)")
    events = await append(store, make_draft(), make_draft())
    owner = await store.checkpoints.claim(MAIL, BEGINNING)
    kept: list[sqlite3.Cursor] = []

    def handle(event: Event, transaction: Any) -> None:
        kept.append(sqlite3.Cursor(transaction))
        kept[-1].execute("INSERT INTO mails VALUES ('anna'), ('bert') RETURNING address")
        kept[-1].fetchone()

    outcome = await store.checkpoints.process(
        MAIL, owner.epoch, events, handle, along(events), timeout=5, time_budget=5
    )
    kept.clear()

    assert (outcome.done_count, type(outcome.error)) == (0, sqlite3.OperationalError)
    assert await _process(store, "INSERT INTO mails VALUES ('anna')") == BatchOutcome(1)
    assert store.connection.execute("SELECT address FROM mails").fetchall() == [("anna",)]


async def test_the_connection_is_closed_with_the_store_that_made_it() -> None:
    """A test leaves nothing behind, and no warning."""
    store = InMemoryStore()
    connection = store.connection
    forgotten = weakref.ref(store)
    del store
    gc.collect()

    assert forgotten() is None
    with pytest.raises(sqlite3.ProgrammingError, match="closed"):
        connection.execute("SELECT 1")
