"""CheckpointStore.process: the handler's effects and the checkpoint are one, or neither is."""

import asyncio
import sqlite3
import time
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from postbus.errors import SubscriberFencedError, TransactionEndedError
from postbus.events import BatchOutcome, Checkpoint, Event, SubscriberId
from postbus.ports import Store
from tests.contracts.backends import Backend, on_embedded
from tests.contracts.effects import Effects, Hand, Handler
from tests.contracts.steps import BEGINNING, MAIL, START, along, append, bury, make_draft, sequence_of

_LONG = 60.0


class _Transactions:
    """A subscriber and three events, and a table for the effects, whatever the store is."""

    def __init__(self, store: Store, owner: Checkpoint, events: list[Event], effects: Effects) -> None:
        self.store, self.owner, self.events, self.effects = store, owner, events, effects

    async def process(
        self,
        handler: Handler,
        events: Sequence[Event] | None = None,
        *,
        timeout: float = _LONG,
        time_budget: float = _LONG,
        retried: str | None = None,
    ) -> BatchOutcome:
        """Process these events, or all."""
        batch = self.events if events is None else events
        return await self.store.checkpoints.process(
            self.owner.subscriber_id,
            self.owner.epoch,
            batch,
            self.effects.transactional(handler),
            along(batch),
            timeout=timeout,
            time_budget=time_budget,
            retried=retried,
        )

    async def position(self) -> tuple[int, str | None]:
        """How far the subscriber has come."""
        checkpoint = await self.store.checkpoints.load(self.owner.subscriber_id)
        assert checkpoint is not None
        return checkpoint.position, checkpoint.event_id

    def after(self, done_count: int) -> tuple[int, str | None]:
        """How far it has come after so many events."""
        if not done_count:
            return START, None
        last = self.events[done_count - 1]
        return sequence_of(last), last.id


async def write(event: Event, hand: Hand) -> None:
    """The effect of an event: its id in a table."""
    await hand.execute("INSERT INTO effects (event_id) VALUES ($1)", event.id)


def _note_in(seen: list[Event]) -> Handler:
    async def handle(event: Event, hand: Hand) -> None:
        seen.append(event)

    return handle


@pytest.fixture
async def transactions(backend: Backend, store: Store) -> _Transactions:
    effects = backend.effects(store)
    await effects.make_table()
    events = await append(store, *[make_draft(id=name) for name in "abc"])
    return _Transactions(store, await store.checkpoints.claim(MAIL, BEGINNING), events, effects)


