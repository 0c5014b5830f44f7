"""Connections for statements: few, lent fairly, and none lost, whatever happens to their users."""

import asyncio
import contextlib
import gc
import random
import threading
from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import pytest

from postbus.errors import (
    BusLoopError,
    InvalidConfigError,
    StoreClosedError,
    StoreError,
    StoreUnavailableError,
)
from postbus.stores.postgres import borrowed_pool, lent, own_pool
from postbus.stores.postgres import database as database_module
from postbus.stores.postgres.database import Database
from tests.patience import PATIENCE
from tests.postgres.proxy import Proxy
from tests.postgres.server import Server
from tests.postgres.steps import ask, until_executing
from tests.stores.postgres_steps import eventually, opened, until_none

_SLEEPING = "SELECT count(*) FROM pg_stat_activity WHERE state = 'active' AND query LIKE '%pg_sleep%60%' \
AND pid <> pg_backend_pid() AND datname = current_database()"
_IN_TRANSACTION = "SELECT count(*) FROM pg_stat_activity WHERE state LIKE 'idle in transaction%' \
AND datname = current_database()"
_OURS = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'postbus' \
AND datname = current_database()"


@pytest.fixture
async def user_pool(postgres_dsn: str) -> "AsyncIterator[asyncpg.Pool[asyncpg.Record]]":
    """A pool that a user has already."""
    async with asyncpg.create_pool(postgres_dsn, min_size=0, max_size=4) as pool:
        yield pool


async def lend_all(database: Database, count: int) -> None:
    """Have that many connections lent at once, each of use: none was lost or is half dead."""
    async with contextlib.AsyncExitStack() as stack, asyncio.timeout(PATIENCE):
        connections = [await stack.enter_async_context(database.connection()) for _ in range(count)]
        for connection in connections:
            assert not connection.is_in_transaction()
            assert await connection.fetchval("SELECT 1") == 1


async def test_connections_are_opened_when_they_are_needed(postgres_dsn: str) -> None:
    """One session, and as many for statements as were at work at once."""
    async with opened(postgres_dsn, pool_size=3) as database:
        at_first = await ask(postgres_dsn, _OURS)
        for _ in range(5):
            await database.fetch("SELECT 1")
        after_some = await ask(postgres_dsn, _OURS)
        await asyncio.gather(*(database.fetch("SELECT 1 FROM pg_sleep(0.05)") for _ in range(20)))
        after_many = await ask(postgres_dsn, _OURS)

    assert (at_first, after_some, after_many) == (1, 2, 4)


