"""Retried dead letters: a running bus takes them up, whoever asked for it."""

import asyncio
from pathlib import Path

import pytest

from postbus import (
    DLQInspector,
    EventNotFoundError,
    EventStatus,
    NotADeadLetterError,
    RetryPolicy,
    SQLiteStore,
)
from tests.delivery.steps import ALWAYS, FlakyHandler, MakeBus, leave_behind, query, soon, statuses, until


async def test_a_running_bus_picks_it_up_at_once(make_bus: MakeBus) -> None:
    """Nothing else has to happen for it."""
    bus, handler = make_bus(retry=RetryPolicy(max_retries=0)), FlakyHandler(1)
    bus.subscribe(handler)
    event_id = await bus.publish("order.placed", 42)
    await bus.dlq.retry(event_id)
    await until(lambda: len(handler.events) == 2)
    await soon(bus.idle())
    event = await bus.store.get(event_id)

    assert [(event.id, event.payload, event.retry_count) for event in handler.events] == [
        (event_id, 42, 0)
    ] * 2
    assert (event.status, event.last_error, event.dlq_at) == (EventStatus.DONE, None, None)


async def test_a_running_bus_picks_it_up_when_another_process_asks(database: Path, make_bus: MakeBus) -> None:
    """Through a connection that the bus knows nothing of."""
    bus, handler = make_bus(retry=RetryPolicy(max_retries=0)), FlakyHandler(1)
    bus.subscribe(handler)
    await bus.publish("order.placed")
    query(database, "UPDATE events SET status = 'pending', retry_count = 0, last_error = NULL")
    await until(lambda: len(handler.events) == 2)

    assert handler.events[1].retry_count == 0


async def test_one_without_a_handler_waits_for_one(database: Path, make_bus: MakeBus) -> None:
    """It is pending, and not done unseen."""
    await leave_behind(database, "dead", "dlq")
    bus, handler = make_bus(), FlakyHandler()
    await bus.start()
    await bus.dlq.retry("dead")
    await soon(bus.idle())
    before = statuses(database)
    bus.subscribe(handler)
    await soon(bus.idle())

    assert before == {"dead": "pending"}
    assert [event.id for event in handler.events] == ["dead"]


async def test_it_can_die_again(make_bus: MakeBus) -> None:
    """As often as it is retried; each time with the story of that time only."""
    bus, handler = make_bus(retry=RetryPolicy(max_retries=0)), FlakyHandler(ALWAYS)
    bus.subscribe(handler)
    event_id = await bus.publish("order.placed")
    for _ in range(2):
        await bus.dlq.retry(event_id)
        await soon(bus.idle())

    assert (await bus.dlq.get(event_id)).errors == ["ValueError: boom 3"]
    assert (await bus.dlq.list()).total == 1


class TestRetryAll:
    async def test_all_of_them_begin_anew(self, make_bus: MakeBus) -> None:
        """In the order of their publishing; and it says how many."""
        bus, handler = make_bus(retry=RetryPolicy(max_retries=0)), FlakyHandler(3)
        bus.subscribe(handler)
        await bus.publish_many([("order.placed", number) for number in range(3)])
        count = await bus.dlq.retry_all()
        await soon(bus.idle())

        assert count == 3
        assert handler.payloads == [0, 1, 2, 0, 1, 2]
        assert (await bus.dlq.list()).total == 0

    async def test_those_of_one_type_begin_anew(self, database: Path) -> None:
        """The others stay dead."""
        await leave_behind(database, "a", "dlq", type="order.placed")
        await leave_behind(database, "b", "dlq", type="order.paid")
        await leave_behind(database, "c", "done", type="order.placed")
        async with SQLiteStore(database) as store:
            count = await DLQInspector(store).retry_all("order.placed")

        assert count == 1
        assert statuses(database) == {"a": "pending", "b": "dlq", "c": "done"}

    async def test_none_at_all_is_no_error(self, make_bus: MakeBus) -> None:
        """Nothing to do is done."""
        assert await make_bus().dlq.retry_all() == 0


class TestGet:
    async def test_it_is_the_whole_event(self, make_bus: MakeBus) -> None:
        """With its story."""
        bus = make_bus(retry=RetryPolicy(max_retries=1))
        bus.subscribe(FlakyHandler(ALWAYS))
        event_id = await bus.publish("order.placed", {"order": 42}, {"source": "web"})
        event = await bus.dlq.get(event_id)

        assert (event.payload, event.metadata, event.retry_count) == ({"order": 42}, {"source": "web"}, 2)
        assert len(event.errors) == 2

    async def test_one_that_is_not_dead_is_an_error(self, make_bus: MakeBus) -> None:
        """It says what it is instead."""
        bus = make_bus()
        event_id = await bus.publish("order.placed")

        with pytest.raises(NotADeadLetterError, match="done"):
            await bus.dlq.get(event_id)

    async def test_one_that_is_not_there_is_an_error(self, make_bus: MakeBus) -> None:
        """It says which."""
        with pytest.raises(EventNotFoundError, match="nobody"):
            await make_bus().dlq.get("nobody")


async def test_retrying_one_twice_at_once_delivers_it_once(make_bus: MakeBus) -> None:
    """The second finds that it is dead no more, or dead again."""
    bus, handler = make_bus(retry=RetryPolicy(max_retries=0)), FlakyHandler(1)
    bus.subscribe(handler)
    event_id = await bus.publish("order.placed")
    results = await soon(asyncio.gather(*(bus.dlq.retry(event_id) for _ in range(5)), return_exceptions=True))
    await soon(bus.idle())

    assert len(handler.events) == 2
    assert sum(isinstance(result, NotADeadLetterError) for result in results) == 4
