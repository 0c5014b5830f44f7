"""A saga makes a new state and new events of an event, together or not at all."""

import asyncio
import uuid
from typing import Any

import msgspec
import pytest

from postbus.errors import (
    InvalidEventIdError,
    InvalidEventTypeError,
    InvalidMetadataError,
    InvalidPayloadError,
    PublishedTooLateError,
)
from postbus.events import Event, NewEvent
from postbus.observers import Saga, SagaContext, StateStore
from postbus.ports import StatefulObserver
from postbus.stores.memory import InMemoryStore
from tests.observers.steps import OrderStruct, an_event

Step = dict[str, Any]


class Fulfilment(Saga[Step]):
    """Asks for a payment, in a plain function."""

    subscriber_id = "saga:fulfilment"
    patterns = ("order.*", "payment.*")

    def saga_id(self, event: Event) -> str | None:
        return event.payload and str(event.payload["order"])

    def handle(self, state: Step | None, event: Event, ctx: SagaContext) -> Step | None:
        if event.type != "order.placed":
            return None
        step = {"order": event.payload["order"]}
        ctx.publish("payment.requested", step)
        step["waits_for"] = "payment"
        return step


class SlowFulfilment(Fulfilment):
    """Asks for a payment, in an async function."""

    async def handle(  # type: ignore[override]
        self, state: Step | None, event: Event, ctx: SagaContext
    ) -> Step | None:
        await asyncio.sleep(0)
        return super().handle(state, event, ctx)


@pytest.mark.parametrize("kind", [Fulfilment, SlowFulfilment])
async def test_a_saga_makes_a_state_and_events(kind: type[Fulfilment]) -> None:
    """In a plain or an async function; None ends the instance."""
    reaction = await kind().react(None, an_event(payload={"order": 42}))
    end = await kind().react(reaction.state, an_event(type="payment.failed", payload={"order": 42}))

    assert reaction.state == {"order": 42, "waits_for": "payment"}
    assert [event.type for event in reaction.publish] == ["payment.requested"]
    assert (end.state, end.publish) == (None, ())


async def test_what_was_published_does_not_change_with_the_object_it_was_made_of() -> None:
    """The saga above publishes its state and then goes on to change it."""
    reaction = await Fulfilment().react(None, an_event(payload={"order": 42}))

    assert reaction.publish[0].payload == {"order": 42}


def test_the_metadata_of_an_event_does_not_change_either() -> None:
    ctx, metadata = SagaContext(an_event()), {"source": "saga"}
    ctx.publish("payment.requested", None, metadata)
    metadata["source"] = "changed"

    assert ctx.published[0].metadata == {"source": "saga"}


def test_the_instance_is_the_state_of_its_id(store: InMemoryStore) -> None:
    """An event of no instance is none of its business."""
    saga: StatefulObserver = Fulfilment(StateStore(store, "fulfilment"))

    assert isinstance(saga, StatefulObserver)
    assert saga.state_key(an_event(payload={"order": 42})) == "42"
    assert saga.state_key(an_event(payload=None)) is None


def test_a_published_event_has_all_that_was_given() -> None:
    ctx = SagaContext(an_event(id="e-7"))
    ctx.publish(
        "payment.requested",
        OrderStruct(total=3),
        {"source": "saga"},
        stream_id="payment-1",
        expected_version=0,
        event_id=uuid.UUID(int=7),
        actor_id="saga",
        schema_version=2,
    )

    assert ctx.published == (
        NewEvent(
            "payment.requested",
            {"total": 3, "items": [], "paid_at": None},
            {"source": "saga"},
            event_id="00000000-0000-0000-0000-000000000007",
            stream_id="payment-1",
            expected_version=0,
            actor_id="saga",
            correlation_id="e-7",
            causation_id="e-7",
            schema_version=2,
        ),
    )


