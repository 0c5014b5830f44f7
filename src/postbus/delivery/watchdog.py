"""Ends handlers that run for too long, with one sleeper instead of a timer for every call."""

import asyncio

from postbus.ports import Clock


class Call:
    """One running handler, as the watchdog sees it."""

    __slots__ = ("_cancellations", "_is_timeout", "deadline", "is_late", "task")

    def __init__(self, task: "asyncio.Task[object]", deadline: float) -> None:
        self.task, self.deadline = task, deadline
        self.is_late = False
        self._is_timeout: bool | None = None
        self._cancellations = task.cancelling()

    def cut_off(self) -> None:
        """Cancel the handler because its time is up."""
        self.is_late = True
        self.task.cancel()

    def is_task_cancelled(self) -> bool:
        """Whether somebody wants the task gone; if not, the handler raised CancelledError of its own."""
        return self.task.cancelling() > self._cancellations

    def ended_by_timeout(self) -> bool:
        """Whether the time was up and nobody else wants the task gone; takes our cancellation back."""
        if self.is_late and self._is_timeout is None:
            self._is_timeout = self.task.uncancel() <= self._cancellations
        return self._is_timeout is True


class Watchdog:
    """Watches calls that all have the same timeout, so that the oldest is always the next one due."""

    def __init__(self, timeout: float, clock: Clock) -> None:
        self._timeout, self._clock = timeout, clock
        self._calls: dict[Call, None] = {}
        self._sleeper: asyncio.Task[None] | None = None

    def begin(self, task: "asyncio.Task[object]") -> Call:
        """Watch what this task does from now on, until end()."""
        call = Call(task, self._clock.monotonic() + self._timeout)
        self._calls[call] = None
        if self._sleeper is None:
            self._sleeper = asyncio.get_running_loop().create_task(self._watch(), name="postbus watchdog")
        return call

    def end(self, call: Call) -> None:
        """The handler has returned."""
        self._calls.pop(call, None)

    def stop(self) -> None:
        """Watch nothing any more."""
        if self._sleeper is not None:
            self._sleeper.cancel()
            self._sleeper = None

    async def _watch(self) -> None:
        while self._calls:
            oldest = next(iter(self._calls))
            if oldest.deadline > self._clock.monotonic():
                await self._clock.until(oldest.deadline)
            elif self._calls.pop(oldest, oldest) is None:
                oldest.cut_off()
        self._sleeper = None