class TestProcess:
    async def test_effects_and_checkpoint_are_there_together(self, transactions: _Transactions) -> None:
        """For every event of the batch, in order, and after the store was closed."""
        outcome = await transactions.process(write)
        await transactions.store.close()
        await transactions.store.open()

        assert outcome == BatchOutcome(3)
        assert await transactions.effects.committed() == ["a", "b", "c"]
        assert await transactions.position() == transactions.after(3)

    async def test_the_effects_of_an_event_that_raises_are_undone_and_end_the_batch(
        self, transactions: _Transactions
    ) -> None:
        """Those before it count, those after it are not called."""
        called: list[str] = []

        async def handle(event: Event, hand: Hand) -> None:
            called.append(event.id)
            await write(event, hand)
            if event.id == "b":
                raise ValueError("no [address]")

        outcome = await transactions.process(handle)

        assert outcome.done_count == 1
        assert isinstance(outcome.error, ValueError)
        assert (str(outcome.error), called[:2]) == ("no [address]", ["a", "b"])
        assert "c" not in called
        assert await transactions.effects.committed() == ["a"]
        assert await transactions.position() == transactions.after(1)

    async def test_an_error_of_the_database_is_the_handlers_own(self, transactions: _Transactions) -> None:
        """It is no failure of the store, and the events before it keep their effects."""
        await transactions.process(write, transactions.events[:1])

        async def handle(event: Event, hand: Hand) -> None:
            await hand.execute("INSERT INTO effects (event_id) VALUES ($1)", f"{event.id}!")
            if event.id == "c":
                await hand.execute("INSERT INTO effects (event_id) VALUES ('a')")

        outcome = await transactions.process(handle, transactions.events[1:])

        assert (outcome.done_count, type(outcome.error)) == (1, transactions.effects.duplicate_error)
        assert await transactions.effects.committed() == ["a", "b!"]
        assert await transactions.position() == transactions.after(2)

    @on_embedded
    @pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, GeneratorExit])
    async def test_whatever_a_handler_raises_undoes_its_effects(
        self, transactions: _Transactions, error: type[BaseException]
    ) -> None:
        """And no transaction is left open."""

        async def handle(event: Event, hand: Hand) -> None:
            await write(event, hand)
            raise error

        outcome = await transactions.process(handle)

        assert (outcome.done_count, type(outcome.error)) == (0, error)
        assert await transactions.effects.committed() == []
        assert await transactions.process(write) == BatchOutcome(3)

    async def test_nothing_is_written_when_the_first_event_raises(self, transactions: _Transactions) -> None:
        """The checkpoint stays, and the next try finds everything as it was."""

        async def handle(event: Event, hand: Hand) -> None:
            await write(event, hand)
            raise ValueError

        outcome = await transactions.process(handle)

        assert outcome.done_count == 0
        assert await transactions.position() == transactions.after(0)
        assert await transactions.process(write) == BatchOutcome(3)
        assert await transactions.effects.committed() == ["a", "b", "c"]

    async def test_no_handler_is_called_for_who_is_not_the_owner(self, transactions: _Transactions) -> None:
        """Fenced, with nothing written."""
        await transactions.store.checkpoints.claim(MAIL, BEGINNING)
        called: list[Event] = []
        with pytest.raises(SubscriberFencedError):
            await transactions.process(_note_in(called))

        assert called == []
        assert await transactions.position() == transactions.after(0)

    async def test_no_events_have_no_effects(self, transactions: _Transactions) -> None:
        """An empty batch is fine."""
        assert await transactions.process(write, []) == BatchOutcome(0)
        assert await transactions.position() == transactions.after(0)

    async def test_a_checkpoint_never_moves_back(self, transactions: _Transactions) -> None:
        """A batch from before leaves it where it is."""
        await transactions.process(write)
        await transactions.process(_note_in([]), transactions.events[:1])

        assert await transactions.position() == transactions.after(3)

    async def test_a_handler_sees_the_effects_of_the_one_before(self, transactions: _Transactions) -> None:
        """They are in one transaction."""
        seen: list[object] = []

        async def handle(event: Event, hand: Hand) -> None:
            seen.append(await hand.fetch_value("SELECT count(*) FROM effects"))
            await write(event, hand)

        await transactions.process(handle)

        assert seen == [0, 1, 2]

    async def test_tables_can_be_made_and_are_undone_with_the_rest(self, transactions: _Transactions) -> None:
        """Statements that change the schema are effects like any other."""

        async def make_table(event: Event, hand: Hand) -> None:
            await hand.execute("CREATE TABLE once (x integer)")

        async def handle(event: Event, hand: Hand) -> None:
            await make_table(event, hand)
            raise ValueError

        await transactions.process(handle)

        assert await transactions.process(make_table, transactions.events[:1]) == BatchOutcome(1)

    async def test_a_handler_may_have_savepoints_of_its_own(self, transactions: _Transactions) -> None:
        """Undoing a part is its own business."""

        async def handle(event: Event, hand: Hand) -> None:
            await hand.execute("SAVEPOINT mine")
            await write(event, hand)
            await hand.execute("ROLLBACK TO mine" if event.id == "b" else "RELEASE mine")

        assert await transactions.process(handle) == BatchOutcome(3)
        assert await transactions.effects.committed() == ["a", "c"]

    async def test_a_savepoint_left_open_is_closed(self, transactions: _Transactions) -> None:
        """Effects count, and nothing is left behind for the next."""

        async def handle(event: Event, hand: Hand) -> None:
            await hand.execute("SAVEPOINT mine")
            await write(event, hand)

        assert await transactions.process(handle) == BatchOutcome(3)
        assert await transactions.effects.committed() == ["a", "b", "c"]

    async def test_events_are_handed_over_as_they_are(self, transactions: _Transactions) -> None:
        """The very ones that were given."""
        seen: list[Event] = []
        await transactions.process(_note_in(seen))

        assert seen == transactions.events

    @on_embedded
    async def test_what_a_handler_does_to_the_connection_ends_with_it(
        self, transactions: _Transactions
    ) -> None:
        """The next one gets rows as ever, and the transaction is still ours."""
        rows: list[object] = []

        async def handle(event: Event, hand: Hand) -> None:
            transaction = hand.connection
            rows.append(transaction.execute("SELECT 'text'").fetchone())
            transaction.row_factory, transaction.text_factory = sqlite3.Row, bytes
            transaction.isolation_level = "IMMEDIATE"
            await write(event, hand)

        outcomes = [await transactions.process(handle, [event]) for event in transactions.events]

        assert outcomes == [BatchOutcome(1)] * 3
        assert rows == [("text",)] * 3
        assert await transactions.effects.committed() == ["a", "b", "c"]


