"""The circuit breaker of a subscription: a handler that mostly fails is left alone, its events wait."""

import asyncio
from pathlib import Path

import pytest

from postbus import Event, EventBus, EventStatus, RetryPolicy
from postbus.delivery.gate import Gate
from postbus.testing import ManualClock
from tests.delivery.steps import (
    ALWAYS,
    BlockingHandler,
    FlakyHandler,
    MakeBus,
    query,
    soon,
    start,
    until,
)

ONE_ATTEMPT = RetryPolicy(max_retries=0)


@pytest.fixture
def bus(make_bus: MakeBus) -> EventBus:
    """A bus that gives every event one attempt, so that outcomes are easy to count."""
    return make_bus(retry=ONE_ATTEMPT)


async def publish(bus: EventBus, count: int, type: str = "order.placed") -> list[str]:
    """Publish one after another."""
    return [await soon(bus.publish(type)) for _ in range(count)]


class TestOpening:
    async def test_it_opens_after_four_failures(self, bus: EventBus, clock: ManualClock) -> None:
        """The fifth event waits for 30 s, and is tried then."""
        handler = FlakyHandler(ALWAYS, clock=clock)
        bus.subscribe(handler)
        await publish(bus, 5)

        assert handler.moments == [0, 0, 0, 0, 30]

    async def test_three_failures_are_too_few(self, bus: EventBus, clock: ManualClock) -> None:
        """It takes at least four outcomes: the fourth event gets in at once."""
        handler = FlakyHandler(3, clock=clock)
        bus.subscribe(handler)
        await publish(bus, 4)

        assert handler.moments == [0] * 4

    async def test_half_of_them_is_too_few(self, bus: EventBus, clock: ManualClock) -> None:
        """Two of four stay below more than half."""
        moments: list[float] = []

        @bus.on("order.*")
        async def fail_every_other(_: Event) -> None:
            moments.append(clock.monotonic())
            if len(moments) % 2 == 0:
                raise ValueError("boom")

        await publish(bus, 12)

        assert moments == [0] * 12

    async def test_failures_of_more_than_a_minute_ago_do_not_count(
        self, bus: EventBus, clock: ManualClock
    ) -> None:
        """Three now, three in a minute: never four within 60 s."""
        handler = FlakyHandler(ALWAYS, clock=clock)
        bus.subscribe(handler)
        await publish(bus, 3)
        await clock.sleep(61)
        await publish(bus, 3)

        assert handler.moments == [0, 0, 0, 61, 61, 61]

    async def test_retries_are_outcomes_too(self, make_bus: MakeBus, clock: ManualClock) -> None:
        """The attempts of one event at 0, 1, 3 and 7 s open it; the next waits until 37 s."""
        bus, handler = make_bus(), FlakyHandler(ALWAYS, clock=clock)
        bus.subscribe(handler, retry={"max_retries": 4})
        await soon(bus.publish("order.placed"))

        assert handler.moments == [0, 1, 3, 7, 37]


