"""A shutdown finishes the event at hand, or cuts it off for the next start, and leaves nothing behind."""

import asyncio

import pytest

from postbus import Event, EventBusShutdownError
from postbus.testing import ManualClock
from tests.delivery.exits import wait_for_a_task
from tests.delivery.steps import BlockingHandler, FlakyHandler, begin, soon, start, until
from tests.durable.steps import ID, Database, MakeBus, opened, publish_numbers


async def test_the_event_at_hand_is_finished_and_no_other_begun(
    database: Database, make_bus: MakeBus
) -> None:
    bus, handler = make_bus(), BlockingHandler()
    bus.subscribe("*", handler, id=ID)
    await publish_numbers(bus, 1, 2)
    await soon(handler.started.wait())
    stopping = await begin(bus.shutdown())
    handler.released.set()
    await soon(stopping)

    assert handler.finish_count == 1
    async with opened(database) as store:
        (checkpoint,) = await store.checkpoints.list()
    assert checkpoint.position == 1


async def test_an_event_that_takes_too_long_is_cut_off_and_delivered_by_the_next_start(
    make_bus: MakeBus, clock: ManualClock
) -> None:
    """With no attempt counted against it."""
    first, handler = make_bus(shutdown_timeout=5.0), BlockingHandler()
    first.subscribe("*", handler, id=ID)
    await publish_numbers(first, 1)
    await soon(handler.started.wait())
    stopping = start(first.shutdown())
    await clock.advance(4.9)
    assert not stopping.done()
    await clock.advance(0.1)
    await soon(stopping)
    assert handler.was_cancelled
    second, after = make_bus(), FlakyHandler()
    second.subscribe("*", after, id=ID, retry={"max_retries": 0})
    await second.start()
    await soon(second.idle())

    assert after.payloads == [1]


async def test_a_handler_that_shuts_the_bus_down_waits_for_itself_no_longer_than_the_limit(
    database: Database, make_bus: MakeBus, clock: ManualClock
) -> None:
    """Then everything is closed, and its event comes again."""
    bus = make_bus(shutdown_timeout=5.0)
    started, ended = asyncio.Event(), asyncio.Event()

    @bus.on("*", id=ID)
    async def stop(_: Event) -> None:
        started.set()
        await bus.shutdown()
        ended.set()

    handle = bus.subscription(ID)
    await publish_numbers(bus, 1)
    await soon(started.wait())
    await clock.advance(5)
    await soon(ended.wait())
    await until(lambda: handle.state == "stopped")
    await soon(bus.shutdown())
    second, handler = make_bus(), FlakyHandler()
    second.subscribe("*", handler, id=ID)
    await second.start()
    await soon(second.idle())

    assert handler.payloads == [1]


async def test_a_handler_that_waits_for_a_task_that_shuts_down_is_cut_off_at_the_limit(
    make_bus: MakeBus, clock: ManualClock
) -> None:
    """Then everything is closed nevertheless, and its event comes again."""
    bus, started = make_bus(shutdown_timeout=5.0), asyncio.Event()

    @bus.on("*", id=ID)
    async def stop(_: Event) -> None:
        started.set()
        await asyncio.create_task(bus.shutdown())

    handle = bus.subscription(ID)
    await publish_numbers(bus, 1)
    await soon(started.wait())
    await clock.advance(5)
    await until(lambda: handle.state == "stopped")
    await soon(bus.shutdown())
    second, handler = make_bus(), FlakyHandler()
    second.subscribe("*", handler, id=ID)
    await second.start()
    await soon(second.idle())

    assert handler.payloads == [1]


async def test_a_handler_that_closes_its_task_meanwhile_holds_nothing_up(make_bus: MakeBus) -> None:
    """Nobody starts the subscriber again; its event comes with the next start."""
    bus, started, released = make_bus(), asyncio.Event(), asyncio.Event()

    @bus.on("*", id=ID)
    async def leave(event: Event) -> None:
        started.set()
        await released.wait()
        await wait_for_a_task(event)

    handle = bus.subscription(ID)
    await publish_numbers(bus, 1)
    await soon(started.wait())
    stopping = await begin(bus.shutdown())
    released.set()
    await soon(stopping)
    second, handler = make_bus(), FlakyHandler()
    second.subscribe("*", handler, id=ID)
    await second.start()
    await soon(second.idle())

    assert handle.state == "stopped"
    assert handler.payloads == [1]


