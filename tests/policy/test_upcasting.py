"""How payloads of old versions are brought up to today's."""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postbus.errors import InvalidConfigError, InvalidEventTypeError, PayloadTypeError, UpcastError
from postbus.events import Event
from postbus.policy.upcasting import Upcasters

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def make_event(payload: object = None, version: int | None = None, **fields: Any) -> Event:
    """A stored event."""
    fields = {"id": "1", "type": "order.placed", "created_at": NOON, **fields}
    return Event(payload=payload, schema_version=version, **fields)


def note(step: int) -> Callable[[Any], object]:
    """An upcaster that leaves a trace."""
    return lambda payload: [*payload, step]


@given(st.sets(st.integers(1, 8)), st.none() | st.integers(1, 10))
def test_steps_are_taken_one_after_another_from_the_stored_version(
    steps: set[int], version: int | None
) -> None:
    """Each once and in order, up to the first that nobody registered; no version means the first."""
    upcasters = Upcasters()
    for step in sorted(steps, reverse=True):
        upcasters.register("order.placed", step, note(step))
    event = make_event([], version, stream_id="order-42", metadata={"source": "web"})
    upcast = upcasters.upcast(event)

    reached = version or 1
    while reached in steps:
        reached += 1
    expected = list(range(version or 1, reached))
    assert upcast.payload == expected
    assert upcast.schema_version == (reached if expected else version)
    assert (upcast.stream_id, upcast.metadata) == ("order-42", {"source": "web"})
    assert event.payload == []


def test_an_event_that_needs_nothing_is_handed_on_as_it_is() -> None:
    """The very object: other types, and those of today's version."""
    upcasters = Upcasters()
    upcasters.register("order.placed", 1, note(1))
    for event in (make_event(type="order.paid"), make_event([], 2), make_event([], 7)):
        assert upcasters.upcast(event) is event

    assert Upcasters().upcast(event) is event


def test_of_a_purged_event_only_the_version_moves_on() -> None:
    """There is no payload that an upcaster could be called with."""
    upcasters = Upcasters()
    upcasters.register("order.placed", 1, note(1))
    upcast = upcasters.upcast(make_event(None, purged_at=NOON))

    assert (upcast.payload, upcast.schema_version) == (None, 2)


def test_a_failing_upcaster_is_named_with_its_step() -> None:
    """Type, version and reason; the first step was fine."""
    upcasters = Upcasters()
    upcasters.register("order.placed", 1, note(1))
    upcasters.register("order.placed", 2, lambda payload: payload["total"])
    with pytest.raises(
        UpcastError, match=r"of order\.placed from version 2 raised TypeError: list"
    ) as caught:
        upcasters.upcast(make_event([]))

    assert isinstance(caught.value, PayloadTypeError)
    assert (caught.value.event_type, caught.value.from_version) == ("order.placed", 2)
    assert isinstance(caught.value.__cause__, TypeError)


def test_a_step_has_one_upcaster() -> None:
    """The second one is refused and the first one stays; another type or version is no second one."""
    upcasters = Upcasters()
    upcasters.register("order.placed", 1, note(1))
    with pytest.raises(InvalidConfigError, match=r"order\.placed from version 1 .*has an upcaster already"):
        upcasters.register("order.placed", 1, note(99))
    upcasters.register("order.placed", 2, note(2))
    upcasters.register("order.paid", 1, note(3))

    assert upcasters.upcast(make_event([])).payload == [1, 2]
    assert upcasters.upcast(make_event([], type="order.paid")).payload == [3]


@pytest.mark.parametrize("version", [0, -1, 1.0, True, "1", None])
def test_versions_begin_at_one(version: Any) -> None:
    """And are whole numbers."""
    with pytest.raises(InvalidConfigError, match=r"from_version is .*; expected a whole number of 1 or more"):
        Upcasters().register("order.placed", version, note(1))


async def wait(payload: object) -> object:
    return payload


@pytest.mark.parametrize("upcaster", [None, {"total": 0}, wait])
def test_an_upcaster_is_a_plain_function(upcaster: Any) -> None:
    """A coroutine would end up as the payload."""
    with pytest.raises(InvalidConfigError, match="a plain function of the payload"):
        Upcasters().register("order.placed", 1, upcaster)


@pytest.mark.parametrize("event_type", ["", "order.*", "*", None])
def test_an_upcaster_is_for_one_event_type(event_type: Any) -> None:
    """Patterns match many, whose versions have nothing to do with each other."""
    with pytest.raises(InvalidEventTypeError):
        Upcasters().register(event_type, 1, note(1))
