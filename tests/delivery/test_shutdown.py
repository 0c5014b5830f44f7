"""Shutdown: what is in flight is finished or given back, never lost and never counted against."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any

import pytest

from postbus import Event, EventBusShutdownError, EventStatus, RetryPolicy
from postbus.testing import ManualClock
from tests.delivery.steps import (
    ALWAYS,
    BlockingHandler,
    FlakyHandler,
    MakeBus,
    begin,
    leave_behind,
    query,
    soon,
    start,
    statuses,
    until,
)


@pytest.fixture
def manual() -> ManualClock:
    """Stands still until it is moved."""
    return ManualClock()


class TestGivingBack:
    @pytest.mark.parametrize("wait", [True, False])
    async def test_events_in_back_off_are_pending_with_their_attempts_unchanged(
        self, database: Path, make_bus: MakeBus, manual: ManualClock, wait: bool
    ) -> None:
        """One failed attempt stays one failed attempt, with its error."""
        bus = make_bus(clock=manual, shutdown_timeout=5.0, retry=RetryPolicy(base_delay=60.0, max_delay=60.0))
        bus.subscribe(FlakyHandler(ALWAYS))
        publishing = start(bus.publish("order.placed", wait=wait))
        await soon(manual.wait_for_sleepers(1))
        stopping = start(bus.shutdown())
        await manual.advance(5)
        await soon(asyncio.gather(stopping, publishing))
        rows = query(database, "SELECT status, retry_count, last_error FROM events")

        assert rows == [("pending", 1, '["ValueError: boom 1"]')]

    async def test_events_behind_an_open_breaker_are_pending_again(
        self, database: Path, make_bus: MakeBus, manual: ManualClock
    ) -> None:
        """They wait in the file instead."""
        bus = make_bus(clock=manual, shutdown_timeout=5.0, retry=RetryPolicy(max_retries=0))
        bus.subscribe(FlakyHandler(ALWAYS))
        for _ in range(4):
            await soon(bus.publish("order.placed"))
        publishing = start(bus.publish("order.placed"))
        await soon(manual.wait_for_sleepers(1))
        stopping = start(bus.shutdown())
        await manual.advance(5)
        await soon(asyncio.gather(stopping, publishing))

        assert list(statuses(database).values()) == ["dlq"] * 4 + ["pending"]

    async def test_events_of_a_list_that_were_not_begun_are_pending_again(
        self, database: Path, make_bus: MakeBus, manual: ManualClock
    ) -> None:
        """The first one hangs, the others have not begun; none is lost and none is counted."""
        bus, handler = make_bus(clock=manual, shutdown_timeout=5.0), BlockingHandler()
        bus.subscribe(handler)
        publishing = start(bus.publish_many([("order.placed", number) for number in range(3)]))
        await soon(handler.started.wait())
        stopping = start(bus.shutdown())
        await manual.advance(5)
        await soon(asyncio.gather(stopping, publishing))

        assert query(database, "SELECT status, retry_count FROM events") == [("pending", 0)] * 3

    async def test_what_is_pending_and_not_begun_stays_pending(
        self, database: Path, make_bus: MakeBus
    ) -> None:
        """A shutdown finishes what is under way and takes up nothing more."""
        bus, handler = make_bus(), BlockingHandler()
        bus.subscribe(handler)
        for number in range(10):
            await bus.publish("order.placed", number, wait=False)
        await soon(handler.started.wait())
        stopping = start(bus.shutdown())
        await asyncio.sleep(0)
        handler.released.set()
        await soon(stopping)
        left = query(database, "SELECT status, retry_count FROM events")

        assert left[0] == ("done", 0)
        assert set(left[1:]) == {("pending", 0)}

    async def test_a_successor_delivers_all_of_it(self, make_bus: MakeBus, manual: ManualClock) -> None:
        """Every event is done in the end, in order."""
        first, blocking = make_bus(clock=manual, shutdown_timeout=5.0), BlockingHandler()
        first.subscribe(blocking)
        for number in range(10):
            await first.publish("order.placed", number, wait=False)
        await soon(blocking.started.wait())
        stopping = start(first.shutdown())
        await manual.advance(5)
        await soon(stopping)
        second, handler = make_bus(), FlakyHandler()
        second.subscribe(handler)
        await second.start()
        await soon(second.idle())

        assert [(event.payload, event.retry_count) for event in handler.events] == [(n, 0) for n in range(10)]


class TestDraining:
    async def test_a_publish_that_was_begun_before_is_finished(
        self, database: Path, make_bus: MakeBus
    ) -> None:
        """Also one whose event is not stored yet: it is stored, delivered and done."""
        bus, handler = make_bus(), FlakyHandler()
        bus.subscribe(handler)
        await bus.start()
        publishing = [start(bus.publish("order.placed", number)) for number in range(50)]
        await asyncio.sleep(0)
        await soon(bus.shutdown())
        ids = await soon(asyncio.gather(*publishing))

        assert statuses(database) == dict.fromkeys(ids, "done")
        assert sorted(event.payload for event in handler.events) == list(range(50))

    async def test_a_handler_that_is_cut_off_is_cancelled(
        self, make_bus: MakeBus, manual: ManualClock
    ) -> None:
        """It hears of it and can clean up."""
        bus, handler = make_bus(clock=manual, shutdown_timeout=5.0), BlockingHandler()
        bus.subscribe(handler)
        publishing = start(bus.publish("order.placed"))
        await soon(handler.started.wait())
        stopping = start(bus.shutdown())
        await manual.advance(5)
        await soon(asyncio.gather(stopping, publishing))

        assert handler.was_cancelled

    async def test_a_handler_that_resists_is_left_behind(
        self, database: Path, make_bus: MakeBus, manual: ManualClock
    ) -> None:
        """The file is closed all the same, and its event is pending."""
        bus = make_bus(clock=manual, shutdown_timeout=5.0)
        started, released = asyncio.Event(), asyncio.Event()

        @bus.on("order.*")
        async def resist(_: Event) -> None:
            started.set()
            while not released.is_set():
                try:
                    await released.wait()
                except asyncio.CancelledError:
                    continue

        publishing = start(bus.publish("order.placed"))
        await soon(started.wait())
        stopping = start(bus.shutdown())
        await manual.advance(5)
        await soon(stopping)
        after = list(statuses(database).values())
        released.set()
        await soon(publishing)

        assert after == ["pending"]

    async def test_an_idle_bus_is_down_at_once(self, make_bus: MakeBus, manual: ManualClock) -> None:
        """No timeout is waited for."""
        bus = make_bus(clock=manual)
        bus.subscribe(FlakyHandler())
        await bus.publish("order.placed")
        await soon(bus.shutdown())

        assert manual.monotonic() == 0


class TestAfterwards:
    async def test_everything_is_refused(self, make_bus: MakeBus) -> None:
        """With an error that says what to do."""
        bus = make_bus()
        await bus.start()
        await bus.shutdown()
        for refused in (
            bus.start(),
            bus.publish("order.placed"),
            bus.publish_many([]),
            bus.idle(),
            bus.settle_unhandled(),
        ):
            with pytest.raises(EventBusShutdownError, match="make a new EventBus on the same target"):
                await refused
        with pytest.raises(EventBusShutdownError):
            _ = bus.dlq

    async def test_counters_can_still_be_read(self, make_bus: MakeBus) -> None:
        """For a summary at the end."""
        bus = make_bus()
        bus.subscribe(FlakyHandler())
        await bus.publish("order.placed")
        await bus.shutdown()

        assert bus.counters["order.placed"].event_count == 1

    async def test_a_new_bus_on_the_same_file_goes_on(self, database: Path, make_bus: MakeBus) -> None:
        """With what is there."""
        await leave_behind(database, "a", "pending")
        first = make_bus()
        await first.start()
        await first.shutdown()
        second, handler = make_bus(), FlakyHandler()
        second.subscribe(handler)
        await second.start()
        await soon(second.idle())

        assert (await second.store.get("a")).status is EventStatus.DONE


async def test_a_shutdown_that_was_cancelled_and_repeated_leaves_no_publisher_waiting(
    database: Path, make_bus: MakeBus
) -> None:
    """Its event is pending again, for the next start."""
    bus, handler = make_bus(), BlockingHandler()
    bus.subscribe(handler)
    publishing = start(bus.publish("order.placed"))
    await soon(handler.started.wait())
    stopping = await begin(bus.shutdown())
    stopping.cancel()
    await asyncio.wait([stopping])
    await soon(bus.shutdown())
    await soon(publishing)

    assert list(statuses(database).values()) == ["pending"]


class TestByAHandler:
    """A handler without an id calls shutdown(), which must not wait for that handler."""

    @pytest.mark.parametrize("wait", [True, False])
    async def test_it_does_not_wait_for_itself_and_its_event_is_pending(
        self,
        database: Path,
        make_bus: MakeBus,
        manual: ManualClock,
        caplog: pytest.LogCaptureFixture,
        wait: bool,
    ) -> None:
        """No time passes; nothing is said of an error, and the attempt does not count."""
        bus, is_over = make_bus(clock=manual), asyncio.Event()

        @bus.on("order.placed")
        async def stop(_: Event) -> None:
            await bus.shutdown()
            is_over.set()

        await soon(bus.publish("order.placed", wait=wait))
        await soon(is_over.wait())
        await soon(_couriers_have_ended())

        assert query(database, "SELECT status, retry_count FROM events") == [("pending", 0)]
        assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []

    async def test_everything_else_is_drained(
        self, database: Path, make_bus: MakeBus, manual: ManualClock
    ) -> None:
        """The shutdown waits for a handler that still runs."""
        bus, slow, stopping = make_bus(clock=manual), BlockingHandler(), asyncio.Event()
        bus.subscribe("order.placed", slow)

        @bus.on("order.cancelled")
        async def stop(_: Event) -> None:
            stopping.set()
            await bus.shutdown()

        others = [start(bus.publish("order.placed")), start(bus.publish("order.cancelled"))]
        await soon(asyncio.gather(slow.started.wait(), stopping.wait()))
        slow.released.set()
        await soon(asyncio.gather(*others))
        await soon(_couriers_have_ended())

        assert (slow.finish_count, slow.was_cancelled) == (1, False)
        assert query(database, "SELECT type, status FROM events ORDER BY type") == [
            ("order.cancelled", "pending"),
            ("order.placed", "done"),
        ]

    async def test_what_is_behind_it_in_a_list_is_not_begun(
        self, database: Path, make_bus: MakeBus, manual: ManualClock
    ) -> None:
        """Else the next start would deliver the first event after the others."""
        bus, calls = make_bus(clock=manual), list[object]()

        @bus.on("order.placed")
        async def stop(event: Event) -> None:
            calls.append(event.payload)
            if event.payload == 1:
                await bus.shutdown()

        await soon(bus.publish_many([("order.placed", number) for number in range(4)]))
        await soon(_couriers_have_ended())

        assert calls == [0, 1]
        assert [status for (status,) in query(database, "SELECT status FROM events")] == [
            "done",
            "pending",
            "pending",
            "pending",
        ]

    async def test_a_handler_that_waits_for_its_event_goes_on(
        self, database: Path, make_bus: MakeBus, manual: ManualClock
    ) -> None:
        """It has published the event and is drained like any other."""
        bus = make_bus(clock=manual)

        @bus.on("order.placed")
        async def cancel(_: Event) -> None:
            await bus.publish("order.cancelled")

        @bus.on("order.cancelled")
        async def stop(_: Event) -> None:
            await bus.shutdown()

        await soon(bus.publish("order.placed"))
        await soon(_couriers_have_ended())

        assert query(database, "SELECT type, status FROM events ORDER BY type") == [
            ("order.cancelled", "pending"),
            ("order.placed", "done"),
        ]

    async def test_no_further_handler_of_its_event_is_called(
        self, make_bus: MakeBus, manual: ManualClock
    ) -> None:
        """They get the event with the next start; the bus is closed now."""
        bus, further = make_bus(clock=manual), FlakyHandler()

        @bus.on("order.placed")
        async def stop(_: Event) -> None:
            await bus.shutdown()

        bus.subscribe("order.placed", further)
        await soon(bus.publish("order.placed"))
        await soon(_couriers_have_ended())

        assert further.events == []


WAYS: dict[str, Callable[[Coroutine[Any, Any, None]], Awaitable[object]]] = {
    "a task": asyncio.create_task,
    "a shielded task": asyncio.shield,
    "a task among others": asyncio.gather,
    "a task within a task": lambda stopping: asyncio.create_task(_wait_for(asyncio.create_task(stopping))),
}


class TestInATaskOfAHandler:
    """A handler has a task of its own call shutdown(), which takes the handler for any other."""

    @pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
    async def test_if_the_handler_waits_for_it_both_wait_no_longer_than_the_limit(
        self,
        database: Path,
        make_bus: MakeBus,
        manual: ManualClock,
        way: Callable[[Coroutine[Any, Any, None]], Awaitable[object]],
    ) -> None:
        """The handler is cut off and the bus closed nevertheless: the next one has file and event at once."""
        bus, stopping = make_bus(clock=manual, shutdown_timeout=5.0), asyncio.Event()

        @bus.on("order.placed")
        async def stop(_: Event) -> None:
            stopping.set()
            await way(bus.shutdown())

        publishing = start(bus.publish("order.placed"))
        await soon(stopping.wait())
        await manual.advance(5)
        await soon(publishing)
        await soon(bus.shutdown())
        await soon(_couriers_have_ended())
        left = query(database, "SELECT status, retry_count FROM events")
        successor, handler = make_bus(), FlakyHandler()
        successor.subscribe(handler)
        await successor.start()
        await soon(successor.idle())

        assert left == [("pending", 0)]
        assert len(handler.events) == 1

    async def test_if_the_handler_does_not_wait_for_it_the_event_is_done(
        self, database: Path, make_bus: MakeBus, manual: ManualClock
    ) -> None:
        """It is drained like any other."""
        bus, released = make_bus(clock=manual), asyncio.Event()
        stopping: list[asyncio.Task[None]] = []

        @bus.on("order.placed")
        async def stop(_: Event) -> None:
            stopping.append(asyncio.create_task(bus.shutdown()))
            await released.wait()

        publishing = start(bus.publish("order.placed"))
        await until(lambda: bool(stopping))
        released.set()
        await soon(asyncio.gather(*stopping, publishing))

        assert list(statuses(database).values()) == ["done"]


async def test_a_shutdown_that_is_cancelled_while_it_cuts_off_goes_on(
    database: Path, make_bus: MakeBus, manual: ManualClock
) -> None:
    """Whoever shuts down next waits for it, and nothing is done twice."""
    bus, cancel_count = make_bus(clock=manual, shutdown_timeout=5.0), 0
    started, is_cancelled, released = asyncio.Event(), asyncio.Event(), asyncio.Event()

    @bus.on("order.*")
    async def resist(_: Event) -> None:
        nonlocal cancel_count
        started.set()
        while not released.is_set():
            try:
                await released.wait()
            except asyncio.CancelledError:
                cancel_count += 1
                is_cancelled.set()

    publishing = start(bus.publish("order.placed"))
    await soon(started.wait())
    stopping = await begin(bus.shutdown())
    await manual.advance(5)
    await soon(is_cancelled.wait())
    stopping.cancel()
    await asyncio.wait([stopping])
    again = start(bus.shutdown())
    for _ in range(20):
        await asyncio.sleep(0)
    released.set()
    await soon(asyncio.gather(again, publishing))

    assert (stopping.cancelled(), cancel_count) == (True, 1)
    # In its last second the handler has come to its end after all.
    assert list(statuses(database).values()) == ["done"]


class TestBySeveral:
    """A signal handler, the end of `async with` and a framework may all shut down the same bus."""

    @pytest.mark.parametrize("lost", [[0], [1], [2], [0, 1], [1, 2], [0, 2]], ids=str)
    @pytest.mark.parametrize("one_by_one", [True, False])
    async def test_whoever_is_cancelled_leaves_it_to_the_others(
        self, database: Path, make_bus: MakeBus, lost: list[int], one_by_one: bool
    ) -> None:
        """What is in flight comes to its end, as for those who wait for it."""
        bus, handler = make_bus(), BlockingHandler()
        bus.subscribe(handler)
        publishing = start(bus.publish("order.placed"))
        await soon(handler.started.wait())
        stopping = [await begin(bus.shutdown()) for _ in range(3)]
        await _cancel([stopping[number] for number in lost], one_by_one)
        await _turns()
        with pytest.raises(EventBusShutdownError):
            await bus.publish("order.placed")
        handler.released.set()
        await soon(asyncio.gather(*stopping, publishing, return_exceptions=True))

        assert [number for number in range(3) if stopping[number].cancelled()] == lost
        assert (handler.finish_count, handler.was_cancelled) == (1, False)
        assert list(statuses(database).values()) == ["done"]

    @pytest.mark.parametrize("one_by_one", [True, False])
    async def test_when_all_are_cancelled_what_is_in_flight_is_cut_off(
        self, database: Path, make_bus: MakeBus, one_by_one: bool
    ) -> None:
        """As by the only one: the bus is closed, and nobody has to wait any more."""
        bus, handler = make_bus(), BlockingHandler()
        bus.subscribe(handler)
        publishing = start(bus.publish("order.placed"))
        await soon(handler.started.wait())
        stopping = [await begin(bus.shutdown()) for _ in range(3)]
        await _cancel(stopping, one_by_one)
        await soon(asyncio.gather(*stopping, publishing, return_exceptions=True))

        assert all(each.cancelled() for each in stopping)
        assert (handler.finish_count, handler.was_cancelled) == (0, True)
        assert list(statuses(database).values()) == ["pending"]

    async def test_nobody_gets_the_time_of_another_on_top(
        self, database: Path, make_bus: MakeBus, manual: ManualClock
    ) -> None:
        """What is in flight is cut off after shutdown_timeout, whoever waits then."""
        bus, handler = make_bus(clock=manual, shutdown_timeout=5.0), BlockingHandler()
        bus.subscribe(handler)
        publishing = start(bus.publish("order.placed"))
        await soon(handler.started.wait())
        first, second = await begin(bus.shutdown()), await begin(bus.shutdown())
        await manual.advance(4)
        await _cancel([first], one_by_one=True)
        await _turns()
        was_cancelled_before = handler.was_cancelled
        await manual.advance(1)
        await soon(asyncio.gather(second, publishing))

        assert (was_cancelled_before, handler.was_cancelled) == (False, True)
        assert list(statuses(database).values()) == ["pending"]

    async def test_a_handler_may_be_the_one_who_is_left(
        self, database: Path, make_bus: MakeBus, manual: ManualClock
    ) -> None:
        """It does not wait for itself, then as ever; until then the other one waits for it."""
        bus, slow = make_bus(clock=manual), BlockingHandler()
        is_begun, may_stop, is_over = asyncio.Event(), asyncio.Event(), asyncio.Event()
        bus.subscribe("order.placed", slow)

        @bus.on("order.cancelled")
        async def stop(_: Event) -> None:
            is_begun.set()
            await may_stop.wait()
            await bus.shutdown()
            is_over.set()

        publishing = [start(bus.publish("order.placed")), start(bus.publish("order.cancelled"))]
        await soon(asyncio.gather(slow.started.wait(), is_begun.wait()))
        stopping = await begin(bus.shutdown())
        may_stop.set()
        await _turns()
        await _cancel([stopping], one_by_one=True)
        await _turns()
        slow.released.set()
        await soon(asyncio.wait(publishing))
        await soon(is_over.wait())
        await soon(_couriers_have_ended())

        assert (slow.finish_count, slow.was_cancelled) == (1, False)
        assert query(database, "SELECT type, status FROM events ORDER BY type") == [
            ("order.cancelled", "pending"),
            ("order.placed", "done"),
        ]


async def _cancel(stopping: "Sequence[asyncio.Future[None]]", one_by_one: bool) -> None:
    for each in stopping:
        each.cancel()
        if one_by_one:
            await soon(asyncio.wait([each]))


async def _turns() -> None:
    """Let everything come as far as it comes without time or others."""
    for _ in range(20):
        await asyncio.sleep(0)


async def _wait_for(task: "asyncio.Task[None]") -> None:
    await task


async def _couriers_have_ended() -> None:
    """Return when no handler runs any more, its delivery included."""
    couriers = [task for task in asyncio.all_tasks() if task.get_name() == "postbus courier"]
    if couriers:
        await asyncio.wait(couriers)
