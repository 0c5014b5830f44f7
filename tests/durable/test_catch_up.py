"""One loop for catch-up and live: every event that is wanted, once, in the order of the log."""

import asyncio
from typing import Any

import pytest

from postbus import CheckpointMode, Event, EventBus, InMemoryStore, NewEvent, ReliableDeliveryConfig
from postbus.events import LogPage, LogPosition
from tests.delivery.steps import BlockingHandler, FlakyHandler, soon, start, until
from tests.durable.steps import ID, Database, MakeBus, on_embedded, opened, position_of, publish_numbers


async def test_what_was_published_before_and_after_the_start_is_delivered_in_order(
    database: Database, make_bus: MakeBus
) -> None:
    """Nothing falls between catch-up and live."""
    async with opened(database) as store:
        await store.append("s", [("order.placed", number) for number in range(5)])
    bus, handler = make_bus(), FlakyHandler()
    bus.subscribe("order.*", handler, id=ID)
    await bus.start()
    await publish_numbers(bus, 5, 6)
    await soon(bus.subscription(ID).caught_up())
    await publish_numbers(bus, 7)
    await soon(bus.subscription(ID).caught_up())

    assert handler.payloads == list(range(8))
    assert [event.global_sequence for event in handler.events] == list(range(1, 9))


async def test_what_is_published_during_the_catch_up_follows_it(
    database: Database, make_bus: MakeBus
) -> None:
    """Page after page, with events coming in at the same time: each once, in order."""
    async with opened(database) as store:
        await store.append("s", [("order.placed", number) for number in range(50)])
    bus = make_bus(config=ReliableDeliveryConfig(catch_up_batch_size=3))
    seen: list[int] = []

    @bus.on("order.*", id=ID)
    async def take(event: Event) -> None:
        seen.append(event.payload)
        if event.payload < 50 and event.payload % 10 == 0:
            await bus.publish("order.placed", 100 + event.payload)
        await asyncio.sleep(0)

    await bus.start()
    await soon(bus.idle())

    assert seen == [*range(50), 100, 110, 120, 130, 140]


async def test_a_subscriber_that_is_added_to_a_running_bus_catches_up(make_bus: MakeBus) -> None:
    """No start() is needed for it."""
    bus, handler = make_bus(), FlakyHandler()
    await bus.start()
    await publish_numbers(bus, 1, 2)
    bus.subscribe("order.*", handler, id=ID)
    await soon(bus.subscription(ID).caught_up())

    assert handler.payloads == [1, 2]


async def test_only_what_matches_is_delivered_and_the_checkpoint_passes_the_rest(make_bus: MakeBus) -> None:
    """An event that nobody wants is behind the subscriber, not before it."""
    bus, handler = make_bus(), FlakyHandler()
    bus.subscribe("order.*", handler, id=ID)
    await bus.publish_many([("user.seen", 1), ("order.placed", 2), ("order.item.added", 3), ("user.seen", 4)])
    await soon(bus.subscription(ID).caught_up())

    assert handler.payloads == [2]
    assert await position_of(bus) == 4
    assert bus.subscription(ID).lag == 0


async def test_one_who_wants_all_that_comes_has_the_store_choose_nothing() -> None:
    """Also after a look that has found nothing: to choose takes the store longer than to read."""
    store, handler, filters = InMemoryStore(), FlakyHandler(), list[object]()
    real = store.log.read

    async def read(after: LogPosition, limit: int, wanted: Any, **options: Any) -> LogPage:
        filters.append(wanted)
        return await real(after, limit, wanted, **options)

    store.log.read = read  # type: ignore[method-assign]
    bus = EventBus(store)
    bus.subscribe("order.*", handler, id=ID)
    async with bus:
        await publish_numbers(bus, 1)
        await soon(bus.subscription(ID).caught_up())
        count = len(filters)
        bus._subscribers.wake()
        await until(lambda: len(filters) > count)
        count = len(filters)
        await publish_numbers(bus, 2)
        await soon(bus.subscription(ID).caught_up())

    assert handler.payloads == [1, 2]
    assert filters[count:] == [None]


