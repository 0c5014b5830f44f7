"""A handler that has to do with its own subscriber: nothing waits for ever."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from postbus import Event, EventBus, WaitsForItselfError
from tests.delivery.steps import soon

WAITS: dict[str, Callable[[EventBus], Awaitable[None]]] = {
    "wait_for": lambda bus: bus.subscription("mail").wait_for(1),
    "caught_up": lambda bus: bus.subscription("mail").caught_up(),
    "idle": lambda bus: bus.idle(),
}


@pytest.mark.parametrize("name", WAITS)
async def test_a_handler_that_waits_for_its_own_subscriber_is_told_so(name: str) -> None:
    bus, told = EventBus("memory:"), list[str]()

    @bus.on("order.placed", id="mail")
    async def handle(event: Event) -> None:
        with pytest.raises(WaitsForItselfError) as caught:
            await WAITS[name](bus)
        told.append(caught.value.subscriber_id)

    async with bus:
        await bus.publish("order.placed")
        await soon(bus.subscription("mail").caught_up())

    assert told == ["mail"]


async def test_a_handler_may_pause_its_own_subscriber() -> None:
    """The event at hand is processed, and no other one is begun."""
    bus, got = EventBus("memory:"), list[object]()

    @bus.on("order.placed", id="mail")
    async def handle(event: Event) -> None:
        got.append(event.payload)
        await bus.subscription("mail").pause()

    async with bus:
        await bus.publish_many([("order.placed", 1), ("order.placed", 2)])
        await soon(bus.subscription("mail").wait_for(1))
        await soon(bus.subscription("mail").pause())

        assert (got, bus.subscription("mail").state) == ([1], "paused")


async def test_a_handler_may_shut_the_bus_down() -> None:
    """Nobody waits for shutdown_timeout."""
    bus, is_down = EventBus("memory:", shutdown_timeout=3600.0), asyncio.Event()

    @bus.on("order.placed", id="mail")
    async def handle(event: Event) -> None:
        await bus.shutdown()
        is_down.set()

    await bus.publish("order.placed")

    await soon(is_down.wait())


async def test_a_task_that_is_cancelled_by_a_stranger_starts_again() -> None:
    """And says why it did nothing for a moment; the event comes again."""
    bus, calls = EventBus("memory:"), list[object]()

    @bus.on("order.placed", id="mail")
    async def handle(event: Event) -> None:
        calls.append(event.payload)
        if len(calls) == 1:
            task = asyncio.current_task()
            assert task is not None
            task.cancel()
            await asyncio.sleep(0)

    async with bus:
        await bus.publish("order.placed", 1)
        await soon(bus.subscription("mail").caught_up())
        state = bus.subscription("mail").state

    assert (calls, state) == ([1, 1], "live")
