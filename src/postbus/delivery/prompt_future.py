"""What one task waits for, at half the price of a future, and without the turns of the event loop.

A future has its waiter called in a turn of its own: for one who publishes alone that takes, with
the calls of the system in each turn, as long as everything else that happens in the loop; for many
who are let go together it is a part of what an event costs. A task can wait for anything that
behaves as a future towards it.
"""

import asyncio
from collections.abc import Callable, Generator
from contextvars import Context


class PromptFuture:
    """Awaited by one task, once."""

    __slots__ = (
        "_asyncio_future_blocking", "_callback", "_cancelled_with", "_context", "_error", "_is_cancelled",
        "_is_done", "_loop", "_traceback",
    )  # fmt: skip

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        # By these two a task sees that it is to wait, and that it is in the right event loop.
        self._asyncio_future_blocking, self._loop = False, loop
        self._callback: Callable[[PromptFuture], object] | None = None
        self._is_done = self._is_cancelled = False
        self._error: BaseException | None = None

    def __await__(self) -> "Generator[PromptFuture, None, None]":
        if not self._is_done:
            self._asyncio_future_blocking = True
            yield self
        if (error := self._error) is not None:
            try:
                # One error may be that of many, and must not collect the way to each of them.
                raise error.with_traceback(self._traceback)
            finally:
                # It has this frame now, which must not have it as well: that would keep both alive.
                del self, error

    def done(self) -> bool:
        """Whether there is nothing to wait for any more."""
        return self._is_done

    def finish(self, error: BaseException | None = None) -> None:
        """Let the waiter go on in the next turn of the event loop."""
        if self.settle(error):
            self._loop.call_soon(self.wake)

    def finish_at_once(self) -> None:
        """Let the waiter go on before this returns. Not within a task: two can't run at a time."""
        if self.settle():
            self.wake()

    def settle(self, error: BaseException | None = None) -> bool:
        """From now on there is nothing to wait for; whether somebody waits, whom wake() has to let go on."""
        if self._is_done:
            return False
        self._is_done = True
        if error is not None:
            self._error, self._traceback = error, error.__traceback__
        return self._callback is not None

    def wake(self) -> None:
        """Let the waiter of one that is settled go on before this returns. Once, and not within a task."""
        assert self._callback is not None, "settle() has said that nobody waits"
        self._context.run(self._callback, self)

    # From here on: what the waiting task asks for.

    def add_done_callback(self, callback: "Callable[[PromptFuture], object]", *, context: Context) -> None:
        """Called when the task begins to wait."""
        self._callback, self._context = callback, context

    def cancel(self, msg: object = None) -> bool:
        """Called when the task is cancelled; False: that reaches it where it goes on."""
        if self._is_done:
            return False
        self._is_done = self._is_cancelled = True
        self._cancelled_with = () if msg is None else (msg,)
        self._loop.call_soon(self.wake)
        return True

    def result(self) -> None:
        """Called when the task goes on."""
        if self._is_cancelled:
            raise asyncio.CancelledError(*self._cancelled_with)
