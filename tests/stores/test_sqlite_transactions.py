"""Transactional handlers share the writer's transaction: whatever they do, only their own work suffers."""

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from postbus.errors import StoreError, StoreFullError, SubscriberFencedError, TransactionEndedError
from postbus.events import BatchOutcome, Checkpoint, Event
from postbus.stores.sqlite import SQLiteStore
from tests.contracts.steps import BEGINNING, MAIL, along, append, make_draft
from tests.stores.test_sqlite_groups import in_one_group

_ENDLESS_UPDATE = (
    "UPDATE effects SET event_id = (WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n)"
    " SELECT count(*) FROM n)"
)


class _Subscriber:
    """Three events for one transactional subscriber, and a table for the effects."""

    def __init__(self, store: SQLiteStore, owner: Checkpoint, events: list[Event]) -> None:
        self.store, self.owner, self.events = store, owner, events
        self.called: list[str] = []

    async def process(
        self, bad: Callable[[Any], object] | None = None, timeout: float = 60.0
    ) -> BatchOutcome:
        """Write an effect for each event; *bad* is done with the transaction of the second."""

        def handle(event: Event, transaction: Any) -> None:
            self.called.append(event.id)
            transaction.execute("INSERT INTO effects (event_id) VALUES (?)", (event.id,))
            if event.id == "b" and bad is not None:
                bad(transaction)

        return await self.store.checkpoints.process(
            MAIL,
            self.owner.epoch,
            self.events,
            handle,
            along(self.events),
            timeout=timeout,
            time_budget=60.0,
        )

    async def effects(self) -> list[str]:
        """What was written."""
        rows = await self.store.read(
            lambda connection: connection.execute("SELECT event_id FROM effects ORDER BY rowid").fetchall()
        )
        return [event_id for (event_id,) in rows]

    async def position(self) -> str | None:
        """The event behind which the checkpoint is."""
        checkpoint = await self.store.checkpoints.load(MAIL)
        assert checkpoint is not None
        return checkpoint.event_id


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SQLiteStore]:
    async with SQLiteStore(tmp_path / "events.db") as store:
        yield store


@pytest.fixture
async def subscriber(store: SQLiteStore) -> _Subscriber:
    await store.write(lambda connection: connection.execute("CREATE TABLE effects (event_id TEXT UNIQUE)"))
    events = await append(store, *[make_draft(id=name) for name in "abc"])
    return _Subscriber(store, await store.checkpoints.claim(MAIL, BEGINNING), events)


def _undo_everything(transaction: Any) -> None:
    transaction.execute("INSERT OR ROLLBACK INTO effects (event_id) VALUES ('a')")


def _swallow_undoing_everything(transaction: Any) -> None:
    with pytest.raises(sqlite3.IntegrityError):
        _undo_everything(transaction)


def _write_for_ever(transaction: Any) -> None:
    transaction.execute(_ENDLESS_UPDATE)


def _close(transaction: Any) -> None:
    transaction.close()


def _fill_the_disk(transaction: Any, rows: str = "(?1)") -> None:
    (pages,) = transaction.execute("PRAGMA page_count").fetchone()
    transaction.execute(f"PRAGMA max_page_count = {pages}")
    try:
        transaction.execute(f"INSERT INTO effects (event_id) VALUES {rows}", ("x" * 1_000_000,))
    finally:
        transaction.execute("PRAGMA max_page_count = 1073741823")


def _fill_the_disk_with_rows(transaction: Any) -> None:
    """SQLite undoes this statement alone, because it had begun to write down how."""
    _fill_the_disk(transaction, "('one'), (?1), ('three')")
    raise AssertionError("the disk is full")


async def test_a_write_that_runs_too_long_costs_its_own_event_only(subscriber: _Subscriber) -> None:
    """SQLite undoes the whole transaction then; the event before it is done again, and counts once."""
    outcome = await subscriber.process(_write_for_ever, timeout=0.05)

    assert outcome.done_count == 1
    assert isinstance(outcome.error, TimeoutError)
    assert "longer than 0.05 s" in str(outcome.error)
    assert subscriber.called == ["a", "b", "a"]
    assert await subscriber.effects() == ["a"]
    assert await subscriber.position() == "a"


async def test_a_statement_that_undoes_everything_costs_its_own_event_only(subscriber: _Subscriber) -> None:
    """ON CONFLICT ROLLBACK ends a transaction that is not the handler's to end."""
    outcome = await subscriber.process(_undo_everything)

    assert outcome.done_count == 1
    assert isinstance(outcome.error, TransactionEndedError)
    assert (await subscriber.effects(), await subscriber.position()) == (["a"], "a")


