"""assert_published finds what was published, and shows what was published instead."""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import ANY

import msgspec
import pytest
from pydantic import BaseModel

from postbus.bus import EventBus
from postbus.errors import InvalidConfigError, InvalidPatternError
from postbus.events import NewEvent
from postbus.testing import assert_not_published, assert_published, published


@pytest.fixture
async def bus() -> AsyncIterator[EventBus]:
    """A bus with a few events in its log."""
    async with EventBus("memory:") as bus:
        await bus.publish("user.created", {"name": "Ada"}, {"source": "web"})
        await bus.publish(
            "order.placed", {"order": 1, "items": [{"sku": "a", "count": 2}]}, stream_id="order-1"
        )
        await bus.publish("order.placed", {"order": 2, "items": []}, {"source": "web"}, stream_id="order-2")
        await bus.publish("order.paid", None, stream_id="order-1")
        yield bus


@dataclass
class Item:
    sku: str
    count: int


@dataclass
class OrderData:
    order: int
    items: list[Item]


class OrderStruct(msgspec.Struct):
    order: int


class OrderModel(BaseModel):
    order: int


class TestFinding:
    async def test_the_first_that_matches_is_returned(self, bus: EventBus) -> None:
        event = await assert_published(bus, "order.*")

        assert (event.type, event.global_sequence) == ("order.placed", 2)

    async def test_with_a_count_all_are_returned(self, bus: EventBus) -> None:
        events = await assert_published(bus, "order.placed", count=2)

        assert [event.payload["order"] for event in events] == [1, 2]

    async def test_a_store_will_do(self, bus: EventBus) -> None:
        """Also one that no bus is at work on."""
        assert (await assert_published(bus.store, "user.created")).payload == {"name": "Ada"}

    async def test_a_long_log_is_read_to_its_end(self, tmp_path: Path) -> None:
        """In pages, on a store whose finished events may still be on their way."""
        async with EventBus(tmp_path / "events.db") as bus:
            bus.subscribe("tick", lambda event: None)
            await bus.publish_many([NewEvent("tick", number) for number in range(1201)])

            ticks = await published(bus, "tick")

        assert [event.payload for event in ticks] == list(range(1201))
        assert {event.status for event in ticks} == {"done"}

    async def test_published_lists_in_the_order_of_the_log(self, bus: EventBus) -> None:
        types = ["user.created", "order.placed", "order.placed", "order.paid"]

        assert [event.type for event in await published(bus)] == types
        assert [event.type for event in await published(bus, "order.*")] == types[1:]

    @pytest.mark.parametrize(
        "payload",
        [
            {},
            {"order": 1},
            {"order": ANY},
            {"order": pytest.approx(1.0000001)},
            {"items": [{"sku": "a"}]},
            {"items": ({"count": 2},)},
            OrderStruct(order=1),
            OrderModel(order=1),
            OrderData(order=1, items=[Item("a", 2)]),
            {"items": [Item("a", 2)]},
            ...,
        ],
        ids=str,
    )
    async def test_a_payload_may_have_more_than_is_expected(self, bus: EventBus, payload: object) -> None:
        """At every depth; models stand for the JSON that they are published as."""
        assert (
            await assert_published(bus, "order.placed", payload, stream_id="order-1")
        ).global_sequence == 2

    @pytest.mark.parametrize(
        "payload",
        [
            {"order": 3},
            {"order": True},
            {"order": "1"},
            {"order": None},
            {"absent": None},
            {"items": []},
            {"items": [{"sku": "a"}, {"sku": "b"}]},
            {"items": {"sku": "a"}},
            OrderStruct(order=3),
            None,
            [],
            1,
        ],
        ids=str,
    )
    async def test_a_payload_that_differs_is_not_found(self, bus: EventBus, payload: object) -> None:
        """Nor does assert_not_published find it."""
        await assert_not_published(bus, "order.placed", payload, stream_id="order-1")

        with pytest.raises(AssertionError):
            await assert_published(bus, "order.placed", payload, stream_id="order-1")

    async def test_none_is_a_payload(self, bus: EventBus) -> None:
        """Left out it may be anything, given it must be None."""
        assert (await assert_published(bus, "*", None)).type == "order.paid"

    async def test_metadata_and_stream_count_where_they_are_given(self, bus: EventBus) -> None:
        event = await assert_published(bus, "order.placed", metadata={"source": "web"})

        assert event.stream_id == "order-2"
        assert (await assert_published(bus, "*", stream_id=None)).type == "user.created"
        await assert_not_published(bus, "order.paid", metadata={"source": "web"})
        await assert_not_published(bus, "user.*", stream_id="order-1")


