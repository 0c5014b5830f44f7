"""ManualClock: time moves when a test says so, and what is due happens at its own moment."""

import asyncio
import itertools
from datetime import UTC, datetime, timedelta, timezone

import pytest

from postbus.errors import InvalidConfigError
from postbus.testing import ManualClock

_START = datetime(2026, 1, 1, tzinfo=UTC)


class _Diary:
    """Who woke up when."""

    def __init__(self, clock: ManualClock) -> None:
        self.entries: list[tuple[str, float]] = []
        self._clock = clock

    async def sleep(self, name: str, *durations: float) -> None:
        for seconds in durations:
            await self._clock.sleep(seconds)
            self.entries.append((name, self._clock.monotonic()))


class TestTime:
    async def test_time_stands_still_until_it_is_moved(self) -> None:
        """Both ways of reading it move together."""
        clock = ManualClock()
        readings = [(clock.now(), clock.monotonic()), (clock.now(), clock.monotonic())]
        await clock.advance(90.5)
        readings.append((clock.now(), clock.monotonic()))

        assert readings == [(_START, 0.0), (_START, 0.0), (_START + timedelta(seconds=90.5), 90.5)]

    def test_the_start_is_given_in_any_zone_and_read_in_utc(self) -> None:
        """The same moment, in the zone that postbus uses."""
        start = datetime(2026, 7, 1, 9, tzinfo=timezone(timedelta(hours=9)))
        now = ManualClock(start).now()

        assert (now, now.utcoffset()) == (start, timedelta(0))

    def test_a_start_without_a_zone_is_refused(self) -> None:
        """Nobody has to guess."""
        with pytest.raises(InvalidConfigError, match="aware"):
            ManualClock(datetime(2026, 1, 1))

    async def test_time_never_goes_back(self) -> None:
        """A negative advance is refused."""
        clock = ManualClock()
        with pytest.raises(InvalidConfigError):
            await clock.advance(-1)

        assert clock.monotonic() == 0

    async def test_advances_made_at_once_add_up(self) -> None:
        """One after the other, none is lost."""
        clock = ManualClock()
        diary = _Diary(clock)
        async with asyncio.TaskGroup() as group:
            group.create_task(diary.sleep("a", 1, 1, 1))
            group.create_task(clock.advance(2))
            group.create_task(clock.advance(3))

        assert clock.monotonic() == 5
        assert diary.entries == [("a", 1), ("a", 2), ("a", 3)]


class TestSleep:
    async def test_a_sleeper_wakes_when_its_time_has_come_and_not_before(self) -> None:
        """A microsecond is enough to tell."""
        clock = ManualClock()
        sleeper = asyncio.create_task(clock.sleep(5))
        await clock.advance(4.999999)
        was_done_before = sleeper.done()
        await clock.advance(0.000001)

        assert (was_done_before, sleeper.done()) == (False, True)

    async def test_small_steps_add_up_exactly(self) -> None:
        """In floats 0.7 + 0.1 is less than 0.8."""
        clock = ManualClock()
        sleeper = asyncio.create_task(clock.sleep(0.8))
        await clock.advance(0.7)
        await clock.advance(0.1)

        assert sleeper.done()

    async def test_sleepers_wake_in_the_order_of_their_moments(self) -> None:
        """And each sees its own moment; of one moment, who slept first."""
        clock = ManualClock()
        diary = _Diary(clock)
        async with asyncio.TaskGroup() as group:
            for name, seconds in [("c", 3), ("a", 1), ("b1", 2), ("b2", 2)]:
                group.create_task(diary.sleep(name, seconds))
            await clock.advance(10)

        assert diary.entries == [("a", 1), ("b1", 2), ("b2", 2), ("c", 3)]
        assert clock.monotonic() == 10

    async def test_a_woken_task_that_sleeps_again_wakes_at_its_next_moment(self) -> None:
        """One long advance is as good as many short ones."""
        clock = ManualClock()
        diary = _Diary(clock)
        async with asyncio.TaskGroup() as group:
            group.create_task(diary.sleep("a", 1, 2, 4))
            group.create_task(diary.sleep("b", 2, 2))
            await clock.advance(7)

        assert diary.entries == [("a", 1), ("b", 2), ("a", 3), ("b", 4), ("a", 7)]

    async def test_time_waits_for_long_work_between_two_sleeps(self) -> None:
        """Hundreds of turns of the event loop happen at one moment."""
        clock = ManualClock()

        async def work() -> float:
            await clock.sleep(1)
            for _ in range(500):
                await asyncio.create_task(asyncio.sleep(0))
            await clock.sleep(1)
            return clock.monotonic()

        worker = asyncio.create_task(work())
        await clock.advance(10)

        assert await worker == 2

    async def test_a_task_that_never_rests_does_not_stop_the_time(self) -> None:
        """A poll without a pause is waited for, but not for ever."""
        clock = ManualClock()

        async def poll() -> None:
            for _ in itertools.count():
                await asyncio.sleep(0)

        poller = asyncio.create_task(poll())
        sleeper = asyncio.create_task(clock.sleep(1))
        await clock.advance(1)
        poller.cancel()

        assert sleeper.done()

    @pytest.mark.parametrize("seconds", [0, -1])
    async def test_a_sleep_of_no_length_returns_without_an_advance(self, seconds: float) -> None:
        """Others get a turn, as with asyncio.sleep(0); the time stands still."""
        clock = ManualClock()
        turns: list[str] = []
        other = asyncio.create_task(asyncio.sleep(0))
        other.add_done_callback(lambda _: turns.append("other"))
        await clock.sleep(seconds)
        await clock.sleep(seconds)
        await clock.sleep(seconds)

        assert (turns, clock.monotonic()) == (["other"], 0)

    async def test_a_cancelled_sleeper_is_dropped(self) -> None:
        """It is not counted, not woken and in nobody's way."""
        clock = ManualClock()
        diary = _Diary(clock)
        cancelled = asyncio.create_task(diary.sleep("cancelled", 1))
        other = asyncio.create_task(diary.sleep("other", 2))
        await clock.wait_for_sleepers(2)
        cancelled.cancel()
        await asyncio.wait([cancelled])
        sleeping = clock.sleeping
        await clock.advance(2)

        assert (sleeping, clock.sleeping, other.done()) == (1, 0, True)
        assert diary.entries == [("other", 2)]

    async def test_a_sleeper_that_is_cancelled_in_the_moment_of_waking_is_cancelled(self) -> None:
        """Two ends at once, and advance survives it."""
        clock = ManualClock()
        diary = _Diary(clock)

        async def cancel_the_other() -> None:
            await clock.sleep(1)
            victim.cancel()

        canceller = asyncio.create_task(cancel_the_other())
        victim = asyncio.create_task(diary.sleep("victim", 1))
        await clock.advance(1)

        assert (canceller.done(), victim.cancelled(), diary.entries) == (True, True, [])
        assert (clock.sleeping, clock.monotonic()) == (0, 1)

    async def test_every_duration_that_was_asked_for_is_kept(self) -> None:
        """Back-off can be asserted without waiting it out."""
        clock = ManualClock()
        sleeper = asyncio.create_task(_Diary(clock).sleep("a", 1, 2, 0))
        await clock.advance(3)
        await sleeper

        assert clock.sleeps == [1, 2, 0]


