"""Unsubscribe: idempotent, at any moment, and without losing an event."""

import pytest

from postbus import EventStatus, RetryPolicy
from postbus.testing import ManualClock
from tests.delivery.steps import ALWAYS, BlockingHandler, FlakyHandler, MakeBus, soon, start


async def test_it_is_idempotent(make_bus: MakeBus) -> None:
    """Twice, for an id that never was, before the start and after the shutdown."""
    bus, handler = make_bus(), FlakyHandler()
    subscription_id = bus.subscribe(handler)
    bus.unsubscribe(subscription_id)
    bus.unsubscribe(subscription_id)
    bus.unsubscribe("nobody")
    await bus.publish("order.placed")
    await bus.shutdown()
    bus.unsubscribe(subscription_id)

    assert handler.events == []


async def test_one_of_two_subscriptions_of_a_handler_goes(make_bus: MakeBus) -> None:
    """The other one stays."""
    bus, handler = make_bus(), FlakyHandler()
    first, _ = bus.subscribe("order.*", handler), bus.subscribe("*", handler)
    bus.unsubscribe(first)
    await bus.publish("order.placed")

    assert len(handler.events) == 1


async def test_an_event_is_done_at_once_when_its_last_handler_has_gone(make_bus: MakeBus) -> None:
    """As if there had never been one."""
    bus = make_bus()
    bus.unsubscribe(bus.subscribe("order.*", FlakyHandler(ALWAYS)))
    event = await bus.store.get(await bus.publish("order.placed"))

    assert (event.status, event.retry_count) == (EventStatus.DONE, 0)


async def test_what_runs_at_that_moment_ends_by_itself(make_bus: MakeBus) -> None:
    """A handler is not cut off; its event is done."""
    bus, handler = make_bus(), BlockingHandler()
    subscription_id = bus.subscribe(handler)
    publishing = start(bus.publish("order.placed"))
    await soon(handler.started.wait())
    bus.unsubscribe(subscription_id)
    handler.released.set()
    event = await bus.store.get(await soon(publishing))

    assert (handler.finish_count, event.status) == (1, EventStatus.DONE)


async def test_a_handler_that_is_next_in_line_is_not_called(make_bus: MakeBus) -> None:
    """While the one before it is at work."""
    bus, first, second = make_bus(), BlockingHandler(), FlakyHandler()
    bus.subscribe(first)
    subscription_id = bus.subscribe(second)
    publishing = start(bus.publish("order.placed"))
    await soon(first.started.wait())
    bus.unsubscribe(subscription_id)
    first.released.set()
    event = await bus.store.get(await soon(publishing))

    assert (second.events, event.status) == ([], EventStatus.DONE)


class TestDuringBackOff:
    @pytest.fixture
    def manual(self) -> ManualClock:
        """Stands still until it is moved."""
        return ManualClock()

    async def test_the_only_handler_is_not_called_again(self, make_bus: MakeBus, manual: ManualClock) -> None:
        """Nobody is left to see the event: it is done, and tells of its failure."""
        bus, handler = make_bus(clock=manual), FlakyHandler(ALWAYS)
        subscription_id = bus.subscribe(handler)
        publishing = start(bus.publish("order.placed"))
        await soon(manual.wait_for_sleepers(1))
        bus.unsubscribe(subscription_id)
        await manual.advance(1)
        event = await bus.store.get(await soon(publishing))

        assert len(handler.events) == 1
        assert (event.status, event.errors) == (EventStatus.DONE, ["ValueError: boom 1"])

    async def test_the_others_are_called_again(self, make_bus: MakeBus, manual: ManualClock) -> None:
        """The sick one is gone, the healthy one sees the event through."""
        bus, healthy, sick = make_bus(clock=manual), FlakyHandler(), FlakyHandler(ALWAYS)
        bus.subscribe(healthy)
        subscription_id = bus.subscribe(sick)
        publishing = start(bus.publish("order.placed"))
        await soon(manual.wait_for_sleepers(1))
        bus.unsubscribe(subscription_id)
        await manual.advance(1)
        event = await bus.store.get(await soon(publishing))

        assert (len(healthy.events), len(sick.events)) == (2, 1)
        assert event.status is EventStatus.DONE

    async def test_a_new_one_sees_the_event_with_its_next_attempt(
        self, make_bus: MakeBus, manual: ManualClock
    ) -> None:
        """Routes are found anew for each attempt."""
        bus, flaky, late = make_bus(clock=manual), FlakyHandler(1), FlakyHandler()
        bus.subscribe(flaky)
        publishing = start(bus.publish("order.placed"))
        await soon(manual.wait_for_sleepers(1))
        bus.subscribe(late)
        await manual.advance(1)
        await soon(publishing)

        assert [event.retry_count for event in late.events] == [1]

    async def test_an_event_without_a_handler_is_no_dead_letter(
        self, make_bus: MakeBus, manual: ManualClock
    ) -> None:
        """Also when the one that has gone had more retries than the bus gives."""
        bus, handler = make_bus(clock=manual, retry=RetryPolicy(max_retries=0)), FlakyHandler(ALWAYS)
        subscription_id = bus.subscribe(handler, retry={"max_retries": 5})
        publishing = start(bus.publish("order.placed"))
        await soon(manual.wait_for_sleepers(1))
        bus.unsubscribe(subscription_id)
        await manual.advance(1)
        event = await bus.store.get(await soon(publishing))

        assert event.status is EventStatus.DONE
