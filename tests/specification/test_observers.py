"""0002, sections 2.2.3, 2.2.6, 3.1 to 3.4 and 11: who a subscriber is, and what the bus does for it."""

from datetime import UTC, datetime
from typing import Any

import pytest

from postbus import (
    Event,
    EventBus,
    InMemoryStore,
    InvalidHandlerError,
    InvalidObserverError,
    Projection,
    RetryPolicy,
    Saga,
    SagaContext,
    StateStore,
)
from tests.delivery.steps import ALWAYS, FlakyHandler, soon
from tests.durable.steps import ID, MakeBus, letters_of, publish_numbers

ONCE = RetryPolicy(max_retries=0)


class Listener:
    """An observer by hand."""

    subscriber_id = ID

    def __init__(self) -> None:
        self.payloads: list[Any] = []

    async def on_event(self, event: Event) -> None:
        self.payloads.append(event.payload)


class Sum(Projection[int]):
    """The sum of all payloads."""

    subscriber_id = ID

    def __init__(self, states: StateStore[int]) -> None:
        super().__init__(states)
        self.payloads: list[Any] = []

    def apply(self, state: int | None, event: Event) -> int:
        self.payloads.append(event.payload)
        return (state or 0) + int(event.payload)


class Counting(Saga[int]):
    """Counts all events."""

    subscriber_id = ID

    def __init__(self, states: StateStore[int]) -> None:
        super().__init__(states)
        self.payloads: list[Any] = []

    def saga_id(self, event: Event) -> str:
        return "count"

    def handle(self, state: int | None, event: Event, ctx: SagaContext) -> int:
        self.payloads.append(event.payload)
        return (state or 0) + 1


def subscribe(bus: EventBus, kind: str) -> Listener | Sum | Counting | FlakyHandler:
    """A subscriber of one kind, and always under the same id."""
    match kind:
        case "projection":
            bus.subscribe(total := Sum(StateStore(bus.store, "sums", int)))
            return total
        case "saga":
            bus.subscribe(saga := Counting(StateStore(bus.store, "counts", int)))
            return saga
        case "custom observer":
            bus.subscribe(listener := Listener())
            return listener
        case _:
            bus.subscribe("*", handler := FlakyHandler(), id=ID)
            return handler


class TestSubscriberPools:
    """Section 2.2.3; instances at the same time are in test_reliable_delivery_postgres.py."""

    async def test_instances_with_the_same_subscriber_id_share_the_same_checkpoint(
        self, new_bus: MakeBus
    ) -> None:
        """The next one goes on where the last one was, whatever handler it has under that id."""
        first, second, handler = new_bus(), new_bus(), Listener()
        first.subscribe("*", FlakyHandler(), id=ID)
        await publish_numbers(first, 1, 2)
        await soon(first.idle())
        await first.shutdown()
        second.subscribe(handler)
        await publish_numbers(second, 3)
        await soon(second.idle())

        assert handler.payloads == [3]
        assert [each.subscriber_id for each in await second.store.checkpoints.list()] == [ID]

    async def test_events_are_delivered_once_per_subscriber_id(self, new_bus: MakeBus) -> None:
        """Every id gets every event; of one id nobody gets one twice."""
        bus, handlers = new_bus(), {"mail": FlakyHandler(), "stock": FlakyHandler()}
        for subscriber_id, handler in handlers.items():
            bus.subscribe("*", handler, id=subscriber_id)
        await publish_numbers(bus, 1, 2, 3)
        await soon(bus.idle())

        assert [handler.payloads for handler in handlers.values()] == [[1, 2, 3], [1, 2, 3]]


class TestCheckpointManagement:
    """Section 2.2.6."""

    @pytest.mark.parametrize("kind", ["projection", "saga", "custom observer", "handler with an id"])
    async def test_the_bus_updates_the_checkpoint_of_every_kind_of_observer(
        self, new_bus: MakeBus, kind: str
    ) -> None:
        """After it has processed an event, with the event's number and id."""
        bus = new_bus()
        subscribe(bus, kind)
        await bus.publish("order.placed", 1)
        await bus.publish("order.placed", 2, event_id="last")
        await soon(bus.subscription(ID).caught_up())
        (checkpoint,) = await bus.store.checkpoints.list()

        assert (checkpoint.subscriber_id, checkpoint.position, checkpoint.event_id) == (ID, 2, "last")

    @pytest.mark.parametrize("kind", ["projection", "saga", "custom observer", "handler with an id"])
    async def test_a_checkpoint_is_found_again_by_the_subscriber_id(
        self, new_bus: MakeBus, kind: str
    ) -> None:
        """Stable across restarts: what the last bus has done is not done again."""
        first, second = new_bus(), new_bus()
        before = subscribe(first, kind)
        await publish_numbers(first, 1, 2)
        await soon(first.subscription(ID).caught_up())
        await first.shutdown()
        after = subscribe(second, kind)
        await publish_numbers(second, 3)
        await soon(second.subscription(ID).caught_up())

        assert (before.payloads, after.payloads) == ([1, 2], [3])


