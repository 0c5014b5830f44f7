"""Timeouts: a handler's time is up, and nobody else's."""

import asyncio
import threading
from pathlib import Path

import pytest

from postbus import Event, EventBus, EventStatus, RetryPolicy
from postbus.testing import ManualClock
from tests.delivery.steps import BlockingHandler, FlakyHandler, MakeBus, soon, start, until

ONE_ATTEMPT = RetryPolicy(max_retries=0)


@pytest.fixture
def manual() -> ManualClock:
    """Stands still until it is moved."""
    return ManualClock()


class TestPerSubscription:
    async def test_each_has_its_own(self, make_bus: MakeBus, manual: ManualClock) -> None:
        """The quicker one is ended after 2 s, the slower one after 10 s."""
        bus = make_bus(clock=manual, handler_timeout=60.0, retry=ONE_ATTEMPT)
        quick, slow = BlockingHandler(), BlockingHandler()
        bus.subscribe("order.quick", quick, timeout=2.0)
        bus.subscribe("order.slow", slow, timeout=10.0)
        publishing = [start(bus.publish(type)) for type in ("order.quick", "order.slow")]
        await soon(asyncio.gather(quick.started.wait(), slow.started.wait()))
        await manual.advance(2)
        after_2 = (quick.was_cancelled, slow.was_cancelled)
        await manual.advance(8)
        ids = await soon(asyncio.gather(*publishing))
        errors = [(await bus.store.get(event_id)).errors for event_id in ids]

        assert after_2 == (True, False)
        assert slow.was_cancelled
        assert ["longer than 2 s" in errors[0][0], "longer than 10 s" in errors[1][0]] == [True, True]

    async def test_it_counts_from_the_call_of_the_handler(
        self, make_bus: MakeBus, manual: ManualClock
    ) -> None:
        """Not from the publishing: the second handler has all of its time."""
        bus = make_bus(clock=manual, handler_timeout=10.0)
        first, second = BlockingHandler(), BlockingHandler()
        bus.subscribe(first)
        bus.subscribe(second)
        publishing = start(bus.publish("order.placed"))
        await soon(first.started.wait())
        await manual.advance(9)
        first.released.set()
        await soon(second.started.wait())
        await manual.advance(9)
        second.released.set()
        event = await bus.store.get(await soon(publishing))

        assert (event.status, event.retry_count) == (EventStatus.DONE, 0)

    async def test_every_attempt_has_its_own(self, make_bus: MakeBus, manual: ManualClock) -> None:
        """Also one of less than the second that a handler has to end after it was cancelled."""
        retry = RetryPolicy(max_retries=2, base_delay=0.0)
        bus = make_bus(clock=manual, handler_timeout=0.25, retry=retry)
        began_at: list[float] = []

        async def wait(_: Event) -> None:
            began_at.append(manual.monotonic())
            await asyncio.Event().wait()

        bus.subscribe("order.placed", wait)
        publishing = start(bus.publish("order.placed"))
        for count in range(1, 4):
            await until(lambda: len(began_at) == count)  # noqa: B023
            await manual.advance(0.25)
        event = await bus.store.get(await soon(publishing))

        assert event.status is EventStatus.DLQ
        assert [moment - began_at[0] for moment in began_at] == [0.0, 0.25, 0.5]

    async def test_it_holds_after_somebody_has_cancelled_all_tasks(
        self, make_bus: MakeBus, manual: ManualClock
    ) -> None:
        """As some programs do with what is left over of a job; ours are none of that."""
        bus = make_bus(clock=manual, handler_timeout=2.0, retry=ONE_ATTEMPT)
        first, second = BlockingHandler(), BlockingHandler()
        bus.subscribe("order.first", first)
        bus.subscribe("order.second", second)
        publishing = start(bus.publish("order.first"))
        await soon(first.started.wait())
        for task in asyncio.all_tasks():
            if task.get_name() == "postbus watchdog":
                task.cancel()
        first.released.set()
        await soon(publishing)
        publishing = start(bus.publish("order.second"))
        await soon(second.started.wait())
        await manual.advance(2)
        event = await bus.store.get(await soon(publishing))

        assert event.status is EventStatus.DLQ

    async def test_what_a_handler_uses_up_before_it_waits_counts(self, database: Path) -> None:
        """Here all of it: it is cut off as soon as it waits."""
        time_used = 0.0

        class Clock(ManualClock):
            def monotonic(self) -> float:
                return super().monotonic() + time_used

        async with EventBus(
            database, clock=Clock(), handler_timeout=10.0, retry=RetryPolicy(max_retries=0)
        ) as bus:

            @bus.on("order.*")
            async def block(_: Event) -> None:
                nonlocal time_used
                time_used = 11.0
                await asyncio.get_running_loop().create_future()

            event = await bus.store.get(await soon(bus.publish("order.placed")))

        assert event.status is EventStatus.DLQ
        assert "longer than 10 s" in event.errors[0]

    async def test_a_plain_function_has_one_as_well(self, make_bus: MakeBus, manual: ManualClock) -> None:
        """Its thread can't be ended, its attempt can."""
        bus = make_bus(clock=manual, retry=ONE_ATTEMPT)
        started, released = threading.Event(), threading.Event()

        def block(_: Event) -> None:
            started.set()
            released.wait(10)

        bus.subscribe(block, timeout=5.0)
        publishing = start(bus.publish("order.placed"))
        await asyncio.to_thread(started.wait, 10)
        await manual.advance(5)
        event = await bus.store.get(await soon(publishing))
        released.set()

        assert event.status is EventStatus.DLQ
        assert event.errors == [
            "TimeoutError: handler took longer than 5 s and goes on: a thread can't be cancelled"
        ]

    async def test_a_plain_function_around_an_async_one_is_cancelled(
        self, make_bus: MakeBus, manual: ManualClock
    ) -> None:
        """Its thread is done by then, and the error does not say otherwise."""
        bus, handler = make_bus(clock=manual, retry=ONE_ATTEMPT), BlockingHandler()
        bus.subscribe(lambda event: handler(event), timeout=5.0)
        publishing = start(bus.publish("order.placed"))
        await soon(handler.started.wait())
        await manual.advance(5)
        event = await bus.store.get(await soon(publishing))

        assert handler.was_cancelled
        assert event.errors == ["TimeoutError: handler took longer than 5 s and was cancelled"]

    async def test_one_that_is_just_in_time_has_succeeded(
        self, make_bus: MakeBus, manual: ManualClock
    ) -> None:
        """A millisecond before the end."""
        bus, handler = make_bus(clock=manual, retry=ONE_ATTEMPT), BlockingHandler()
        bus.subscribe(handler, timeout=5.0)
        publishing = start(bus.publish("order.placed"))
        await soon(handler.started.wait())
        await manual.advance(4.999)
        handler.released.set()
        event = await bus.store.get(await soon(publishing))
        await manual.advance(60)

        assert (event.status, handler.was_cancelled) == (EventStatus.DONE, False)

    async def test_a_handler_of_the_backlog_has_one_as_well(
        self, make_bus: MakeBus, manual: ManualClock
    ) -> None:
        """What comes behind it is delivered then."""
        bus, slow, handler = make_bus(clock=manual, retry=ONE_ATTEMPT), BlockingHandler(), FlakyHandler()
        bus.subscribe("order.slow", slow, timeout=5.0)
        bus.subscribe("order.quick", handler)
        ids = [await bus.publish(type, wait=False) for type in ("order.slow", "order.quick")]
        await soon(slow.started.wait())
        await manual.advance(5)
        await soon(bus.idle())
        events = [await bus.store.get(event_id) for event_id in ids]

        assert [event.status for event in events] == [EventStatus.DLQ, EventStatus.DONE]


