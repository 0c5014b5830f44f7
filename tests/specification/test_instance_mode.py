"""specs/0004: every test that its sections 5 and 7 name, under its name, and what its section 8 hopes for.

Where postbus does better than the specification (DESIGN.md section 8), the test says so.
"""

import logging

import pytest

from postbus import InstanceMode, PgEventBus, ReliableDeliveryConfig
from tests.gaps.steps import ID, Seen, soon
from tests.postgres.steps import ask

_HOLDERS = """
SELECT count(*) FROM pg_locks
WHERE locktype = 'advisory' AND objsubid = 2
  AND classid::bigint = ('x' || substr(md5($1), 1, 8))::bit(32)::bigint
  AND objid::bigint = ('x' || substr(md5($1), 9, 8))::bit(32)::bigint
"""
COORDINATED = ReliableDeliveryConfig(instance_mode=InstanceMode.COORDINATED, poll_interval=0.05)


def make_bus(dsn: str, *ids: str, config: ReliableDeliveryConfig = COORDINATED) -> tuple[PgEventBus, Seen]:
    """A bus with these subscribers, and what they get."""
    bus, seen = PgEventBus(dsn, config=config), Seen()
    for each in ids:
        bus.subscribe("*", seen, id=each)
    return bus, seen


async def until_live(bus: PgEventBus, *ids: str) -> None:
    """Wait until they deliver."""
    for each in ids:
        await soon(lambda id=each: bus.subscription(id).state == "live")  # type: ignore[misc]


def test_instance_mode_coordinated_exists() -> None:
    """5.1. And it is the default, because it is the safe one."""
    assert {mode.name for mode in InstanceMode} == {"COORDINATED", "SINGLE_INSTANCE"}
    assert ReliableDeliveryConfig().instance_mode is InstanceMode.COORDINATED


async def test_coordinated_mode_acquires_lock_on_subscribe(postgres_dsn: str) -> None:
    """5.2, 7: the advisory lock of that subscriber_id is held, and no longer than the bus runs."""
    bus, _ = make_bus(postgres_dsn, ID)
    async with bus:
        await until_live(bus, ID)
        assert await ask(postgres_dsn, _HOLDERS, f"postbus:{ID}") == 1

    assert await ask(postgres_dsn, _HOLDERS, f"postbus:{ID}") == 0


async def test_coordinated_mode_acquires_lock_on_subscribe_while_the_bus_runs(postgres_dsn: str) -> None:
    """5.2: subscribing later is no different."""
    bus, seen = make_bus(postgres_dsn)
    async with bus:
        bus.subscribe("*", seen, id=ID)
        await until_live(bus, ID)

        assert await ask(postgres_dsn, _HOLDERS, f"postbus:{ID}") == 1


async def test_coordinated_mode_skips_subscribe_if_lock_held(
    postgres_dsn: str, caplog: pytest.LogCaptureFixture
) -> None:
    """5.2, 7: only the first instance processes events; the second says so at info and raises nothing."""
    first, got_by_first = make_bus(postgres_dsn, ID)
    async with first:
        await until_live(first, ID)
        second, got_by_second = make_bus(postgres_dsn)
        async with second:
            with caplog.at_level(logging.INFO, "postbus"):
                second.subscribe("*", got_by_second, id=ID)
                await soon(lambda: second.subscription(ID).state == "standby")
                await soon(lambda: "active elsewhere" in caplog.text)
            for number in range(5):
                await second.publish("test.done", number)
            await first.subscription(ID).caught_up()

            assert [event.payload for event in got_by_first.events] == [0, 1, 2, 3, 4]
            assert got_by_second.events == []
            assert second.subscription(ID).state == "standby"


async def test_coordinated_mode_allows_different_subscribers(postgres_dsn: str) -> None:
    """5.2, 7: both get their locks and process events, each in an instance of its own."""
    first, got_by_first = make_bus(postgres_dsn, "a")
    second, got_by_second = make_bus(postgres_dsn, "b")
    async with first, second:
        await until_live(first, "a")
        await until_live(second, "b")
        await first.publish("test.done", 1)
        await soon(lambda: len(got_by_first.events) == len(got_by_second.events) == 1)
        holders = [await ask(postgres_dsn, _HOLDERS, f"postbus:{each}") for each in "ab"]

    assert holders == [1, 1]


async def test_coordinated_mode_allows_different_subscribers_on_same_instance(postgres_dsn: str) -> None:
    """4, phase 2; 7: different subscribers can coexist on the same instance."""
    bus, seen = make_bus(postgres_dsn, "a", "b")
    async with bus:
        await until_live(bus, "a", "b")
        await bus.publish("test.done", 1)
        await soon(lambda: len(seen.events) == 2)
        holders = [await ask(postgres_dsn, _HOLDERS, f"postbus:{each}") for each in "ab"]

    assert holders == [1, 1]


