"""Coordinated mode: one active instance per subscriber id, the others stand by and keep trying."""

import asyncio
import logging

import pytest

from postbus import InstanceMode
from tests.faults.steps import end_backends
from tests.gaps.steps import soon
from tests.instances.steps import (
    ID,
    ListeningProxy,
    bus_with,
    outsider,
    payloads,
    rows,
    until_state,
)
from tests.postgres.existing import Postgres

# The specification's key, of the bus's name and the subscriber's id.
_LOCK = """
pg_try_advisory_lock(
    ('x' || substr(md5($1), 1, 8))::bit(32)::int, ('x' || substr(md5($1), 9, 8))::bit(32)::int
)
"""
_UNLOCK = _LOCK.replace("try_advisory_lock", "advisory_unlock")
_HOLDERS = """
SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND objsubid = 2 AND granted
  AND classid = ('x' || substr(md5($1), 1, 8))::bit(32)::bigint::oid
  AND objid = ('x' || substr(md5($1), 9, 8))::bit(32)::bigint::oid
"""
# Several times as long as a standby waits before it asks again.
_SOME_LOOKS = 0.9


async def test_the_active_instance_holds_the_lock_of_the_specification_salted_with_the_name_of_the_bus(
    postgres_dsn: str,
) -> None:
    """Seen from SQL: whoever locks the md5 of "schema:id" keeps the bus out, and the other way round."""
    bus, seen = bus_with(postgres_dsn, schema="shop")
    async with outsider(postgres_dsn) as session:
        assert await session.fetchval(f"SELECT {_LOCK}", f"shop:{ID}")
        async with bus:
            await until_state(bus, "standby")
            await bus.publish("test.done", 1)
            await session.fetchval(f"SELECT {_UNLOCK}", f"shop:{ID}")
            await until_state(bus, "live")
            await soon(lambda: payloads(seen.events) == [1])

            assert not await session.fetchval(f"SELECT {_LOCK}", f"shop:{ID}")
            assert await session.fetchval(f"SELECT {_LOCK}", f"postbus:{ID}")
            assert await session.fetchval(f"SELECT {_LOCK}", ID)


async def test_one_instance_is_active_and_the_others_stand_by(postgres_dsn: str) -> None:
    """Whoever publishes, only the active one gets it."""
    first, got_by_first = bus_with(postgres_dsn)
    async with first:
        await until_state(first, "live")
        second, got_by_second = bus_with(postgres_dsn)
        third, got_by_third = bus_with(postgres_dsn)
        async with second, third:
            await until_state(second, "standby")
            await until_state(third, "standby")
            for bus in (first, second, third):
                await bus.publish("test.done")
            await first.subscription(ID).caught_up()

            assert second.subscription(ID).state == third.subscription(ID).state == "standby"
            assert (len(got_by_first.events), got_by_second.events, got_by_third.events) == (3, [], [])


async def test_a_standby_says_so_once_and_keeps_trying(
    postgres_dsn: str, caplog: pytest.LogCaptureFixture
) -> None:
    """One line at info, however long it lasts; then another that it is active."""
    first, _ = bus_with(postgres_dsn)
    second, _ = bus_with(postgres_dsn)
    with caplog.at_level(logging.DEBUG, "postbus"):
        async with second:
            async with first:
                # Whichever of them is the standby.
                await soon(
                    lambda: {bus.subscription(ID).state for bus in (first, second)} == {"live", "standby"}
                )
                await asyncio.sleep(_SOME_LOOKS)
                told = [each for each in caplog.records if "standing by" in each.getMessage()]
            await until_state(second, "live")

    assert [each.levelno for each in told] == [logging.INFO]
    assert sum("is active from" in each.getMessage() for each in caplog.records) in (1, 2)


async def test_different_subscribers_are_active_in_different_instances(postgres_dsn: str) -> None:
    """Each id has a lock of its own; both get every event."""
    first, got_by_first = bus_with(postgres_dsn, "mail")
    second, got_by_second = bus_with(postgres_dsn, "stock")
    async with first, second:
        await until_state(first, "live", "mail")
        await until_state(second, "live", "stock")
        await first.publish("test.done", 1)
        await soon(lambda: payloads(got_by_first.events) == payloads(got_by_second.events) == [1])