class TestHandlersThatResist:
    async def test_one_that_swallows_the_cancellation_and_returns_has_failed(
        self, make_bus: MakeBus, manual: ManualClock
    ) -> None:
        """It was too late, whatever it says."""
        bus = make_bus(clock=manual, retry=ONE_ATTEMPT)
        handler = BlockingHandler()

        async def swallow(event: Event) -> None:
            try:
                await handler(event)
            except asyncio.CancelledError:
                return

        bus.subscribe(swallow, timeout=5.0)
        publishing = start(bus.publish("order.placed"))
        await soon(handler.started.wait())
        await manual.advance(5)
        event = await bus.store.get(await soon(publishing))

        assert event.status is EventStatus.DLQ
        assert "TimeoutError" in event.errors[0]

    async def test_one_that_raises_something_else_when_cancelled_has_timed_out(
        self, make_bus: MakeBus, manual: ManualClock
    ) -> None:
        """The reason is the time, and not what came of it."""
        bus = make_bus(clock=manual, retry=ONE_ATTEMPT)
        handler = BlockingHandler()

        async def convert(event: Event) -> None:
            try:
                await handler(event)
            except asyncio.CancelledError:
                raise ConnectionError("connection lost") from None

        bus.subscribe(convert, timeout=5.0)
        publishing = start(bus.publish("order.placed"))
        await soon(handler.started.wait())
        await manual.advance(5)
        event = await bus.store.get(await soon(publishing))

        assert "TimeoutError" in event.errors[0]

    async def test_one_that_goes_on_after_its_cancellation_holds_nobody_up(
        self, make_bus: MakeBus, manual: ManualClock
    ) -> None:
        """Its attempt has failed when the time was up; the handler may go on in the background."""
        bus = make_bus(clock=manual, retry=ONE_ATTEMPT)
        handler, released = BlockingHandler(), asyncio.Event()

        async def go_on(event: Event) -> None:
            try:
                await handler(event)
            except asyncio.CancelledError:
                await released.wait()

        bus.subscribe(go_on, timeout=5.0)
        publishing = start(bus.publish("order.placed"))
        await soon(handler.started.wait())
        # Its time, and the grace that a cancelled handler has.
        await manual.advance(5)
        await manual.advance(1)
        done, _ = await asyncio.wait([publishing], timeout=5)
        released.set()
        event = await bus.store.get(await soon(publishing))

        assert done
        assert event.status is EventStatus.DLQ

    async def test_one_that_goes_on_lets_those_behind_it_pass(
        self, make_bus: MakeBus, manual: ManualClock
    ) -> None:
        """Where nobody waits for them."""
        bus, handler, others = make_bus(clock=manual, retry=ONE_ATTEMPT), BlockingHandler(), FlakyHandler()
        released = asyncio.Event()

        async def go_on(event: Event) -> None:
            try:
                await handler(event)
            except asyncio.CancelledError:
                await released.wait()

        bus.subscribe("order.slow", go_on, timeout=5.0)
        bus.subscribe("order.quick", others)
        for type in ("order.slow", "order.quick"):
            await bus.publish(type, wait=False)
        await soon(handler.started.wait())
        # Its time, and the grace that a cancelled handler has.
        await manual.advance(5)
        await manual.advance(1)
        await until(lambda: bool(others.events))
        await soon(bus.idle())
        released.set()

        assert len(others.events) == 1
        assert (await bus.dlq.list()).total == 1