class TestFailing:
    async def test_the_nearest_are_shown_with_their_differences(self, bus: EventBus) -> None:
        """Those of the type first, then those whose type looks alike."""
        with pytest.raises(AssertionError) as caught:
            await assert_published(
                bus, "order.placed", {"order": 2, "items": [1]}, metadata={"source": "web"}
            )

        assert str(caught.value).splitlines() == [
            "expected at least 1 published events that match order.placed with payload "
            "{'order': 2, 'items': [1]}, metadata {'source': 'web'}, found 0; "
            "published were 4, the nearest first:",
            "  #3 order.placed {'order': 2, 'items': []} metadata {'source': 'web'} of stream 'order-2': "
            "payload['items'] has 0 items, expected 1",
            "  #2 order.placed {'order': 1, 'items': [{'sku': 'a', 'count': 2}]} of stream 'order-1': "
            "payload['order'] is 1, expected 2; metadata is None, expected {'source': 'web'}",
            "  #1 user.created {'name': 'Ada'} metadata {'source': 'web'}: "
            "the type does not match order.placed; payload['order'] is missing, expected 2",
            "  #4 order.paid None of stream 'order-1': the type does not match order.placed; "
            "payload is None, expected {'order': 2, 'items': [1]}; "
            "metadata is None, expected {'source': 'web'}",
        ]

    async def test_a_misspelt_type_shows_what_it_should_be(self, bus: EventBus) -> None:
        with pytest.raises(AssertionError) as caught:
            await assert_published(bus, "orders.paid")

        assert str(caught.value).splitlines()[1].startswith("  #4 order.paid None")

    async def test_a_wrong_count_shows_what_was_found(self, bus: EventBus) -> None:
        with pytest.raises(
            AssertionError, match=r"expected 3 published events that match order\.placed, found 2:\n  #2"
        ):
            await assert_published(bus, "order.placed", count=3)

    async def test_too_many_are_shown_in_part(self) -> None:
        """A long log does not fill the screen, nor does a long payload."""
        async with EventBus("memory:") as bus:
            await bus.publish_many([("tick", "x" * 1000) for _ in range(100)])

            with pytest.raises(AssertionError, match="and 95 more") as caught:
                await assert_published(bus, "tock")
            with pytest.raises(AssertionError, match="and 95 more"):
                await assert_not_published(bus, "tick")

        assert len(str(caught.value)) < 2000

    async def test_nothing_published_is_said(self) -> None:
        async with EventBus("memory:") as bus:
            with pytest.raises(AssertionError, match=r"found 0; nothing was published$"):
                await assert_published(bus, "order.placed")

    async def test_what_should_not_be_there_is_shown(self, bus: EventBus) -> None:
        with pytest.raises(AssertionError, match=r"expected no published event that matches user\.created"):
            await assert_not_published(bus, "user.created")

    async def test_a_bad_pattern_is_no_missing_event(self, bus: EventBus) -> None:
        """A misspelt pattern would make assert_not_published pass for ever."""
        with pytest.raises(InvalidPatternError):
            await assert_not_published(bus, "order.pla*")

    async def test_a_bad_count_is_refused(self, bus: EventBus) -> None:
        with pytest.raises(InvalidConfigError, match="count is -1"):
            await assert_published(bus, "order.placed", count=-1)
