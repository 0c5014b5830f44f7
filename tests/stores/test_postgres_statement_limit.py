"""StatementLimit and the leases that use it: what takes too long is ended, and nothing else is."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import asyncpg
import pytest

from postbus.errors import StoreUnavailableError
from postbus.stores.postgres import lent
from postbus.stores.postgres.database import Database
from postbus.stores.postgres.leases import StatementLease
from postbus.stores.postgres.statement_limit import StatementLimit
from tests.patience import PATIENCE
from tests.postgres.steps import until_executing
from tests.stores.postgres_steps import eventually

_SLEEP = "SELECT pg_sleep(60)"
_SECONDS = 0.1


@asynccontextmanager
async def opened(target: "str | asyncpg.Pool[asyncpg.Record]") -> AsyncIterator[Database]:
    database = Database(target)
    await database.open()
    try:
        yield database
    finally:
        await database.close()


class Statement:
    """Notes when it is cut off."""

    def __init__(self) -> None:
        self.cut_off_at = 0.0
        self.is_cut_off = asyncio.Event()

    def cut_off(self) -> None:
        self.cut_off_at = self.cut_off_at or asyncio.get_running_loop().time()
        self.is_cut_off.set()


class TestStatementLimit:
    @pytest.fixture(autouse=True)
    def limit_seconds(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(lent, "COMMAND_SECONDS", _SECONDS)

    async def test_each_has_its_own_time(self) -> None:
        """One that has begun later is cut off later, by the same timer, and not before its time is up."""
        limit, first, second = StatementLimit(), Statement(), Statement()
        now = asyncio.get_running_loop().time
        limit.begin(first)
        await asyncio.sleep(_SECONDS / 2)
        began_at = now()
        limit.begin(second)
        async with asyncio.timeout(PATIENCE):
            await first.is_cut_off.wait()
            await second.is_cut_off.wait()

        assert first.cut_off_at <= second.cut_off_at
        assert second.cut_off_at - began_at >= _SECONDS

    async def test_what_is_over_is_not_cut_off(self) -> None:
        """Nor does it keep the others from it."""
        limit, over, late = StatementLimit(), Statement(), Statement()
        limit.begin(over)
        limit.begin(late)
        limit.end(over)
        async with asyncio.timeout(PATIENCE):
            await late.is_cut_off.wait()

        assert not over.is_cut_off.is_set()

    async def test_one_that_begins_after_a_pause_has_a_time_too(self) -> None:
        """The timer is set anew when there was nothing to look after."""
        limit, over, late = StatementLimit(), Statement(), Statement()
        limit.begin(over)
        limit.end(over)
        await eventually(lambda: limit._timer is None)
        limit.begin(late)
        async with asyncio.timeout(PATIENCE):
            await late.is_cut_off.wait()

        assert not over.is_cut_off.is_set()


class TestStatements:
    async def test_one_that_takes_too_long_leaves_its_caller_as_it_was(
        self, postgres_dsn: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The caller is not cancelled: it gets an error, and can go on to wait for other things."""
        async with opened(postgres_dsn) as database:
            monkeypatch.setattr(lent, "COMMAND_SECONDS", _SECONDS)
            with pytest.raises(StoreUnavailableError, match="time limit"):
                await database.fetch(_SLEEP)
            task = asyncio.current_task()
            assert task is not None
            requests = task.cancelling()
            await asyncio.sleep(0)
            monkeypatch.undo()
            rows = await database.fetch("SELECT 1")

        assert (requests, rows[0][0]) == (0, 1)

    async def test_one_that_is_cut_off_twice_is_cancelled_once(self, postgres_dsn: str) -> None:
        """Else a request to cancel the caller would be left over."""
        async with opened(postgres_dsn) as database:
            task = asyncio.current_task()
            assert task is not None

            async def cut_off_twice() -> None:
                await until_executing(postgres_dsn, _SLEEP)
                for lease in list(database._limit._ends):
                    lease.cut_off()
                    lease.cut_off()

            cutting = asyncio.create_task(cut_off_twice())
            with pytest.raises(StoreUnavailableError, match="time limit"):
                await database.fetch(_SLEEP)
            await cutting

        assert task.cancelling() == 0

    async def test_a_cancellation_that_comes_with_the_end_of_the_time_wins(self, postgres_dsn: str) -> None:
        """Whoever wants the task gone is heard, also if its statement is ended in the same moment."""
        async with opened(postgres_dsn) as database:
            task = asyncio.create_task(database.fetch(_SLEEP))
            await until_executing(postgres_dsn, _SLEEP)
            (lease,) = database._limit._ends
            lease.cut_off()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

    async def test_an_answer_that_has_come_while_the_loop_was_held_up_counts(
        self, postgres_dsn: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A handler that holds up everybody is no fault of the statement's."""
        query = "SELECT 7 FROM pg_sleep(0.2)"
        async with opened(postgres_dsn) as database:
            monkeypatch.setattr(lent, "COMMAND_SECONDS", 0.5)
            task = asyncio.create_task(database.fetch(query))
            await until_executing(postgres_dsn, query)
            time.sleep(0.8)  # noqa: ASYNC251 - this is what a handler does that blocks
            rows = await task

        assert rows[0][0] == 7

    async def test_one_that_leaves_a_transaction_behind_spoils_no_other(self, postgres_dsn: str) -> None:
        """The connection is lent again when it is what it was, and not before."""
        async with opened(postgres_dsn) as database:
            async with database.statement() as connection:
                await connection.execute("BEGIN")
            async with database.statement() as another:
                is_in_transaction = another.is_in_transaction()

        assert not is_in_transaction

    async def test_a_closed_pool_lends_nothing(self, postgres_dsn: str) -> None:
        """Not even what is still idle."""
        async with opened(postgres_dsn) as database:
            await database.fetch("SELECT 1")
            pool = database._pool
            assert pool is not None
            closing = asyncio.create_task(pool.close())
            await asyncio.sleep(0)
            taken = database._take_idle()
            await closing

        assert taken is None

    async def test_the_limit_of_a_users_pool_is_not_ours(self, postgres_dsn: str) -> None:
        """It does not cut our statements short."""
        async with (
            asyncpg.create_pool(postgres_dsn, min_size=0, max_size=3, command_timeout=0.1) as pool,
            opened(pool) as database,
        ):
            rows = await database.fetch("SELECT 7 FROM pg_sleep(0.3)")
            async with database.statement() as connection:
                number = await connection.fetchval("SELECT 8 FROM pg_sleep(0.3)")

        assert (rows[0][0], number) == (7, 8)

    def test_in_another_loop_there_is_a_limit_as_well(
        self, postgres_dsn: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Whatever was under way when the last one ended."""
        database = Database(postgres_dsn)

        async def leave_one_behind() -> None:
            await database.open()
            async with database.statement() as connection:
                await connection.execute("SELECT 1")
                # As if it had never come to its end.
                (lease,) = database._limit._ends
                assert isinstance(lease, StatementLease)
            database._limit.begin(lease)
            await database.close()

        async def take_too_long() -> None:
            async with opened_again():
                monkeypatch.setattr(lent, "COMMAND_SECONDS", _SECONDS)
                with pytest.raises(StoreUnavailableError, match="time limit"):
                    await database.fetch(_SLEEP)
                monkeypatch.undo()

        @asynccontextmanager
        async def opened_again() -> AsyncIterator[None]:
            await database.open()
            try:
                yield
            finally:
                await database.close()

        asyncio.run(leave_one_behind())
        asyncio.run(take_too_long())