class TestCancelledPublisher:
    async def test_the_handler_goes_on_and_the_event_is_done(self, make_bus: MakeBus) -> None:
        """To give up waiting is not to take the event back."""
        bus, handler = make_bus(), BlockingHandler()
        bus.subscribe(handler)
        publishing = start(bus.publish("order.placed", event_id="kept"))
        await soon(handler.started.wait())
        publishing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await publishing
        handler.released.set()
        await soon(bus.idle())

        assert (handler.was_cancelled, handler.finish_count) == (False, 1)
        assert (await bus.store.get("kept")).status is EventStatus.DONE

    async def test_one_who_gives_up_before_the_event_is_stored_has_published_it(
        self, make_bus: MakeBus
    ) -> None:
        """It was on its way to the disk, and is delivered."""
        bus, handler = make_bus(), FlakyHandler()
        bus.subscribe(handler)
        await bus.start()
        publishing = start(bus.publish("order.placed", event_id="kept"))
        await asyncio.sleep(0)
        publishing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await publishing
        await soon(bus.idle())

        assert [event.id for event in handler.events] == ["kept"]
        assert (await bus.store.get("kept")).status is EventStatus.DONE

    async def test_a_publisher_with_a_time_limit_of_its_own_loses_nothing(self, make_bus: MakeBus) -> None:
        """asyncio.timeout around publish ends the waiting only; retries go on as well."""
        bus, handler = make_bus(), BlockingHandler()
        flaky = FlakyHandler(1)
        bus.subscribe(handler)
        bus.subscribe(flaky)
        await bus.start()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await bus.publish("order.placed", event_id="kept")
        handler.released.set()
        await soon(bus.idle())

        assert (handler.was_cancelled, len(flaky.events)) == (False, 2)
        assert (await bus.store.get("kept")).status is EventStatus.DONE
