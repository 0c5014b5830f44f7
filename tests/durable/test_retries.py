"""A failing event is retried with back-off and then becomes a dead letter; the others go on."""

import logging
from typing import Any

import pytest

from postbus import Event, EventBus, PayloadTypeError, ReliableDeliveryConfig, RetryPolicy
from postbus.testing import ManualClock
from tests.delivery.steps import ALWAYS, FlakyHandler, soon, until
from tests.durable.steps import ID, MakeBus, letters_of, on_embedded, pass_time, position_of, publish_numbers


async def test_it_is_tried_again_after_one_two_and_four_seconds(
    make_bus: MakeBus, clock: ManualClock
) -> None:
    """The default: three retries, each after twice the time; then it is processed."""
    bus, handler = make_bus(), FlakyHandler(3, clock=clock)
    bus.subscribe("*", handler, id=ID)
    await publish_numbers(bus, 1, 2)
    for seconds in (1, 2, 4):
        await soon(pass_time(clock, seconds))
    await soon(bus.subscription(ID).caught_up())

    assert handler.payloads == [1, 1, 1, 1, 2]
    assert handler.moments == [0, 1, 3, 7, 7]
    assert await letters_of(bus) == []
    assert await position_of(bus) == 2


async def test_after_four_attempts_it_is_a_dead_letter_with_its_whole_story(
    make_bus: MakeBus, clock: ManualClock
) -> None:
    bus, handler = make_bus(), FlakyHandler(4, clock=clock)
    bus.subscribe("*", handler, id=ID)
    await bus.publish("order.placed", {"total": 7}, {"source": "web"}, event_id="poison", stream_id="order-7")
    await bus.publish("order.placed", event_id="next")
    for seconds in (1, 2, 4):
        await soon(pass_time(clock, seconds))
    await soon(bus.subscription(ID).caught_up())
    (letter,) = await letters_of(bus)

    assert [event.id for event in handler.events] == ["poison"] * 4 + ["next"]
    assert letter.errors == [f"ValueError: boom {number}" for number in (1, 2, 3, 4)]
    assert (letter.id, letter.subscriber_id, letter.retry_count) == ("poison", ID, 4)
    assert (letter.payload, letter.metadata, letter.stream_id) == ({"total": 7}, {"source": "web"}, "order-7")
    assert letter.dlq_at == clock.now()
    assert letter.dead_letter_id != letter.id
    assert await position_of(bus) == 2


async def test_the_configuration_says_how_often_and_how_long(make_bus: MakeBus, clock: ManualClock) -> None:
    """max_retries, initial_retry_delay and max_retry_delay of the bus's config, not its retry=."""
    config = ReliableDeliveryConfig(max_retries=4, initial_retry_delay=10, max_retry_delay=25)
    bus, handler = make_bus(config=config, retry=RetryPolicy(max_retries=0)), FlakyHandler(ALWAYS)
    bus.subscribe("*", handler, id=ID)
    await publish_numbers(bus, 1)
    for seconds in (10, 20, 25, 25):
        await soon(pass_time(clock, seconds))
    await soon(bus.idle())

    assert clock.sleeps == [10, 20, 25, 25]
    assert len(handler.events) == 5
    assert len(await letters_of(bus)) == 1


@pytest.mark.parametrize(
    "retry", [RetryPolicy(max_retries=1, base_delay=7), {"max_retries": 1, "base_delay": 7}]
)
async def test_a_subscriber_may_have_a_policy_of_its_own(
    make_bus: MakeBus, clock: ManualClock, retry: Any
) -> None:
    bus, handler = make_bus(), FlakyHandler(ALWAYS)
    bus.subscribe("*", handler, id=ID, retry=retry)
    await publish_numbers(bus, 1)
    await soon(pass_time(clock, 7))
    await soon(bus.idle())

    assert len(handler.events) == 2
    assert clock.sleeps == [7]


async def test_no_retries_means_one_attempt(make_bus: MakeBus, clock: ManualClock) -> None:
    bus, handler = make_bus(), FlakyHandler(ALWAYS)
    bus.subscribe("*", handler, id=ID, retry=RetryPolicy(max_retries=0))
    await publish_numbers(bus, 1, 2, 3)
    await soon(bus.idle())

    assert handler.payloads == [1, 2, 3]
    assert clock.sleeps == []
    assert [letter.errors for letter in await letters_of(bus)] == [
        ["ValueError: boom 3"],
        ["ValueError: boom 2"],
        ["ValueError: boom 1"],
    ]