class TestTime:
    async def test_a_batch_whose_time_is_up_ends_after_the_event(self, transactions: _Transactions) -> None:
        """At least one is processed, what was processed counts, and the rest comes next time."""
        outcomes = [
            await transactions.process(write, transactions.events[done:], time_budget=0.0)
            for done in range(3)
        ]

        assert outcomes == [BatchOutcome(1)] * 3
        assert await transactions.effects.committed() == ["a", "b", "c"]
        assert await transactions.position() == transactions.after(3)

    async def test_a_failure_is_told_although_time_is_up_meanwhile(self, transactions: _Transactions) -> None:
        """Where the effects before it have to be made again; else it would be called once too often."""
        called: list[str] = []

        async def handle(event: Event, hand: Hand) -> None:
            if event.id in called:
                await asyncio.sleep(0.6)
            called.append(event.id)
            await write(event, hand)
            if event.id == "c":
                raise ValueError

        outcome = await transactions.process(handle, time_budget=0.5)

        assert (outcome.done_count, type(outcome.error)) == (2, ValueError)
        assert called.count("c") == 1

    @pytest.mark.parametrize("is_swallowed", [False, True])
    async def test_a_statement_that_runs_too_long_is_interrupted(
        self, transactions: _Transactions, is_swallowed: bool
    ) -> None:
        """The event failed, those before it count, and the database works on."""

        async def handle(event: Event, hand: Hand) -> None:
            await write(event, hand)
            if event.id == "b":
                try:
                    await hand.wait_too_long()
                except Exception:
                    if not is_swallowed:
                        raise

        # Long enough for the events that do not wait, also on a busy machine.
        outcome = await transactions.process(handle, timeout=0.5)

        assert (outcome.done_count, type(outcome.error)) == (1, TimeoutError)
        assert await transactions.effects.committed() == ["a"]
        assert await transactions.position() == transactions.after(1)
        assert await transactions.process(write, transactions.events[1:]) == BatchOutcome(2)

    async def test_the_time_of_each_handler_is_its_own(self, transactions: _Transactions) -> None:
        """A batch may take longer than the timeout of one event."""

        events = await append(transactions.store, *[make_draft() for _ in range(7)])

        async def handle(event: Event, hand: Hand) -> None:
            ends_at = time.monotonic() + 0.1
            while time.monotonic() < ends_at:
                await hand.fetch_value("SELECT 1")

        assert await transactions.process(handle, events, timeout=0.5) == BatchOutcome(7)


def _commit(transaction: Any) -> None:
    transaction.commit()


def _rollback(transaction: Any) -> None:
    transaction.rollback()


def _execute_commit(transaction: Any) -> None:
    transaction.execute("COMMIT")


def _script(transaction: Any) -> None:
    transaction.executescript("INSERT INTO effects (event_id) VALUES ('script')")


def _release(transaction: Any) -> None:
    transaction.execute("RELEASE postbus_event")


def _autocommit(transaction: Any) -> None:
    transaction.isolation_level = None


def _close(transaction: Any) -> None:
    transaction.close()


def _context(transaction: Any) -> None:
    with transaction:
        transaction.execute("INSERT INTO effects (event_id) VALUES ('context')")


_ENDINGS = [_commit, _rollback, _execute_commit, _script, _context, _release, _autocommit, _close]


