"""Handlers that use the bus themselves."""

import asyncio

import pytest

from postbus import Event, EventBusShutdownError, EventStatus, RetryPolicy
from postbus.testing import ManualClock
from tests.delivery.steps import FlakyHandler, MakeBus, soon, start


class TestPublishing:
    @pytest.mark.parametrize("outer_wait", [True, False])
    @pytest.mark.parametrize("inner_wait", [True, False])
    async def test_a_handler_may_publish(self, make_bus: MakeBus, outer_wait: bool, inner_wait: bool) -> None:
        """Waiting for it or not, from whichever lane it is called: nobody waits for ever."""
        bus, billed = make_bus(), FlakyHandler()
        bus.subscribe("bill.*", billed)

        @bus.on("order.*")
        async def bill(event: Event) -> None:
            await bus.publish("bill.sent", event.payload, wait=inner_wait)

        for number in range(10):
            await soon(bus.publish("order.placed", number, wait=outer_wait))
        await soon(bus.idle())

        assert billed.payloads == list(range(10))

    async def test_it_may_wait_for_events_of_its_own_type(self, make_bus: MakeBus) -> None:
        """Ten levels deep."""
        bus = make_bus()
        depths: list[int] = []

        @bus.on("order.*")
        async def go_deeper(event: Event) -> None:
            if event.payload < 10:
                await bus.publish("order.placed", event.payload + 1)
            depths.append(event.payload)

        await soon(bus.publish("order.placed", 0))

        assert depths == list(range(10, -1, -1))

    async def test_many_of_them_at_once_wait_for_each_other_and_end(self, make_bus: MakeBus) -> None:
        """More than there are threads or couriers kept."""
        bus, billed = make_bus(), FlakyHandler()
        bus.subscribe("bill.*", billed)

        @bus.on("order.*")
        async def bill(event: Event) -> None:
            await bus.publish("bill.sent", event.payload)

        await soon(asyncio.gather(*(bus.publish("order.placed", number) for number in range(200))))

        assert len(billed.events) == 200

    async def test_a_plain_function_may_publish_through_the_loop(self, make_bus: MakeBus) -> None:
        """It runs in a thread, so it may block on the loop without blocking it."""
        bus, billed = make_bus(), FlakyHandler()
        bus.subscribe("bill.*", billed)
        loop = asyncio.get_running_loop()

        @bus.on("order.*")
        def bill(event: Event) -> None:
            asyncio.run_coroutine_threadsafe(bus.publish("bill.sent", event.payload), loop).result(10)

        await soon(asyncio.gather(*(bus.publish("order.placed", number) for number in range(5))))

        assert sorted(event.payload for event in billed.events) == list(range(5))

    async def test_a_failure_of_the_inner_one_is_not_one_of_the_outer(self, make_bus: MakeBus) -> None:
        """publish does not raise what a handler raises."""
        bus = make_bus(retry=RetryPolicy(max_retries=0))
        bus.subscribe("bill.*", FlakyHandler(1))
        inner_ids: list[str] = []

        @bus.on("order.*")
        async def bill(event: Event) -> None:
            inner_ids.append(await bus.publish("bill.sent"))

        outer = await bus.store.get(await soon(bus.publish("order.placed")))
        inner = await bus.store.get(inner_ids[0])

        assert (outer.status, inner.status) == (EventStatus.DONE, EventStatus.DLQ)


class TestSubscribing:
    async def test_a_handler_may_subscribe_and_unsubscribe(self, make_bus: MakeBus) -> None:
        """Itself, for example: once and never again."""
        bus = make_bus()
        seen: list[object] = []

        async def once(event: Event) -> None:
            seen.append(event.payload)
            bus.unsubscribe(subscription_id)

        subscription_id = bus.subscribe(once)
        for number in range(3):
            await soon(bus.publish("order.placed", number))

        assert seen == [0]


class TestShuttingDown:
    @pytest.mark.parametrize("wait", [True, False])
    async def test_a_handler_that_shuts_the_bus_down_and_waits_for_it_ends(
        self, make_bus: MakeBus, wait: bool
    ) -> None:
        """It waits for itself, but no longer than the shutdown's own limit, and the event is kept."""
        clock = ManualClock()
        bus = make_bus(clock=clock, shutdown_timeout=5.0)
        started = asyncio.Event()

        @bus.on("order.*")
        async def stop(_: Event) -> None:
            started.set()
            await bus.shutdown()

        publishing = start(bus.publish("order.placed", event_id="last", wait=wait))
        await soon(started.wait())
        await clock.advance(5)
        await soon(publishing)
        await soon(bus.shutdown())
        successor, handler = make_bus(), FlakyHandler()
        successor.subscribe(handler)
        await successor.start()
        await soon(successor.idle())

        assert [event.id for event in handler.events] == ["last"]
        assert (await successor.store.get("last")).status is EventStatus.DONE

    async def test_a_handler_that_needs_the_bus_during_a_shutdown_has_not_failed(
        self, make_bus: MakeBus
    ) -> None:
        """Its event is pending again, with its attempts as they were."""
        bus = make_bus(retry=RetryPolicy(max_retries=0))
        started, released = asyncio.Event(), asyncio.Event()
        refusals: list[str] = []

        @bus.on("order.*")
        async def bill(_: Event) -> None:
            started.set()
            await released.wait()
            try:
                await bus.publish("bill.sent")
            except EventBusShutdownError as error:
                refusals.append(error.action)
                raise

        publishing = start(bus.publish("order.placed", event_id="again"))
        await soon(started.wait())
        stopping = start(bus.shutdown())
        await asyncio.sleep(0)
        released.set()
        await soon(asyncio.gather(stopping, publishing))
        successor, handler = make_bus(), FlakyHandler()
        successor.subscribe(handler)
        await successor.start()
        await soon(successor.idle())

        assert refusals == ["publish"]
        assert [(event.id, event.retry_count) for event in handler.events] == [("again", 0)]