class TestWaiting:
    async def test_an_event_behind_an_open_one_is_never_done_unseen(
        self, database: Path, bus: EventBus
    ) -> None:
        """It is in processing, uncounted, until its handler has seen it."""
        handler = FlakyHandler(4)
        bus.subscribe("order.*", handler)
        await publish(bus, 4)
        blocking = BlockingHandler()
        bus.subscribe("order.*", blocking)
        publishing = start(bus.publish("order.placed", event_id="waits"))
        await soon(blocking.started.wait())
        row = query(database, "SELECT status, retry_count FROM events WHERE id = 'waits'")
        seen = len(handler.events)
        blocking.released.set()
        await soon(publishing)

        assert (row, seen) == ([("processing", 0)], 4)
        assert len(handler.events) == 5
        assert (await bus.store.get("waits")).status is EventStatus.DONE

    async def test_waiting_is_no_attempt(self, bus: EventBus) -> None:
        """An event that waited has all its attempts left."""
        bus.subscribe(FlakyHandler(4))
        await publish(bus, 4)
        event = await bus.store.get((await publish(bus, 1))[0])

        assert (event.status, event.retry_count, event.errors) == (EventStatus.DONE, 0, [])

    async def test_one_healthy_and_one_sick_handler(self, bus: EventBus, clock: ManualClock) -> None:
        """The healthy one gets every event at once, the sick one when its breaker lets it in."""
        sick, healthy = FlakyHandler(4, clock=clock), FlakyHandler(clock=clock)
        bus.subscribe("order.*", sick)
        await publish(bus, 4)
        bus.subscribe("order.*", healthy)
        await publish(bus, 1)

        assert (sick.moments[4:], healthy.moments) == ([30], [0])

    async def test_it_is_one_per_subscription(self, bus: EventBus, clock: ManualClock) -> None:
        """The same handler under another subscription has another breaker."""
        handler = FlakyHandler(4, clock=clock)
        bus.subscribe("order.*", handler)
        bus.subscribe("user.*", handler)
        await publish(bus, 4, "order.placed")
        await publish(bus, 1, "user.created")
        await publish(bus, 1, "order.placed")

        assert handler.moments == [0, 0, 0, 0, 0, 30]

    async def test_those_for_other_handlers_are_not_held_up(self, make_bus: MakeBus) -> None:
        """Where nobody waits for them: the healthy handler has its event while the other one's waits."""
        manual = ManualClock()
        bus, sick, healthy = make_bus(clock=manual, retry=ONE_ATTEMPT), FlakyHandler(4), FlakyHandler()
        bus.subscribe("order.*", sick)
        bus.subscribe("user.*", healthy)
        await publish(bus, 4)
        await bus.publish("order.placed", wait=False)
        await bus.publish("user.created", wait=False)
        await until(lambda: bool(healthy.events))
        seen_before = len(sick.events)
        await manual.advance(30)
        await soon(bus.idle())

        assert (seen_before, len(sick.events)) == (4, 5)

    async def test_events_that_nobody_waits_for_wait_as_well(
        self, database: Path, bus: EventBus, clock: ManualClock
    ) -> None:
        """And are done when the handler has seen them."""
        sick, healthy = FlakyHandler(4), FlakyHandler()
        bus.subscribe("order.*", sick)
        bus.subscribe("user.*", healthy)
        ids = [await bus.publish("order.placed", wait=False) for _ in range(6)]
        ids.append(await bus.publish("user.created", wait=False))
        await soon(bus.idle())
        events = [await bus.store.get(event_id) for event_id in ids]

        assert [event.status for event in events] == [EventStatus.DLQ] * 4 + [EventStatus.DONE] * 3
        assert clock.monotonic() >= 30


class TestProbing:
    async def test_one_success_closes_it(self, bus: EventBus, clock: ManualClock) -> None:
        """What failed before is forgotten: it takes four outcomes again."""
        handler = FlakyHandler(4, clock=clock)
        bus.subscribe(handler)
        await publish(bus, 5)
        handler.failure_count = ALWAYS
        await publish(bus, 3)

        assert handler.moments[4:] == [30, 30, 30, 30]

    async def test_one_failure_opens_it_for_another_30_seconds(
        self, bus: EventBus, clock: ManualClock
    ) -> None:
        """Again and again."""
        handler = FlakyHandler(6, clock=clock)
        bus.subscribe(handler)
        await publish(bus, 7)

        assert handler.moments[4:] == [30, 60, 90]

    async def test_only_one_event_is_the_probe(self, bus: EventBus, clock: ManualClock) -> None:
        """Of ten that wait, each gets in alone as long as the handler is sick, all when it is healthy."""
        handler = FlakyHandler(6, clock=clock)
        bus.subscribe(handler)
        await publish(bus, 4)
        await soon(asyncio.gather(*(bus.publish("order.placed") for _ in range(10))))

        assert handler.moments[4:] == [30, 60] + [90] * 8

    async def test_a_probe_that_is_cut_off_makes_room_for_the_next(self, clock: ManualClock) -> None:
        """To be cut off says nothing about the handler: whoever waits is the probe then."""
        gate = Gate(clock)
        for _ in range(4):
            gate.leave(gate.try_enter(clock.monotonic()), False)
        await clock.sleep(30)
        probe = gate.try_enter(clock.monotonic())
        waiting = start(gate.enter())
        await asyncio.sleep(0)
        was_in = waiting.done()
        gate.abandon(probe)
        await soon(waiting)

        assert probe
        assert not was_in
        assert not gate.try_enter(clock.monotonic())

    async def test_an_attempt_that_began_before_the_opening_is_no_probe(self, clock: ManualClock) -> None:
        """Neither its success nor its being cut off says how the probe will end."""
        gate = Gate(clock)
        late = gate.try_enter(clock.monotonic())
        for _ in range(4):
            gate.leave(gate.try_enter(clock.monotonic()), False)
        await clock.sleep(30)
        probe = gate.try_enter(clock.monotonic())
        gate.leave(late, True)
        gate.abandon(late)
        state = gate.state
        gate.leave(probe, True)

        assert (state, gate.state) == ("half_open", "closed")

    async def test_a_success_that_shows_how_many_failed_opens_it_as_any_outcome_does(
        self, clock: ManualClock
    ) -> None:
        """Of too few outcomes nothing is concluded. What was let in before is no probe."""
        gate = Gate(clock)
        late = gate.try_enter(clock.monotonic())
        opened = [
            gate.leave(gate.try_enter(clock.monotonic()), succeeded)
            for succeeded in (False, False, False, True)
        ]
        await clock.sleep(30)
        probe = gate.try_enter(clock.monotonic())

        assert opened == [False, False, False, True]
        assert probe not in (0, late)