async def test_thousands_of_unwanted_events_are_passed(make_bus: MakeBus) -> None:
    """The checkpoint follows without anybody waiting for it, so that the next start need not read them."""
    bus, handler = make_bus(), FlakyHandler()
    bus.subscribe("order.*", handler, id=ID)
    await bus.start()
    for _ in range(3):
        await bus.publish_many([("user.seen", None)] * 1000)
    await bus.publish("order.placed", 1)
    await soon(until_called(handler, 1))
    await bus.publish_many([("user.seen", None)] * 1500)
    await until(lambda: (bus.subscription(ID).checkpoint or 0) > 4000)

    assert handler.payloads == [1]


async def test_the_checkpoint_names_the_last_event_that_was_delivered(make_bus: MakeBus) -> None:
    """For people who look into the database."""
    bus = make_bus()
    bus.subscribe("order.*", FlakyHandler(), id=ID)
    await bus.publish("order.placed", event_id="the-order")
    await bus.publish("user.seen")
    await soon(bus.subscription(ID).caught_up())
    checkpoint = await bus.store.checkpoints.load(ID)  # type: ignore[arg-type]

    assert checkpoint is not None
    assert (checkpoint.position, checkpoint.event_id) == (2, "the-order")


async def test_subscribers_have_checkpoints_of_their_own(make_bus: MakeBus) -> None:
    """One that is stuck holds up nobody."""
    bus, stuck, quick = make_bus(), BlockingHandler(), FlakyHandler()
    bus.subscribe("*", stuck, id="stuck")
    bus.subscribe("*", quick, id="quick")
    await bus.publish_many([("a", 1), ("b", 2), ("c", 3)])
    await soon(bus.subscription("quick").caught_up())
    await soon(stuck.started.wait())

    assert await position_of(bus, "quick") == 3
    assert await position_of(bus, "stuck") == 0
    assert len(stuck.events) == 1
    stuck.released.set()
    await soon(bus.subscription("stuck").caught_up())
    assert [event.payload for event in stuck.events] == [1, 2, 3]


async def test_a_restart_goes_on_after_the_checkpoint(make_bus: MakeBus) -> None:
    """What was processed does not come again; what came meanwhile does."""
    first, before = make_bus(), FlakyHandler()
    first.subscribe("order.*", before, id=ID)
    await publish_numbers(first, 1, 2)
    await soon(first.idle())
    await first.shutdown()
    between = make_bus()
    await publish_numbers(between, 3)
    await between.shutdown()
    second, after = make_bus(), FlakyHandler()
    second.subscribe("order.*", after, id=ID)
    await second.start()
    await publish_numbers(second, 4)
    await soon(second.idle())

    assert (before.payloads, after.payloads) == ([1, 2], [3, 4])


async def test_a_subscriber_with_other_patterns_goes_on_at_the_same_checkpoint(make_bus: MakeBus) -> None:
    """Its id is its identity: what it did not want before is behind it."""
    first = make_bus()
    first.subscribe("order.*", FlakyHandler(), id=ID)
    await first.publish("user.seen", 1)
    await soon(first.subscription(ID).caught_up())
    await first.shutdown()
    second, handler = make_bus(), FlakyHandler()
    second.subscribe("user.*", handler, id=ID)
    await second.publish("user.seen", 2)
    await soon(second.idle())

    assert handler.payloads == [2]


@on_embedded
async def test_in_process_handlers_and_durable_subscribers_each_get_the_event(make_bus: MakeBus) -> None:
    """publish waits for the handlers and leaves the subscribers their time."""
    bus, handler, durable = make_bus(), FlakyHandler(), BlockingHandler()
    bus.subscribe("order.*", handler)
    bus.subscribe("order.*", durable, id=ID)
    await soon(bus.publish("order.placed", 1))

    assert handler.payloads == [1]
    await soon(durable.started.wait())
    assert durable.finish_count == 0
    durable.released.set()
    await soon(bus.idle())


