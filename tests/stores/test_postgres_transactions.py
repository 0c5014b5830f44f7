"""Transactional handlers on PostgreSQL: effects and checkpoint are one, whatever a handler does."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from functools import partial
from typing import Any

import asyncpg
import pytest

from postbus.errors import (
    StoreUnavailableError,
    SubscriberFencedError,
    TransactionEndedError,
    TransactionFailedError,
)
from postbus.events import (
    BatchOutcome,
    Burial,
    Checkpoint,
    Event,
    Gap,
    GlobalSequence,
    LogPosition,
    SubscriberId,
)
from postbus.stores.postgres import checkpoints as checkpoints_module
from postbus.stores.postgres import lent
from postbus.stores.postgres import transactions as transactions_module
from postbus.stores.postgres.checkpoints import PgCheckpoints
from postbus.stores.postgres.pool import is_gone
from tests.contracts.steps import MAIL, STOCK, sequence_of
from tests.patience import PATIENCE
from tests.postgres.databases import Databases
from tests.postgres.proxy import Proxy
from tests.postgres.steps import Session, ask
from tests.stores.checkpoint_steps import (
    START,
    make_database,
    no_transaction_is_open,
    open_checkpoints,
    open_session,
    progress,
    store_event,
    until_waiting_for_lock,
)

_LONG = 60.0

Handle = Callable[[Event, Any], Any]


class Transactions:
    """A subscriber, some events, and a table for the effects."""

    def __init__(self, checkpoints: PgCheckpoints, session: Session, events: list[Event]) -> None:
        self.checkpoints, self.session, self.events = checkpoints, session, events
        self.called: list[str] = []
        self.owner: Checkpoint

    async def process(
        self,
        handle: Handle,
        events: Sequence[Event] | None = None,
        *,
        timeout: float = _LONG,
        time_budget: float = _LONG,
        retried: str | None = None,
        server: str | None = None,
    ) -> BatchOutcome:
        """Process these events, or all; who was called is noted."""
        given = self.events if events is None else events

        def call(event: Event, connection: Any) -> Any:
            self.called.append(event.id)
            return handle(event, connection)

        return await self.checkpoints.process(
            self.owner.subscriber_id,
            self.owner.epoch,
            given,
            call,
            lambda count: LogPosition(sequence_of(given[count - 1])),
            timeout=timeout,
            time_budget=time_budget,
            retried=retried,
            server=server,
        )

    async def effects(self) -> list[str]:
        """What is committed."""
        return [row[0] for row in await self.session.fetch("SELECT event_id FROM effects ORDER BY id")]

    async def position(self) -> int:
        """Where the checkpoint is."""
        found = await self.checkpoints.load(self.owner.subscriber_id)
        assert found is not None
        return found.position


async def write(event: Event, connection: Any) -> None:
    """The effect of an event: its id in a table."""
    await connection.execute("INSERT INTO effects (event_id) VALUES ($1)", event.id)


def spoil(event_id: str, spoiler: Callable[[Any], Awaitable[object]]) -> Handle:
    """A handler that writes, and does something else after the write of one event."""

    async def handle(event: Event, connection: Any) -> None:
        await write(event, connection)
        if event.id == event_id:
            await spoiler(connection)

    return handle


async def end_session(session: Session, connection: Any) -> None:
    """Have the server end it, as it does when it is shut down; return when the driver knows."""
    await session.execute("SELECT pg_terminate_backend($1)", connection.get_server_pid())
    async with asyncio.timeout(PATIENCE):
        while not is_gone(connection):  # noqa: ASYNC110
            await asyncio.sleep(0.002)


async def set_for_database(session: Session, name: str, value: str) -> None:
    """For whoever connects from now on."""
    database = await session.fetchval("SELECT quote_ident(current_database())")
    await session.execute(f"ALTER DATABASE {database} SET {name} = '{value}'")


@pytest.fixture
async def postgres_dsn(databases: Databases) -> AsyncIterator[str]:
    async with make_database(databases) as dsn:
        yield dsn


@pytest.fixture
async def checkpoints(postgres_dsn: str) -> AsyncIterator[PgCheckpoints]:
    async with open_checkpoints(postgres_dsn) as checkpoints:
        yield checkpoints


@pytest.fixture
async def transactions(checkpoints: PgCheckpoints, postgres_dsn: str) -> AsyncIterator[Transactions]:
    async with open_session(postgres_dsn) as session:
        await session.execute(
            "CREATE TABLE public.effects (id int GENERATED ALWAYS AS IDENTITY, event_id text UNIQUE)"
        )
        await session.execute("SET search_path TO postbus, public")
        events = [await store_event(session, name) for name in "abcde"]
        transactions = Transactions(checkpoints, session, events)
        transactions.owner = await checkpoints.claim(MAIL, START)
        yield transactions


@pytest.fixture
async def through_proxy(
    transactions: Transactions, postgres_dsn: str, postgres_proxy: Proxy
) -> AsyncIterator[Transactions]:
    """The same, with a network that can fail."""
    async with open_checkpoints(postgres_proxy.through(postgres_dsn)) as checkpoints:
        transactions.checkpoints = checkpoints
        yield transactions


class TestProcess:
    async def test_effects_and_checkpoint_are_there_together(self, transactions: Transactions) -> None:
        """Head and gaps too, and the event is the last that was processed."""
        position = LogPosition(GlobalSequence(9), (Gap(7, 8),))
        outcome = await transactions.checkpoints.process(
            MAIL,
            transactions.owner.epoch,
            transactions.events,
            write,
            lambda _: position,
            timeout=_LONG,
            time_budget=_LONG,
        )

        assert outcome == BatchOutcome(5)
        assert await transactions.effects() == ["a", "b", "c", "d", "e"]
        found = await transactions.checkpoints.load(MAIL)
        assert found is not None
        assert (found.position, found.head, found.open, found.event_id) == (6, 9, (Gap(7, 8),), "e")

    async def test_a_plain_function_can_be_a_handler(self, transactions: Transactions) -> None:
        """What it returns need not be awaited."""
        outcome = await transactions.process(lambda event, connection: None)

        assert outcome == BatchOutcome(5)
        assert transactions.called == ["a", "b", "c", "d", "e"]

    async def test_an_event_that_raises_is_undone_and_those_before_it_count(
        self, transactions: Transactions
    ) -> None:
        """Their effects were undone with it, so they are made again."""

        async def fail(_: Any) -> None:
            raise ValueError("no address")

        outcome = await transactions.process(spoil("c", fail))

        assert (outcome.done_count, str(outcome.error)) == (2, "no address")
        assert await transactions.effects() == ["a", "b"]
        assert await transactions.position() == sequence_of(transactions.events[1])
        assert transactions.called == ["a", "b", "c", "a", "b"]

    async def test_an_error_of_the_database_is_the_handlers_own(self, transactions: Transactions) -> None:
        """A statement that fails spoils the transaction, not the store."""
        outcome = await transactions.process(
            spoil("b", lambda connection: connection.execute("INSERT INTO effects (event_id) VALUES ('a')"))
        )

        assert (outcome.done_count, type(outcome.error)) == (1, asyncpg.UniqueViolationError)
        assert await transactions.effects() == ["a"]

    async def test_part_of_a_handler_can_be_undone(self, transactions: Transactions) -> None:
        """By the driver's own nested transactions."""

        async def handle(event: Event, connection: Any) -> None:
            await write(event, connection)
            with pytest.raises(asyncpg.UniqueViolationError):
                async with connection.transaction():
                    await write(event, connection)

        assert await transactions.process(handle) == BatchOutcome(5)
        assert await transactions.effects() == ["a", "b", "c", "d", "e"]

    @pytest.mark.parametrize("is_raw", [False, True])
    async def test_a_savepoint_left_open_is_closed(self, transactions: Transactions, is_raw: bool) -> None:
        """Effects count, and nothing is left behind for the next."""

        async def handle(event: Event, connection: Any) -> None:
            if is_raw:
                await connection.execute("SAVEPOINT mine")
            else:
                await connection.transaction().start()
            await write(event, connection)

        assert await transactions.process(handle) == BatchOutcome(5)
        assert await transactions.effects() == ["a", "b", "c", "d", "e"]

    async def test_a_batch_whose_time_is_up_ends_after_the_event(self, transactions: Transactions) -> None:
        """At least one is processed."""
        outcome = await transactions.process(write, time_budget=0.0)

        assert outcome == BatchOutcome(1)
        assert await transactions.effects() == ["a"]

    async def test_a_retry_resolves_its_dead_letter_and_leaves_the_checkpoint(
        self, transactions: Transactions
    ) -> None:
        """Whatever number the event has."""
        checkpoints, session, event = transactions.checkpoints, transactions.session, transactions.events[2]
        await checkpoints.save(progress(transactions.owner, 0, burials=[Burial(event, ["boom"])]))
        letter = await session.fetchval("UPDATE event_bus_dlq SET retry_wanted_at = now() RETURNING id")
        outcome = await transactions.process(write, [event], retried=letter)

        assert outcome == BatchOutcome(1)
        assert (await transactions.effects(), await transactions.position()) == (["c"], 0)
        row = await session.fetchrow("SELECT resolved_by, retry_wanted_at FROM event_bus_dlq")
        assert row is not None
        assert tuple(row) == (MAIL, None)


