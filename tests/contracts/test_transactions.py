"""CheckpointStore.process: the handler's effects and the checkpoint are one, or neither is."""

import sqlite3
import time
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from postbus.errors import SubscriberFencedError, TransactionEndedError
from postbus.events import BatchOutcome, Checkpoint, Event, SubscriberId
from postbus.ports import Store
from tests.contracts.steps import MAIL, START, STOCK, append, bury, make_draft, sequence_of

_LONG = 60.0
_LOOKER = SubscriberId("looker")
_ENDLESS = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n"
_SOME_WORK = (
    "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n LIMIT 10000) SELECT max(i) FROM n"
)


class _Transactions:
    """Two subscribers and three events, and a table for the effects, whatever the store is."""

    def __init__(self, store: Store, owner: Checkpoint, events: list[Event]) -> None:
        self.store, self.owner, self.events = store, owner, events

    async def process(
        self,
        handle: Callable[[Event, Any], object],
        events: Sequence[Event] | None = None,
        *,
        timeout: float = _LONG,
        time_budget: float = _LONG,
        retried: str | None = None,
    ) -> BatchOutcome:
        """Process these events, or all."""
        return await self.store.checkpoints.process(
            self.owner.subscriber_id,
            self.owner.epoch,
            self.events if events is None else events,
            handle,
            timeout=timeout,
            time_budget=time_budget,
            retried=retried,
        )

    async def effects(self) -> list[str]:
        """What handlers have written, as another subscriber sees it."""
        found: list[str] = []

        def look(_: Event, transaction: Any) -> None:
            found.extend(row[0] for row in transaction.execute("SELECT event_id FROM effects ORDER BY rowid"))

        looker = await self.store.checkpoints.claim(_LOOKER, START)
        outcome = await self.store.checkpoints.process(
            _LOOKER, looker.epoch, self.events[:1], look, timeout=_LONG, time_budget=_LONG
        )
        assert outcome == BatchOutcome(1)
        return found

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


def write(event: Event, transaction: Any) -> None:
    """The effect of an event: its id in a table."""
    transaction.execute("INSERT INTO effects (event_id) VALUES (?)", (event.id,))


@pytest.fixture
async def transactions(store: Store) -> _Transactions:
    events = await append(store, *[make_draft(id=name) for name in "abc"])
    stock = await store.checkpoints.claim(STOCK, START)

    def make_table(_: Event, transaction: Any) -> None:
        transaction.execute("CREATE TABLE effects (event_id TEXT UNIQUE ON CONFLICT ABORT)")

    outcome = await store.checkpoints.process(
        STOCK, stock.epoch, events[:1], make_table, timeout=_LONG, time_budget=_LONG
    )
    assert outcome == BatchOutcome(1)
    return _Transactions(store, await store.checkpoints.claim(MAIL, START), events)


