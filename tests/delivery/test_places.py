"""Places beside the lane: who fails takes only those of its own handlers."""

from collections import Counter, defaultdict

from hypothesis import given
from hypothesis import strategies as st

from postbus.delivery.places import Places

HANDLERS = st.sampled_from(["mail", "stock", "log"])


@given(st.integers(1, 6), st.lists(st.tuples(HANDLERS, st.booleans())))
def test_whoever_was_turned_away_comes_before_those_behind_it(
    most: int, steps: list[tuple[str, bool]]
) -> None:
    """None has more places than there are, nobody overtakes, and whoever is turned away hears of room."""
    news: list[str] = []
    places = Places(most, lambda: news.append("room"))
    taken, is_waiting = Counter[str](), defaultdict[str, bool](bool)
    for handlers, comes in steps:
        heard = len(news)
        if comes:
            has_place = places.take(handlers)
            assert has_place == (not is_waiting[handlers] and taken[handlers] < most)
            taken[handlers] += has_place
            is_waiting[handlers] |= not has_place
            assert len(news) == heard
        elif taken[handlers]:
            places.give_back(handlers)
            taken[handlers] -= 1
            is_told = is_waiting[handlers] and taken[handlers] <= most // 2
            assert len(news) == heard + is_told
            is_waiting[handlers] &= not is_told


def test_those_of_others_are_free() -> None:
    """However many wait for one handler."""
    places = Places(2, lambda: None)

    assert [places.take("mail") for _ in range(3)] == [True, True, False]
    assert places.take("stock")
