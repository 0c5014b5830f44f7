"""sqlite-event-bus, Graceful Shutdown: its four duties and its note."""

import asyncio
import threading
from pathlib import Path

import pytest

from postbus import EventBus, EventBusShutdownError, EventStatus, StoreClosedError
from postbus.config import DEFAULT_SHUTDOWN_TIMEOUT
from postbus.testing import ManualClock
from tests.delivery.steps import (
    BlockingHandler,
    FlakyHandler,
    MakeBus,
    files_beside,
    soon,
    start,
    statuses,
)


class TestDuties:
    @pytest.mark.parametrize("is_draining", [True, False])
    async def test_1_new_publishes_are_refused(
        self, database: Path, make_bus: MakeBus, is_draining: bool
    ) -> None:
        """From the first moment of a shutdown, not only from its last; nothing is stored."""
        bus = make_bus()
        handler = BlockingHandler()
        bus.subscribe(handler)
        publishing = start(bus.publish("order.placed", event_id="in flight"))
        await soon(handler.started.wait())
        stopping = start(bus.shutdown())
        await asyncio.sleep(0)
        if not is_draining:
            handler.released.set()
            await soon(stopping)
        for refused in (bus.publish("order.placed"), bus.publish_many([("order.placed", 1)])):
            with pytest.raises(EventBusShutdownError, match="shut down"):
                await refused
        handler.released.set()
        await soon(asyncio.gather(stopping, publishing))

        assert list(statuses(database)) == ["in flight"]

    async def test_2_in_flight_dispatches_are_waited_for(self, database: Path, make_bus: MakeBus) -> None:
        """Those that a publisher waits for and those that nobody waits for."""
        bus = make_bus()
        handlers = {"order.placed": BlockingHandler(), "order.paid": BlockingHandler()}
        for type, handler in handlers.items():
            bus.subscribe(type, handler)
        publishing = start(bus.publish("order.placed"))
        await bus.publish("order.paid", wait=False)
        for handler in handlers.values():
            await soon(handler.started.wait())
        stopping = start(bus.shutdown())
        handlers["order.placed"].released.set()
        await soon(publishing)
        was_done = stopping.done()
        handlers["order.paid"].released.set()
        await soon(stopping)

        assert not was_done
        assert list(statuses(database).values()) == ["done", "done"]

    async def test_2_a_retry_in_flight_is_waited_for(self, database: Path, make_bus: MakeBus) -> None:
        """An event that waits for its next attempt is in flight."""
        clock = ManualClock()
        bus = make_bus(clock=clock)
        handler = FlakyHandler(1)
        bus.subscribe(handler)
        publishing = start(bus.publish("order.placed"))
        await soon(clock.wait_for_sleepers(1))
        stopping = start(bus.shutdown())
        await clock.advance(1)
        await soon(asyncio.gather(publishing, stopping))

        assert list(statuses(database).values()) == ["done"]

    @pytest.mark.parametrize(
        ("options", "seconds"),
        [({"shutdown_timeout": DEFAULT_SHUTDOWN_TIMEOUT}, 30.0), ({"shutdown_timeout": 5.0}, 5.0)],
        ids=["30 s by default", "configured"],
    )
    async def test_2_the_wait_has_a_timeout(
        self, database: Path, make_bus: MakeBus, options: dict[str, float], seconds: float
    ) -> None:
        """What is not finished by then is pending again, for the next start."""
        clock = ManualClock()
        bus = make_bus(clock=clock, **options)
        bus.subscribe(handler := BlockingHandler())
        publishing = start(bus.publish("order.placed"))
        await soon(handler.started.wait())
        stopping = start(bus.shutdown())
        await clock.advance(seconds - 0.001)
        was_done = stopping.done()
        await clock.advance(0.001)
        await soon(asyncio.gather(stopping, publishing))

        assert not was_done
        assert list(statuses(database).values()) == ["pending"]

    async def test_3_the_connection_is_closed(self, database: Path, make_bus: MakeBus) -> None:
        """SQLite removes its log when the last connection is gone."""
        bus = make_bus()
        event_id = await bus.publish("order.placed")
        files_before = files_beside(database)
        await bus.shutdown()

        assert "events.db-wal" in files_before
        assert "events.db-wal" not in files_beside(database)
        with pytest.raises(StoreClosedError):
            await bus.store.get(event_id)

    async def test_3_closing_twice_is_no_error(self, make_bus: MakeBus) -> None:
        """Neither by a second shutdown, nor beside the first, nor when the store was closed before."""
        bus = make_bus()
        await bus.publish("order.placed")
        await bus.store.close()
        await asyncio.gather(bus.shutdown(), bus.shutdown())
        await bus.shutdown()

        with pytest.raises(EventBusShutdownError):
            await bus.publish("order.placed")

    async def test_3_a_bus_that_never_started_can_be_shut_down(
        self, database: Path, make_bus: MakeBus
    ) -> None:
        """And makes no file."""
        await make_bus().shutdown()

        assert files_beside(database) == []

    async def test_4_it_returns_when_everything_has_stopped(self, make_bus: MakeBus) -> None:
        """At that moment another bus can own the file, and no thread of the old one is left."""
        threads_before = set(threading.enumerate())
        bus = make_bus()
        bus.subscribe(FlakyHandler())
        await bus.publish("order.placed")
        await bus.shutdown()
        threads = {thread.name for thread in set(threading.enumerate()) - threads_before}
        handler = FlakyHandler()
        successor = make_bus()
        successor.subscribe(handler)
        await successor.publish("order.placed", 2)

        # Those of asyncio itself serve others too.
        assert {name for name in threads if not name.startswith("asyncio")} == set()
        assert handler.payloads == [2]