@pytest.mark.parametrize(("correlation_id", "carried"), [(None, "e-7"), ("c-1", "c-1")])
def test_a_published_event_tells_what_caused_it(correlation_id: str | None, carried: str) -> None:
    """The whole chain has the correlation id of its first event, or that event's id."""
    ctx = SagaContext(an_event(id="e-7", correlation_id=correlation_id))
    ctx.publish("payment.requested")

    assert ctx.event.id == "e-7"
    assert [(event.correlation_id, event.causation_id) for event in ctx.published] == [(carried, "e-7")]


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"type": "payment..requested"}, InvalidEventTypeError),
        ({"type": None}, InvalidEventTypeError),
        ({"type": "a", "payload": {1, 2}}, InvalidPayloadError),
        ({"type": "a", "metadata": {"a": 1}}, InvalidMetadataError),
        ({"type": "a", "event_id": ""}, InvalidEventIdError),
    ],
)
def test_what_can_not_be_stored_is_refused_at_once(arguments: dict[str, Any], error: type[Exception]) -> None:
    """The traceback leads to the line that published it."""
    ctx = SagaContext(an_event())

    with pytest.raises(error):
        ctx.publish(**arguments)
    assert ctx.published == ()


class Careless(Saga[int]):
    """Keeps its context for later."""

    subscriber_id = "saga:careless"
    contexts: list[SagaContext]

    def saga_id(self, event: Event) -> str | None:
        return event.id

    async def handle(self, state: int | None, event: Event, ctx: SagaContext) -> int | None:
        self.contexts.append(ctx)
        ctx.publish("first")
        if event.type == "order.broken":
            raise ValueError("broken")
        if event.type == "order.slow":
            await asyncio.Event().wait()
        return 1


@pytest.fixture
def careless() -> Careless:
    saga = Careless()
    saga.contexts = []
    return saga


async def test_publishing_after_the_event_was_handled_is_an_error(careless: Careless) -> None:
    """Its transaction is over: the event would be lost without a word."""
    reaction = await careless.react(None, an_event())

    with pytest.raises(PublishedTooLateError, match="cannot publish 'second': the saga has handled"):
        careless.contexts[0].publish("second")
    assert [event.type for event in reaction.publish] == ["first"]


async def test_a_saga_that_raises_publishes_nothing(careless: Careless) -> None:
    """And what it left running can't publish any more."""
    with pytest.raises(ValueError, match="broken"):
        await careless.react(None, an_event(type="order.broken"))
    with pytest.raises(PublishedTooLateError):
        careless.contexts[0].publish("second")


async def test_a_saga_that_is_cancelled_publishes_nothing(careless: Careless) -> None:
    """As by its timeout."""
    reacting = asyncio.ensure_future(careless.react(None, an_event(type="order.slow")))
    await asyncio.sleep(0)
    reacting.cancel()

    with pytest.raises(asyncio.CancelledError):
        await reacting
    with pytest.raises(PublishedTooLateError):
        careless.contexts[0].publish("second")


class Billing(Saga[int]):
    """Asks for a payload of its own type."""

    subscriber_id = "saga:billing"

    def saga_id(self, event: Event) -> str:
        return str(event.payload["total"])

    async def handle(self, state: int | None, event: Event[OrderStruct], ctx: SagaContext) -> int:
        return event.payload.total


async def test_a_payload_comes_as_the_type_that_handle_asks_for() -> None:
    """saga_id, which asks for none, has it as JSON."""
    event = an_event(payload={"total": 3})

    assert Billing().state_key(event) == "3"
    assert (await Billing().react(None, event)).state == 3


def test_a_saga_without_saga_id_or_handle_can_not_be_made() -> None:
    class Empty(Saga[int]):
        subscriber_id = "empty"

    with pytest.raises(TypeError, match=r"handle.*saga_id"):
        Empty()  # type: ignore[abstract]


def test_a_published_payload_is_read_back_as_json() -> None:
    """A tuple becomes a list here as well as in the database."""
    ctx = SagaContext(an_event())
    ctx.publish("a", {"parts": (1, 2)})

    assert msgspec.json.encode(ctx.published[0].payload) == b'{"parts":[1,2]}'