class TestEventObserver:
    """Section 3.1."""

    async def test_it_is_subscribed_under_its_subscriber_id_and_gets_every_event(
        self, new_bus: MakeBus
    ) -> None:
        """on_event is called with one after the other."""
        bus, listener = new_bus(), Listener()
        subscription_id = bus.subscribe(listener)
        await publish_numbers(bus, 1, 2, 3)
        await soon(bus.idle())

        assert (subscription_id, listener.payloads) == (ID, [1, 2, 3])

    def test_the_subscriber_id_is_required(self) -> None:
        """Without one there is nothing to track its checkpoint by."""

        class Nameless:
            async def on_event(self, event: Event) -> None:
                raise AssertionError("nobody calls it")

        with pytest.raises(InvalidHandlerError, match="Nameless"):
            EventBus("memory:").subscribe(Nameless())  # type: ignore[arg-type]


class TestProjection:
    """Section 3.2."""

    async def test_it_is_an_observer_under_its_own_subscriber_id(self, new_bus: MakeBus) -> None:
        """The bus applies the events and stores the state; nothing else has to be written for it."""
        bus = new_bus()
        total = Sum(StateStore(bus.store, "sums", int))
        subscription_id = bus.subscribe(total)
        await publish_numbers(bus, 1, 2, 4)
        await soon(bus.subscription(ID).caught_up())

        assert (subscription_id, await total.states.get(ID)) == (ID, 7)

    def test_the_subscriber_id_is_required(self) -> None:
        """It says how to give it one."""

        class Nameless(Projection[int]):
            def apply(self, state: int | None, event: Event) -> int:
                raise AssertionError("nobody calls it")

        with pytest.raises(InvalidObserverError, match='subscriber_id = "projection:orders"'):
            EventBus("memory:").subscribe(Nameless(StateStore(InMemoryStore(), "sums", int)))


class TestSaga:
    """Section 3.3."""

    async def test_it_is_an_observer_under_its_own_subscriber_id(self, new_bus: MakeBus) -> None:
        """Without an on_event of its own, unlike there."""
        bus = new_bus()
        saga = Counting(StateStore(bus.store, "counts", int))
        subscription_id = bus.subscribe(saga)
        await publish_numbers(bus, 5, 5)
        await soon(bus.subscription(ID).caught_up())

        assert (subscription_id, await saga.states.get("count")) == (ID, 2)


class TestEvent:
    """Section 3.4."""

    def test_global_sequence_is_none_before_it_is_stored(self) -> None:
        """As made by hand."""
        event: Event = Event(id="1", type="order.placed", created_at=datetime(2026, 1, 1, tzinfo=UTC))

        assert event.global_sequence is None

    async def test_global_sequence_is_the_place_in_the_log_once_it_is_stored(self, new_bus: MakeBus) -> None:
        """Across all streams; for a reader and for an observer."""
        bus, handler = new_bus(), FlakyHandler()
        bus.subscribe("*", handler, id=ID)
        ids = [await bus.publish("order.placed", stream_id=stream) for stream in ("a", "b", "a")]
        await soon(bus.idle())

        assert [(await bus.store.get(event_id)).global_sequence for event_id in ids] == [1, 2, 3]
        assert [event.global_sequence for event in handler.events] == [1, 2, 3]


async def test_dlq_error_messages_have_no_stack_trace(new_bus: MakeBus) -> None:
    """Section 11: the error's name and message, and nothing of the code around it."""
    bus = new_bus()
    bus.subscribe("*", FlakyHandler(ALWAYS), id=ID, retry=ONCE)
    await publish_numbers(bus, 1)
    await soon(bus.idle())
    (letter,) = await letters_of(bus)

    assert letter.errors == ["ValueError: boom 1"]
