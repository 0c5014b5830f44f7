"""RecordingObserver remembers what a durable subscriber gets."""

import asyncio

import pytest

from postbus.bus import EventBus
from postbus.errors import InvalidConfigError
from postbus.ports import EventObserver
from postbus.stores.memory import InMemoryStore
from postbus.testing import RecordingObserver


async def test_it_records_the_events_it_wants() -> None:
    """In the order of the log, before and after it was subscribed."""
    observer = RecordingObserver("test", patterns=["order.*"])
    async with EventBus("memory:") as bus:
        await bus.publish("order.placed")
        bus.subscribe(observer)
        await bus.publish("user.created")
        await bus.publish("order.paid")

        events = await observer.wait_for(2)

    assert [event.type for event in events] == ["order.placed", "order.paid"]
    assert events == observer.events


async def test_it_is_durable() -> None:
    """Under the same id another one goes on where it was."""
    store = InMemoryStore()
    for event_type in ("first", "second"):
        observer = RecordingObserver("test")
        async with EventBus(store) as bus:
            bus.subscribe(observer)
            await bus.publish(event_type)
            await observer.wait_for(1)

        assert [event.type for event in observer.events] == [event_type]


async def test_several_may_wait() -> None:
    observer = RecordingObserver("test")
    async with EventBus("memory:") as bus:
        bus.subscribe(observer)
        waiting = [asyncio.create_task(observer.wait_for(count)) for count in (0, 1, 2)]
        await bus.publish("first")
        await bus.publish("second")

        assert [len(await each) >= count for count, each in enumerate(waiting)] == [True] * 3


async def test_it_says_what_it_got_instead() -> None:
    observer = RecordingObserver("test")
    async with EventBus("memory:") as bus:
        bus.subscribe(observer)
        await bus.publish("order.placed")

        with pytest.raises(
            TimeoutError, match=r"'test' got 1 events within 0\.05 s, expected 2: \['order\.placed'\]"
        ):
            await observer.wait_for(2, timeout=0.05)


async def test_a_bad_count_is_refused() -> None:
    with pytest.raises(InvalidConfigError, match="count is -1"):
        await RecordingObserver("test").wait_for(-1)


def test_it_is_an_observer() -> None:
    observer: EventObserver = RecordingObserver("test")

    assert isinstance(observer, EventObserver)