class TestEndedTransactions:
    @pytest.mark.parametrize("is_swallowed", [False, True])
    async def test_a_handler_that_rolls_back_has_failed(
        self, transactions: _Transactions, is_swallowed: bool
    ) -> None:
        """Neither its effects nor its checkpoint are kept; those of the events before it are."""

        async def handle(event: Event, hand: Hand) -> None:
            await write(event, hand)
            if event.id == "b":
                try:
                    await hand.execute("ROLLBACK")
                except Exception:
                    if not is_swallowed:
                        raise

        outcome = await transactions.process(handle)

        assert (outcome.done_count, type(outcome.error)) == (1, TransactionEndedError)
        assert await transactions.effects.committed() == ["a"]
        assert await transactions.position() == transactions.after(1)
        assert await transactions.process(write, transactions.events[1:]) == BatchOutcome(2)

    @on_embedded
    @pytest.mark.parametrize("end", _ENDINGS)
    @pytest.mark.parametrize("is_swallowed", [False, True])
    async def test_a_handler_that_ends_the_transaction_in_any_way_has_failed(
        self, transactions: _Transactions, end: Callable[[Any], None], is_swallowed: bool
    ) -> None:
        """SQLite knows many, and none of them commits anything."""

        async def handle(event: Event, hand: Hand) -> None:
            await write(event, hand)
            if event.id != "b":
                return
            try:
                end(hand.connection)
            except sqlite3.Error:
                if not is_swallowed:
                    raise

        outcome = await transactions.process(handle)

        assert (outcome.done_count, type(outcome.error)) == (1, TransactionEndedError)
        assert await transactions.effects.committed() == ["a"]
        assert await transactions.position() == transactions.after(1)

    async def test_a_handler_can_end_it_no_more_often_than_once(self, transactions: _Transactions) -> None:
        """After one that tried, the next batch works as ever."""

        async def handle(event: Event, hand: Hand) -> None:
            await hand.execute("ROLLBACK")

        for _ in range(3):
            outcome = await transactions.process(handle)
            assert isinstance(outcome.error, TransactionEndedError)

        assert await transactions.process(write) == BatchOutcome(3)

    @on_embedded
    @pytest.mark.parametrize("is_swallowed", [False, True])
    async def test_a_statement_that_undoes_everything_undoes_only_its_own_event(
        self, transactions: _Transactions, is_swallowed: bool
    ) -> None:
        """INSERT OR ROLLBACK takes the effects of the events before with it: they are made again."""

        async def handle(event: Event, hand: Hand) -> None:
            await write(event, hand)
            if event.id == "b":
                try:
                    await hand.execute("INSERT OR ROLLBACK INTO effects (event_id) VALUES ('a')")
                except sqlite3.Error:
                    if not is_swallowed:
                        raise

        outcome = await transactions.process(handle)

        assert (outcome.done_count, type(outcome.error)) == (1, TransactionEndedError)
        assert await transactions.effects.committed() == ["a"]
        assert await transactions.position() == transactions.after(1)
        assert await transactions.process(write, transactions.events[1:]) == BatchOutcome(2)