async def test_connections_that_nobody_needs_are_closed(
    postgres_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a while; only the session stays."""
    monkeypatch.setattr(own_pool, "_IDLE_SECONDS", 0.1)
    async with opened(postgres_dsn, pool_size=3) as database:
        await lend_all(database, 3)
        session = await database.session.run(
            lambda connection: connection.fetchval("SELECT pg_backend_pid()")
        )
        await until_none(postgres_dsn, f"{_OURS} AND pid <> {session}")
        await lend_all(database, 3)


async def test_an_exhausted_pool_says_so(postgres_dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who waits in vain learns why; afterwards everything is as before."""
    monkeypatch.setattr(own_pool, "ACQUIRE_SECONDS", 0.1)
    async with opened(postgres_dsn, pool_size=2) as database:
        async with database.connection(), database.connection():
            with pytest.raises(StoreUnavailableError, match=r"all 2 connections .* pool_size"):
                await database.fetch("SELECT 1")
        await lend_all(database, 2)


async def test_who_waits_gets_the_next_connection_in_turn(postgres_dsn: str) -> None:
    """First come, first served."""
    served: list[int] = []

    async def use(number: int) -> None:
        async with database.connection():
            served.append(number)

    async with opened(postgres_dsn, pool_size=2) as database:
        async with database.connection(), database.connection():
            waiting = []
            for number in range(5):
                waiting.append(asyncio.create_task(use(number)))
                await asyncio.sleep(0)
        await asyncio.gather(*waiting)

    assert served == [0, 1, 2, 3, 4]


async def test_who_is_cancelled_in_the_moment_of_its_turn_passes_it_on(postgres_dsn: str) -> None:
    """The connection that it was given is not lost."""
    async with opened(postgres_dsn, pool_size=2) as database:
        for _ in range(3):
            async with database.connection(), database.connection():
                waiting = asyncio.create_task(database.fetch("SELECT 1"))
                await eventually(lambda: is_somebody_waiting(database))
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
        await lend_all(database, 2)


async def test_a_cancelled_statement_is_ended_on_the_server(postgres_dsn: str) -> None:
    """Its caller is free at once, and nothing goes on behind its back."""
    async with opened(postgres_dsn, pool_size=2) as database:
        slow = asyncio.create_task(database.fetch("SELECT pg_sleep(60)"))
        await until_executing(postgres_dsn, "SELECT pg_sleep(60)")
        slow.cancel()
        with pytest.raises(asyncio.CancelledError):
            await slow
        await until_none(postgres_dsn, _SLEEPING)
        await lend_all(database, 2)


async def test_a_cancelled_transaction_is_rolled_back(postgres_dsn: str) -> None:
    """No lock of it stays, and no connection is left in it."""
    async with opened(postgres_dsn, pool_size=2) as database:
        await database.execute("CREATE TABLE marks (number int)")

        async def mark() -> None:
            async with database.transaction() as connection:
                await connection.execute("INSERT INTO marks VALUES (1)")
                await connection.execute("SELECT pg_sleep(60)")

        marking = asyncio.create_task(mark())
        await until_executing(postgres_dsn, "SELECT pg_sleep(60)")
        marking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await marking
        await until_none(postgres_dsn, _IN_TRANSACTION)
        # Would wait for the transaction.
        await database.execute("ALTER TABLE marks ADD COLUMN word text")
        await lend_all(database, 2)

        assert await ask(postgres_dsn, "SELECT count(*) FROM marks") == 0


@pytest.mark.parametrize("kind", ["own", "user's"])
async def test_cancellation_at_any_moment_leaves_nothing_behind(
    kind: str, postgres_dsn: str, user_pool: "asyncpg.Pool[asyncpg.Record]"
) -> None:
    """Hundreds of users, cancelled while they wait, connect, begin, write, commit or give back."""
    chance = random.Random(7)
    target = postgres_dsn if kind == "own" else user_pool
    async with opened(target, pool_size=3) as database:
        await database.execute("CREATE TABLE marks (number int)")

        async def mark(number: int) -> None:
            async with database.transaction() as connection:
                await connection.execute("INSERT INTO marks VALUES ($1)", number)

        async def mark_or_not(number: int) -> bool:
            marking = asyncio.create_task(mark(number))
            await asyncio.sleep(chance.random() * 0.02)
            marking.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await marking
                return True
            return False

        were_marked = await asyncio.gather(*(mark_or_not(number) for number in range(300)))
        await until_none(postgres_dsn, _IN_TRANSACTION)
        await lend_all(database, 3)
        rows = await database.fetch("SELECT number FROM marks")

    # One that was cancelled may have been committed all the same; one that came to its end has been.
    assert {number for number, was_marked in enumerate(were_marked) if was_marked} <= {row[0] for row in rows}


async def test_a_statement_that_takes_too_long_is_ended(
    postgres_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its caller gets an error, the server stops working on it, and the connection is of use again."""
    monkeypatch.setattr(lent, "COMMAND_SECONDS", 0.2)
    async with opened(postgres_dsn, pool_size=2) as database:
        with pytest.raises(StoreUnavailableError, match="time limit"):
            await database.fetch("SELECT pg_sleep(60)")
        await until_none(postgres_dsn, _SLEEPING)
        await lend_all(database, 2)


async def test_a_statement_waits_no_longer_than_it_may_for_a_silent_server(
    postgres_dsn: str, postgres_proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half-open connections cost the time limit and are replaced."""
    monkeypatch.setattr(lent, "COMMAND_SECONDS", 0.3)
    async with opened(postgres_proxy.through(postgres_dsn), pool_size=2) as database:
        await database.fetch("SELECT 1")
        postgres_proxy.swallow()
        before = asyncio.get_running_loop().time()
        with pytest.raises(StoreUnavailableError):
            await database.fetch("SELECT 1")
        seconds = asyncio.get_running_loop().time() - before
        postgres_proxy.cut()
        postgres_proxy.resume()
        await lend_all(database, 2)

    assert seconds < 2


async def test_connections_that_the_server_has_ended_are_replaced(own_postgres: Server) -> None:
    """After a restart the first statement finds a connection that works."""
    async with opened(own_postgres.dsn(), pool_size=3) as database:
        await lend_all(database, 3)
        await asyncio.to_thread(own_postgres.restart)
        # The loop takes notice of the closed sockets.
        await eventually(lambda: not database.session.is_up)
        await lend_all(database, 3)


async def test_a_connection_cut_in_the_middle_is_replaced(postgres_dsn: str, postgres_proxy: Proxy) -> None:
    """The user of that moment gets an error that says to try again."""
    async with opened(postgres_proxy.through(postgres_dsn), pool_size=2) as database:
        slow = asyncio.create_task(database.fetch("SELECT pg_sleep(60)"))
        await until_executing(postgres_dsn, "SELECT pg_sleep(60)")
        postgres_proxy.cut()
        with pytest.raises(StoreUnavailableError, match="try again"):
            await slow
        await lend_all(database, 2)


async def test_an_error_inside_a_transaction_rolls_it_back(postgres_dsn: str) -> None:
    """At once, and the error comes out as it is."""
    async with opened(postgres_dsn) as database:
        await database.execute("CREATE TABLE marks (number int)")

        async def mark_and_fail() -> None:
            async with database.transaction() as connection:
                await connection.execute("INSERT INTO marks VALUES (1)")
                raise LookupError("mine")

        with pytest.raises(LookupError, match="mine"):
            await mark_and_fail()

        assert await ask(postgres_dsn, _IN_TRANSACTION) == 0
        assert await ask(postgres_dsn, "SELECT count(*) FROM marks") == 0


async def test_a_transaction_is_read_committed_whatever_the_default(postgres_dsn: str) -> None:
    """Each statement sees what was committed before it began."""
    dsn = f"{postgres_dsn}?default_transaction_isolation=serializable"
    async with opened(dsn) as database, database.transaction() as connection:
        level = await connection.fetchval("SHOW transaction_isolation")

    assert level == "read committed"


async def test_the_server_ends_a_transaction_of_ours_that_went_silent(postgres_dsn: str) -> None:
    """Else the rows of a host that vanished would be locked for hours; the limit is not the connection's."""
    limit = "SHOW idle_in_transaction_session_timeout"
    async with opened(postgres_dsn) as database:
        async with database.transaction() as connection:
            inside = await connection.fetchval(limit)
        outside = (await database.fetch(limit))[0][0]

    assert (inside, outside) == ("15s", "0")


async def test_the_time_limit_is_for_our_own_statements_only(
    postgres_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A handler's may take as long as the handler may, in a user's pool too."""
    monkeypatch.setattr(lent, "COMMAND_SECONDS", 0.1)
    async with (
        asyncpg.create_pool(postgres_dsn, min_size=0, max_size=3) as pool,
        opened(postgres_dsn) as own,
        opened(pool) as borrowed,
    ):
        for database in (own, borrowed):
            async with database.handler_transaction() as connection:
                assert await connection.fetchval("SELECT 1 FROM pg_sleep(0.2)") == 1
            with pytest.raises(StoreUnavailableError, match="time limit"):
                async with database.connection() as connection:
                    await connection.fetchval("SELECT 1 FROM pg_sleep(0.2)")


async def test_handlers_leave_connections_for_others(postgres_dsn: str) -> None:
    """However many handlers are at work, publishers and readers find a connection."""
    at_once = most = 0

    async def handle() -> None:
        nonlocal at_once, most
        async with database.handler_transaction() as connection:
            at_once += 1
            most = max(most, at_once)
            await connection.execute("SELECT pg_sleep(0.02)")
            # What a handler publishes goes over a connection of its own.
            await database.fetch("SELECT 1")
            at_once -= 1

    async with opened(postgres_dsn, pool_size=4) as database, asyncio.timeout(PATIENCE):
        await asyncio.gather(*(handle() for _ in range(12)))

    assert most == 2


async def test_what_a_handler_sets_ends_with_its_transaction(postgres_dsn: str) -> None:
    """Settings of the session, locks and listeners of a handler are not for the next user."""
    async with opened(postgres_dsn, pool_size=2) as database:
        async with database.handler_transaction() as connection:
            await connection.execute("SET synchronous_commit = off")
            await connection.execute("SELECT pg_advisory_lock(1)")
            await connection.add_listener("mine", print)
        for _ in range(2):
            async with database.connection() as first, database.connection() as second:
                for each in (first, second):
                    assert await each.fetchval("SHOW synchronous_commit") == "on"
                    assert await each.fetchval("SELECT count(*) FROM pg_listening_channels()") == 0
        assert await ask(postgres_dsn, "SELECT pg_try_advisory_lock(1)") is True


async def test_a_handler_can_nest_transactions(postgres_dsn: str) -> None:
    """As with any connection of asyncpg."""
    async with opened(postgres_dsn) as database:
        await database.execute("CREATE TABLE marks (number int)")
        async with database.handler_transaction() as connection:
            assert isinstance(connection, asyncpg.Connection)
            await connection.execute("INSERT INTO marks VALUES (1)")
            with contextlib.suppress(LookupError):
                async with connection.transaction():
                    await connection.execute("INSERT INTO marks VALUES (2)")
                    raise LookupError

        assert [row[0] for row in await database.fetch("SELECT number FROM marks")] == [1]


async def test_a_handler_cannot_use_its_connection_afterwards(postgres_dsn: str) -> None:
    """It would meddle with the work of somebody else."""
    async with opened(postgres_dsn) as database:
        async with database.handler_transaction() as connection:
            await connection.execute("SELECT 1")
        with pytest.raises(asyncpg.InterfaceError, match="transaction was over"):
            await connection.execute("SELECT 1")


async def test_a_users_own_pool_is_used_and_stays_open(
    postgres_dsn: str, user_pool: "asyncpg.Pool[asyncpg.Record]"
) -> None:
    """One of its connections becomes the session; at the end it has all of them again."""
    async with opened(user_pool) as database:
        assert (await database.fetch("SELECT 1"))[0][0] == 1
        async with database.transaction() as connection:
            assert await connection.fetchval("SELECT 2") == 2
        while_open = await ask(postgres_dsn, _OURS)
    async with contextlib.AsyncExitStack() as stack, asyncio.timeout(PATIENCE):
        for _ in range(4):
            await stack.enter_async_context(user_pool.acquire())

    assert while_open == 0


async def test_an_exhausted_pool_of_a_user_says_so(
    user_pool: "asyncpg.Pool[asyncpg.Record]", monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their own code may hold all of it."""
    monkeypatch.setattr(borrowed_pool, "ACQUIRE_SECONDS", 0.1)
    async with opened(user_pool) as database:
        async with user_pool.acquire(), user_pool.acquire(), user_pool.acquire():
            with pytest.raises(StoreUnavailableError, match=r"pool of 4 connections .* max_size"):
                await database.fetch("SELECT 1")
        assert (await database.fetch("SELECT 1"))[0][0] == 1


async def test_a_users_pool_has_its_session_elsewhere_if_told_so(
    postgres_dsn: str, user_pool: "asyncpg.Pool[asyncpg.Record]"
) -> None:
    """For a pool that leads through a pooler."""
    async with opened(user_pool, session_dsn=postgres_dsn):
        ours = await ask(postgres_dsn, _OURS)

    assert ours == 1


async def test_a_pool_that_is_too_small_is_refused(postgres_dsn: str) -> None:
    """A handler in its transaction that publishes would wait for itself."""
    async with asyncpg.create_pool(postgres_dsn, min_size=0, max_size=2) as small:
        with pytest.raises(InvalidConfigError, match="3 or more"):
            Database(small)
        Database(small, session_dsn=postgres_dsn)
    with pytest.raises(InvalidConfigError, match="2 or more"):
        Database(postgres_dsn, pool_size=1)


async def test_it_opens_on_first_use_and_not_after_it_was_closed(postgres_dsn: str) -> None:
    """Who outlives the bus must not connect behind its back."""
    database = Database(postgres_dsn)
    assert (await database.fetch("SELECT 1"))[0][0] == 1
    await database.close()
    await database.close()
    with pytest.raises(StoreClosedError):
        await database.fetch("SELECT 1")
    await database.open()
    assert (await database.fetch("SELECT 1"))[0][0] == 1
    await database.close()


async def test_closing_ends_who_waits_and_who_works(postgres_dsn: str) -> None:
    """Both get an error of ours, and no connection stays."""
    async with opened(postgres_dsn, pool_size=2) as database:
        users = [asyncio.create_task(database.fetch("SELECT pg_sleep(3)")) for _ in range(4)]
        await eventually(lambda: database_is_full(database))
        await database.close()
        errors = await asyncio.gather(*users, return_exceptions=True)

    assert [isinstance(error, StoreError) for error in errors] == [True] * 4
    # The server notices when it is through with the statement.
    await until_none(postgres_dsn, _OURS)


async def test_closing_gives_up_what_still_connects(
    postgres_dsn: str, postgres_proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To a server that takes connections and says nothing: no task of ours is left, and no error unheard."""
    monkeypatch.setattr(database_module, "CLOSE_SECONDS", 0.1)
    unheard: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: unheard.append(context))
    async with opened(postgres_proxy.through(postgres_dsn)) as database:
        postgres_proxy.swallow()
        postgres_proxy.cut()
        await eventually(is_connecting)
        await database.close()
        is_left = is_connecting()
    gc.collect()

    assert (is_left, unheard) == (False, [])


def is_connecting() -> bool:
    """Whether a task of ours opens a connection."""
    return any(task.get_name() == "postbus connecting" for task in asyncio.all_tasks())


def database_is_full(database: Database) -> bool:
    """Whether every place in the pool is taken and somebody waits."""
    pool: Any = database._pool
    return len(pool._lent) == 2 and len(pool._waiters) == 2


def is_somebody_waiting(database: Database) -> bool:
    """Whether a user waits for a connection."""
    pool: Any = database._pool
    return len(pool._waiters) > 0


async def test_another_event_loop_is_refused(postgres_dsn: str) -> None:
    """It would wait for ever for an answer that comes in the first one."""
    raised: list[BaseException] = []

    async def use() -> None:
        try:
            await database.fetch("SELECT 1")
        except BusLoopError as error:
            raised.append(error)

    async with opened(postgres_dsn) as database:
        thread = threading.Thread(target=lambda: asyncio.run(use()))
        thread.start()
        await asyncio.to_thread(thread.join)

    assert len(raised) == 1
