"""Events that are appended to the store of a bus: the handlers of that bus get them like any others."""

import asyncio

import pytest

from postbus import EventBus, EventStatus
from tests.delivery.steps import FlakyHandler, MakeBus, soon


@pytest.fixture(params=["file", "memory:"])
def bus(request: pytest.FixtureRequest, make_bus: MakeBus) -> EventBus:
    """A bus that is not started."""
    return make_bus(target=request.param) if request.param == "memory:" else make_bus()


async def test_what_is_appended_before_the_start_is_delivered(bus: EventBus) -> None:
    """The store opens by itself, and the handler is there already."""
    handler = FlakyHandler()
    bus.subscribe("order.*", handler)
    [event] = await bus.store.append("order-1", [("order.placed", 1)])
    await bus.start()
    await soon(bus.idle())

    assert event.status is EventStatus.PENDING
    assert handler.payloads == [1]


async def test_what_is_appended_right_after_the_first_handler_was_added_is_delivered(bus: EventBus) -> None:
    """Not only once the bus has written down that there is one."""
    handler = FlakyHandler()
    await bus.start()
    bus.subscribe("order.*", handler)
    await bus.store.append("order-1", [("order.placed", 1)])
    await soon(bus.idle())

    assert handler.payloads == [1]


async def test_what_no_handler_of_the_owner_wants_is_done_at_once(bus: EventBus) -> None:
    """As if it was published."""
    bus.subscribe("order.*", FlakyHandler())
    await bus.start()
    appended = await bus.store.append("order-1", [("mail.sent", 1), ("order.placed", 2)])

    assert [event.status for event in appended] == [EventStatus.DONE, EventStatus.PENDING]


@pytest.mark.parametrize("turn_count", range(6))
async def test_whoever_publishes_right_after_the_first_handler_was_added_waits_for_it(
    bus: EventBus, turn_count: int
) -> None:
    """However far the bus is with becoming the one that dispatches."""
    handler = FlakyHandler()
    await bus.start()
    bus.subscribe("order.*", handler)
    for _ in range(turn_count):
        await asyncio.sleep(0)
    event_id = await soon(bus.publish("order.placed"))

    assert [event.id for event in handler.events] == [event_id]
    assert (await bus.store.get(event_id)).status is EventStatus.DONE
