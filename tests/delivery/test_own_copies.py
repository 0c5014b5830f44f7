"""Events that several subscribers share: none of them gets what another one has."""

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import pytest

from postbus import Event
from postbus.delivery.own_copies import own_copies

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    "payload",
    [
        {},
        {"order": 42},
        {"order": 42, "note": None, "customer": {"id": 1}},
        {"lines": []},
        {"customer": {}},
        [],
        [1],
        [{"order": 42}],
        "text",
        None,
    ],
)
def test_nothing_in_a_payload_is_anybody_elses(payload: object) -> None:
    """However deep it is: whatever could be changed is another object."""
    event = Event(id="1", type="order.placed", payload=payload, created_at=NOON)
    [mine] = own_copies([event])

    assert mine == event
    assert not {id(each) for each in containers(mine.payload)} & {id(each) for each in containers(payload)}


@pytest.mark.parametrize("wrap", [lambda inner: [inner], lambda inner: {"a": 1, "inner": inner}])
def test_a_payload_may_be_too_deep_for_whatever_calls_itself(wrap: Callable[[object], object]) -> None:
    """As one that another program wrote, and that was just not too deep to be decoded."""
    deep: object = ["the innermost"]
    for _ in range(100_000):
        deep = wrap(deep)
    event = Event(id="1", type="order.placed", payload=deep, created_at=NOON)
    neighbour = Event(id="2", type="order.placed", payload={"lines": [1]}, created_at=NOON)
    mine, mine_too = own_copies([event, neighbour])

    copy, depth = mine.payload, 0
    while isinstance(deep, dict) or deep != ["the innermost"]:
        assert type(copy) is type(deep)
        assert copy is not deep
        copy, deep, depth = inner_of(copy), inner_of(deep), depth + 1
    assert copy == deep
    assert copy is not deep
    assert depth == 100_000
    assert mine_too == neighbour
    assert mine_too.payload["lines"] is not neighbour.payload["lines"]


def inner_of(payload: Any) -> object:
    return payload["inner"] if isinstance(payload, dict) else payload[0]


def containers(payload: object) -> Iterator[object]:
    if isinstance(payload, dict | list):
        yield payload
        for each in payload.values() if isinstance(payload, dict) else payload:
            yield from containers(each)
