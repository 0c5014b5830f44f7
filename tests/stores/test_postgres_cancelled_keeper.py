"""Programs that cancel all tasks of their loop, the one that keeps the session among them."""

import asyncio
import logging

import pytest

from postbus.stores.postgres import pace
from postbus.stores.postgres import session as session_module
from tests.stores.postgres_steps import end_session, eventually, opened, session_pid


@pytest.fixture(autouse=True)
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """A session that proves itself often, and whose keeper starts again soon."""
    monkeypatch.setattr(pace, "_LONGEST_BEAT", 0.1)
    monkeypatch.setattr(session_module, "_SECONDS_WITHOUT_KEEPER", 0.0)


async def test_a_session_whose_keeper_was_cancelled_proves_itself_again(
    postgres_dsn: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Else the server would end it for its silence; the log tells of it."""
    async with opened(postgres_dsn) as database:
        await eventually(lambda: database.session._is_proven)
        before = await session_pid(database)
        with caplog.at_level(logging.WARNING, "postbus"):
            await _cancel_keeper()
        database.session._is_proven = False
        await eventually(lambda: database.session._is_proven)

        assert await session_pid(database) == before
        assert len(_keepers()) == 1
    assert caplog.text.count("cancelled from outside; it starts again") == 1


async def test_a_session_whose_keeper_was_cancelled_is_replaced_when_it_is_lost(postgres_dsn: str) -> None:
    """However often somebody cancels it."""
    async with opened(postgres_dsn) as database:
        before = await session_pid(database)
        for _ in range(3):
            await _cancel_keeper()
        await end_session(postgres_dsn, database)
        await eventually(lambda: database.session.is_up)

        assert await session_pid(database) != before


async def test_a_keeper_that_is_cancelled_while_it_connects_goes_on(postgres_dsn: str) -> None:
    """The connection that it had begun is given up, and another one is made."""
    async with opened(postgres_dsn) as database:
        await end_session(postgres_dsn, database)
        await _cancel_keeper()
        await eventually(lambda: database.session.is_up)

        assert await session_pid(database)


async def test_a_session_that_was_stopped_after_all_gets_no_keeper(postgres_dsn: str) -> None:
    """It would connect again, and nobody would close that."""
    async with opened(postgres_dsn) as database:
        await _cancel_keeper()
        await database.session.stop()
        await _turns()

        assert not _keepers()
        assert not database.session.is_up


def _keepers() -> list["asyncio.Task[object]"]:
    return [task for task in asyncio.all_tasks() if task.get_name() == "postbus session"]


async def _cancel_keeper() -> None:
    """As a program does that cancels all tasks of its loop; return when it has ended."""
    await eventually(lambda: len(_keepers()) == 1)
    (keeper,) = _keepers()
    keeper.cancel()
    await asyncio.wait([keeper])


async def _turns() -> None:
    """Let everything come as far as it comes without time or others."""
    for _ in range(20):
        await asyncio.sleep(0)
