"""A given id that is published again by what its own delivery has brought about: nobody waits for himself."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from postbus import Event, EventBus, NewEvent
from tests.delivery.steps import FlakyHandler, MakeBus, soon, start

Again = Callable[[EventBus], Awaitable[object]]


@pytest.fixture(params=["memory", "sqlite"])
def bus(request: pytest.FixtureRequest, make_bus: MakeBus) -> EventBus:
    """A bus on each store that runs handlers without an id."""
    return make_bus(**({"target": "memory:"} if request.param == "memory" else {}))


def _publish(bus: EventBus) -> Awaitable[object]:
    return bus.publish("crm.changed", event_id="crm-1")


async def _publish_in_a_task(bus: EventBus) -> None:
    await asyncio.create_task(bus.publish("crm.changed", event_id="crm-1"))


async def _publish_among_others(bus: EventBus) -> None:
    await bus.publish_many([("crm.seen", 1), NewEvent("crm.changed", event_id="crm-1")])


AGAIN: dict[str, Again] = {
    "alone": _publish,
    "in a task": _publish_in_a_task,
    "among others": _publish_among_others,
}


@pytest.mark.parametrize("again", AGAIN)
async def test_its_handler_does_not_wait_for_itself(bus: EventBus, again: str) -> None:
    """It is stored and under way already."""
    handler_count = 0

    @bus.on("crm.changed")
    async def handle(_: Event) -> None:
        nonlocal handler_count
        handler_count += 1
        await AGAIN[again](bus)

    await soon(bus.publish("crm.changed", event_id="crm-1"))

    assert handler_count == 1
    assert (await bus.dlq.list()).total == 0


@pytest.mark.parametrize("again", AGAIN)
@pytest.mark.parametrize("shop_id", ["shop-1", None])
async def test_a_chain_that_comes_back_to_it_ends(bus: EventBus, again: str, shop_id: str | None) -> None:
    """Through events with and without a given id."""
    handled: list[str] = []

    @bus.on("crm.changed")
    async def tell_shop(event: Event) -> None:
        handled.append(event.type)
        await bus.publish("shop.changed", event_id=shop_id)

    @bus.on("shop.changed")
    async def tell_crm(event: Event) -> None:
        handled.append(event.type)
        await AGAIN[again](bus)

    await soon(bus.publish("crm.changed", event_id="crm-1"))

    assert handled == ["crm.changed", "shop.changed"]
    assert (await bus.dlq.list()).total == 0


async def test_two_chains_that_meet_do_not_wait_for_each_other(bus: EventBus) -> None:
    """Each publishes what the other one began with, and both are still at it."""
    other = {"crm": "shop", "shop": "crm"}
    both_began = asyncio.Barrier(2)

    @bus.on("*.changed")
    async def tell_the_other(event: Event) -> None:
        name = event.type.partition(".")[0]
        await both_began.wait()
        await bus.publish(f"{other[name]}.changed", event_id=other[name])

    await soon(asyncio.gather(*(bus.publish(f"{name}.changed", event_id=name) for name in other)))

    assert (await bus.dlq.list()).total == 0


async def test_a_plain_function_does_not_either(bus: EventBus) -> None:
    """From its thread, through the loop."""
    loop = asyncio.get_running_loop()

    @bus.on("crm.changed")
    def handle(_: Event) -> None:
        again = bus.publish("crm.changed", event_id="crm-1")
        asyncio.run_coroutine_threadsafe(again, loop).result(5)

    await soon(bus.publish("crm.changed", event_id="crm-1"))

    assert (await bus.dlq.list()).total == 0


async def test_nor_does_a_later_attempt(bus: EventBus) -> None:
    """Whichever task makes it."""
    attempts: list[int] = []

    @bus.on("crm.changed")
    async def handle(event: Event) -> None:
        attempts.append(event.retry_count)
        if not event.retry_count:
            raise ValueError
        await _publish(bus)

    await soon(bus.publish("crm.changed", event_id="crm-1"))

    assert attempts == [0, 1]
    assert (await bus.dlq.list()).total == 0


async def test_nor_does_one_of_many_for_those_that_come_after_it(bus: EventBus) -> None:
    """All of a publish_many are delivered before any of their ids is let go."""
    events = [NewEvent("crm.changed", event_id=f"crm-{number}") for number in range(3)]

    @bus.on("crm.changed")
    async def handle(_: Event) -> None:
        await bus.publish_many(events)

    await soon(bus.publish_many(events))

    assert (await bus.dlq.list()).total == 0


@pytest.mark.parametrize("is_of_a_handler", [False, True])
async def test_everybody_else_waits(bus: EventBus, is_of_a_handler: bool) -> None:
    """A handler of another event, too, and also while the first one's handler publishes it again."""
    is_published_again, goes_on = asyncio.Event(), asyncio.Event()
    told = FlakyHandler()
    bus.subscribe("told", told)

    @bus.on("crm.changed")
    async def handle(_: Event) -> None:
        await _publish(bus)
        is_published_again.set()
        await goes_on.wait()

    @bus.on("sale.made")
    async def publish_and_tell(_: Event) -> None:
        await _publish(bus)
        await bus.publish("told")

    async def publish_here() -> None:
        await publish_and_tell(None)  # type: ignore[arg-type]

    first = start(_publish(bus))
    await soon(is_published_again.wait())
    second: Any = start(bus.publish("sale.made") if is_of_a_handler else publish_here())
    # Many times as long as it would take if it did not wait.
    for _ in range(50):
        await bus.publish("unrelated")
    was_told = len(told.events)
    goes_on.set()
    await soon(asyncio.gather(first, second))

    assert (was_told, len(told.events)) == (0, 1)