class TestOwners:
    async def test_whoever_claims_the_subscriber_waits_for_the_batch(
        self, transactions: Transactions, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Then that batch counts, and the next of the former owner does not."""
        # On a busy machine a moment may be too short for it.
        monkeypatch.setattr(checkpoints_module, "_SHORT_WAIT", "30s")
        claims: list[asyncio.Future[Checkpoint]] = []

        async def handle(event: Event, connection: Any) -> None:
            await write(event, connection)
            if not claims:
                claims.append(asyncio.ensure_future(transactions.checkpoints.claim(MAIL, START)))
                await until_waiting_for_lock(transactions.session)

        outcome = await transactions.process(handle, transactions.events[:2])
        claimed = await claims[0]

        assert (outcome, claimed.position) == (BatchOutcome(2), sequence_of(transactions.events[1]))
        with pytest.raises(SubscriberFencedError):
            await transactions.process(write, transactions.events[2:])
        assert await transactions.effects() == ["a", "b"]

    async def test_what_was_read_on_another_server_is_not_handled(self, transactions: Transactions) -> None:
        """Nobody is called; on the server of the claim it is."""
        server = transactions.owner.server
        assert server is not None
        with pytest.raises(SubscriberFencedError):
            await transactions.process(write, server="another")
        assert (transactions.called, await transactions.position()) == ([], 0)

        assert await transactions.process(write, server=server) == BatchOutcome(5)
        assert await transactions.effects() == ["a", "b", "c", "d", "e"]

    async def test_a_save_of_the_same_subscriber_waits_and_holds_up_no_other(
        self, transactions: Transactions
    ) -> None:
        """Others are saved while a handler takes its time."""
        checkpoints = transactions.checkpoints
        stock = await checkpoints.claim(STOCK, START)
        saves: list[asyncio.Future[None]] = []

        async def handle(event: Event, connection: Any) -> None:
            await write(event, connection)
            saves.append(asyncio.ensure_future(checkpoints.save(progress(transactions.owner, 100))))
            async with asyncio.timeout(5):
                await checkpoints.save(progress(stock, 7))
            assert not saves[0].done()

        assert await transactions.process(handle, transactions.events[:1]) == BatchOutcome(1)
        await saves[0]
        assert await transactions.position() == 100


_ENDINGS = [
    "COMMIT",
    "ROLLBACK",
    "COMMIT AND CHAIN",
    "ROLLBACK AND CHAIN",
    "COMMIT; BEGIN",
    "ROLLBACK; BEGIN",
    "INSERT INTO effects (event_id) VALUES ('script'); COMMIT",
    "PREPARE TRANSACTION 'mine'",
    "CLOSE ALL",
]


class TestEndedTransactions:
    @pytest.mark.parametrize("statement", _ENDINGS)
    @pytest.mark.parametrize("is_swallowed", [False, True])
    async def test_a_handler_that_ends_the_transaction_has_failed(
        self, transactions: Transactions, statement: str, is_swallowed: bool
    ) -> None:
        """Neither its effects nor its checkpoint are kept, not even by COMMIT; in the end it is named."""

        async def end(connection: Any) -> None:
            try:
                await connection.execute(statement)
            except asyncpg.PostgresError:
                if not is_swallowed:
                    raise

        done_count, error = await _process_to_the_end(transactions, spoil("c", end))

        assert (done_count, type(error)) == (2, TransactionEndedError)
        assert await transactions.effects() == ["a", "b"]
        assert await transactions.position() == sequence_of(transactions.events[1])
        assert await no_transaction_is_open(transactions.session)
        assert await transactions.process(write, transactions.events[2:]) == BatchOutcome(3)

    @pytest.mark.parametrize("way", ["close", "terminate"])
    @pytest.mark.parametrize("is_used_after", [False, True])
    async def test_a_handler_that_closes_the_connection_has_failed(
        self, transactions: Transactions, way: str, is_used_after: bool
    ) -> None:
        """It is no failure of the store, which has others; what it does with a closed one changes nothing."""

        async def close(connection: Any) -> None:
            closing = getattr(connection, way)()
            if closing is not None:
                await closing
            if is_used_after:
                await connection.execute("SELECT 1")

        outcome = await transactions.process(spoil("c", close))

        assert (outcome.done_count, type(outcome.error)) == (2, TransactionEndedError)
        assert await transactions.effects() == ["a", "b"]
        assert await transactions.process(write, transactions.events[2:]) == BatchOutcome(3)

    async def test_so_has_one_that_closes_a_connection_of_the_users_own_pool(
        self, transactions: Transactions, postgres_dsn: str
    ) -> None:
        """Which takes such a connection back before anybody asks."""
        async with (
            asyncpg.create_pool(postgres_dsn, min_size=1, max_size=5) as pool,
            open_checkpoints(pool) as transactions.checkpoints,
        ):
            outcome = await transactions.process(spoil("c", lambda connection: connection.close()))

            assert (outcome.done_count, type(outcome.error)) == (2, TransactionEndedError)
            assert await transactions.process(write, transactions.events[2:]) == BatchOutcome(3)

    async def test_a_failure_that_a_handler_does_not_mind_is_its_failure(
        self, transactions: Transactions
    ) -> None:
        """The transaction is spoilt by then; those after it are not blamed."""

        async def fail(connection: Any) -> None:
            with pytest.raises(asyncpg.UndefinedTableError):
                await connection.execute("SELECT * FROM nowhere")

        done_count, error = await _process_to_the_end(transactions, spoil("c", fail))

        assert (done_count, type(error)) == (2, TransactionFailedError)
        assert "connection.transaction()" in str(error)
        assert await transactions.effects() == ["a", "b"]

    async def test_a_constraint_that_is_checked_last_names_who_broke_it(
        self, transactions: Transactions
    ) -> None:
        """Nothing is taken for an error of the store at the commit."""
        await transactions.session.execute(
            "CREATE TABLE public.late (id text UNIQUE DEFERRABLE INITIALLY DEFERRED); "
            "INSERT INTO public.late VALUES ('c')"
        )

        async def handle(event: Event, connection: Any) -> None:
            await write(event, connection)
            await connection.execute("INSERT INTO late VALUES ($1)", event.id)

        done_count, error = await _process_to_the_end(transactions, handle)

        assert (done_count, type(error)) == (2, asyncpg.UniqueViolationError)
        assert await transactions.effects() == ["a", "b"]

    async def test_work_that_a_handler_leaves_behind_is_its_failure(self, transactions: Transactions) -> None:
        """Everything has to be awaited before it returns."""
        left: list[asyncio.Future[object]] = []

        async def leave(connection: Any) -> None:
            left.append(asyncio.ensure_future(connection.execute("SELECT pg_sleep(0.2)")))
            await asyncio.sleep(0)

        outcome = await transactions.process(spoil("a", leave), transactions.events[:1])

        assert (outcome.done_count, type(outcome.error)) == (0, asyncpg.InterfaceError)
        assert await transactions.effects() == []
        assert isinstance((await asyncio.gather(*left, return_exceptions=True))[0], Exception)
        assert await no_transaction_is_open(transactions.session)


class TestSlowConstraints:
    """Constraints that are checked last, and take their time."""

    async def test_they_have_as_long_as_the_handler(
        self, slow: Transactions, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """However long a statement of ours may take."""
        monkeypatch.setattr(lent, "COMMAND_SECONDS", 1.0)

        assert await slow.process(wait_later(0.4)) == BatchOutcome(5)
        assert await slow.effects() == ["a", "b", "c", "d", "e"]

    async def test_a_batch_that_takes_too_long_is_divided(self, slow: Transactions) -> None:
        """Each of its events has the time of a handler."""
        assert await _process_to_the_end(slow, wait_later(0.4), timeout=1.5) == (5, None)
        assert len(slow.called) > 5
        assert await slow.effects() == ["a", "b", "c", "d", "e"]

    async def test_an_event_that_takes_too_long_has_failed(self, slow: Transactions) -> None:
        """It is named, nothing of it is kept, and those before it count."""
        done_count, error = await _process_to_the_end(slow, wait_later(60, only="c"), timeout=0.5)

        assert (done_count, type(error)) == (2, TimeoutError)
        assert "longer than 0.5 s" in str(error)
        assert await slow.effects() == ["a", "b"]
        assert await no_transaction_is_open(slow.session)
        assert await slow.process(write, slow.events[2:]) == BatchOutcome(3)

    async def test_they_have_what_the_handler_has_left(self, slow: Transactions) -> None:
        """Both together take no longer than a handler may."""

        async def handle(event: Event, connection: Any) -> None:
            await wait_later(0.6)(event, connection)
            await connection.execute("SELECT pg_sleep(0.6)")

        outcome = await slow.process(handle, slow.events[:1], timeout=1.0)

        assert (outcome.done_count, type(outcome.error)) == (0, TimeoutError)

    async def test_a_network_that_is_silent_meanwhile_is_no_failure_of_the_handler(
        self, slow: Transactions, postgres_dsn: str, postgres_proxy: Proxy
    ) -> None:
        """Nothing is said against its event."""

        async def swallow(_: Any) -> None:
            postgres_proxy.swallow()

        async with open_checkpoints(postgres_proxy.through(postgres_dsn)) as slow.checkpoints:
            with pytest.raises(StoreUnavailableError):
                await slow.process(spoil("a", swallow), slow.events[:1], timeout=1.0)
            postgres_proxy.resume()

        assert await slow.effects() == []


@pytest.fixture
async def slow(transactions: Transactions, monkeypatch: pytest.MonkeyPatch) -> Transactions:
    """With a table whose constraint takes as long as each row says."""
    monkeypatch.setattr(transactions_module, "_LEAST_SECONDS", 0.1)
    await transactions.session.execute(
        "CREATE TABLE public.slow (seconds float); "
        "CREATE FUNCTION public.take_long() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN PERFORM pg_sleep(NEW.seconds); RETURN NULL; END $$; "
        "CREATE CONSTRAINT TRIGGER slow AFTER INSERT ON public.slow DEFERRABLE INITIALLY DEFERRED "
        "FOR EACH ROW EXECUTE FUNCTION public.take_long()"
    )
    return transactions


def wait_later(seconds: float, only: str | None = None) -> Handle:
    """A handler that writes, and whose constraint takes so long."""

    async def handle(event: Event, connection: Any) -> None:
        await write(event, connection)
        if only in (None, event.id):
            await connection.execute("INSERT INTO slow VALUES ($1)", seconds)

    return handle


async def _process_to_the_end(
    transactions: Transactions, handle: Handle, *, timeout: float = _LONG
) -> tuple[int, BaseException | None]:
    """Process batch after batch as a subscriber does, until an event fails; how many did not."""
    done_count = 0
    while done_count < len(transactions.events):
        outcome = await transactions.process(handle, transactions.events[done_count:], timeout=timeout)
        done_count += outcome.done_count
        if outcome.error is not None:
            return done_count, outcome.error
        assert outcome.done_count
    return done_count, None


class TestTime:
    @pytest.mark.parametrize("is_swallowed", [False, True])
    async def test_a_handler_that_takes_too_long_is_cancelled(
        self, transactions: Transactions, is_swallowed: bool
    ) -> None:
        """Its statement ends, its effects are undone, and those before it count."""

        async def sleep(connection: Any) -> None:
            try:
                await connection.execute("SELECT pg_sleep(60)")
            except asyncio.CancelledError:
                if not is_swallowed:
                    raise

        outcome = await transactions.process(spoil("b", sleep), timeout=0.1)

        assert (outcome.done_count, type(outcome.error)) == (1, TimeoutError)
        assert str(outcome.error) == "handler took longer than 0.1 s and was cancelled"
        assert await transactions.effects() == ["a"]
        assert await no_transaction_is_open(transactions.session)
        assert await transactions.process(write, transactions.events[1:]) == BatchOutcome(4)

    async def test_a_statement_that_a_handler_has_left_running_is_no_silence_of_the_store(
        self, transactions: Transactions
    ) -> None:
        """Its connection can't be asked for it, and is there."""
        left: list[asyncio.Future[object]] = []

        async def wait(connection: Any) -> None:
            left.append(asyncio.ensure_future(connection.execute("SELECT pg_sleep(1)")))
            await asyncio.Event().wait()

        outcome = await transactions.process(spoil("b", wait), timeout=0.1)

        assert (outcome.done_count, type(outcome.error)) == (1, TimeoutError)
        assert await transactions.effects() == ["a"]
        assert isinstance((await asyncio.gather(*left, return_exceptions=True))[0], Exception)

    async def test_a_limit_of_the_database_on_transactions_is_not_for_those_of_handlers(
        self, transactions: Transactions, postgres_dsn: str
    ) -> None:
        """They have a time limit of their own. Before PostgreSQL 17 there is none on transactions."""
        find_limit = "SELECT current_setting('transaction_timeout', true)"
        is_old = "SELECT now() + interval '1.5 s' < clock_timestamp()"
        has_limit = await transactions.session.fetchval(find_limit) is not None
        async with open_checkpoints(postgres_dsn) as transactions.checkpoints:
            if has_limit:
                await set_for_database(transactions.session, "transaction_timeout", "1s")

            async def take_long(connection: Any) -> None:
                while not await connection.fetchval(is_old):
                    pass

            outcome = await transactions.process(spoil("a", take_long), transactions.events[:2])

            assert outcome == BatchOutcome(2)
            assert await transactions.effects() == ["a", "b"]
            assert await ask(postgres_dsn, find_limit) == ("1s" if has_limit else None)

    async def test_a_time_limit_of_the_handlers_own_is_its_own_error(
        self, transactions: Transactions
    ) -> None:
        """It is not taken for that of the subscriber."""

        async def wait(_: Any) -> None:
            async with asyncio.timeout(0):
                await asyncio.Event().wait()

        outcome = await transactions.process(spoil("a", wait))

        assert (outcome.done_count, type(outcome.error), str(outcome.error)) == (0, TimeoutError, "")

    async def test_a_handler_that_holds_up_the_event_loop_for_too_long_has_failed(
        self, transactions: Transactions
    ) -> None:
        """Nothing can cancel it; when it is back, its effects are undone."""
        outcome = await transactions.process(lambda event, connection: time.sleep(0.1), timeout=0.05)

        assert (outcome.done_count, type(outcome.error)) == (0, TimeoutError)

    async def test_whoever_is_cancelled_leaves_nothing_behind(self, transactions: Transactions) -> None:
        """Neither effects nor a transaction, and the next batch finds a connection."""
        for _ in range(7):
            begun = asyncio.Event()

            async def wait(_: Any, begun: asyncio.Event = begun) -> None:
                begun.set()
                await asyncio.Event().wait()

            batch = asyncio.ensure_future(transactions.process(spoil("b", wait)))
            await begun.wait()
            batch.cancel()
            with pytest.raises(asyncio.CancelledError):
                await batch

        assert await no_transaction_is_open(transactions.session)
        assert (await transactions.effects(), await transactions.position()) == ([], 0)
        assert await transactions.process(write) == BatchOutcome(5)

    async def test_a_cancellation_that_the_handler_met_is_an_error_like_any_other(
        self, transactions: Transactions
    ) -> None:
        """Something that it waited for was cancelled, not the batch."""

        async def wait(_: Any) -> None:
            cancelled = asyncio.get_running_loop().create_future()
            cancelled.cancel()
            await cancelled

        outcome = await transactions.process(spoil("b", wait))

        assert (outcome.done_count, type(outcome.error)) == (1, asyncio.CancelledError)
        assert await transactions.effects() == ["a"]

    @pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
    async def test_the_end_of_the_program_is_not_held_up(
        self, transactions: Transactions, error: type[BaseException]
    ) -> None:
        """Everything is undone, and no transaction is left open."""

        async def end(_: Any) -> None:
            raise error

        with pytest.raises(error):
            await transactions.process(spoil("b", end))

        assert await no_transaction_is_open(transactions.session)
        assert (await transactions.effects(), await transactions.position()) == ([], 0)


class TestLostConnections:
    async def test_a_batch_whose_commit_was_not_answered_is_not_processed_again(
        self, through_proxy: Transactions, postgres_proxy: Proxy
    ) -> None:
        """Its effects are there once, and the handler is not called for it."""
        lost = postgres_proxy.cut_before_answer_of(b"COMMIT;")
        with pytest.raises(StoreUnavailableError):
            await through_proxy.process(write, through_proxy.events[:3])
        assert lost.is_set()
        through_proxy.called.clear()

        assert await through_proxy.process(write) == BatchOutcome(5)
        assert through_proxy.called == ["d", "e"]
        assert await through_proxy.effects() == ["a", "b", "c", "d", "e"]

    async def test_what_was_processed_beyond_a_gap_is_known_too(self, transactions: Transactions) -> None:
        """The event in the gap is not."""
        owner, events = transactions.owner, transactions.events
        head, gap = sequence_of(events[3]), sequence_of(events[1])
        await transactions.checkpoints.save(progress(owner, gap - 1, head=head, open=(Gap(gap, gap),)))

        assert await transactions.process(write) == BatchOutcome(5)
        assert transactions.called == ["b", "e"]

    async def test_a_position_that_was_moved_by_hand_counts(self, transactions: Transactions) -> None:
        """A head that does not belong to it says nothing: events are processed again."""
        await transactions.process(write)
        await transactions.session.execute("TRUNCATE effects")
        await transactions.session.execute("UPDATE event_bus_checkpoints SET last_global_sequence = 2")

        assert await transactions.process(write) == BatchOutcome(5)
        assert await transactions.effects() == ["c", "d", "e"]

    async def test_a_retry_whose_commit_was_not_answered_is_not_made_again(
        self, through_proxy: Transactions, postgres_proxy: Proxy
    ) -> None:
        """The dead letter is resolved by then."""
        event = through_proxy.events[0]
        await through_proxy.checkpoints.save(
            progress(through_proxy.owner, 1, burials=[Burial(event, ["boom"])])
        )
        letter = await through_proxy.session.fetchval("SELECT id FROM event_bus_dlq")
        postgres_proxy.cut_before_answer_of(b"COMMIT;")
        with pytest.raises(StoreUnavailableError):
            await through_proxy.process(write, [event], retried=letter)

        assert await through_proxy.process(write, [event], retried=letter) == BatchOutcome(1)
        assert through_proxy.called == ["a"]
        assert await through_proxy.effects() == ["a"]

    @pytest.mark.parametrize("is_swallowed", [False, True])
    async def test_a_connection_that_breaks_is_no_failure_of_the_handler(
        self, through_proxy: Transactions, postgres_proxy: Proxy, is_swallowed: bool
    ) -> None:
        """Nothing is written, and the next try works; also if the handler did not mind."""

        async def cut(connection: Any) -> None:
            postgres_proxy.cut()
            try:
                await connection.execute("SELECT 1")
            except (asyncpg.PostgresConnectionError, asyncpg.InterfaceError, OSError):
                if not is_swallowed:
                    raise

        with pytest.raises(StoreUnavailableError):
            await through_proxy.process(spoil("b", cut))
        assert await through_proxy.effects() == []
        assert await through_proxy.process(write) == BatchOutcome(5)

    @pytest.mark.parametrize("event_id", ["a", "c", "e"])
    async def test_a_session_that_ends_while_the_handler_does_not_use_it_is_nobodys_failure(
        self, transactions: Transactions, event_id: str
    ) -> None:
        """Wherever in the batch: all of it is undone, and all of it works the next time."""
        with pytest.raises(StoreUnavailableError, match="was lost while the handler of 'mail' had it"):
            await transactions.process(spoil(event_id, partial(end_session, transactions.session)))

        assert (await transactions.effects(), await transactions.position()) == ([], 0)
        assert await transactions.process(write) == BatchOutcome(5)
        assert await transactions.effects() == ["a", "b", "c", "d", "e"]

    async def test_so_is_that_of_a_connection_of_the_users_own_pool(
        self, transactions: Transactions, postgres_dsn: str
    ) -> None:
        """Such a connection seems to be given back by then."""
        async with (
            asyncpg.create_pool(postgres_dsn, min_size=1, max_size=5) as pool,
            open_checkpoints(pool) as transactions.checkpoints,
        ):
            with pytest.raises(StoreUnavailableError):
                await transactions.process(spoil("c", partial(end_session, transactions.session)))

            assert await transactions.process(write) == BatchOutcome(5)

    async def test_an_error_of_the_handlers_own_about_a_lost_connection_is_the_stores(
        self, transactions: Transactions
    ) -> None:
        """Whatever it made of the driver's; that one is still to be seen."""

        async def wrap(connection: Any) -> None:
            await end_session(transactions.session, connection)
            try:
                await connection.execute("SELECT 1")
            except asyncpg.InterfaceError as error:
                raise LookupError("no such order") from error

        with pytest.raises(StoreUnavailableError) as raised:
            await transactions.process(spoil("b", wrap))

        assert isinstance(raised.value.__cause__, LookupError)
        assert await transactions.process(write) == BatchOutcome(5)

    async def test_a_handler_may_close_what_is_lost_already(self, transactions: Transactions) -> None:
        """It has ended nothing by that."""

        async def tidy_up(connection: Any) -> None:
            await end_session(transactions.session, connection)
            await connection.close()

        with pytest.raises(StoreUnavailableError):
            await transactions.process(spoil("b", tidy_up))

    async def test_a_handler_that_takes_too_long_has_failed_although_its_connection_is_lost(
        self, transactions: Transactions
    ) -> None:
        """With any other it would have, too; and those that are idle for very long the server ends itself."""

        async def wait(connection: Any) -> None:
            await end_session(transactions.session, connection)
            await asyncio.Event().wait()

        outcome = await transactions.process(spoil("b", wait), timeout=1.0)

        assert (outcome.done_count, type(outcome.error)) == (1, TimeoutError)
        assert await transactions.effects() == ["a"]

    async def test_a_server_that_ends_the_session_is_no_failure_of_the_handler(
        self, transactions: Transactions
    ) -> None:
        """As it does when it is shut down."""

        async def terminate(connection: Any) -> None:
            await transactions.session.execute("SELECT pg_terminate_backend($1)", connection.get_server_pid())
            await connection.execute("SELECT pg_sleep(60)")

        with pytest.raises(StoreUnavailableError):
            await transactions.process(spoil("b", terminate))
        assert await transactions.effects() == []

    async def test_a_network_that_swallows_everything_is_no_failure_of_the_handler(
        self, through_proxy: Transactions, postgres_proxy: Proxy
    ) -> None:
        """Though it is the handler's time that is up; and the server does not wait for us for ever."""

        async def ask(connection: Any) -> None:
            postgres_proxy.swallow()
            await connection.execute("SELECT 1")

        with pytest.raises(StoreUnavailableError):
            await through_proxy.process(spoil("b", ask), timeout=0.1, time_budget=0.1)
        assert await no_transaction_is_open(through_proxy.session)
        postgres_proxy.resume()
        assert await through_proxy.effects() == []

    async def test_the_failure_of_another_server_is_the_handlers_own(
        self, transactions: Transactions
    ) -> None:
        """Only our own connection tells about our own store."""

        async def fail(_: Any) -> None:
            raise asyncpg.TooManyConnectionsError("of another server")

        outcome = await transactions.process(spoil("b", fail))

        assert (outcome.done_count, type(outcome.error)) == (1, asyncpg.TooManyConnectionsError)


async def test_handlers_of_many_subscribers_leave_connections_for_the_rest(
    transactions: Transactions,
) -> None:
    """However long they take, and however many there are."""
    checkpoints = transactions.checkpoints
    going_on, begun = asyncio.Event(), asyncio.Event()

    async def handle(event: Event, connection: Any) -> None:
        begun.set()
        await going_on.wait()
        await connection.execute("INSERT INTO effects (event_id) VALUES (gen_random_uuid()::text)")

    async def process(owner: Checkpoint) -> BatchOutcome:
        return await checkpoints.process(
            owner.subscriber_id,
            owner.epoch,
            transactions.events[:1],
            handle,
            lambda _: LogPosition(GlobalSequence(1)),
            timeout=_LONG,
            time_budget=_LONG,
        )

    owners = [await checkpoints.claim(SubscriberId(f"subscriber-{number}"), START) for number in range(8)]
    batches = [asyncio.ensure_future(process(owner)) for owner in owners]
    await begun.wait()
    async with asyncio.timeout(5):
        await checkpoints.save(progress(transactions.owner, 3))
    going_on.set()

    assert await asyncio.gather(*batches) == [BatchOutcome(1)] * 8