class _StubbornCursor(sqlite3.Cursor):
    """Compares by value, so that it has no hash, and does not like to be closed."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _StubbornCursor)

    def close(self) -> None:
        raise AssertionError("not while I am reading")


_LOOK = "SELECT event_id FROM effects ORDER BY number"
_RENAME = "UPDATE effects SET event_id = lower(event_id) RETURNING event_id"


def _read(transaction: Any) -> Any:
    return transaction.execute(_LOOK)


def _change(transaction: Any) -> Any:
    return transaction.execute(_RENAME)


def _change_by_cursor(transaction: Any) -> Any:
    return transaction.cursor().execute(_RENAME)


def _change_stubbornly(transaction: Any) -> Any:
    return transaction.cursor(factory=_StubbornCursor).execute(_RENAME)


def _change_after_many(transaction: Any) -> Any:
    cursor = transaction.executemany("INSERT INTO effects (event_id) VALUES (?)", [("x",), ("y",)])
    cursor.execute("DELETE FROM effects WHERE event_id IN ('x', 'y') RETURNING event_id")
    return cursor


def _open_blob(transaction: Any) -> Any:
    transaction.execute("CREATE TABLE IF NOT EXISTS files AS SELECT zeroblob(9) AS content")
    blob = transaction.blobopen("files", "content", 1)
    blob.write(b"x")
    return blob


_OPENINGS = [_read, _change, _change_by_cursor, _change_stubbornly, _change_after_many, _open_blob]


def _use(opened: Any) -> object:
    """As far as it goes without coming to the end."""
    return opened.read(1) if isinstance(opened, sqlite3.Blob) else opened.fetchone()


@on_embedded
@pytest.mark.parametrize("open_one", _OPENINGS)
class TestLeftOpen:
    async def test_what_a_handler_leaves_open_is_closed(
        self, transactions: _Transactions, open_one: Callable[[Any], Any]
    ) -> None:
        """It may keep it: what it did counts, and whoever uses it afterwards is told."""
        kept: list[Any] = []

        async def handle(event: Event, hand: Hand) -> None:
            await write(event, hand)
            kept.append(open_one(hand.connection))
            _use(kept[-1])

        assert await transactions.process(handle) == BatchOutcome(3)
        assert await transactions.effects.committed() == ["a", "b", "c"]
        assert await transactions.position() == transactions.after(3)
        for opened in kept:
            with pytest.raises(sqlite3.ProgrammingError, match="closed"):
                _use(opened)

    async def test_an_error_that_keeps_it_open_costs_its_own_event_only(
        self, transactions: _Transactions, open_one: Callable[[Any], Any]
    ) -> None:
        """As its traceback does, for as long as somebody has the error."""

        async def handle(event: Event, hand: Hand) -> None:
            await write(event, hand)
            opened = open_one(hand.connection)
            _use(opened)
            if event.id == "b":
                raise ValueError("no")

        outcome = await transactions.process(handle)

        assert (outcome.done_count, type(outcome.error)) == (1, ValueError)
        assert await transactions.effects.committed() == ["a"]
        assert await transactions.position() == transactions.after(1)
        assert await transactions.process(write, transactions.events[1:]) == BatchOutcome(2)

    async def test_using_it_for_the_next_event_is_the_error_of_that_event(
        self, transactions: _Transactions, open_one: Callable[[Any], Any]
    ) -> None:
        """A handler that keeps a cursor for ever fails by itself."""
        kept: list[Any] = []

        async def handle(event: Event, hand: Hand) -> None:
            await write(event, hand)
            if not kept:
                kept.append(open_one(hand.connection))
            _use(kept[0])

        outcome = await transactions.process(handle)

        assert (outcome.done_count, type(outcome.error)) == (1, sqlite3.ProgrammingError)
        assert await transactions.effects.committed() == ["a"]
        assert await transactions.process(write, transactions.events[1:]) == BatchOutcome(2)


class _UnmadeCursor(sqlite3.Cursor):
    def __init__(self, connection: sqlite3.Connection) -> None:
        """Forgets what sqlite3 has to do."""


@on_embedded
async def test_a_cursor_that_can_not_be_closed_is_let_be(transactions: _Transactions) -> None:
    """Nothing can be open on it."""
    kept: list[object] = []

    async def handle(event: Event, hand: Hand) -> None:
        kept.append(hand.connection.cursor(_UnmadeCursor))
        await write(event, hand)

    assert await transactions.process(handle) == BatchOutcome(3)


class TestRetried:
    async def test_a_retry_that_succeeds_resolves_the_dead_letter_and_leaves_the_checkpoint(
        self, transactions: _Transactions
    ) -> None:
        """Its effects and the end of its death are one."""
        store, events = transactions.store, transactions.events
        dead = await bury(store, transactions.owner, events[0])
        await store.dead_letters.revive(dead.dead_letter_id)
        before = await transactions.position()
        outcome = await transactions.process(write, [dead], retried=dead.dead_letter_id)

        assert outcome == BatchOutcome(1)
        assert await transactions.effects.committed() == ["a"]
        assert await transactions.position() == before
        resolved = await store.dead_letters.get(dead.dead_letter_id)
        assert resolved.resolved_at is not None
        assert (await store.dead_letters.page(10, 0, None)).total == 0
        assert await store.dead_letters.wanted_retries(MAIL, 10) == []

    async def test_the_retry_of_a_later_event_does_not_move_the_checkpoint_on(
        self, transactions: _Transactions
    ) -> None:
        """Whatever number the event has."""
        store = transactions.store
        dead = await bury(store, transactions.owner, transactions.events[2])
        owner = await store.checkpoints.claim(SubscriberId("other"), BEGINNING)
        other = _Transactions(store, owner, transactions.events, transactions.effects)
        await other.process(write, transactions.events[2:], retried=dead.dead_letter_id)

        assert await other.position() == (START, None)

    async def test_a_retry_that_fails_resolves_nothing(self, transactions: _Transactions) -> None:
        """Its effects are undone; its outcome is saved by whoever asked for it."""
        store = transactions.store
        dead = await bury(store, transactions.owner, transactions.events[0])
        await store.dead_letters.revive(dead.dead_letter_id)
        before = [await store.dead_letters.get(dead.dead_letter_id), await transactions.position()]

        async def handle(event: Event, hand: Hand) -> None:
            await write(event, hand)
            raise ValueError

        outcome = await transactions.process(handle, [dead], retried=dead.dead_letter_id)

        assert outcome.done_count == 0
        assert await transactions.effects.committed() == []
        after = [await store.dead_letters.get(dead.dead_letter_id), await transactions.position()]
        assert after == before
        assert len(await store.dead_letters.wanted_retries(MAIL, 10)) == 1

    async def test_a_dead_letter_that_was_purged_meanwhile_is_processed_all_the_same(
        self, transactions: _Transactions
    ) -> None:
        """There is nothing left to resolve."""
        outcome = await transactions.process(write, transactions.events[:1], retried="gone")

        assert outcome == BatchOutcome(1)
        assert await transactions.position() == transactions.after(0)