async def test_the_jitter_is_a_tenth_either_way(make_bus: MakeBus, clock: ManualClock) -> None:
    noises = iter([1.0, -1.0])
    bus = make_bus(noise=lambda: next(noises))
    bus.subscribe("*", FlakyHandler(2), id=ID)
    await publish_numbers(bus, 1)
    await soon(pass_time(clock, 1.1))
    await soon(pass_time(clock, 1.8))
    await soon(bus.idle())

    assert clock.sleeps == pytest.approx([1.1, 1.8])


@on_embedded
async def test_a_retry_delays_neither_another_subscriber_nor_a_handler(
    make_bus: MakeBus, clock: ManualClock
) -> None:
    """While one waits out its back-off the others are served."""
    bus, flaky, sound, handler = make_bus(), FlakyHandler(ALWAYS), FlakyHandler(), FlakyHandler()
    bus.subscribe("*", flaky, id="flaky")
    bus.subscribe("*", sound, id="sound")
    bus.subscribe("*", handler)
    await publish_numbers(bus, 1)
    await soon(clock.wait_for_sleepers(1))
    await soon(publish_numbers(bus, 2, 3))
    await soon(bus.subscription("sound").caught_up())

    assert sound.payloads == handler.payloads == [1, 2, 3]
    assert flaky.payloads == [1]
    assert clock.monotonic() == 0


async def test_one_events_failures_are_not_counted_against_the_next(
    make_bus: MakeBus, clock: ManualClock
) -> None:
    bus = make_bus()
    calls: list[int] = []

    @bus.on("*", id=ID, retry=RetryPolicy(max_retries=1, base_delay=1))
    async def fail_first(event: Event) -> None:
        calls.append(event.payload)
        if calls.count(event.payload) == 1:
            raise ValueError("first")

    await publish_numbers(bus, 1, 2, 3)
    for _ in range(3):
        await soon(pass_time(clock, 1))
    await soon(bus.idle())

    assert calls == [1, 1, 2, 2, 3, 3]
    assert await letters_of(bus) == []


async def test_each_subscriber_has_dead_letters_of_its_own(make_bus: MakeBus) -> None:
    """One event, two stories."""
    bus, once = make_bus(), RetryPolicy(max_retries=0)
    bus.subscribe("*", FlakyHandler(ALWAYS, name="left"), id="left", retry=once)
    bus.subscribe("*", FlakyHandler(ALWAYS, name="right"), id="right", retry=once)
    await publish_numbers(bus, 1)
    await soon(bus.idle())

    assert [letter.errors for letter in await letters_of(bus, "left")] == [["ValueError: left 1"]]
    assert [letter.errors for letter in await letters_of(bus, "right")] == [["ValueError: right 1"]]


async def test_the_event_itself_stays_as_it_is(make_bus: MakeBus) -> None:
    """Status, attempts and errors of the event belong to the in-process handlers."""
    bus = make_bus()
    bus.subscribe("*", FlakyHandler(ALWAYS), id=ID, retry=RetryPolicy(max_retries=0))
    event_id = await bus.publish("a")
    await soon(bus.idle())
    event = await bus.store.get(event_id)

    assert (event.status, event.retry_count, event.last_error) == ("done", 0, None)


async def test_every_failed_attempt_is_told(make_bus: MakeBus, caplog: pytest.LogCaptureFixture) -> None:
    """One structured warning for each, and an error for the dead letter."""
    caplog.set_level(logging.WARNING, "postbus")
    bus = make_bus()
    bus.subscribe("*", FlakyHandler(2), id=ID, retry=RetryPolicy(max_retries=1, base_delay=0))
    event_id = await bus.publish("order.placed")
    await soon(bus.idle())
    first, second, buried = caplog.records

    assert (first.levelname, second.levelname, buried.levelname) == ("WARNING", "WARNING", "ERROR")
    assert [vars(first)[name] for name in ("event_id", "event_type", "subscription_id")] == [
        event_id,
        "order.placed",
        ID,
    ]
    assert [vars(first)[name] for name in ("attempt", "max_attempts", "error")] == [
        1,
        2,
        "ValueError: boom 1",
    ]
    assert vars(second)["attempt"] == 2
    assert vars(buried)["event_id"] == event_id


