"""Ends handlers that run for too long, with one sleeper instead of a timer for every call."""

import asyncio
from collections.abc import Callable, Iterator

from postbus.delivery.subscriptions import Subscription
from postbus.events import Event
from postbus.ports import Clock

# A handler that was cancelled and still goes on after so many seconds is left behind.
_GRACE = 1.0


class Call:
    """One running handler, as the watchdog sees it."""

    __slots__ = (
        "_cancellations",
        "_is_timeout",
        "deadline",
        "event",
        "is_abandoned",
        "is_late",
        "subscription",
        "task",
        "ticket",
    )

    def __init__(
        self,
        task: "asyncio.Task[object]",
        deadline: float,
        subscription: Subscription,
        event: Event,
        ticket: int,
    ) -> None:
        self.task, self.deadline, self.ticket = task, deadline, ticket
        self.subscription, self.event = subscription, event
        self.is_late = False
        self.is_abandoned = False
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

    def __init__(self, timeout: float, clock: Clock, on_abandoned: Callable[[Call], None]) -> None:
        self._timeout, self._clock, self._on_abandoned = timeout, clock, on_abandoned
        self._calls: dict[Call, None] = {}
        # Cancelled, and given a little time to end; their deadlines are in order, too.
        self._ending: dict[Call, None] = {}
        self._has_begun = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._sleeper: asyncio.Task[None] | None = None

    def begin(self, subscription: Subscription, event: Event, ticket: int, began_at: float) -> Call:
        """Watch what the current task does, and has done since just now, until end()."""
        # Some programs cancel all tasks of a loop, ours among them.
        if self._sleeper is None or self._sleeper.done():
            self._loop = asyncio.get_running_loop()
            self._sleeper = self._loop.create_task(self._watch(), name="postbus watchdog")
        # With the loop given it need not be looked up, which is slow and happens for every event.
        task = asyncio.current_task(self._loop)
        assert task is not None, "handlers run in tasks"
        call = Call(task, began_at + self._timeout, subscription, event, ticket)
        self._calls[call] = None
        self._has_begun = True
        return call

    def end(self, call: Call) -> None:
        """The handler has returned."""
        self._calls.pop(call, None)
        if call.is_late:
            self._ending.pop(call, None)

    def __iter__(self) -> Iterator[Call]:
        """All calls that have not ended."""
        yield from self._calls
        yield from self._ending

    def stop(self) -> None:
        """Watch nothing any more."""
        if self._sleeper is not None:
            self._sleeper.cancel()
            self._sleeper = None

    async def _watch(self) -> None:
        is_needed = True
        while is_needed:
            self._has_begun = False
            now = self._clock.monotonic()
            for call in _take_due(self._calls, now):
                call.cut_off()
                call.deadline = now + _GRACE
                self._ending[call] = None
            for call in _take_due(self._ending, now):
                call.is_abandoned = True
                self._on_abandoned(call)
            due = [next(iter(calls)).deadline for calls in (self._calls, self._ending) if calls]
            # What begins meanwhile is due later than a timeout from now. When nothing runs it stays
            # nevertheless: a task for each of many quick handlers would cost as much as they do.
            await self._clock.until(min([*due, now + self._timeout]))
            is_needed = bool(self._calls or self._ending or self._has_begun)
        self._sleeper = None


def _take_due(calls: dict[Call, None], now: float) -> list[Call]:
    due: list[Call] = []
    for call in calls:
        if call.deadline > now:
            break
        due.append(call)
    for call in due:
        del calls[call]
    return due