async def test_single_instance_mode_acquires_no_lock(postgres_dsn: str) -> None:
    """2.2.1: no coordination between instances."""
    config = ReliableDeliveryConfig(instance_mode=InstanceMode.SINGLE_INSTANCE, poll_interval=0.05)
    bus, seen = make_bus(postgres_dsn, ID, config=config)
    async with bus:
        await until_live(bus, ID)
        await bus.publish("test.done", 1)
        await soon(lambda: len(seen.events) == 1)

        assert await ask(postgres_dsn, _HOLDERS, f"postbus:{ID}") == 0


async def test_lock_release_lets_another_instance_take_over(postgres_dsn: str) -> None:
    """2.1.3: with the end of the session; and on, unlike there, without a new subscribe (section 8)."""
    first, got_by_first = make_bus(postgres_dsn, ID)
    second, got_by_second = make_bus(postgres_dsn, ID)
    async with second:
        async with first:
            await soon(lambda: {bus.subscription(ID).state for bus in (first, second)} == {"live", "standby"})
            await first.publish("test.done", 1)
            await soon(lambda: len(got_by_first.events) + len(got_by_second.events) == 1)
        await second.publish("test.done", 2)
        await soon(lambda: [event.payload for event in got_by_second.events][-1:] == [2])


async def test_unsubscribe_releases_the_lock(postgres_dsn: str) -> None:
    """8, "explicit lock release on unsubscribe"."""
    bus, _ = make_bus(postgres_dsn, ID)
    async with bus:
        await until_live(bus, ID)
        bus.unsubscribe(ID)
        for _ in range(1000):
            if await ask(postgres_dsn, _HOLDERS, f"postbus:{ID}") == 0:
                break
        else:
            raise AssertionError("the lock is still held")


async def test_reconnection_acquires_the_lock_again(postgres_dsn: str) -> None:
    """2.1.2: after the session was lost, who gets the lock goes on."""
    bus, seen = make_bus(postgres_dsn, ID)
    async with bus:
        await until_live(bus, ID)
        await ask(
            postgres_dsn,
            "SELECT pg_terminate_backend(pid) FROM pg_locks "
            "WHERE locktype = 'advisory' AND objsubid = 2 AND pid <> pg_backend_pid()",
        )
        await soon(lambda: bus.subscription(ID).state != "live")
        await until_live(bus, ID)
        await bus.publish("test.done", 1)
        await soon(lambda: len(seen.events) == 1)

        assert await ask(postgres_dsn, _HOLDERS, f"postbus:{ID}") == 1


async def test_lock_health_monitoring(postgres_dsn: str) -> None:
    """8: an instance that has lost its lock notices it and steps back, so that there is one owner again."""
    first, got_by_first = make_bus(postgres_dsn, ID)
    second, got_by_second = make_bus(postgres_dsn, ID)
    epoch = "SELECT epoch FROM postbus.event_bus_checkpoints"
    async with first, second:
        for number in range(3):
            await soon(lambda: {bus.subscription(ID).state for bus in (first, second)} == {"live", "standby"})
            before = await ask(postgres_dsn, epoch)
            await ask(
                postgres_dsn,
                "SELECT count(pg_terminate_backend(pid)) FROM pg_locks "
                "WHERE locktype = 'advisory' AND objsubid = 2 AND pid <> pg_backend_pid()",
            )
            while await ask(postgres_dsn, epoch) == before:
                pass
            await second.publish("test.done", number)
            await soon(lambda n=number: len(got_by_first.events) + len(got_by_second.events) == n + 1)  # type: ignore[misc]

        assert await ask(postgres_dsn, _HOLDERS, f"postbus:{ID}") == 1


async def test_lock_acquisition_retry(postgres_dsn: str) -> None:
    """8: a standby asks again and again, and is active soon after the lock was released."""
    first, _ = make_bus(postgres_dsn, ID)
    second, got_by_second = make_bus(postgres_dsn, ID)
    async with first:
        await until_live(first, ID)
        async with second:
            await soon(lambda: second.subscription(ID).state == "standby")
            await first.publish("test.done", 1)
            await first.subscription(ID).caught_up(timeout=10)
            await first.shutdown()
            await second.publish("test.done", 2)
            await until_live(second, ID)
            await soon(lambda: bool(got_by_second.events))

    assert [event.payload for event in got_by_second.events] == [2]