class TestUnsubscribing:
    async def test_a_handler_that_was_unsubscribed_is_not_called_after_the_wait(self, bus: EventBus) -> None:
        """The event is done when nobody is left to see it, and does not wait in vain."""
        handler, other = FlakyHandler(ALWAYS), BlockingHandler()
        subscription_id = bus.subscribe("order.*", handler)
        await publish(bus, 4)
        bus.subscribe("order.*", other)
        publishing = start(bus.publish("order.placed"))
        await soon(other.started.wait())
        bus.unsubscribe(subscription_id)
        other.released.set()
        event = await bus.store.get(await soon(publishing))

        assert len(handler.events) == 4
        assert event.status is EventStatus.DONE


class TestOthersMeanwhile:
    """A breaker that opens while an event is on its way to the sick handler holds up that event alone."""

    @pytest.fixture
    def manual(self) -> ManualClock:
        """Stands still until it is moved."""
        return ManualClock()

    async def test_events_behind_it_in_the_background_are_handled(
        self, make_bus: MakeBus, manual: ManualClock
    ) -> None:
        """The first of two handlers takes its time, and meanwhile the second one's breaker opens."""
        bus, first, sick, well = (
            make_bus(clock=manual, retry=ONE_ATTEMPT),
            BlockingHandler(),
            FlakyHandler(ALWAYS),
            FlakyHandler(),
        )
        bus.subscribe("slow.one", first)
        bus.subscribe("slow.*", sick)
        bus.subscribe("order.placed", well)
        await bus.publish("slow.one", wait=False)
        await soon(first.started.wait())
        await publish(bus, 4, "slow.other")
        await bus.publish("order.placed", wait=False)
        first.released.set()
        await until(lambda: len(well.events) == 1)

        assert len(sick.events) == 4
        await manual.advance(30)
        await until(lambda: len(sick.events) == 5)

    async def test_events_that_were_published_with_it_are_handled_once_and_in_order(
        self, make_bus: MakeBus, manual: ManualClock
    ) -> None:
        """The fifth of the list waits, those behind it do not."""
        bus, sick, well = make_bus(clock=manual, retry=ONE_ATTEMPT), FlakyHandler(ALWAYS), FlakyHandler()
        bus.subscribe("sick", sick)
        bus.subscribe("well", well)
        items = [*[("sick", number) for number in range(6)], *[("well", number) for number in range(3)]]
        publishing = start(bus.publish_many(items))
        await until(lambda: len(well.events) == 3)

        assert (sick.payloads, well.payloads) == ([0, 1, 2, 3], [0, 1, 2])
        assert not publishing.done()
        await manual.advance(30)
        await until(lambda: len(sick.events) == 5)
        await manual.advance(30)
        await soon(publishing)
        assert (sorted(sick.payloads, key=str), well.payloads) == ([0, 1, 2, 3, 4, 5], [0, 1, 2])
