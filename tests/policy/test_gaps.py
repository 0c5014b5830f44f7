"""Which numbers were delivered, which may still come, and how far the checkpoint may go."""

import itertools
import math
import sys
import tracemalloc

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from postbus.events import Gap
from postbus.policy.gaps import MOST_OPEN_GAPS, GapTimer, SubscriberState


def make_state(position: int, *delivered: int) -> SubscriberState:
    """A state to which these were delivered, one by one."""
    state = SubscriberState(position)
    for sequence in delivered:
        state.deliver(sequence)
    return state


def restart(state: SubscriberState) -> SubscriberState:
    """The state as it comes back from a database."""
    persisted = msgspec.json.encode((state.contiguous, state.head, state.open))
    return SubscriberState.restore(*msgspec.json.decode(persisted, type=tuple[int, int, list[list[int]]]))


def find_ranges(numbers: set[int]) -> list[Gap]:
    """The numbers as ranges, the plain way."""
    ranges: list[Gap] = []
    for number in sorted(numbers):
        if ranges and ranges[-1].last == number - 1:
            ranges[-1] = Gap(ranges[-1].first, number)
        else:
            ranges.append(Gap(number, number))
    return ranges


class StateMachine(RuleBasedStateMachine):
    """Any order of deliveries, verdicts and restarts, against sets of delivered and of dead numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.state = SubscriberState()
        self.delivered: set[int] = set()
        self.dead: set[int] = set()

    @property
    def head(self) -> int:
        return max(self.delivered, default=0)

    @property
    def undecided(self) -> set[int]:
        return set(range(1, self.head)) - self.delivered - self.dead

    @rule(sequence=st.integers(1, 60))
    def deliver(self, sequence: int) -> None:
        is_news = sequence not in self.delivered | self.dead
        assert self.state.deliver(sequence) == is_news
        if is_news:
            self.delivered.add(sequence)

    @rule(step=st.integers(1, 12))
    def deliver_ahead(self, step: int) -> None:
        assert self.state.deliver(self.head + step)
        self.delivered.add(self.head + step)

    @rule(first=st.integers(1, 60), length=st.integers(1, 20))
    def deliver_run(self, first: int, length: int) -> None:
        self.state.deliver_run(first, first + length - 1)
        self.delivered |= set(range(first, first + length)) - self.dead

    @rule(page=st.sets(st.integers(1, 60), max_size=10))
    def deliver_page(self, page: set[int]) -> None:
        self.state.deliver_page(sorted(page))
        self.delivered |= page - self.dead

    @rule(up_to=st.integers(0, 70))
    def settle(self, up_to: int) -> None:
        dead = {number for number in self.undecided if number <= up_to}
        assert self.state.settle(up_to) == tuple(find_ranges(dead))
        self.dead |= dead

    @rule()
    def restart(self) -> None:
        self.state = restart(self.state)

    @invariant()
    def the_head_is_the_highest_delivered(self) -> None:
        assert self.state.head == self.head

    @invariant()
    def the_checkpoint_is_just_before_the_first_undecided_number(self) -> None:
        assert self.state.contiguous == min(self.undecided, default=self.head + 1) - 1

    @invariant()
    def what_is_open_is_what_is_undecided_in_as_few_ranges_as_possible(self) -> None:
        ranges = find_ranges(self.undecided)
        assert self.state.open == tuple(ranges)
        assert self.state.newest_gap == (ranges[-1] if ranges else None)
        assert self.state.is_waiting_for_gap == bool(ranges)

    @invariant()
    def what_is_delivered_is_known(self) -> None:
        for number in range(1, self.head + 3):
            assert self.state.is_delivered(number) == (number in self.delivered | self.dead)


TestStateMachine = StateMachine.TestCase
TestStateMachine.settings = settings(max_examples=150, stateful_step_count=30)


@given(st.permutations(range(1, 13)))
def test_any_order_of_arrival_ends_at_the_last_number(order: list[int]) -> None:
    """And on the way the checkpoint is never beyond a number that has not come."""
    state = SubscriberState()
    for count, sequence in enumerate(order, 1):
        state.deliver(sequence)
        missing = set(range(1, 13)) - set(order[:count])

        assert state.contiguous == min(missing, default=13) - 1

    assert state.open == ()


def test_gaps_inside_a_batch_are_all_kept() -> None:
    """A page with holes opens one range for each."""
    state = SubscriberState(10)
    state.deliver_page([11, 13, 14, 18, 20])

    assert state.open == (Gap(12, 12), Gap(15, 17), Gap(19, 19))
    assert (state.contiguous, state.head) == (11, 20)


def test_many_gaps_are_closed_at_once() -> None:
    """A thousand rolled-back numbers cost one step, not one wait each."""
    state = SubscriberState()
    state.deliver_page(range(2, 2002, 2))

    assert len(state.open) == 1000
    assert len(state.settle(2000)) == 1000
    assert state.contiguous == 2000


def test_a_thousand_numbers_in_a_row_are_one_gap() -> None:
    """However long the row is."""
    assert make_state(0, 1001).open == (Gap(1, 1000),)


def test_reading_goes_on_far_beyond_a_gap() -> None:
    """Many batches ahead the state is as small as at first, and nothing delivered comes back."""
    state = SubscriberState()
    state.deliver(2)
    for first in range(3, 100_003, 100):
        state.deliver_page(range(first, first + 100))

    assert (state.contiguous, state.head, state.open) == (0, 100_002, (Gap(1, 1),))
    assert state.is_delivered(50_000)

    state.deliver(1)

    assert state.contiguous == 100_002


def test_a_gap_is_filled_from_either_end_and_from_within() -> None:
    """What is left of it stays open."""
    state = make_state(0, 10)
    left = []
    for first, last in [(5, 5), (1, 1), (9, 9), (2, 7)]:
        state.deliver_run(first, last)
        left.append([*state.open])

    assert left == [
        [Gap(1, 4), Gap(6, 9)],
        [Gap(2, 4), Gap(6, 9)],
        [Gap(2, 4), Gap(6, 8)],
        [Gap(8, 8)],
    ]
    assert state.contiguous == 7


def test_a_run_may_reach_from_a_gap_beyond_the_head() -> None:
    """It fills what was open and goes on from there."""
    state = make_state(0, 3, 6)
    state.deliver_run(2, 9)

    assert (state.head, state.open) == (9, (Gap(1, 1),))


def test_an_empty_page_and_an_empty_run_change_nothing() -> None:
    """A wake-up may find nothing."""
    state = make_state(0, 3)
    state.deliver_page([])
    state.deliver_run(state.head + 1, state.head)

    assert (state.head, state.open) == (3, (Gap(1, 2),))


def test_a_verdict_inside_a_gap_leaves_the_rest_open() -> None:
    """Numbers above it may still come."""
    state = make_state(0, 10)

    assert state.settle(4) == (Gap(1, 4),)
    assert (state.contiguous, state.open) == (4, (Gap(5, 9),))


def test_a_verdict_beyond_the_head_moves_nothing_but_gaps() -> None:
    """What is above the head has not been read yet: it is not dead."""
    state = make_state(0, 2)
    state.settle(100)

    assert (state.contiguous, state.head) == (2, 2)
    assert not state.is_delivered(3)


def test_a_verdict_says_nothing_new_the_second_time() -> None:
    """A horizon that stands still costs nothing."""
    state = make_state(0, 5)
    state.settle(3)

    assert state.settle(3) == ()
    assert state.settle(0) == ()


def test_what_was_given_up_is_not_delivered_again() -> None:
    """The caller is told, so that a late event can be reported."""
    state = make_state(0, 5)
    state.settle(4)

    assert not state.deliver(3)
    assert state.contiguous == 5


def test_a_jump_of_three_billion_is_one_gap() -> None:
    """Historic gaps cost a range, not a wait for each number."""
    state = make_state(7, 3_000_000_008)

    assert state.open == (Gap(8, 3_000_000_007),)

    state.deliver(1_500_000_000)
    state.settle(3_000_000_007)

    assert state.contiguous == 3_000_000_008
    assert not state.is_waiting_for_gap


def test_ten_thousand_gaps_are_enough() -> None:
    """Then it asks to be read no further; what fills a gap is still taken."""
    state = SubscriberState()
    state.deliver_page(range(2, 2 * MOST_OPEN_GAPS, 2))
    was_full = [state.is_full]
    for sequence in (2 * MOST_OPEN_GAPS, 1):
        assert state.deliver(sequence)
        was_full.append(state.is_full)

    assert was_full == [False, True, False]


def test_memory_is_the_number_of_gaps() -> None:
    """A million events beyond three gaps take no more than a handful."""
    state = make_state(0, 2, 4, 6)
    tracemalloc.start()
    try:
        for first in range(7, 1_000_007, 1000):
            state.deliver_run(first, first + 999)
        grown, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert len(state.open) == 3
    assert grown < 2_000


def test_in_order_every_event_costs_the_same() -> None:
    """Nothing is kept for it, so nothing is searched: the lists of gaps are never touched."""
    state = SubscriberState()
    state.deliver_page(range(2, 20_002, 2))
    calls = 0

    def count(frame: object, event: str, argument: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        for sequence in range(20_001, 20_101):
            state.deliver(sequence)
    finally:
        sys.setprofile(None)

    # One call for each, and the last one to end the profile.
    assert calls == 101


class TestRestart:
    def test_with_open_gaps_nothing_delivered_comes_back(self) -> None:
        """What was ahead of the gaps is still known after the restart."""
        state = restart(make_state(0, 1, 4, 8))

        assert (state.contiguous, state.head) == (1, 8)
        assert [n for n in range(1, 10) if not state.is_delivered(n)] == [2, 3, 5, 6, 7, 9]

        state.deliver_run(2, 3)

        assert state.contiguous == 4

    def test_with_a_gap_that_was_settled_in_part(self) -> None:
        """The position is then a dead number, which is as good as a delivered one."""
        state = make_state(0, 10)
        state.settle(4)

        assert restart(state).open == (Gap(5, 9),)

    def test_with_more_gaps_than_it_opens(self) -> None:
        """Filling gaps from within can make more of them: none is forgotten."""
        gaps = [[number, number] for number in range(1, 3 * MOST_OPEN_GAPS, 2)]
        state = SubscriberState.restore(0, 3 * MOST_OPEN_GAPS, gaps)

        assert len(state.open) == len(gaps)
        assert state.is_full

    @pytest.mark.parametrize(
        ("position", "head", "gaps"),
        [
            (0, 9, [[6, 7]]),  # moved back by hand, to deliver everything again
            (20, 9, [[6, 7]]),  # moved on by hand
            (20, 9, []),
            (3, 9, []),
            (5, 9, [[6, 9]]),  # the head can't be in a gap
            (5, 9, [[6, 12]]),
            (5, 9, [[6, 5]]),  # last before first
            (5, 9, [[6, 7], [7, 8]]),  # overlapping
            (5, 9, [[6, 6], [7, 7]]),  # touching: one gap, written by nobody
            (5, 9, [[8, 8], [6, 6]]),
        ],
    )
    def test_the_position_counts_where_the_rest_does_not_fit(
        self, position: int, head: int, gaps: list[list[int]]
    ) -> None:
        """Events may come again from there; none is passed over."""
        state = SubscriberState.restore(position, head, gaps)

        assert (state.contiguous, state.head, state.open) == (position, position, ())


class TestGapTimer:
    def test_gaps_seen_together_are_overdue_together(self) -> None:
        """Ten burned numbers cost one timeout, not ten."""
        state, timer = SubscriberState(), GapTimer(5.0)
        state.deliver_page(range(2, 22, 2))
        timer.note(state, now=0.0)

        assert timer.overdue(state, now=4.9) == ()
        assert timer.overdue(state, now=5.0) == state.open
        assert len(state.open) == 10

    def test_each_gap_has_an_age_of_its_own(self) -> None:
        """An old one does not take a young one with it."""
        state, timer = make_state(0, 2), GapTimer(5.0)
        timer.note(state, now=0.0)
        state.deliver(4)
        timer.note(state, now=3.0)

        overdue = timer.overdue(state, now=5.0)
        assert overdue == (Gap(1, 1),)
        assert timer.due_at == 8.0

        state.settle(overdue[-1].last)
        assert (state.contiguous, timer.overdue(state, now=7.9)) == (2, ())
        assert timer.overdue(state, now=8.0) == (Gap(3, 3),)

    def test_a_gap_that_is_filled_in_part_keeps_its_age(self) -> None:
        """What is left of it was missing all the time."""
        state, timer = make_state(0, 10), GapTimer(5.0)
        timer.note(state, now=0.0)
        state.deliver(5)
        timer.note(state, now=4.0)

        assert timer.overdue(state, now=5.0) == (Gap(1, 4), Gap(6, 9))

    def test_a_gap_that_is_filled_in_time_is_never_overdue(self) -> None:
        """And nobody waits for it any more."""
        state, timer = make_state(0, 2), GapTimer(5.0)
        timer.note(state, now=0.0)
        state.deliver(1)
        timer.note(state, now=1.0)

        assert timer.due_at == math.inf
        assert timer.overdue(state, now=99.0) == ()

    def test_a_gap_that_nobody_noted_has_no_age(self) -> None:
        """It was opened after the last look."""
        state, timer = make_state(0, 2), GapTimer(5.0)

        assert timer.overdue(state, now=1e9) == ()

    def test_an_overdue_gap_stays_overdue_until_it_is_closed(self) -> None:
        """A caller who could not record it gets it again."""
        state, timer = make_state(0, 2), GapTimer(5.0)
        timer.note(state, now=0.0)
        timer.overdue(state, now=5.0)
        timer.note(state, now=6.0)

        assert timer.overdue(state, now=6.0) == (Gap(1, 1),)
        assert timer.due_at == math.inf

    def test_a_timeout_of_nothing_gives_up_at_first_sight(self) -> None:
        """As asked for."""
        state, timer = make_state(0, 2), GapTimer(0.0)
        timer.note(state, now=7.0)

        assert timer.overdue(state, now=7.0) == (Gap(1, 1),)

    @given(
        st.lists(st.tuples(st.integers(1, 30), st.floats(0, 3)), max_size=25),
        st.floats(0, 6),
    )
    def test_a_gap_is_overdue_exactly_when_its_numbers_were_first_seen_long_ago(
        self, arrivals: list[tuple[int, float]], gap_timeout: float
    ) -> None:
        """Any arrivals at any pace, against a dict of every missing number and when it was first seen."""
        state, timer, now = SubscriberState(), GapTimer(gap_timeout), 50.0
        first_seen_at: dict[int, float] = {}
        for sequence, pause in arrivals:
            state.deliver(sequence)
            timer.note(state, now)
            for number in itertools.chain.from_iterable(range(g.first, g.last + 1) for g in state.open):
                first_seen_at.setdefault(number, now)
            now += pause
            missing = {number for number in first_seen_at if not state.is_delivered(number)}
            old = {number for number in missing if now >= first_seen_at[number] + gap_timeout}

            assert timer.overdue(state, now) == tuple(find_ranges(old))
            assert all(timer.due_at <= first_seen_at[number] + gap_timeout for number in missing - old)
            if old:
                state.settle(max(old))
