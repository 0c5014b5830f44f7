"""Order: publish order per publisher."""

import asyncio

from postbus import Event
from tests.delivery.steps import FlakyHandler, MakeBus, soon


async def test_events_that_nobody_waits_for_come_in_the_order_of_publishing(make_bus: MakeBus) -> None:
    """However long each of them takes."""
    bus = make_bus()
    finished: list[int] = []

    @bus.on("order.*")
    async def hesitate(event: Event) -> None:
        for _ in range((event.payload * 7) % 11):
            await asyncio.sleep(0)
        finished.append(event.payload)

    for number in range(100):
        await bus.publish("order.placed", number, wait=False)
    await soon(bus.idle())

    assert finished == list(range(100))


async def test_events_of_different_types_keep_their_order(make_bus: MakeBus) -> None:
    """One lane for all of them."""
    bus, handler = make_bus(), FlakyHandler()
    bus.subscribe("order.*", handler)
    bus.subscribe("user.*", handler)
    for number in range(40):
        await bus.publish("order.placed" if number % 3 else "user.created", number, wait=False)
    await soon(bus.idle())

    assert handler.payloads == list(range(40))


async def test_plain_functions_keep_the_order_too(make_bus: MakeBus) -> None:
    """Threads do not mix them up."""
    bus = make_bus()
    seen: list[int] = []
    bus.subscribe(lambda event: seen.append(event.payload))
    for number in range(40):
        await bus.publish("order.placed", number, wait=False)
    await soon(bus.idle())

    assert seen == list(range(40))


async def test_a_failing_event_lets_the_others_pass_and_comes_back(make_bus: MakeBus) -> None:
    """First attempts keep their order; a retry waits beside the lane and not in it."""
    bus = make_bus()
    attempts: list[tuple[int, int]] = []

    @bus.on("order.*")
    async def fail_at_first(event: Event) -> None:
        attempts.append((event.payload, event.retry_count))
        if event.payload == 1 and not event.retry_count:
            raise ValueError("boom")

    for number in range(5):
        await bus.publish("order.placed", number, wait=False)
    await soon(bus.idle())

    assert [number for number, retry_count in attempts if not retry_count] == [0, 1, 2, 3, 4]
    assert attempts.count((1, 1)) == 1


async def test_a_publisher_that_waits_has_its_events_in_order(make_bus: MakeBus) -> None:
    """The next one is published when the last one is done."""
    bus, handler = make_bus(), FlakyHandler()
    bus.subscribe(handler)
    for number in range(40):
        await bus.publish("order.placed", number)

    assert handler.payloads == list(range(40))


async def test_sequence_numbers_grow_in_the_order_of_publishing(make_bus: MakeBus) -> None:
    """Without holes, whether anybody waits or not."""
    bus, handler = make_bus(), FlakyHandler()
    bus.subscribe(handler)
    for number in range(20):
        await bus.publish("order.placed", number, wait=number % 2 == 0)
    await soon(bus.idle())
    by_payload = {event.payload: event.global_sequence for event in handler.events}

    assert [by_payload[number] for number in range(20)] == list(range(1, 21))
