"""sqlite-event-bus, Event Type Matching: every row of its table."""

import pytest

from postbus import InvalidPatternError
from postbus.policy.patterns import matches
from tests.delivery.steps import FlakyHandler, MakeBus


async def delivered(make_bus: MakeBus, pattern: str, *types: str) -> list[str]:
    """Which of these types a subscription with this pattern gets."""
    bus = make_bus()
    handler = FlakyHandler()
    bus.subscribe(pattern, handler)
    for type in types:
        await bus.publish(type)
    return [event.type for event in handler.events]


async def test_user_created_matches_itself_only(make_bus: MakeBus) -> None:
    """user.created: user.created, not user.updated."""
    assert await delivered(make_bus, "user.created", "user.created", "user.updated") == ["user.created"]


async def test_user_star_matches_every_user_event(make_bus: MakeBus) -> None:
    """user.*: user.created and user.updated, not order.created."""
    found = await delivered(make_bus, "user.*", "user.created", "order.created", "user.updated")

    assert found == ["user.created", "user.updated"]


async def test_a_lone_star_matches_everything(make_bus: MakeBus) -> None:
    """*: whatever there is, of any number of segments."""
    types = ["user", "user.created", "order.123.shipped", "a.b.c.d.e"]

    assert await delivered(make_bus, "*", *types) == types


async def test_order_star_shipped_needs_a_segment_in_between(make_bus: MakeBus) -> None:
    """order.*.shipped: order.123.shipped, not order.shipped."""
    found = await delivered(
        make_bus, "order.*.shipped", "order.123.shipped", "order.shipped", "order.1.2.shipped"
    )

    assert found == ["order.123.shipped"]


async def test_a_star_stands_for_exactly_one_segment(make_bus: MakeBus) -> None:
    """user.*: not user, not user.a.b."""
    assert await delivered(make_bus, "user.*", "user", "user.a", "user.a.b") == ["user.a"]


@pytest.mark.parametrize(
    ("pattern", "type"),
    [
        ("user.created", "userXcreated"),
        ("user.c+", "user.ccc"),
        ("user.[ab]", "user.a"),
        ("user.a|b", "user.a"),
    ],
)
async def test_a_pattern_is_no_regex(make_bus: MakeBus, pattern: str, type: str) -> None:
    """Every character but the star stands for itself."""
    assert await delivered(make_bus, pattern, type) == []


@pytest.mark.parametrize("pattern", ["user.?", "user.#", "user.>", "user.{a,b}", "user.%"])
def test_there_is_no_other_wildcard(pattern: str) -> None:
    """Whatever they mean elsewhere, here they stand for themselves."""
    assert not matches(pattern, "user.a")
    assert matches(pattern, pattern)


@pytest.mark.parametrize("pattern", ["user.cre*", "*.cre*", "**", "user.**"])
def test_a_star_is_a_whole_segment(make_bus: MakeBus, pattern: str) -> None:
    """What looks like another kind of wildcard is refused, not silently matched with nothing."""
    with pytest.raises(InvalidPatternError):
        make_bus().subscribe(pattern, FlakyHandler())