async def test_attempts_are_counted_anew_after_a_clean_restart(make_bus: MakeBus, clock: ManualClock) -> None:
    """A shutdown in the back-off neither buries nor skips the event."""
    first, flaky = make_bus(), FlakyHandler(ALWAYS)
    first.subscribe("*", flaky, id=ID)
    await publish_numbers(first, 1)
    await soon(clock.wait_for_sleepers(1))
    await soon(first.shutdown())
    second, handler = make_bus(), FlakyHandler()
    second.subscribe("*", handler, id=ID)
    await second.start()
    await soon(second.idle())

    assert handler.payloads == [1]
    assert await letters_of(second) == []


class TestNoRetryWouldHelp:
    async def test_a_payload_of_another_type_is_a_dead_letter_at_once(
        self, make_bus: MakeBus, clock: ManualClock
    ) -> None:
        bus = make_bus()
        seen: list[int] = []

        @bus.on("*", id=ID)
        async def add(total: int) -> None:
            seen.append(total)

        await bus.publish_many([("a", 1), ("a", "two"), ("a", 3)])
        await soon(bus.idle())
        (letter,) = await letters_of(bus)

        assert seen == [1, 3]
        assert clock.sleeps == []
        assert letter.payload == "two"
        assert len(letter.errors) == 1
        assert letter.errors[0].startswith("PayloadTypeError: the payload of a is no int")

    async def test_a_handler_may_say_so_itself(self, make_bus: MakeBus, clock: ManualClock) -> None:
        bus = make_bus()

        @bus.on("*", id=ID)
        async def refuse(event: Event) -> None:
            raise PayloadTypeError(event.type, "Order", "no total")

        await publish_numbers(bus, 1)
        await soon(bus.idle())

        assert len(await letters_of(bus)) == 1
        assert clock.sleeps == []

    async def test_an_upcaster_that_raises_makes_a_dead_letter_at_once(
        self, make_bus: MakeBus, clock: ManualClock
    ) -> None:
        bus, handler = make_bus(), FlakyHandler()
        bus.subscribe("*", handler, id=ID)

        @bus.upcaster("order.placed", from_version=1)
        def add_currency(payload: Any) -> Any:
            return {**payload, "currency": "EUR"}

        await bus.publish_many([("order.placed", 7), ("order.placed", {"total": 7})])
        await soon(bus.idle())
        (letter,) = await letters_of(bus)

        assert handler.payloads == [{"total": 7, "currency": "EUR"}]
        assert letter.payload == 7
        assert letter.errors[0].startswith("UpcastError: the upcaster of order.placed from version 1")
        assert clock.sleeps == []


async def test_unsubscribing_ends_the_back_off(make_bus: MakeBus, clock: ManualClock) -> None:
    bus, flaky = make_bus(), FlakyHandler(ALWAYS)
    bus.subscribe("*", flaky, id=ID)
    await publish_numbers(bus, 1)
    await soon(clock.wait_for_sleepers(1))
    handle = bus.subscription(ID)
    bus.unsubscribe(ID)
    await until(lambda: handle.state == "stopped" and not clock.sleeping)

    assert await position_of(bus) == 0


def failing_for(payload: object, bus: EventBus) -> list[object]:
    """A subscriber that fails for one payload only; what it was called with."""
    calls: list[object] = []

    @bus.on("*", id=ID)
    async def take(event: Event) -> None:
        calls.append(event.payload)
        if event.payload == payload:
            raise ValueError(payload)

    return calls


async def test_events_behind_a_failing_one_wait_for_it(make_bus: MakeBus, clock: ManualClock) -> None:
    """Order is kept: the next event comes when the one before is processed or a dead letter."""
    bus = make_bus()
    calls = failing_for(2, bus)
    await publish_numbers(bus, 1, 2, 3)
    await soon(pass_time(clock, 1))
    await soon(clock.wait_for_sleepers(1))
    assert calls == [1, 2, 2]

    await clock.advance(2)
    await soon(pass_time(clock, 4))
    await soon(bus.idle())
    assert calls == [1, 2, 2, 2, 2, 3]
