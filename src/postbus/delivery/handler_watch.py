"""Ends the handler of a durable subscriber when it runs for too long: one sleeper, no timer per event."""

import asyncio
from collections.abc import Callable

from postbus.closing import is_within
from postbus.ports import Clock

# A handler that was cancelled and still goes on after so many seconds is left behind.
_GRACE = 1.0


class HandlerWatch:
    """Watches the handler that the current task of a subscriber runs, one at a time."""

    def __init__(self, timeout: float, clock: Clock, on_stubborn: Callable[[], None]) -> None:
        self.timeout, self._clock, self._on_stubborn = timeout, clock, on_stubborn
        self._task: asyncio.Task[object] | None = None
        self.is_watching = False
        """Whether a handler runs."""
        self._has_begun = False
        self.began_at = 0.0
        """When the last handler began, in monotonic seconds."""
        self.now = clock.monotonic
        self.is_late = False
        """Whether the handler was cut off, and take_timeout() not asked yet."""
        self.is_stubborn = False
        """Whether the handler went on nevertheless, and was given up."""
        self._sleeper: asyncio.Task[None] | None = None

    def begin(self) -> None:
        """The handler begins, in the current task; another one may follow it, with a began_at of its own."""
        self.began_at = self.now()
        self.is_watching = self._has_begun = True
        self._task = asyncio.current_task()
        # Some programs cancel all tasks of a loop, ours among them.
        if self._sleeper is None or self._sleeper.done():
            self._sleeper = asyncio.get_running_loop().create_task(self._watch(), name="postbus watch")

    def end(self) -> None:
        """The handler has ended, one way or another."""
        self.is_watching = False

    @property
    def is_within_task(self) -> bool:
        """Whether it is the handler's own task that asks."""
        return is_within(self._task)

    def take_timeout(self) -> bool:
        """Whether the handler that ended just now was cut off for its time; takes our cancellation back."""
        self.is_late = False
        # The next handler gets a sleeper of its own: this one waits for the late one to be stubborn.
        self.stop()
        assert self._task is not None, "only a watched task is late"
        # Somebody else may want the task gone as well: then it is not the time alone.
        return self._task.uncancel() == 0

    def stop(self) -> None:
        """Watch nothing any more."""
        if self._sleeper is not None:
            self._sleeper.cancel()
            self._sleeper = None

    async def _watch(self) -> None:
        is_needed = True
        while is_needed:
            self._has_begun, now = False, self.now()
            deadline = (self.began_at if self.is_watching else now) + self.timeout
            if deadline <= now:
                await self._cut_off()
                return
            # While nothing runs it stays nevertheless: what begins meanwhile is due later than this, and a
            # task for each of many quick handlers would cost as much as they do.
            await self._clock.until(deadline)
            is_needed = self.is_watching or self._has_begun
        self._sleeper = None

    async def _cut_off(self) -> None:
        assert self._task is not None, "a handler runs in a task"
        self.is_late = True
        self._task.cancel()
        await self._clock.until(self.now() + _GRACE)
        self.is_stubborn = True
        self._on_stubborn()
