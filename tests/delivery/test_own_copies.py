"""Events that several subscribers share: none of them gets what another one has."""

from collections.abc import Iterator
from datetime import UTC, datetime

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


def containers(payload: object) -> Iterator[object]:
    if isinstance(payload, dict | list):
        yield payload
        for each in payload.values() if isinstance(payload, dict) else payload:
            yield from containers(each)
