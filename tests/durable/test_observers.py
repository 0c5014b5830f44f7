"""Observers, projections and sagas on a bus: state, published events and checkpoint are there together."""

from pathlib import Path
from typing import Any

import pytest

from postbus import (
    CheckpointMode,
    Event,
    EventBus,
    InMemoryStore,
    InvalidConfigError,
    InvalidHandlerError,
    InvalidObserverError,
    Projection,
    ReliableDeliveryConfig,
    RetryPolicy,
    Saga,
    SagaContext,
    StateStore,
)
from postbus.testing import ManualClock
from tests.delivery.steps import FlakyHandler, soon, until
from tests.durable.steps import (
    ID,
    Database,
    MakeBus,
    crash,
    faulty,
    letters_of,
    on_embedded,
    pass_time,
    position_of,
    publish_numbers,
    until_resolved,
)

ONCE = RetryPolicy(max_retries=0)
MODES = [CheckpointMode.synchronous(), CheckpointMode.batched(3, 3600), CheckpointMode.batched(100, 3600)]


class Listener:
    """An observer by hand."""

    subscriber_id = ID

    def __init__(self) -> None:
        self.payloads: list[Any] = []

    async def on_event(self, event: Event) -> None:
        self.payloads.append(event.payload)


class Sum(Projection[int]):
    """The sum of all payloads; 0 ends it; an odd thing fails it after it was seen."""

    subscriber_id = ID

    def __init__(self, states: StateStore[int]) -> None:
        super().__init__(states)
        self.states_seen: list[int | None] = []

    def state_key(self, event: Event) -> str | None:
        return None if event.type == "other.kind" else "sum"

    def apply(self, state: int | None, event: Event) -> int | None:
        self.states_seen.append(state)
        if event.payload == "poison":
            raise ValueError("poison")
        return None if event.payload == 0 else (state or 0) + int(event.payload)


class Shipping(Saga[int]):
    """Counts, and asks for a shipment with every event; each into one stream at the next version."""

    subscriber_id = ID
    patterns = ("order.*",)

    def saga_id(self, event: Event) -> str | None:
        return "all"

    def handle(self, state: int | None, event: Event, ctx: SagaContext) -> int:
        count = (state or 0) + 1
        version = event.payload if isinstance(event.payload, int) else None
        ctx.publish("shipment.requested", count, stream_id="shipments", expected_version=version)
        return count


def a_sum(bus: EventBus, store: object | None = None) -> Sum:
    return Sum(StateStore(store or bus.store, "sums", int))  # type: ignore[arg-type]


class TestObservers:
    async def test_one_has_its_own_id_and_takes_every_event(self, make_bus: MakeBus) -> None:
        bus, listener = make_bus(), Listener()
        assert bus.subscribe(listener) == ID
        await bus.publish_many([("a", 1), ("b.c", 2)])
        await soon(bus.subscription(ID).caught_up())

        assert listener.payloads == [1, 2]

    async def test_its_patterns_say_what_it_wants_and_a_given_one_counts_more(
        self, make_bus: MakeBus
    ) -> None:
        class Picky(Listener):
            patterns = ("order.*", "user.*")

        class Other(Picky):
            subscriber_id = "other"

        bus, picky, other = make_bus(), Picky(), Other()
        bus.subscribe(picky)
        bus.subscribe("user.*", other)
        await bus.publish_many([("order.placed", 1), ("user.seen", 2), ("mail.sent", 3)])
        await soon(bus.idle())

        assert (picky.payloads, other.payloads) == ([1, 2], [2])

    @pytest.mark.parametrize("patterns", ["order.*", (), 5])
    def test_bad_patterns_are_refused(self, make_bus: MakeBus, patterns: Any) -> None:
        listener: Any = Listener()
        listener.patterns = patterns
        with pytest.raises(InvalidObserverError, match="patterns"):
            make_bus().subscribe(listener)

    def test_another_id_is_refused(self, make_bus: MakeBus) -> None:
        with pytest.raises(InvalidConfigError, match="the observer's own, which is 'mail'"):
            make_bus().subscribe("*", Listener(), id="other")

    def test_one_without_an_id_is_told_that_it_needs_one(self, make_bus: MakeBus) -> None:
        class Nameless:
            async def on_event(self, event: Event) -> None: ...

        with pytest.raises(InvalidHandlerError, match="subscriber_id"):
            make_bus().subscribe("*", Nameless(), id=ID)  # type: ignore[arg-type]

    async def test_a_plain_on_event_runs_in_a_thread(self, make_bus: MakeBus) -> None:
        class Plain:
            subscriber_id = ID

            def __init__(self) -> None:
                self.payloads: list[Any] = []

            def on_event(self, event: Event) -> None:
                self.payloads.append(event.payload)

        bus, plain = make_bus(), Plain()
        bus.subscribe(plain)  # type: ignore[arg-type]
        await publish_numbers(bus, 1, 2)
        await soon(bus.idle())

        assert plain.payloads == [1, 2]


