"""Which event types a subscription's pattern matches, and which texts are patterns at all."""

import enum

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from postbus.errors import InvalidPatternError
from postbus.policy.patterns import check_pattern, matches

segments = st.text(alphabet="ab1é", min_size=1, max_size=2)
event_types = st.lists(segments, min_size=1, max_size=4).map(".".join)
patterns = st.lists(st.just("*") | segments, min_size=1, max_size=4).map(".".join)


class OrderPattern(enum.StrEnum):
    ANY = "order.*"


@pytest.mark.parametrize(
    ("pattern", "event_type"),
    [
        ("user.created", "user.created"),
        ("user.*", "user.created"),
        ("user.*", "user.updated"),
        ("*", "user"),
        ("*", "user.created"),
        ("*", "user.address.changed"),
        ("order.*.shipped", "order.123.shipped"),
        ("*.created", "user.created"),
        ("*.*", "user.created"),
    ],
)
def test_a_pattern_matches(pattern: str, event_type: str) -> None:
    """Every "matches" of the specification's table and of the design."""
    assert matches(pattern, event_type)


@pytest.mark.parametrize(
    ("pattern", "event_type"),
    [
        ("user.created", "user.updated"),
        ("user.created", "user.created.twice"),
        ("user.*", "order.created"),
        ("user.*", "user"),
        ("user.*", "user.a.b"),
        ("order.*.shipped", "order.shipped"),
        ("order.*.shipped", "order.1.2.shipped"),
        ("order.*.shipped", "order.123.paid"),
        ("*.*", "user"),
        ("*.*", "user.a.b"),
        ("user.created", "userxcreated"),
        ("User.*", "user.created"),
    ],
)
def test_a_pattern_does_not_match(pattern: str, event_type: str) -> None:
    """Every "doesn't match" of the specification's table and of the design."""
    assert not matches(pattern, event_type)


def matches_by_the_book(pattern: list[str], event_type: list[str]) -> bool:
    """The rule, one segment after the other."""
    if not pattern or not event_type:
        return not pattern and not event_type
    return pattern[0] in ("*", event_type[0]) and matches_by_the_book(pattern[1:], event_type[1:])


@given(patterns, event_types)
@example("a.*", "a.b.a")
def test_a_star_stands_for_exactly_one_segment(pattern: str, event_type: str) -> None:
    """Only the lone star is different: it matches everything."""
    expected = pattern == "*" or matches_by_the_book(pattern.split("."), event_type.split("."))

    assert matches(pattern, event_type) is expected


@given(event_types, st.data())
def test_replacing_segments_by_stars_never_loses_the_event(event_type: str, data: st.DataObject) -> None:
    """A pattern made from an event type by putting stars into it matches that type."""
    pattern = ".".join("*" if data.draw(st.booleans()) else segment for segment in event_type.split("."))

    assert matches(check_pattern(pattern), event_type)


@given(patterns)
def test_a_good_pattern_comes_back_as_it_is(pattern: str) -> None:
    """Names and stars, each a whole segment, make a pattern."""
    assert check_pattern(pattern) == pattern


def test_a_pattern_may_have_255_characters() -> None:
    """The limit itself is allowed."""
    assert check_pattern("a" * 255) == "a" * 255


def test_an_enum_member_becomes_a_plain_str() -> None:
    """What is stored is the text, not the enum."""
    assert type(check_pattern(OrderPattern.ANY)) is str
    assert check_pattern(OrderPattern.ANY) == "order.*"


@pytest.mark.parametrize(
    ("pattern", "reason"),
    [
        (None, "is of type NoneType"),
        (b"order.*", "is of type bytes"),
        (["order"], "is of type list"),
        ("", "is empty"),
        (".", "empty segment"),
        (".order", "empty segment"),
        ("order.", "empty segment"),
        ("order..placed", "empty segment"),
        ("**", "part of the segment '**'"),
        ("order.**", "part of the segment '**'"),
        ("order.pla*", "part of the segment 'pla*'"),
        ("*der.placed", "part of the segment '*der'"),
        ("order placed", "the character ' '"),
        ("order.placed\n", r"the character '\n'"),
        ("order.\u00a0placed", r"the character '\xa0'"),
        ("order.\0", r"the character '\x00'"),
        ("order.\x7f", r"the character '\x7f'"),
        ("order.\ud800", r"the character '\ud800'"),
        ("a" * 256, "is 256 characters long"),
    ],
)
def test_a_bad_pattern_is_refused_with_the_reason(pattern: object, reason: str) -> None:
    """The message names what is wrong, so that the caller can mend it."""
    with pytest.raises(InvalidPatternError) as caught:
        check_pattern(pattern)

    assert reason in str(caught.value)
    assert caught.value.pattern == pattern


@given(st.text(alphabet="a*. \n\0\ud800é", max_size=8))
def test_a_text_is_a_pattern_exactly_if_each_segment_is_a_star_or_a_name(text: str) -> None:
    """No other text gets through, and none of these is refused."""
    is_pattern = all(
        segment == "*" or (segment != "" and set(segment) <= set("aé")) for segment in text.split(".")
    )
    try:
        check_pattern(text)
    except InvalidPatternError:
        assert not is_pattern
    else:
        assert is_pattern
