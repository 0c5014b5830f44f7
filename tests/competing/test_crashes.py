"""A worker dies at each crash point, and another bus goes on: nothing is lost, effects are there once."""

from typing import Any

import pytest

from postbus import Event, EventBus, PgEventStore
from postbus.ports import Store
from postbus.testing import Crash
from postbus.testing.doom import CRASH_POINTS, CrashPoint
from tests.competing.steps import query, rows_of

POINTS: tuple[CrashPoint, ...] = tuple(point for point in CRASH_POINTS if not point.endswith("publish"))


async def publish(bus: EventBus) -> None:
    for number in range(4):
        await bus.publish("order.placed", number, event_id=f"order-{number}")


@pytest.mark.parametrize("nth", [1, 3])
@pytest.mark.parametrize("point", POINTS)
async def test_every_event_is_processed_after_a_crash(dsn: str, point: CrashPoint, nth: int) -> None:
    """At least once, and no row is left."""
    seen: list[Any] = []

    def make_bus(store: Store) -> EventBus:
        bus = EventBus(store)

        async def handle(event: Event) -> None:
            seen.append(event.payload)

        bus.subscribe("order.*", handle, id="mail", mode="competing", concurrency=2)
        return bus

    async with Crash(point, nth).survivor(make_bus, publish, target=PgEventStore(dsn)):
        pass

    assert set(seen) == {0, 1, 2, 3}
    assert await rows_of(dsn) == []


@pytest.mark.parametrize("nth", [1, 3])
@pytest.mark.parametrize("point", POINTS)
async def test_effects_are_there_once_after_a_crash(dsn: str, point: CrashPoint, nth: int) -> None:
    """They and their row live and die together."""
    await query(dsn, "CREATE TABLE effects (number int)")

    def make_bus(store: Store) -> EventBus:
        bus = EventBus(store)

        async def handle(event: Event, connection: Any) -> None:
            await connection.execute("INSERT INTO effects VALUES ($1)", event.payload)

        bus.subscribe("order.*", handle, id="mail", mode="competing", concurrency=2)
        return bus

    async with Crash(point, nth).survivor(make_bus, publish, target=PgEventStore(dsn)):
        pass

    assert sorted(await query(dsn, "SELECT number FROM effects")) == [(0,), (1,), (2,), (3,)]
    assert await rows_of(dsn) == []