class TestNote:
    async def test_a_handler_that_outlives_the_timeout_is_abandoned(
        self, database: Path, make_bus: MakeBus
    ) -> None:
        """A thread can't be ended: the file is closed, the handler goes on, the event is kept."""
        clock = ManualClock()
        bus = make_bus(clock=clock, shutdown_timeout=5.0)
        started, released, finished = threading.Event(), threading.Event(), threading.Event()

        def handler(_: object) -> None:
            started.set()
            released.wait(10)
            finished.set()

        bus.subscribe(handler)
        publishing = start(bus.publish("order.placed", event_id="slow"))
        await asyncio.to_thread(started.wait, 10)
        stopping = start(bus.shutdown())
        await clock.advance(5)
        await soon(asyncio.gather(stopping, publishing))
        was_finished = finished.is_set()
        released.set()

        assert not was_finished
        assert await asyncio.to_thread(finished.wait, 10)
        assert statuses(database) == {"slow": "pending"}

    async def test_what_was_abandoned_is_delivered_by_the_next_start(
        self, database: Path, make_bus: MakeBus
    ) -> None:
        """Its attempts are as they were: to be cut off is no failure."""
        clock = ManualClock()
        bus = make_bus(clock=clock, shutdown_timeout=5.0)
        bus.subscribe(blocking := BlockingHandler())
        publishing = start(bus.publish("order.placed", 42))
        await soon(blocking.started.wait())
        stopping = start(bus.shutdown())
        await clock.advance(5)
        await soon(asyncio.gather(stopping, publishing))
        successor, handler = make_bus(), FlakyHandler()
        successor.subscribe(handler)
        await successor.start()
        await soon(successor.idle())

        assert [(event.payload, event.retry_count, event.errors) for event in handler.events] == [(42, 0, [])]
        assert (await successor.store.get(handler.events[0].id)).status is EventStatus.DONE


async def test_async_with_shuts_down(database: Path) -> None:
    """Also when its body raises."""
    bus = EventBus(database)
    with pytest.raises(ZeroDivisionError):
        async with bus:
            _ = 1 / 0

    with pytest.raises(EventBusShutdownError):
        await bus.start()
