"""Whoever loses patience and is cancelled leaves the subscriber as it is."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from postbus import EventBus
from tests.delivery.steps import BlockingHandler, begin, soon, until
from tests.durable.steps import ID, MakeBus, position_of, publish_numbers

WAITS: dict[str, Callable[[EventBus], Awaitable[None]]] = {
    "wait_for": lambda bus: bus.subscription(ID).wait_for(2),
    "wait_for with a timeout": lambda bus: bus.subscription(ID).wait_for(2, timeout=3600),
    "caught_up": lambda bus: bus.subscription(ID).caught_up(),
    "idle": lambda bus: bus.idle(),
}


async def blocked(bus: EventBus) -> BlockingHandler:
    """A subscriber in the middle of the first of two events."""
    handler = BlockingHandler()
    bus.subscribe("*", handler, id=ID)
    await publish_numbers(bus, 1, 2)
    await soon(handler.started.wait())
    return handler


@pytest.mark.parametrize("name", WAITS)
async def test_a_wait_that_is_cancelled_leaves_no_task_and_disturbs_nobody(
    make_bus: MakeBus, name: str
) -> None:
    bus = make_bus()
    handler = await blocked(bus)
    before = asyncio.all_tasks()
    for turns in range(8):
        waiting = await begin(WAITS[name](bus))
        for _ in range(turns):
            await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.wait([waiting])
        assert waiting.cancelled()
    await until(lambda: asyncio.all_tasks() <= before)

    handler.released.set()
    await soon(bus.subscription(ID).caught_up())
    assert [event.payload for event in handler.events] == [1, 2]
    assert not handler.was_cancelled
    assert await position_of(bus) == 2


async def test_a_pause_that_is_cancelled_comes_nevertheless(make_bus: MakeBus) -> None:
    """resume() takes it back."""
    bus = make_bus()
    handler = await blocked(bus)
    pausing = await begin(bus.subscription(ID).pause())
    pausing.cancel()
    await asyncio.wait([pausing])
    handler.released.set()
    await until(lambda: bus.subscription(ID).state == "paused")
    assert len(handler.events) == 1

    await bus.subscription(ID).resume()
    await soon(bus.idle())
    assert len(handler.events) == 2


async def test_a_publisher_that_is_cancelled_does_not_keep_its_event_from_the_subscribers(
    make_bus: MakeBus,
) -> None:
    """What is stored is delivered."""
    bus = make_bus()
    handler = await blocked(bus)
    publishing = await begin(bus.publish("a", 3))
    publishing.cancel()
    await asyncio.wait([publishing])
    handler.released.set()
    await until(lambda: len(handler.events) >= 2)
    await soon(bus.idle())
    head = await bus.store.log.head()

    assert [event.payload for event in handler.events] == [1, 2, 3][:head]