class TestProcess:
    async def test_effects_and_checkpoint_are_there_together(self, transactions: _Transactions) -> None:
        """For every event of the batch, in order, and after the store was closed."""
        outcome = await transactions.process(write)
        await transactions.store.close()
        await transactions.store.open()

        assert outcome == BatchOutcome(3)
        assert await transactions.effects() == ["a", "b", "c"]
        assert await transactions.position() == transactions.after(3)

    async def test_the_effects_of_an_event_that_raises_are_undone_and_end_the_batch(
        self, transactions: _Transactions
    ) -> None:
        """Those before it count, those after it are not called."""
        called: list[str] = []

        def handle(event: Event, transaction: Any) -> None:
            called.append(event.id)
            write(event, transaction)
            if event.id == "b":
                raise ValueError("no [address]")

        outcome = await transactions.process(handle)

        assert outcome.done_count == 1
        assert isinstance(outcome.error, ValueError)
        assert (str(outcome.error), called) == ("no [address]", ["a", "b"])
        assert await transactions.effects() == ["a"]
        assert await transactions.position() == transactions.after(1)

    async def test_an_error_of_the_database_is_the_handlers_own(self, transactions: _Transactions) -> None:
        """It is no failure of the store, and the events before it keep their effects."""
        await transactions.process(write, transactions.events[:1])

        def handle(event: Event, transaction: Any) -> None:
            transaction.execute("INSERT INTO effects (event_id) VALUES (?)", (f"{event.id}!",))
            if event.id == "c":
                transaction.execute("INSERT INTO effects (event_id) VALUES ('a')")

        outcome = await transactions.process(handle, transactions.events[1:])

        assert (outcome.done_count, type(outcome.error).__name__) == (1, "IntegrityError")
        assert await transactions.effects() == ["a", "b!"]
        assert await transactions.position() == transactions.after(2)

    @pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, GeneratorExit])
    async def test_whatever_a_handler_raises_undoes_its_effects(
        self, transactions: _Transactions, error: type[BaseException]
    ) -> None:
        """And no transaction is left open."""

        def handle(event: Event, transaction: Any) -> None:
            write(event, transaction)
            raise error

        outcome = await transactions.process(handle)

        assert (outcome.done_count, type(outcome.error)) == (0, error)
        assert await transactions.effects() == []
        assert await transactions.process(write) == BatchOutcome(3)

    async def test_nothing_is_written_when_the_first_event_raises(self, transactions: _Transactions) -> None:
        """The checkpoint stays, and the next try finds everything as it was."""

        def handle(event: Event, transaction: Any) -> None:
            write(event, transaction)
            raise ValueError

        outcome = await transactions.process(handle)

        assert outcome.done_count == 0
        assert await transactions.position() == transactions.after(0)
        assert await transactions.process(write) == BatchOutcome(3)
        assert await transactions.effects() == ["a", "b", "c"]

    async def test_no_handler_is_called_for_who_is_not_the_owner(self, transactions: _Transactions) -> None:
        """Fenced, with nothing written."""
        await transactions.store.checkpoints.claim(MAIL, START)
        called: list[Event] = []
        with pytest.raises(SubscriberFencedError):
            await transactions.process(lambda event, _: called.append(event))

        assert called == []
        assert await transactions.position() == transactions.after(0)

    async def test_no_events_have_no_effects(self, transactions: _Transactions) -> None:
        """An empty batch is fine."""
        assert await transactions.process(write, []) == BatchOutcome(0)
        assert await transactions.position() == transactions.after(0)

    async def test_a_checkpoint_never_moves_back(self, transactions: _Transactions) -> None:
        """A batch from before leaves it where it is."""
        await transactions.process(write)
        await transactions.process(lambda event, transaction: None, transactions.events[:1])

        assert await transactions.position() == transactions.after(3)

    async def test_a_handler_sees_the_effects_of_the_one_before(self, transactions: _Transactions) -> None:
        """They are in one transaction."""
        seen: list[int] = []

        def handle(event: Event, transaction: Any) -> None:
            seen.extend(transaction.execute("SELECT count(*) FROM effects").fetchone())
            write(event, transaction)

        await transactions.process(handle)

        assert seen == [0, 1, 2]

    async def test_tables_can_be_made_and_are_undone_with_the_rest(self, transactions: _Transactions) -> None:
        """Statements that change the schema are effects like any other."""

        def handle(event: Event, transaction: Any) -> None:
            transaction.execute("CREATE TABLE once (x)")
            raise ValueError

        await transactions.process(handle)
        outcome = await transactions.process(
            lambda event, transaction: transaction.execute("CREATE TABLE once (x)"), transactions.events[:1]
        )

        assert outcome == BatchOutcome(1)

    async def test_a_handler_may_have_savepoints_of_its_own(self, transactions: _Transactions) -> None:
        """Undoing a part is its own business."""

        def handle(event: Event, transaction: Any) -> None:
            transaction.execute("SAVEPOINT mine")
            write(event, transaction)
            transaction.execute("ROLLBACK TO mine" if event.id == "b" else "RELEASE mine")

        assert await transactions.process(handle) == BatchOutcome(3)
        assert await transactions.effects() == ["a", "c"]

    async def test_a_savepoint_left_open_is_closed(self, transactions: _Transactions) -> None:
        """Effects count, and nothing is left behind for the next."""

        def handle(event: Event, transaction: Any) -> None:
            transaction.execute("SAVEPOINT mine")
            write(event, transaction)

        assert await transactions.process(handle) == BatchOutcome(3)
        assert await transactions.effects() == ["a", "b", "c"]

    async def test_events_are_handed_over_as_they_are(self, transactions: _Transactions) -> None:
        """The very ones that were given."""
        seen: list[Event] = []
        await transactions.process(lambda event, _: seen.append(event))

        assert seen == transactions.events

    async def test_what_a_handler_does_to_the_connection_ends_with_it(
        self, transactions: _Transactions
    ) -> None:
        """The next one gets rows as ever, and the transaction is still ours."""
        rows: list[object] = []

        def handle(event: Event, transaction: Any) -> None:
            rows.append(transaction.execute("SELECT 'text'").fetchone())
            transaction.row_factory, transaction.text_factory = sqlite3.Row, bytes
            transaction.isolation_level = "IMMEDIATE"
            write(event, transaction)

        outcomes = [await transactions.process(handle, [event]) for event in transactions.events]

        assert outcomes == [BatchOutcome(1)] * 3
        assert rows == [("text",)] * 3
        assert await transactions.effects() == ["a", "b", "c"]


