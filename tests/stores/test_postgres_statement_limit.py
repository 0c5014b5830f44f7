"""StatementLimit and the leases that use it: what takes too long is ended, and nothing else is."""

import asyncio

import pytest

from postbus.errors import StoreUnavailableError
from postbus.stores.postgres import lent
from postbus.stores.postgres.database import Database
from postbus.stores.postgres.statement_limit import StatementLimit
from tests.patience import PATIENCE
from tests.postgres.steps import until_executing

_SLEEP = "SELECT pg_sleep(60)"
_SECONDS = 0.1


@pytest.fixture
def short_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lent, "COMMAND_SECONDS", _SECONDS)


class Statement:
    """Notes when it is cut off."""

    def __init__(self) -> None:
        self.cut_off_at: float | None = None
        self.is_cut_off = asyncio.Event()

    def cut_off(self) -> None:
        self.cut_off_at = asyncio.get_running_loop().time()
        self.is_cut_off.set()


@pytest.mark.usefixtures("short_limit")
class TestStatementLimit:
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
            was_second_cut_off = second.is_cut_off.is_set()
            await second.is_cut_off.wait()

        assert not was_second_cut_off
        assert second.cut_off_at is not None
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
        await asyncio.sleep(2 * _SECONDS)
        limit.begin(late)
        async with asyncio.timeout(PATIENCE):
            await late.is_cut_off.wait()

        assert not over.is_cut_off.is_set()

    async def test_after_stop_nothing_is_cut_off(self) -> None:
        """Another loop may use it next."""
        limit, left, late = StatementLimit(), Statement(), Statement()
        limit.begin(left)
        limit.stop()
        limit.begin(late)
        async with asyncio.timeout(PATIENCE):
            await late.is_cut_off.wait()

        assert not left.is_cut_off.is_set()


class TestStatements:
    async def test_one_that_takes_too_long_leaves_its_caller_as_it_was(
        self, postgres_dsn: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The caller is not cancelled: it gets an error, and can go on to wait for other things."""
        database = Database(postgres_dsn)
        await database.open()
        monkeypatch.setattr(lent, "COMMAND_SECONDS", _SECONDS)
        try:
            with pytest.raises(StoreUnavailableError, match="time limit"):
                await database.fetch(_SLEEP)
            task = asyncio.current_task()
            assert task is not None
            requests = task.cancelling()
            await asyncio.sleep(0)
            monkeypatch.undo()
            rows = await database.fetch("SELECT 1")
        finally:
            await database.close()

        assert (requests, rows[0][0]) == (0, 1)

    async def test_a_cancellation_that_comes_with_the_end_of_the_time_wins(self, postgres_dsn: str) -> None:
        """Whoever wants the task gone is heard, also if its statement is ended in the same moment."""
        database = Database(postgres_dsn)
        await database.open()
        try:
            task = asyncio.create_task(database.fetch(_SLEEP))
            await until_executing(postgres_dsn, _SLEEP)
            (lease,) = database._limit._ends
            lease.cut_off()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        finally:
            await database.close()
