"""Ends the handler of a durable subscriber when it runs for too long: one sleeper, no timer per event."""

import asyncio
import math
from collections.abc import Callable

from postbus.ports import Clock

# A handler that was cancelled and still goes on after so many seconds is left behind.
_GRACE = 1.0


class HandlerWatch:
    """Watches the handler that the current task of a subscriber runs, one at a time."""

    def __init__(self, timeout: float, clock: Clock, on_stubborn: Callable[[], None]) -> None:
        self.timeout, self._clock, self._on_stubborn = timeout, clock, on_stubborn
        self._task: asyncio.Task[object] | None = None
        self._deadline = math.inf
        self.began_at = 0.0
        """When the last handler began, in monotonic seconds."""
        self.now = clock.monotonic
        self.is_late = False
        """Whether the handler was cut off, and take_timeout() not asked yet."""
        self.is_stubborn = False
        """Whether the handler went on nevertheless, and was given up."""
        self._sleeper: asyncio.Task[None] | None = None

    @property
    def is_watching(self) -> bool:
        """Whether a handler runs."""
        return self._deadline != math.inf

    def begin(self) -> float:
        """The handler begins, in the current task; at which moment."""
        self.began_at = now = self.now()
        self._deadline = now + self.timeout
        if self._sleeper is None:
            self._task = asyncio.current_task()
            self._sleeper = asyncio.get_running_loop().create_task(self._watch(), name="postbus watch")
        return now

    def end(self) -> None:
        """The handler has ended, one way or another."""
        self._deadline = math.inf

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
        # While nothing runs nobody has to watch: the next handler calls for a new sleeper.
        while self._deadline != math.inf:
            if self._deadline > self.now():
                await self._clock.until(self._deadline)
            else:
                await self._cut_off()
                return
        self._sleeper = None

    async def _cut_off(self) -> None:
        assert self._task is not None, "a handler runs in a task"
        self.is_late = True
        self._task.cancel()
        await self._clock.until(self.now() + _GRACE)
        self.is_stubborn = True
        self._on_stubborn()
