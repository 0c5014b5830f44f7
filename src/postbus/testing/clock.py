"""A clock that stands still until a test moves it."""

import asyncio
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from postbus.errors import InvalidConfigError

_DEFAULT_START = datetime(2026, 1, 1, tzinfo=UTC)
_NANOSECONDS = 1_000_000_000
# An awaited result passes through a few turns of the loop, each of which can look idle from
# here (a thread answers, a timer of 0 seconds is due), so one quiet turn proves little.
_QUIET_TURNS = 50
# A task that polls with sleep(0) keeps the loop busy for ever; time goes on nevertheless.
_MOST_TURNS = 10_000


@dataclass(eq=False, slots=True)
class _Sleeper:
    wakes_at: int
    is_awake: asyncio.Future[None]


@dataclass(eq=False, slots=True)
class _Waiter:
    sleeper_count: int
    is_reached: asyncio.Future[None]


class ManualClock:
    """Time that moves when a test says so: hours of back-off pass in microseconds.

    With *auto_advance* a sleep returns after one turn of the event loop and moves the time
    itself; nobody ever waits. Deadlines (the timeout of a handler, of a shutdown) never move it.

    >>> async def remind(clock: ManualClock) -> str:
    ...     await clock.sleep(3600)
    ...     return f"an hour later it is {clock.now():%H:%M}"
    >>> async def main() -> str:
    ...     clock = ManualClock()
    ...     reminder = asyncio.create_task(remind(clock))
    ...     await clock.wait_for_sleepers(1)
    ...     await clock.advance(3600)
    ...     return await reminder
    >>> asyncio.run(main())
    'an hour later it is 01:00'
    """

    def __init__(self, start: datetime = _DEFAULT_START, *, auto_advance: bool = False) -> None:
        if start.tzinfo is None:
            raise InvalidConfigError("ManualClock.start", start, "an aware datetime")
        self.sleeps: list[float] = []
        """Every duration that was asked for, in order."""
        self._started_at = start.astimezone(UTC)
        self._auto_advance = auto_advance
        # Whole nanoseconds: in floats 0.7 + 0.1 falls short of 0.8, and the sleeper sleeps on.
        self._elapsed = 0
        self._sleepers: list[_Sleeper] = []
        self._deadlines: list[_Sleeper] = []
        self._waiters: list[_Waiter] = []
        self._change_count = 0
        self._advancing = asyncio.Lock()

    @property
    def sleeping(self) -> int:
        """How many sleep now; deadlines don't count."""
        return len(self._sleepers)

    def now(self) -> datetime:
        """The moment, aware, in UTC."""
        return self._started_at + timedelta(microseconds=self._elapsed // 1000)

    def monotonic(self) -> float:
        """Seconds since the clock was made."""
        return self._elapsed / _NANOSECONDS

    async def sleep(self, seconds: float) -> None:
        """Return when the time has moved by *seconds*."""
        self.sleeps.append(seconds)
        wakes_at = self._elapsed + round(seconds * _NANOSECONDS)
        if self._auto_advance or wakes_at <= self._elapsed:
            await asyncio.sleep(0)
            self._elapsed = max(self._elapsed, wakes_at)
            self._wake(self._elapsed)
            return
        sleeper = _Sleeper(wakes_at, asyncio.get_running_loop().create_future())
        self._add(sleeper)
        try:
            await sleeper.is_awake
        finally:
            self._remove(sleeper)

    async def until(self, deadline: float) -> None:
        """Return when the time has come to *deadline* seconds of monotonic()."""
        wakes_at = round(deadline * _NANOSECONDS)
        if wakes_at <= self._elapsed:
            return
        waiting = _Sleeper(wakes_at, asyncio.get_running_loop().create_future())
        self._deadlines.append(waiting)
        try:
            await waiting.is_awake
        finally:
            if waiting in self._deadlines:
                self._deadlines.remove(waiting)

    async def advance(self, seconds: float) -> None:
        """Move the time, waking the sleepers one moment after the other.

        What a woken task does, further sleeps included, happens at its own moment: the time
        stands still until the event loop is idle. Work in threads is not seen; wait for
        its effect (wait_for_sleepers, for example) before moving on.
        """
        if seconds < 0:
            raise InvalidConfigError("ManualClock.advance", seconds, "0 or more seconds")
        async with self._advancing:
            await self._run_until_idle()
            target = self._elapsed + round(seconds * _NANOSECONDS)
            while (moment := self._next_moment(target)) is not None:
                self._elapsed = moment
                self._wake(moment)
                await self._run_until_idle()
            self._elapsed = target

    async def wait_for_sleepers(self, count: int) -> None:
        """Return when at least *count* sleep; with auto_advance nobody does."""
        if len(self._sleepers) >= count:
            return
        waiter = _Waiter(count, asyncio.get_running_loop().create_future())
        self._waiters.append(waiter)
        try:
            await waiter.is_reached
        finally:
            self._waiters.remove(waiter)

    def _add(self, sleeper: _Sleeper) -> None:
        self._sleepers.append(sleeper)
        self._change_count += 1
        for waiter in self._waiters:
            if len(self._sleepers) >= waiter.sleeper_count and not waiter.is_reached.done():
                waiter.is_reached.set_result(None)

    def _remove(self, sleeper: _Sleeper) -> None:
        # A woken sleeper was removed already; a cancelled one was not.
        if sleeper in self._sleepers:
            self._sleepers.remove(sleeper)
            self._change_count += 1

    def _next_moment(self, target: int) -> int | None:
        moment = min((sleeper.wakes_at for sleeper in (*self._sleepers, *self._deadlines)), default=None)
        return moment if moment is not None and moment <= target else None

    def _wake(self, moment: int) -> None:
        for sleeper in [each for each in (*self._sleepers, *self._deadlines) if each.wakes_at <= moment]:
            self._remove(sleeper)
            if sleeper in self._deadlines:
                self._deadlines.remove(sleeper)
            # In a loop that hides what is ready, a cancelled sleeper may not have had its turn yet.
            if not sleeper.is_awake.done():
                sleeper.is_awake.set_result(None)

    async def _run_until_idle(self) -> None:
        """Let the other tasks run until nothing is ready and nobody starts or stops sleeping."""
        loop = asyncio.get_running_loop()
        quiet_turns = 0
        for _ in range(_MOST_TURNS):
            change_count = self._change_count
            await asyncio.sleep(0)
            # asyncio keeps what is ready in _ready; other loops hide it, and there the
            # number of quiet turns has to do.
            is_busy = bool(getattr(loop, "_ready", ())) or change_count != self._change_count
            quiet_turns = 0 if is_busy else quiet_turns + 1
            if quiet_turns == _QUIET_TURNS:
                return