class TestTime:
    async def test_a_batch_whose_time_is_up_ends_after_the_event(self, transactions: _Transactions) -> None:
        """At least one is processed, what was processed counts, and the rest comes next time."""
        outcomes = [
            await transactions.process(write, transactions.events[done:], time_budget=0.0)
            for done in range(3)
        ]

        assert outcomes == [BatchOutcome(1)] * 3
        assert await transactions.effects() == ["a", "b", "c"]
        assert await transactions.position() == transactions.after(3)

    @pytest.mark.parametrize("is_swallowed", [False, True])
    async def test_a_statement_that_runs_too_long_is_interrupted(
        self, transactions: _Transactions, is_swallowed: bool
    ) -> None:
        """The event failed, those before it count, and the database works on."""

        def handle(event: Event, transaction: Any) -> None:
            write(event, transaction)
            if event.id == "b":
                try:
                    transaction.execute(_ENDLESS).fetchall()
                except sqlite3.Error:
                    if not is_swallowed:
                        raise

        outcome = await transactions.process(handle, timeout=0.05)

        assert (outcome.done_count, type(outcome.error)) == (1, TimeoutError)
        assert await transactions.effects() == ["a"]
        assert await transactions.position() == transactions.after(1)
        assert await transactions.process(write, transactions.events[1:]) == BatchOutcome(2)

    async def test_the_time_of_each_handler_is_its_own(self, transactions: _Transactions) -> None:
        """A batch may take longer than the timeout of one event."""

        def handle(event: Event, transaction: Any) -> None:
            ends_at = time.monotonic() + 0.1
            while time.monotonic() < ends_at:
                transaction.execute(_SOME_WORK).fetchall()

        outcome = await transactions.process(handle, transactions.events[:1] * 7, timeout=0.5)

        assert outcome == BatchOutcome(7)


def _commit(transaction: Any) -> None:
    transaction.commit()


def _rollback(transaction: Any) -> None:
    transaction.rollback()


def _execute_commit(transaction: Any) -> None:
    transaction.execute("COMMIT")


def _execute_rollback(transaction: Any) -> None:
    transaction.execute("ROLLBACK")


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


_ENDINGS = [
    _commit,
    _rollback,
    _execute_commit,
    _execute_rollback,
    _script,
    _context,
    _release,
    _autocommit,
    _close,
]


class TestEndedTransactions:
    @pytest.mark.parametrize("end", _ENDINGS)
    @pytest.mark.parametrize("is_swallowed", [False, True])
    async def test_a_handler_that_ends_the_transaction_has_failed(
        self, transactions: _Transactions, end: Callable[[Any], None], is_swallowed: bool
    ) -> None:
        """Neither its effects nor its checkpoint are kept; those of the events before it are."""

        def handle(event: Event, transaction: Any) -> None:
            write(event, transaction)
            if event.id != "b":
                return
            try:
                end(transaction)
            except sqlite3.Error:
                if not is_swallowed:
                    raise

        outcome = await transactions.process(handle)

        assert (outcome.done_count, type(outcome.error)) == (1, TransactionEndedError)
        assert await transactions.effects() == ["a"]
        assert await transactions.position() == transactions.after(1)

    async def test_a_handler_can_end_it_no_more_often_than_once(self, transactions: _Transactions) -> None:
        """After one that tried, the next batch works as ever."""
        for _ in range(3):
            outcome = await transactions.process(lambda _, transaction: transaction.commit())
            assert isinstance(outcome.error, TransactionEndedError)

        assert await transactions.process(write) == BatchOutcome(3)

    @pytest.mark.parametrize("is_swallowed", [False, True])
    async def test_a_statement_that_undoes_everything_undoes_only_its_own_event(
        self, transactions: _Transactions, is_swallowed: bool
    ) -> None:
        """INSERT OR ROLLBACK takes the effects of the events before with it: they are made again."""

        def handle(event: Event, transaction: Any) -> None:
            write(event, transaction)
            if event.id == "b":
                try:
                    transaction.execute("INSERT OR ROLLBACK INTO effects (event_id) VALUES ('a')")
                except sqlite3.Error:
                    if not is_swallowed:
                        raise

        outcome = await transactions.process(handle)

        assert (outcome.done_count, type(outcome.error)) == (1, TransactionEndedError)
        assert await transactions.effects() == ["a"]
        assert await transactions.position() == transactions.after(1)
        assert await transactions.process(write, transactions.events[1:]) == BatchOutcome(2)


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
        assert await transactions.effects() == ["a"]
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
        owner = await store.checkpoints.claim(SubscriberId("other"), START)
        other = _Transactions(store, owner, transactions.events)
        await other.process(write, transactions.events[2:], retried=dead.dead_letter_id)

        assert await other.position() == (START, None)

    async def test_a_retry_that_fails_resolves_nothing(self, transactions: _Transactions) -> None:
        """Its effects are undone; its outcome is saved by whoever asked for it."""
        store = transactions.store
        dead = await bury(store, transactions.owner, transactions.events[0])
        await store.dead_letters.revive(dead.dead_letter_id)
        before = [await store.dead_letters.get(dead.dead_letter_id), await transactions.position()]

        def handle(event: Event, transaction: Any) -> None:
            write(event, transaction)
            raise ValueError

        outcome = await transactions.process(handle, [dead], retried=dead.dead_letter_id)

        assert outcome.done_count == 0
        assert await transactions.effects() == []
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