async def test_the_lock_is_on_the_session_and_not_on_a_pooled_connection(postgres_dsn: str) -> None:
    """All other connections may end: it is still the active one, under the same epoch."""
    bus, seen = bus_with(postgres_dsn)
    async with bus:
        await until_state(bus, "live")
        [(holder,)] = await rows(postgres_dsn, _HOLDERS, f"postbus:{ID}")
        epoch = await rows(postgres_dsn, "SELECT epoch FROM postbus.event_bus_checkpoints")
        ended = await rows(
            postgres_dsn,
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE datname = current_database() AND application_name = 'postbus' AND pid <> $1",
            holder,
        )
        await asyncio.gather(
            *(bus.publish("test.done", number) for number in range(5)), return_exceptions=True
        )
        await bus.publish("test.done", 5)
        await soon(lambda: 5 in payloads(seen.events))

        assert ended
        assert await rows(postgres_dsn, _HOLDERS, f"postbus:{ID}") == [(holder,)]
        assert await rows(postgres_dsn, "SELECT epoch FROM postbus.event_bus_checkpoints") == epoch


async def test_an_instance_that_loses_its_session_is_replaced_and_becomes_a_standby(
    postgres_dsn: str,
) -> None:
    """Or is the active one again, if it is quicker: in any case one of them is, and nothing is lost."""
    first, got_by_first = bus_with(postgres_dsn)
    second, got_by_second = bus_with(postgres_dsn)
    async with first, second:
        for number in range(10):
            await soon(lambda: {bus.subscription(ID).state for bus in (first, second)} == {"live", "standby"})
            await end_backends(postgres_dsn)
            while True:
                try:
                    await first.publish("test.done", number, event_id=f"event-{number}")
                    break
                except Exception:
                    await asyncio.sleep(0.01)
            await soon(lambda n=number: n in payloads(got_by_first.events + got_by_second.events))  # type: ignore[misc]


async def test_a_subscriber_that_is_unsubscribed_is_left_to_the_others(postgres_dsn: str) -> None:
    """At once: its lock goes with it, and the bus goes on."""
    first, _ = bus_with(postgres_dsn, "mail", "stock")
    second, _ = bus_with(postgres_dsn, "mail", "stock")
    async with first:
        await until_state(first, "live", "mail")
        await until_state(first, "live", "stock")
        async with second:
            await until_state(second, "standby", "mail")
            first.unsubscribe("mail")
            await until_state(second, "live", "mail")

            assert second.subscription("stock").state == "standby"
            assert first.subscription("stock").state == "live"


async def test_a_single_instance_asks_for_no_lock_at_all(postgres: Postgres, postgres_dsn: str) -> None:
    """Nothing that is said to the server is about the lock; a coordinated one does ask."""
    for mode, is_asked in ((InstanceMode.SINGLE_INSTANCE, False), (InstanceMode.COORDINATED, True)):
        async with ListeningProxy(postgres) as network:
            bus, seen = bus_with(network.through(postgres_dsn), instance_mode=mode)
            async with bus:
                await until_state(bus, "live")
                await bus.publish("test.done", mode.value)
                await soon(lambda seen=seen: len(seen.events) > 0)  # type: ignore[misc]
                holders = await rows(postgres_dsn, _HOLDERS, f"postbus:{ID}")

        assert (b"pg_try_advisory_lock(" in network.said) is is_asked
        assert bool(holders) is is_asked


async def test_a_single_instance_runs_whoever_has_the_lock(postgres_dsn: str) -> None:
    """The user sees to it that there is just one."""
    bus, seen = bus_with(postgres_dsn, instance_mode=InstanceMode.SINGLE_INSTANCE)
    async with outsider(postgres_dsn) as session:
        assert await session.fetchval(f"SELECT {_LOCK}", f"postbus:{ID}")
        async with bus:
            await bus.publish("test.done", 1)
            await soon(lambda: payloads(seen.events) == [1])
