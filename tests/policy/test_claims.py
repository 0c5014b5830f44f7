"""How many rows a worker has ahead of its handlers: enough for all, and few that others could have."""

from hypothesis import given
from hypothesis import strategies as st

from postbus.policy.claims import room_for, rows_ahead

counts = st.integers(min_value=0, max_value=10_000)


@given(counts, st.floats(min_value=0, max_value=1e6))
def test_there_is_always_one_ahead_and_never_more_than_a_bound(begun_count: int, seconds: float) -> None:
    """However fast or slow the handlers are."""
    assert 1 <= rows_ahead(begun_count, seconds) <= 500


@given(counts, st.floats(min_value=0.001, max_value=1e3))
def test_no_more_wait_than_are_begun_in_a_moment(begun_count: int, seconds: float) -> None:
    """Others could have what would wait for longer."""
    ahead = rows_ahead(begun_count, seconds)

    assert ahead <= 1 + begun_count / seconds * 0.1


@given(counts, st.integers(min_value=1, max_value=500), counts)
def test_idle_handlers_get_rows_and_no_more_than_are_missing_are_asked_for(
    waiting_count: int, ahead: int, idle_count: int
) -> None:
    """Nothing is asked for while half of what should be ahead is there."""
    room = room_for(waiting_count, ahead, idle_count)

    assert room == 0 or waiting_count + room == ahead + idle_count
    if waiting_count == 0:
        assert room >= idle_count + 1
    if waiting_count > ahead // 2:
        assert room == 0