@pytest.mark.parametrize("fill", [_fill_the_disk, _fill_the_disk_with_rows])
async def test_a_full_disk_is_the_stores_error_and_not_the_events(
    subscriber: _Subscriber, fill: Callable[[Any], object]
) -> None:
    """Nothing counts as processed or failed; it goes on when there is room."""
    with pytest.raises(StoreFullError):
        await subscriber.process(fill)
    assert (await subscriber.effects(), await subscriber.position()) == ([], None)

    assert await subscriber.process() == BatchOutcome(3)
    assert (await subscriber.effects(), await subscriber.position()) == (["a", "b", "c"], "c")


@pytest.mark.parametrize(
    "bad", [_undo_everything, _swallow_undoing_everything, _write_for_ever, _close, _fill_the_disk]
)
async def test_others_in_the_same_commit_are_stored_exactly_once(
    store: SQLiteStore, subscriber: _Subscriber, bad: Callable[[Any], object]
) -> None:
    """Even if SQLite has undone what they had written already."""
    results = await in_one_group(
        store,
        append(store, make_draft(id="first", stream_id="s", expected_version=0)),
        subscriber.process(bad, timeout=0.05),
        append(store, make_draft(id="last", stream_id="s", expected_version=1)),
        store.states.put("states", "key", b"1"),
    )

    if not isinstance(results[1], StoreError):
        assert await subscriber.effects() == ["a"][: results[1].done_count]
    assert [event.id for event in await store.read_all()] == ["a", "b", "c", "first", "last"]
    assert await store.states.get("states", "key") == b"1"


async def test_a_handler_that_raises_harms_no_other_job(store: SQLiteStore, subscriber: _Subscriber) -> None:
    """Its effects alone are undone."""

    def fail(_: object) -> None:
        raise ValueError("no")

    outcome, stored = await in_one_group(
        store, subscriber.process(fail), append(store, make_draft(id="other"))
    )

    assert (outcome.done_count, str(outcome.error)) == (1, "no")
    assert [event.id for event in stored] == ["other"]
    assert subscriber.called == ["a", "b"]
    assert await subscriber.effects() == ["a"]


async def test_a_handler_that_closes_the_connection_closes_nobody_elses(
    tmp_path: Path, store: SQLiteStore, subscriber: _Subscriber
) -> None:
    """The store goes on with another connection, and still sees what other processes write."""
    assert isinstance((await subscriber.process(_close)).error, TransactionEndedError)
    await append(store, make_draft(id="plain"))
    woken = asyncio.Event()
    store.log.watch(woken.set)
    async with SQLiteStore(tmp_path / "events.db") as other:
        await append(other, make_draft(id="foreign"))
        await asyncio.wait_for(woken.wait(), 30)

    assert [event.id for event in await store.read_all(after=3)] == ["plain", "foreign"]
    subscriber.events = subscriber.events[1:]
    assert isinstance((await subscriber.process(lambda it: it.commit())).error, TransactionEndedError)


async def test_no_handler_is_called_for_an_owner_that_is_none_any_more(subscriber: _Subscriber) -> None:
    """The fence is asked first."""
    await subscriber.store.checkpoints.claim(MAIL, BEGINNING)
    with pytest.raises(SubscriberFencedError):
        await subscriber.process()

    assert subscriber.called == []


@pytest.mark.parametrize("name", ["row_factory", "text_factory", "isolation_level"])
async def test_what_a_handler_sets_on_the_connection_ends_with_its_batch(
    store: SQLiteStore, subscriber: _Subscriber, name: str
) -> None:
    """Or the store would read nonsense, and leave transactions open that it knows nothing of."""
    value = {"row_factory": sqlite3.Row, "text_factory": bytes, "isolation_level": "DEFERRED"}[name]
    await subscriber.process(lambda transaction: setattr(transaction, name, value))

    assert await store.write(
        lambda connection: (connection.row_factory, connection.text_factory, connection.isolation_level)
    ) == (None, str, None)
    await append(store, make_draft(id="plain"))
    assert (await store.get("plain")).global_sequence == 4


async def test_events_that_a_handler_writes_by_itself_are_noticed(
    store: SQLiteStore, subscriber: _Subscriber
) -> None:
    """The next event gets the number after them."""
    insert = (
        "INSERT INTO events (id, type, payload, status, created_at, updated_at)"
        " VALUES ('by hand', 'order.paid', 'null', 'done', '2026-01-01T00:00:00+00:00', '')"
    )
    await subscriber.process(lambda transaction: transaction.execute(insert))

    assert store.log.known_head == 4
    assert (await append(store, make_draft()))[0].global_sequence == 5