class TestProjections:
    @pytest.mark.parametrize("mode", MODES)
    async def test_each_event_sees_the_state_that_the_one_before_left(
        self, make_bus: MakeBus, mode: Any
    ) -> None:
        """Also where that is not written yet."""
        bus = make_bus(config=ReliableDeliveryConfig(checkpoint_mode=mode))
        total = a_sum(bus)
        bus.subscribe(total)
        await publish_numbers(bus, 1, 2, 4, 0, 8)
        await soon(bus.subscription(ID).caught_up())

        assert total.states_seen == [None, 1, 3, 7, None]
        assert await total.states.get("sum") == 8

    @pytest.mark.parametrize("mode", MODES)
    async def test_state_and_checkpoint_are_written_together(
        self, database: Database, make_bus: MakeBus, mode: Any
    ) -> None:
        """Wherever the process ends: each event counts once."""
        numbers = [1, 2, 4, 8, 16]
        bus = make_bus(faulty(database), config=ReliableDeliveryConfig(checkpoint_mode=mode))
        bus.subscribe(a_sum(bus))
        await publish_numbers(bus, *numbers)
        await soon(bus.idle())
        await crash(bus)
        second = make_bus()
        total = a_sum(second)
        second.subscribe(total)
        await second.start()
        await soon(second.subscription(ID).caught_up())

        assert await total.states.get("sum") == sum(numbers)

    @pytest.mark.parametrize("mode", MODES)
    async def test_an_event_that_fails_leaves_the_state_as_it_was(
        self, make_bus: MakeBus, clock: ManualClock, mode: Any
    ) -> None:
        bus = make_bus(config=ReliableDeliveryConfig(checkpoint_mode=mode))
        total = a_sum(bus)
        bus.subscribe(total, retry=RetryPolicy(max_retries=1, base_delay=1))
        await bus.publish_many([("a", 1), ("a", "poison"), ("a", 2)])
        await soon(pass_time(clock, 1))
        await soon(bus.subscription(ID).caught_up())

        assert total.states_seen == [None, 1, 1, 1]
        assert await total.states.get("sum") == 3
        assert len(await letters_of(bus)) == 1

    async def test_events_without_a_key_are_passed(self, make_bus: MakeBus) -> None:
        bus = make_bus()
        total = a_sum(bus)
        bus.subscribe(total)
        await bus.publish_many([("a", 1), ("other.kind", "poison"), ("a", 2)])
        await soon(bus.subscription(ID).caught_up())

        assert await total.states.get("sum") == 3
        assert await position_of(bus) == 3

    @pytest.mark.parametrize("key", ["", "x" * 256, 5, "a\nb"])
    async def test_a_key_that_is_none_makes_a_dead_letter(self, make_bus: MakeBus, key: Any) -> None:
        class BadKey(Sum):
            def state_key(self, event: Event) -> str | None:
                return key  # type: ignore[no-any-return]

        bus = make_bus()
        bus.subscribe(BadKey(StateStore(bus.store, "sums", int)), retry=ONCE)
        await publish_numbers(bus, 1)
        await soon(bus.idle())
        (letter,) = await letters_of(bus)

        assert letter.errors[0].startswith("InvalidStateError")

    async def test_a_state_in_another_database_is_written_first(
        self, make_bus: MakeBus, tmp_path: Path
    ) -> None:
        """Two databases can't commit together; nothing is lost."""
        other = InMemoryStore()
        await other.open()
        bus = make_bus(config=ReliableDeliveryConfig(checkpoint_mode=CheckpointMode.batched(100, 3600)))
        total = a_sum(bus, other)
        bus.subscribe(total)
        await publish_numbers(bus, 1, 2, 4)
        await soon(bus.idle())

        assert await total.states.get("sum") == 7
        assert await StateStore(bus.store, "sums", int).get("sum") is None
        assert await position_of(bus) == 0

    async def test_a_dead_letter_that_is_retried_changes_the_state_of_today(self, make_bus: MakeBus) -> None:
        bus = make_bus(config=ReliableDeliveryConfig(checkpoint_mode=CheckpointMode.batched(100, 3600)))
        total = a_sum(bus)
        bus.subscribe(total, retry=ONCE)
        await bus.publish_many([("a", 1), ("a", "not a number"), ("a", 2)])
        await soon(bus.idle())
        (letter,) = await letters_of(bus)
        total.apply = lambda state, event: (state or 0) + 100  # type: ignore[method-assign]
        await bus.dlq.retry(letter.dead_letter_id)
        await soon(until_resolved(bus))

        assert await total.states.get("sum") == 103