async def test_an_event_comes_with_all_its_fields(make_bus: MakeBus) -> None:
    bus, handler = make_bus(), FlakyHandler()
    bus.subscribe("order.*", handler, id=ID)
    await bus.publish_many(
        [
            NewEvent(
                "order.placed",
                {"total": 7},
                {"source": "web"},
                event_id="e-1",
                stream_id="order-7",
                actor_id="ann",
                correlation_id="c-1",
                causation_id="e-0",
                schema_version=3,
            )
        ]
    )
    await soon(bus.idle())
    (event,) = handler.events

    assert (event.id, event.type, event.payload, event.metadata) == (
        "e-1",
        "order.placed",
        {"total": 7},
        {"source": "web"},
    )
    assert (event.stream_id, event.stream_version, event.global_sequence) == ("order-7", 1, 1)
    assert (event.actor_id, event.correlation_id, event.causation_id) == ("ann", "c-1", "e-0")
    assert event.schema_version == 3


@pytest.mark.parametrize("batch_size", [1, 2, 7, 1000])
async def test_any_batch_size_delivers_the_same(
    database: Database, make_bus: MakeBus, batch_size: int
) -> None:
    """The size of a page is a matter of speed alone."""
    async with opened(database) as store:
        await store.append("s", [("order.placed", number) for number in range(100)])
    bus, handler = make_bus(config=ReliableDeliveryConfig(catch_up_batch_size=batch_size)), FlakyHandler()
    bus.subscribe("*", handler, id=ID)
    await bus.start()
    await soon(bus.idle())

    assert handler.payloads == list(range(100))


async def test_a_handler_may_publish_what_it_gets_itself(make_bus: MakeBus) -> None:
    """Each comes in its turn, after what was there before."""
    bus = make_bus()
    seen: list[int] = []

    @bus.on("count.down", id=ID)
    async def count_down(event: Event) -> None:
        seen.append(event.payload)
        if event.payload:
            await bus.publish("count.down", event.payload - 1)

    await bus.publish("count.down", 5)
    await soon(bus.idle())

    assert seen == [5, 4, 3, 2, 1, 0]


async def test_a_plain_function_gets_events_in_order_in_a_thread(make_bus: MakeBus) -> None:
    """It may block without blocking the event loop."""
    bus = make_bus()
    seen: list[int] = []
    bus.subscribe("*", lambda event: seen.append(event.payload), id=ID)
    await bus.publish_many([("a", number) for number in range(20)])
    await soon(bus.idle())

    assert seen == list(range(20))


async def test_publishers_at_the_same_time_lose_nothing(make_bus: MakeBus) -> None:
    """Every event once, by its number."""
    bus, handler = make_bus(), FlakyHandler()
    bus.subscribe("*", handler, id=ID)
    await asyncio.gather(*[start(bus.publish("a", number)) for number in range(100)])
    await soon(bus.idle())

    assert sorted(event.payload for event in handler.events) == list(range(100))
    assert [event.global_sequence for event in handler.events] == list(range(1, 101))


async def until_called(handler: FlakyHandler, times: int) -> None:
    await until(lambda: len(handler.events) >= times)


async def test_the_bus_is_idle_only_when_its_subscribers_are(make_bus: MakeBus) -> None:
    bus, handler = make_bus(), BlockingHandler()
    bus.subscribe("*", handler, id=ID)
    await bus.publish("a")
    await soon(handler.started.wait())
    idle = start(bus.idle())
    await asyncio.sleep(0.01)

    assert not idle.done()
    handler.released.set()
    await soon(idle)
    assert handler.finish_count == 1


@pytest.mark.parametrize("type", ["user.seen", "order.placed"])
async def test_an_idle_bus_does_not_wait_for_a_batch_to_be_full(make_bus: MakeBus, type: str) -> None:
    """Processed is processed, though it is not written yet; and so is what is not wanted."""
    bus = make_bus(config=ReliableDeliveryConfig(checkpoint_mode=CheckpointMode.batched(100, 3600)))
    handler = BlockingHandler()
    bus.subscribe("order.*", handler, id=ID)
    await bus.start()
    await until(lambda: bus.subscription(ID).state == "live")
    await bus.publish_many([("order.placed", 1), (type, 2)])
    await soon(handler.started.wait())
    idle = start(bus.idle())
    await asyncio.sleep(0.01)
    handler.released.set()
    await soon(idle)

    assert bus.subscription(ID).lag == 0
    assert await position_of(bus) == 0