class TestWaitForSleepers:
    async def test_it_returns_when_so_many_sleep_and_not_before(self) -> None:
        """A condition, not a guess."""
        clock = ManualClock()
        waiting = asyncio.create_task(clock.wait_for_sleepers(2))
        first = asyncio.create_task(clock.sleep(1))
        await clock.advance(0)
        was_done_with_one = waiting.done()
        second = asyncio.create_task(clock.sleep(1))
        async with asyncio.timeout(30):
            await waiting

        assert (was_done_with_one, clock.sleeping) == (False, 2)
        await clock.advance(1)
        assert (first.done(), second.done()) == (True, True)

    async def test_it_returns_at_once_if_enough_sleep_already(self) -> None:
        """More than enough is enough."""
        clock = ManualClock()
        sleepers = [asyncio.create_task(clock.sleep(1)) for _ in range(2)]
        await clock.wait_for_sleepers(2)
        async with asyncio.timeout(30):
            await clock.wait_for_sleepers(1)

        assert clock.sleeping == 2
        await clock.advance(1)
        await asyncio.gather(*sleepers)

    async def test_several_can_wait_for_different_numbers(self) -> None:
        """Each gets its own answer; one that was cancelled is in nobody's way."""
        clock = ManualClock()
        waiting = [asyncio.create_task(clock.wait_for_sleepers(count)) for count in (1, 1, 2, 3)]
        await asyncio.sleep(0)
        waiting[1].cancel()
        sleepers = [asyncio.create_task(clock.sleep(1)) for _ in range(2)]
        await clock.advance(0)
        is_done = [task.done() for task in waiting]
        waiting[3].cancel()

        assert is_done == [True, True, True, False]
        await clock.advance(1)
        await asyncio.gather(*sleepers)


class TestAutoAdvance:
    async def test_a_sleep_moves_the_time_itself(self) -> None:
        """An hour of back-off takes one turn of the event loop."""
        clock = ManualClock(auto_advance=True)
        await clock.sleep(3600)
        await clock.sleep(0.5)

        assert (clock.now(), clock.sleeping) == (_START + timedelta(seconds=3600.5), 0)
        assert clock.sleeps == [3600, 0.5]

    async def test_sleeps_at_the_same_time_pass_at_the_same_time(self) -> None:
        """Two waits side by side take as long as the longer one."""
        clock = ManualClock(auto_advance=True)
        await asyncio.gather(clock.sleep(5), clock.sleep(1))

        assert clock.monotonic() == 5

    async def test_others_get_a_turn_while_one_sleeps(self) -> None:
        """A sleep without a turn would starve whoever should end it."""
        clock = ManualClock(auto_advance=True)
        other = asyncio.create_task(asyncio.sleep(0))
        await clock.sleep(1)
        await clock.sleep(1)

        assert other.done()