class TestSagas:
    @pytest.mark.parametrize("mode", MODES)
    async def test_state_events_and_checkpoint_are_there_together(self, make_bus: MakeBus, mode: Any) -> None:
        bus, shipped = make_bus(config=ReliableDeliveryConfig(checkpoint_mode=mode)), FlakyHandler()
        saga = Shipping(StateStore(bus.store, "shipping", int))
        bus.subscribe(saga)
        bus.subscribe("shipment.*", shipped, id="shipped")
        await bus.publish("order.placed", "a", event_id="first", correlation_id="story")
        await bus.publish("order.placed", "b", event_id="second")
        await soon(bus.subscription(ID).caught_up())
        await until(lambda: len(shipped.events) == 2)

        assert await saga.states.get("all") == 2
        assert shipped.payloads == [1, 2]
        assert [(event.causation_id, event.correlation_id) for event in shipped.events] == [
            ("first", "story"),
            ("second", "second"),
        ]

    @on_embedded
    async def test_in_process_handlers_get_what_it_publishes(self, make_bus: MakeBus) -> None:
        bus, handler = make_bus(), FlakyHandler()
        bus.subscribe(Shipping(StateStore(bus.store, "shipping", int)))
        bus.subscribe("shipment.*", handler)
        await bus.publish("order.placed", "a")
        await until(lambda: len(handler.events) == 1)
        await soon(bus.idle())

        assert handler.payloads == [1]

    @pytest.mark.parametrize("mode", MODES)
    async def test_an_event_that_may_not_be_stored_fails_the_attempt_and_undoes_the_state(
        self, make_bus: MakeBus, clock: ManualClock, mode: Any
    ) -> None:
        """Another writer was there first; what was processed before stays."""
        bus = make_bus(config=ReliableDeliveryConfig(checkpoint_mode=mode))
        saga = Shipping(StateStore(bus.store, "shipping", int))
        bus.subscribe(saga, retry=RetryPolicy(max_retries=1, base_delay=1))
        await publish_numbers(bus, 0, 7, 1)
        await soon(pass_time(clock, 1))
        await soon(bus.subscription(ID).caught_up())
        (letter,) = await letters_of(bus)
        stream = await bus.store.log.read_stream("shipments", 1, None)

        assert letter.payload == 7
        assert [error.split(":")[0] for error in letter.errors] == ["WrongExpectedVersionError"] * 2
        assert [event.payload for event in stream] == [1, 2]
        assert await saga.states.get("all") == 2

    async def test_a_crash_before_the_write_publishes_nothing_and_one_after_it_nothing_twice(
        self, database: Database, make_bus: MakeBus
    ) -> None:
        first = make_bus(faulty(database))
        first.subscribe(Shipping(StateStore(first.store, "shipping", int)))
        await first.publish("order.placed", "a")
        await soon(first.subscription(ID).caught_up())
        await first.publish("order.placed", "b")
        await crash(first)
        second = make_bus()
        saga = Shipping(StateStore(second.store, "shipping", int))
        second.subscribe(saga)
        await second.start()
        await soon(second.subscription(ID).caught_up())
        stream = await second.store.log.read_stream("shipments", 1, None)

        assert [event.payload for event in stream] == list(range(1, len(stream) + 1))
        assert await saga.states.get("all") == len(stream) == 2

    async def test_the_retry_of_a_dead_letter_publishes_with_its_resolution(self, make_bus: MakeBus) -> None:
        bus = make_bus()
        saga = Shipping(StateStore(bus.store, "shipping", int))
        bus.subscribe(saga, retry=ONCE)
        await publish_numbers(bus, 1, 0)
        await soon(bus.subscription(ID).caught_up())
        (letter,) = await letters_of(bus)
        await bus.dlq.retry(letter.dead_letter_id)
        await soon(until_resolved(bus))
        stream = await bus.store.log.read_stream("shipments", 1, None)

        assert [event.payload for event in stream] == [1, 2]
        assert await saga.states.get("all") == 2
