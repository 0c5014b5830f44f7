"""A projection says who it is, what it wants and where its state is, or an error says what is missing."""

import asyncio
from typing import Any

import pytest

from postbus.errors import (
    InvalidObserverError,
    InvalidPatternError,
    InvalidSubscriberIdError,
    PayloadTypeError,
)
from postbus.events import Event
from postbus.observers import Projection, StateStore
from postbus.ports import StatefulObserver
from postbus.stores.memory import InMemoryStore
from tests.observers.steps import OrderView, an_event


class OrderCount(Projection[int]):
    """Counts in a plain function."""

    subscriber_id = "projection:order-count"
    patterns = ("order.*",)

    def apply(self, state: int | None, event: Event) -> int | None:
        return None if event.type == "order.reset" else (state or 0) + 1


class SlowCount(Projection[int]):
    """Counts in an async function."""

    subscriber_id = "projection:slow-count"

    async def apply(self, state: int | None, event: Event) -> int | None:
        await asyncio.sleep(0)
        return None if event.type == "order.reset" else (state or 0) + 1


@pytest.mark.parametrize("kind", [OrderCount, SlowCount])
async def test_what_apply_returns_is_the_new_state(kind: type[Projection[int]]) -> None:
    """From a plain or an async function; None deletes; nothing is published."""
    projection = kind()

    assert (await projection.react(None, an_event())).state == 1
    assert (await projection.react(1, an_event())).state == 2
    assert (await projection.react(2, an_event(type="order.reset"))).state is None
    assert not (await projection.react(1, an_event())).publish


def test_a_projection_is_what_the_bus_looks_for(store: InMemoryStore) -> None:
    """Its states may be given when it is made."""
    states = StateStore(store, "counts", int)
    projection: StatefulObserver = OrderCount(states)

    assert isinstance(projection, StatefulObserver)
    assert projection.states is states


def test_each_stream_has_a_state_of_its_own() -> None:
    assert OrderCount().state_key(an_event(stream_id="order-42")) == "order-42"


def test_events_without_a_stream_share_one_state() -> None:
    """Under the id of the subscriber."""
    assert OrderCount().state_key(an_event()) == "projection:order-count"


def test_a_projection_without_patterns_wants_every_event() -> None:
    assert SlowCount().patterns == ("*",)


class Nameless(Projection[int]):
    """Forgot its id and its states."""

    def apply(self, state: int | None, event: Event) -> int | None:
        return state


def test_a_missing_subscriber_id_is_named() -> None:
    """When it is asked for, because an object may give it later than its class."""
    with pytest.raises(InvalidObserverError, match="Nameless has no subscriber_id; expected an id that"):
        _ = Nameless().subscriber_id


def test_a_missing_state_store_is_named() -> None:
    with pytest.raises(InvalidObserverError, match="Nameless has no states; expected a state store"):
        _ = Nameless().states


def test_an_object_may_say_what_its_class_does_not(store: InMemoryStore) -> None:
    """One class can serve several subscribers."""

    class Named(Nameless):
        def __init__(self, tenant: str) -> None:
            self.subscriber_id, self.patterns = f"count:{tenant}", [f"{tenant}.*"]
            super().__init__(StateStore(store, tenant, int))

    named = Named("acme")

    assert (named.subscriber_id, named.patterns, named.states.name) == ("count:acme", ["acme.*"], "acme")


def test_an_id_may_be_a_property() -> None:
    class Computed(Nameless):
        @property
        def subscriber_id(self) -> str:  # type: ignore[override]
            return "computed"

    assert Computed().subscriber_id == "computed"


@pytest.mark.parametrize(
    ("attributes", "error", "message"),
    [
        ({"patterns": "order.*"}, InvalidObserverError, r"'order\.\*', which is a str; expected a sequence"),
        ({"patterns": None}, InvalidObserverError, "None, which is a NoneType"),
        ({"patterns": ()}, InvalidObserverError, "has no patterns, so it would never get an event"),
        ({"patterns": ("order.pla*",)}, InvalidPatternError, "as part of the segment"),
        ({"patterns": (5,)}, InvalidPatternError, "is of type int"),
        ({"subscriber_id": ""}, InvalidSubscriberIdError, "is empty"),
        ({"subscriber_id": None}, InvalidSubscriberIdError, "is of type NoneType"),
    ],
)
def test_a_bad_definition_is_refused_as_soon_as_it_is_made(
    attributes: dict[str, Any], error: type[Exception], message: str
) -> None:
    """With the class if the class says it, with the object if the object does."""

    class Late(Nameless):
        def __init__(self) -> None:
            vars(self).update(attributes)
            super().__init__()

    with pytest.raises(error, match=message):
        type("Early", (Nameless,), attributes)
    with pytest.raises(error, match=message):
        Late()


class Revenue(Projection[int]):
    """Asks for a payload of its own type."""

    subscriber_id = "projection:revenue"

    def apply(self, state: int | None, event: Event[OrderView]) -> int:
        return (state or 0) + event.payload.total


async def test_a_payload_comes_as_the_type_that_apply_asks_for() -> None:
    assert (await Revenue().react(1, an_event(payload={"total": 3}))).state == 4


async def test_a_payload_that_is_not_of_that_type_is_an_error() -> None:
    """As it is for a handler."""
    with pytest.raises(PayloadTypeError, match=r"the payload of order\.placed is no OrderView"):
        await Revenue().react(1, an_event(payload={"amount": 3}))


def test_a_projection_without_apply_can_not_be_made() -> None:
    class Empty(Projection[int]):
        subscriber_id = "empty"

    with pytest.raises(TypeError, match="apply"):
        Empty()  # type: ignore[abstract]