async def test_twice_and_at_the_same_time_is_once(make_bus: MakeBus) -> None:
    bus, handler = make_bus(), FlakyHandler()
    bus.subscribe("*", handler, id=ID)
    handle = bus.subscription(ID)
    await publish_numbers(bus, 1)
    await soon(asyncio.gather(bus.shutdown(), bus.shutdown()))
    await soon(bus.shutdown())

    assert handle.state == "stopped"


async def test_nobody_subscribes_afterwards(make_bus: MakeBus) -> None:
    bus = make_bus()
    await bus.start()
    await bus.shutdown()
    with pytest.raises(EventBusShutdownError, match="cannot subscribe"):
        bus.subscribe("*", FlakyHandler(), id=ID)


async def test_unsubscribing_afterwards_does_nothing(make_bus: MakeBus) -> None:
    bus = make_bus()
    bus.subscribe("*", FlakyHandler(), id=ID)
    await bus.start()
    await bus.shutdown()
    bus.unsubscribe(ID)


async def test_no_task_is_left(make_bus: MakeBus, clock: ManualClock) -> None:
    """Of live, paused, failing, batched and unsubscribed ones."""
    before = asyncio.all_tasks()
    bus = make_bus()
    for name in ("live", "paused", "gone"):
        bus.subscribe("*", FlakyHandler(), id=name)
    bus.subscribe("*", FlakyHandler(1000), id="failing")
    bus.subscribe("*", lambda _: None, id="plain")
    await bus.start()
    await soon(bus.subscription("paused").pause())
    await publish_numbers(bus, 1, 2)
    bus.unsubscribe("gone")
    await soon(clock.wait_for_sleepers(1))
    waiting = await begin(bus.subscription("failing").wait_for(2))
    await soon(bus.shutdown())
    await asyncio.wait([waiting])
    waiting.exception()
    # What was cancelled last has its last turn.
    for _ in range(3):
        await asyncio.sleep(0)

    assert asyncio.all_tasks() == before


async def test_an_idle_bus_is_down_at_once(make_bus: MakeBus, clock: ManualClock) -> None:
    bus = make_bus()
    bus.subscribe("*", FlakyHandler(), id=ID)
    await publish_numbers(bus, 1)
    await soon(bus.idle())
    await soon(bus.shutdown())

    assert clock.monotonic() == 0


async def test_a_shutdown_that_is_cancelled_can_be_repeated(make_bus: MakeBus) -> None:
    """It cuts the event off at once, and the next start delivers it."""
    first, handler = make_bus(), BlockingHandler()
    first.subscribe("*", handler, id=ID)
    await publish_numbers(first, 1)
    await soon(handler.started.wait())
    stopping = await begin(first.shutdown())
    stopping.cancel()
    await asyncio.wait([stopping])
    await soon(first.shutdown())
    second, after = make_bus(), FlakyHandler()
    second.subscribe("*", after, id=ID)
    await second.start()
    await soon(second.idle())

    assert handler.was_cancelled
    assert after.payloads == [1]


async def test_a_bus_that_starts_with_a_full_log_can_be_shut_down_at_once(
    database: Database, make_bus: MakeBus
) -> None:
    """Nothing is lost however early it ends."""
    async with opened(database) as store:
        await store.append("s", [("a", number) for number in range(500)])
    seen: list[int] = []
    for _ in range(30):
        bus = make_bus()

        @bus.on("*", id=ID)
        async def take(event: Event) -> None:
            seen.append(event.payload)
            await asyncio.sleep(0)

        await bus.start()
        for _ in range(len(seen) % 7 * 5):
            await asyncio.sleep(0)
        await soon(bus.shutdown())
    bus = make_bus()
    bus.subscribe("*", lambda event: seen.append(event.payload), id=ID)
    await bus.start()
    await soon(bus.idle())

    assert seen == list(range(500))


async def test_a_shutdown_that_meets_a_cancelled_subscriber_ends(make_bus: MakeBus) -> None:
    """It was to start again later, which it need not any more."""
    bus = make_bus()
    bus.subscribe("*", FlakyHandler(), id=ID)
    await bus.publish("a", 1)
    await soon(bus.idle())
    [task] = [task for task in asyncio.all_tasks() if task.get_name() == f"postbus subscriber {ID}"]
    task.cancel()
    # By then it writes what it has processed, and is about to end.
    await asyncio.sleep(0)
    await soon(bus.shutdown())

    assert bus.subscription(ID).state == "stopped"
