"""Whose commits are notified in a flood: any writers, any pace, any estimate; and what nobody tells of."""

from dataclasses import dataclass, field
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postbus.stores.postgres import thinning
from postbus.stores.postgres.thinning import Thinning

# Nobody has to be waited for longer than that, in seconds or in numbers.
_SILENCE, _LONGEST_SILENCE, _LONGEST_DEBT, _MOST_NUMBERS = 0.02, 0.2, 1.0, 1_024
_MILLISECOND = 0.001
_WRITER_COUNT = 4


@dataclass
class Writer:
    """A bus with its timer: what it was told to send, and the moments at which it did."""

    thinning: Thinning = field(default_factory=Thinning)
    told_at: list[float] = field(default_factory=list)
    committed_at: list[float] = field(default_factory=list)

    def commit(self, first: int, last: int, now: float) -> bool:
        """Whether it is notified at once."""
        self.wait_until(now)
        self.committed_at.append(now)
        if self.thinning.commit(first, last, now):
            self.told_at.append(now)
            return True
        return False

    def wait_until(self, now: float) -> None:
        """The timer goes off when it is due."""
        due_at = self.thinning.due_at
        if due_at is not None and due_at <= now:
            self.thinning.settle()
            self.told_at.append(due_at)


def in_flood(rate: int = 10_000, seconds: float = 0.1) -> tuple[Writer, int, float]:
    """A writer in the middle of a flood that is all its own, the last number and its moment."""
    writer = Writer()
    for number in range(1, int(rate * seconds) + 1):
        writer.commit(number, number, number / rate)
    return writer, number, number / rate


def all_in_flood(statement: float = 0.0) -> tuple[list[Writer], float, int]:
    """Writers in the middle of a flood that they make together, its last moment and number."""
    writers = [Writer() for _ in range(_WRITER_COUNT)]
    for number in range(1, 301):
        writer = writers[number % _WRITER_COUNT]
        writer.thinning.note_statement(statement)
        writer.commit(number, number, number / 5_000)
    return writers, number / 5_000, number


# Who commits next, how long after the commit before, and how many numbers.
_commits = st.lists(
    st.tuples(
        st.integers(0, _WRITER_COUNT - 1),
        st.sampled_from([0.00001, 0.0001, 0.0001, 0.0002, 0.0002, 0.0005, 0.001, 0.003, 0.03, 0.15]),
        st.sampled_from([1, 1, 1, 1, 2, 5, 100, 1_000, 5_000]),
    ),
    min_size=1,
    max_size=100,
)
# How long notifications take.
_statements = st.sampled_from([0.0, 0.0005, 0.005, 0.05, 5.0])


class TestEverythingIsTold:
    @given(_commits, st.lists(st.booleans(), min_size=1, max_size=10), _statements)
    def test_within_so_many_seconds_by_the_bus_itself(
        self, commits: list[tuple[int, float, int]], are_rolled_back: list[bool], statement: float
    ) -> None:
        """Whatever the others do, whichever numbers are rolled back, and if no multiple is ever its own."""
        writers, now, last = all_in_flood(statement)
        for index, (who, pause, count) in enumerate(commits):
            now, first, last = now + pause, last + 1, last + count
            if not are_rolled_back[index % len(are_rolled_back)]:
                writers[who].commit(first, last, now)
        for writer in writers:
            writer.wait_until(now + _LONGEST_DEBT)

        silence = _SILENCE if statement <= 0.005 else _LONGEST_SILENCE
        for writer in writers:
            for committed_at, next_at in pairwise([*writer.committed_at, float("inf")]):
                told_at = min(at for at in writer.told_at if at >= committed_at)
                assert told_at <= committed_at + _LONGEST_DEBT
                assert told_at <= committed_at + silence or next_at < committed_at + silence

    @given(_commits, st.lists(_statements, min_size=_WRITER_COUNT, max_size=_WRITER_COUNT))
    def test_within_so_many_numbers_by_somebody(
        self, commits: list[tuple[int, float, int]], statements: list[float]
    ) -> None:
        """However differently they see the log: whoever commits a certain number tells of it."""
        writers, now, last = all_in_flood()
        told = last
        for who, pause, count in commits:
            now, first, last = now + pause, last + 1, last + count
            writers[who].thinning.note_statement(statements[who])
            if writers[who].commit(first, last, now):
                told = last

            assert last - told < _MOST_NUMBERS

    @given(st.lists(st.floats(0, 10**7), min_size=2, max_size=2))
    def test_and_whoever_tells_of_less_is_joined_by_the_others(self, number_counts: list[float]) -> None:
        """What is a multiple to one that sees many numbers is one to all."""
        small, large = sorted(thinning._step(count, 0) for count in number_counts)

        assert large % small == 0
        assert large <= _MOST_NUMBERS

    def test_also_if_every_multiple_is_rolled_back(self) -> None:
        """A bus that only ever commits odd numbers, and never pauses."""
        writer = Writer()
        for number in range(1, 10_001, 2):
            writer.commit(number, number, number / 10_000)
        longest = max(later - sooner for sooner, later in pairwise([*writer.told_at, 1.0]))

        assert writer.thinning.step == 64
        assert longest <= 4 * 64 * 2 / 10_000 + _MILLISECOND

    def test_also_if_multiples_are_far_apart_and_always_those_of_others(self) -> None:
        """No later than a reader would look by itself."""
        writer = Writer()
        for index in range(1_000):
            number = index * 2_048 + 1
            writer.commit(number, number, index * 0.01)
        longest = max(later - sooner for sooner, later in pairwise([*writer.told_at, 10.0]))

        assert writer.thinning.step == 1_024
        assert longest <= _LONGEST_DEBT + 0.02


