"""Events that several subscribers share: none of them gets what another one has."""

from collections.abc import Iterator
from datetime import UTC, datetime

import pytest

from postbus import Event
from postbus.delivery.deliveries import numbers_of
from postbus.delivery.own_copies import OwnCopies, own_copies
from postbus.events import GlobalSequence
from postbus.late_events import LateEvents

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def make_page() -> list[Event]:
    return [
        Event(
            id=str(number),
            type="order.placed",
            payload={"lines": [number]},
            created_at=NOON,
            metadata={"source": "web"},
            global_sequence=GlobalSequence(number),
        )
        for number in (1, 2, 3)
    ]


def never() -> list[Event]:
    raise AssertionError("nobody has looked at an event")


@pytest.mark.parametrize("index", [slice(None), slice(1, 3), slice(1, 3, 2)])
def test_whoever_looks_at_some_gets_copies_of_these(index: slice) -> None:
    page = make_page()
    for event in OwnCopies(page)[index]:
        event.payload["lines"].append("changed")
        assert event.metadata is not None
        event.metadata["source"] = "changed"

    assert page == make_page()
    assert list(OwnCopies(page)[index]) == page[index]


def test_whoever_looks_at_one_gets_a_copy_of_it() -> None:
    page = make_page()
    OwnCopies(page)[-1].payload["lines"].clear()

    assert page == make_page()
    assert OwnCopies(page)[-1] == page[-1]


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


def test_two_who_share_a_page_compare_as_lists_do() -> None:
    assert OwnCopies(make_page()) == OwnCopies(make_page()) == make_page()
    assert OwnCopies(make_page()) != []


def test_numbers_and_how_many_there_are_need_neither_copy_nor_event() -> None:
    """They are needed to ask for the next page, before this one is decoded."""
    page = OwnCopies(LateEvents([GlobalSequence(7), GlobalSequence(9)], ["order.placed"], never))

    assert (len(page), numbers_of(page)) == (2, [7, 9])
