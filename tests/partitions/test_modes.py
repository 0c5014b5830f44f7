"""From competing workers to partitions and back: nothing is lost, and nothing comes twice."""

from typing import Any

import pytest

from postbus import PgEventBus, ReliableDeliveryConfig
from tests.partitions.steps import (
    ID,
    History,
    check_once,
    look,
    make_bus,
    publish,
    soon,
    until_partitions,
)

COMPETING: dict[str, Any] = {"mode": "competing", "concurrency": 4}


def bus_of(dsn: str, history: History, way: int | str, seconds: float) -> PgEventBus:
    """An instance that serves the subscriber in this way: in so many partitions, or with workers."""
    if way != "competing":
        return make_bus(dsn, history.handler(str(way), seconds), int(way))
    bus = PgEventBus(dsn, config=ReliableDeliveryConfig(poll_interval=0.1))
    bus.subscribe("*", history.handler("competing", seconds), id=ID, **COMPETING)
    return bus


@pytest.mark.parametrize(
    "ways", [("competing", 4, "competing"), (4, "competing", 1, 3), (3, "competing", 8, "competing", 1)]
)
async def test_the_way_in_which_instances_share_the_work_can_be_changed(
    postgres_dsn: str, ways: tuple[int | str, ...]
) -> None:
    """Each deploy finds the work of the one before half done, and goes on with it."""
    history, expected = History(), []
    for way in ways:
        async with bus_of(postgres_dsn, history, way, 0.005) as bus:
            expected += await publish(bus, 100)
            await until_partitions(postgres_dsn, way if isinstance(way, int) else 1)
            least = len(expected) - 80
            await soon(lambda least=least: len(history.handled) > least)  # type: ignore[misc]
    async with bus_of(postgres_dsn, history, 2, 0.0) as bus:
        await bus.subscription(ID).caught_up(timeout=20)

    check_once(history.sequences, expected)
    assert await look(postgres_dsn, "SELECT count(*) FROM postbus.event_bus_outbox") == [(0,)]


@pytest.mark.parametrize(("old", "new"), [("competing", 4), (4, "competing")])
async def test_workers_and_partitions_wait_for_each_other(
    postgres_dsn: str, old: int | str, new: int | str
) -> None:
    """As long as one instance works in the old way, those of the new way stand by."""
    history = History()
    first = bus_of(postgres_dsn, history, old, 0.0)
    await first.start()
    expected = await publish(first, 20)
    await first.subscription(ID).caught_up(timeout=10)
    async with bus_of(postgres_dsn, history, new, 0.0) as bus:
        if new != "competing":
            await soon(lambda: bus.subscription(ID).state == "standby")
        expected += await publish(bus, 20)
        await soon(lambda: set(history.sequences) == set(expected))
        assert not history.by(str(new))
        await first.shutdown()
        expected += await publish(bus, 20)
        await bus.subscription(ID).caught_up(timeout=10)

        check_once(history.sequences, expected)
        assert history.by(str(new))
