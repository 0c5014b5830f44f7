"""Signs of life: often enough for the server, and no more; an event loop that is busy is not dead."""

import asyncio
import time

import pytest

from postbus.config import ReliableDeliveryConfig
from postbus.errors import InvalidConfigError
from postbus.stores.postgres.pace import Pace
from tests.gaps.steps import soon
from tests.instances.steps import ID, bus_with, outsider, rows, until_state

FAILOVER_TIMEOUT = 3.0
PACE = Pace.within(FAILOVER_TIMEOUT)


@pytest.mark.parametrize("timeout", [1.0, 1.5, 2.0, 3.0, 5.0, 10.0, 60.0, 1e9])
def test_silence_is_noticed_by_the_instance_before_the_server_and_by_both_in_time(timeout: float) -> None:
    """And there are at least three signs of life in the time after which a session is ended."""
    pace = Pace.within(timeout)

    assert pace.beat + pace.answer < pace.silence < timeout
    assert 3 * pace.beat <= pace.silence
    # What a standby needs, see the constants of pace.py; for very short times it is what it is.
    assert pace.silence + min(0.5, timeout * 0.6) <= timeout
    # The server takes milliseconds, and no larger number.
    assert pace.silence * 1000 < 2**31


@pytest.mark.parametrize("timeout", [0, 0.99, -1, float("inf"), float("nan"), None, "10"])
def test_a_failover_timeout_that_makes_no_sense_is_refused(timeout: object) -> None:
    """With what was found and what was expected."""
    with pytest.raises(InvalidConfigError, match="failover_timeout"):
        ReliableDeliveryConfig(failover_timeout=timeout)  # type: ignore[arg-type]


async def test_the_server_knows_how_long_the_session_may_be_silent(postgres_dsn: str) -> None:
    """It is told as soon as the bus has started, and again after every new session."""
    bus, _ = bus_with(postgres_dsn, failover_timeout=FAILOVER_TIMEOUT)
    async with bus:
        await until_state(bus, "live")
        session = bus.store._database.session  # type: ignore[attr-defined]
        for _ in range(2):
            await soon(lambda: session._told_pace == PACE)
            pid, limit = await session.run(
                lambda it: it.fetchrow("SELECT pg_backend_pid(), current_setting('idle_session_timeout')")
            )
            assert limit == "2s"
            await rows(postgres_dsn, "SELECT pg_terminate_backend($1)", pid)
            await soon(lambda: not session.is_up)
            await soon(lambda: session.is_up)


async def test_an_event_loop_that_is_held_up_keeps_what_it_owns(postgres_dsn: str) -> None:
    """For longer than an answer may take: it is there when the event loop is free again."""
    bus, _ = bus_with(postgres_dsn, failover_timeout=FAILOVER_TIMEOUT)
    async with bus:
        await until_state(bus, "live")
        session, lost = bus.store._database.session, list[str]()  # type: ignore[attr-defined]
        session.on_lost(lambda: lost.append("lost"))
        await soon(lambda: session._is_proven)
        epoch = await rows(postgres_dsn, "SELECT epoch FROM postbus.event_bus_checkpoints")
        pid = session._connection.get_server_pid()
        for _ in range(3):
            asking = asyncio.create_task(session.run(lambda it: it.fetchval("SELECT 1 FROM pg_sleep(0.05)")))
            await asyncio.sleep(0.02)
            time.sleep(PACE.answer + 0.1)  # noqa: ASYNC251 (that is what for)
            assert await asking == 1

        assert lost == []
        assert bus.subscription(ID).state == "live"
        assert session._connection.get_server_pid() == pid
        assert await rows(postgres_dsn, "SELECT epoch FROM postbus.event_bus_checkpoints") == epoch


async def test_signs_of_life_do_not_pile_up(postgres_dsn: str) -> None:
    """After the event loop was held up there is one, and not all that were missed."""
    bus, _ = bus_with(postgres_dsn, failover_timeout=FAILOVER_TIMEOUT)
    heard: list[float] = []
    async with bus, outsider(postgres_dsn) as listener:
        await until_state(bus, "live")
        session = bus.store._database.session  # type: ignore[attr-defined]
        await soon(lambda: session._is_proven)

        def hear(_connection: object, _pid: int, _channel: str, payload: object) -> None:
            if str(payload).startswith("probe "):
                heard.append(time.monotonic())

        await listener.add_listener(bus.store._database.channel, hear)  # type: ignore[attr-defined]
        began_at = time.monotonic()
        time.sleep(PACE.beat * 2)  # noqa: ASYNC251 (that is what for)
        await soon(lambda: len(heard) >= 4)
        seconds = time.monotonic() - began_at

    # A beat may be late and is never early.
    assert len(heard) <= seconds / PACE.beat + 1
    assert seconds < 10 * PACE.beat


async def test_a_server_that_leaves_us_waiting_is_given_up(postgres_dsn: str) -> None:
    """After the time that an answer may take, and not later."""
    bus, _ = bus_with(postgres_dsn, failover_timeout=FAILOVER_TIMEOUT)
    async with bus:
        await until_state(bus, "live")
        session, lost = bus.store._database.session, list[float]()  # type: ignore[attr-defined]
        session.on_lost(lambda: lost.append(time.monotonic()))
        began_at = time.monotonic()
        with pytest.raises(Exception, match="no answer within the time limit"):
            await session.run(lambda it: it.fetchval("SELECT pg_sleep(60)"))

        assert PACE.answer <= lost[0] - began_at < PACE.answer + 1