class TestWithoutAFlood:
    @given(st.lists(st.tuples(st.integers(0, 3), st.floats(1.01, 200.0)), min_size=1, max_size=100))
    def test_every_commit_is_told_at_once(self, commits: list[tuple[int, float]]) -> None:
        """Less than a thousand a second, of all writers together."""
        writers, now = [Writer() for _ in range(4)], 0.0
        for number, (who, pause) in enumerate(commits, 1):
            now += pause * _MILLISECOND

            assert writers[who].commit(number, number, now)

    @given(st.lists(st.tuples(st.integers(1, 5_000), st.floats(1.01, 50.0)), min_size=1, max_size=100))
    def test_many_events_in_one_commit_are_no_flood(self, commits: list[tuple[int, float]]) -> None:
        """What counts is how often there is something to tell of."""
        writer, now, last = Writer(), 0.0, 0
        for count, pause in commits:
            now, first, last = now + pause * _MILLISECOND, last + 1, last + count

            assert writer.commit(first, last, now)
            assert writer.thinning.step == 1

    @given(st.lists(st.integers(1, 1_000), min_size=1, max_size=50))
    def test_numbers_committed_out_of_order_are_none(self, numbers: list[int]) -> None:
        """Only how far the log has come tells how busy it is."""
        writer = Writer()
        writer.commit(1_000, 1_000, 0.0)
        for index, number in enumerate(numbers, 1):
            assert writer.commit(number, number, index * 0.01)

    def test_the_first_commit_of_a_bus_is_told_at_once(self) -> None:
        """Wherever the log is by then."""
        writer = Writer()

        assert writer.commit(1_000_001, 1_000_001, 0.0)
        assert writer.commit(1_000_003, 1_000_003, 0.019)
        assert writer.thinning.step == 1


class TestInAFlood:
    @pytest.mark.parametrize("rate", [1_100, 3_000, 10_000, 100_000])
    @pytest.mark.parametrize("writer_count", [1, 4, 32])
    def test_there_is_one_notification_in_some_milliseconds(self, rate: int, writer_count: int) -> None:
        """Of all writers together, after each has seen that there is a flood."""
        writers, told = [Writer() for _ in range(writer_count)], 0
        for number in range(1, rate + 1):
            writer = writers[number * 7 % writer_count]
            is_told = writer.commit(number, number, number / rate)
            if number > rate // 2:
                told += is_told

        # A thirty-second of a slow flood leaves a bus such pauses that it tells of each event.
        expected = (0.5 / 0.004) if rate / writer_count > 50 else rate / 2
        assert expected / 2 - 1 <= told <= expected * 1.05 + 1

    def test_who_was_silent_tells_at_once(self) -> None:
        """It would have to in a moment anyway, unless it goes on."""
        writer, number, now = in_flood()
        number += 9_999
        while number % 1_024 == 0 or not number % 2:
            number += 1

        assert writer.commit(number, number, now + _SILENCE)

    def test_a_commit_of_many_numbers_is_told_if_one_of_them_is(self) -> None:
        """None of those who wait would be told otherwise."""
        writer, number, now = in_flood()
        step = writer.thinning.step
        number = (number // step + 1) * step

        assert step > 4
        assert not writer.commit(number + 1, number + step - 1, now)
        assert writer.commit(number + step - 1, number + step + 1, now)
        assert writer.thinning.due_at is None

    def test_where_statements_take_long_it_begins_sooner(self) -> None:
        """A busy server is not kept busier: 32 writers, each of whose statements takes 32 ms."""
        writers, told = [Writer() for _ in range(32)], 0
        for number in range(1, 3_001):
            writer = writers[number % 32]
            writer.thinning.note_statement(0.032)
            told += writer.commit(number, number, number / 1_000) and number > 1_000

        assert 2_000 / 64 - 1 <= told <= 2_000 / 32 + 1

    def test_a_few_commits_on_a_busy_server_are_none(self) -> None:
        """The last of them would wait for long."""
        writer, now, number = Writer(), 0.0, 0
        for _ in range(20):
            for _ in range(12):
                now, number = now + 0.005, number + 1
                writer.thinning.note_statement(0.04)

                assert writer.commit(number, number, now)
            now += 0.2

    def test_a_few_writers_on_a_busy_server_are_none(self) -> None:
        """Their notifications are no more than the server has to do anyway."""
        writers = [Writer() for _ in range(4)]
        for number in range(1, 200):
            writer = writers[number % 4]
            writer.thinning.note_statement(0.032)

            assert writer.commit(number, number, number / 100)

    def test_it_is_over_as_soon_as_that_can_be_seen(self) -> None:
        """A bus that goes on slowly tells of each event again."""
        writer, number, now = in_flood()
        while number % writer.thinning.step != 1:
            number += 1
        told = [writer.commit(number + step, number + step, now + step * 0.01) for step in range(1, 8)]

        assert told[:1] == [False]
        assert all(told[3:])
