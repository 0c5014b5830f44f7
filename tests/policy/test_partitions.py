"""Which part an event is in, and how the parts are spread: even, settled, and without a move too many."""

import hashlib
import random
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postbus.errors import InvalidSubscriberIdError
from postbus.events import Event, Part
from postbus.policy.names import check_room_for_parts, check_subscriber_id
from postbus.policy.partitions import (
    fair_share,
    part_id,
    part_of,
    part_of_event,
    quota,
    to_give_up,
    to_take,
)

COUNTS = st.integers(1, 64)
MEMBERS = st.lists(st.integers(1, 99), min_size=1, max_size=8, unique=True)


def make_event(event_id: str, stream_id: str | None) -> Event:
    return Event(id=event_id, type="test.done", created_at=datetime.now(UTC), stream_id=stream_id)


class TestPartOf:
    @given(st.text(), COUNTS)
    def test_it_is_one_of_the_parts_and_always_the_same(self, key: str, count: int) -> None:
        """The first half of the key's MD5 decides, as it does in the database."""
        digest = hashlib.md5(key.encode(errors="surrogatepass")).hexdigest()

        assert part_of(key, count) == part_of(key, count) == int(digest[:8], 16) % count
        assert 0 <= part_of(key, count) < count

    @given(st.text(min_size=1), st.text(min_size=1), st.text(min_size=1), COUNTS)
    def test_all_events_of_a_stream_are_in_one_part(
        self, stream: str, first: str, second: str, count: int
    ) -> None:
        """Whatever their ids are."""
        parts = {part_of_event(make_event(each, stream), count) for each in (first, second)}

        assert parts == {part_of(stream, count)}

    def test_events_without_a_stream_are_spread_by_their_id(self) -> None:
        """Over all parts."""
        parts = [part_of_event(make_event(f"event-{number}", None), 8) for number in range(1000)]

        assert all(80 < parts.count(index) < 170 for index in range(8))


def test_parts_have_ids_of_their_own() -> None:
    """No two of one layout, nor of two layouts, have the same."""
    ids = {part_id("mail", Part(index, count)) for count in range(1, 20) for index in range(count)}

    assert len(ids) == sum(range(1, 20))
    assert part_id("mail", Part(0, 1)) == "mail"


@given(st.integers(1, 1024), st.data())
def test_no_subscriber_has_the_id_of_a_part(count: int, data: st.DataObject) -> None:
    """Whatever it is a part of; and where there is room for the subscriber, there is for all its parts."""
    index = data.draw(st.integers(0, count - 1))
    whole = data.draw(st.sampled_from(["mail", "a#b", "m" * 245]))
    name = part_id(whole, Part(index, count))
    check_room_for_parts(whole)

    assert len(name) <= 255
    if count > 1:
        with pytest.raises(InvalidSubscriberIdError, match="partition"):
            check_subscriber_id(name)


@pytest.mark.parametrize("name", ["mail#3", "mail/8", "mail#3/8x", "#/", "mail#x/8", "3/8"])
def test_ids_that_only_look_a_little_like_parts_are_fine(name: str) -> None:
    """Only the very ending is taken."""
    assert check_subscriber_id(name) == name


def test_an_id_that_leaves_no_room_for_parts_can_not_be_split() -> None:
    """It says how long it is."""
    with pytest.raises(InvalidSubscriberIdError, match="246 characters"):
        check_room_for_parts("m" * 246)


@given(st.integers(1, 20), COUNTS)
def test_quotas_add_up_to_the_parts_and_differ_by_one_at_most(member_count: int, count: int) -> None:
    """With more instances than parts some have none."""
    quotas = [quota(rank, member_count, count) for rank in range(member_count)]

    assert sum(quotas) == count
    assert max(quotas) - min(quotas) <= 1


@st.composite
def spreads(draw: st.DrawFn) -> tuple[list[int], list[int | None]]:
    """Some members, and parts that they, strangers or nobody have."""
    members = draw(MEMBERS)
    holder = st.sampled_from([*members, None, 1000])
    return sorted(members), draw(st.lists(holder, min_size=1, max_size=64))


@given(spreads())
def test_the_shares_of_all_add_up_to_the_parts(spread: tuple[list[int], list[int | None]]) -> None:
    """Whoever has what at the moment."""
    members, holders = spread

    shares = [fair_share(member, members, holders) for member in members]
    assert sum(shares) == len(holders)
    assert max(shares) - min(shares) <= 1


def take_turns(members: list[int], holders: list[int | None], rng: random.Random) -> int:
    """Let members in any order do what the rule says, until nothing changes; how many parts moved."""
    moved, is_settled = 0, False
    while not is_settled:
        is_settled = True
        for me in rng.sample(members, len(members)):
            held = [index for index, holder in enumerate(holders) if holder == me]
            share = fair_share(me, members, holders)
            for index in to_give_up(held, share):
                holders[index], is_settled = None, False
            for index in to_take(me, members, holders)[: share - len(held)]:
                holders[index], is_settled = me, False
                moved += 1
    return moved


@given(MEMBERS, COUNTS, st.randoms(use_true_random=False))
def test_instances_that_act_on_their_own_come_to_an_even_spread(
    members: list[int], count: int, rng: random.Random
) -> None:
    """Every part has a holder, and no member has two more than another."""
    holders: list[int | None] = [None] * count
    take_turns(members, holders, rng)

    held = [holders.count(member) for member in members]
    assert sum(held) == count
    assert max(held) - min(held) <= 1


@given(MEMBERS, COUNTS, st.randoms(use_true_random=False))
def test_no_more_parts_move_than_must_when_an_instance_comes_or_goes(
    members: list[int], count: int, rng: random.Random
) -> None:
    """A newcomer gets what the others have too much; what one leaves is all that the others take."""
    holders: list[int | None] = [None] * count
    take_turns(members, holders, rng)

    assert take_turns([*members, 100], holders, rng) == count // (len(members) + 1)
    left = [index for index, holder in enumerate(holders) if holder == 100]
    for index in left:
        holders[index] = None
    assert take_turns(members, holders, rng) == len(left)


@given(spreads(), st.integers(0, 64))
def test_nothing_is_taken_that_another_has(spread: tuple[list[int], list[int | None]], share: int) -> None:
    """And what is given up is what is too much, no more."""
    members, holders = spread
    for member in members:
        assert all(holders[index] is None for index in to_take(member, members, holders))
        held = [index for index, holder in enumerate(holders) if holder == member]
        assert len(to_give_up(held, share)) == max(0, len(held) - share)
