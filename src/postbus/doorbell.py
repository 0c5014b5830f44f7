"""Calls into an event loop from other threads, at half the price of call_soon_threadsafe().

What that sends has to be received until nothing is left: two calls of the system, each of which lets go
of the GIL and must win it back from the very thread that has called. A counter of the system is read at once.
"""

import asyncio
import contextlib
import contextvars
import functools
import os
import threading
from collections import deque
from collections.abc import Callable
from typing import TypeVarTuple

Ts = TypeVarTuple("Ts")


class Doorbell:
    """Rung by any thread, answered by one event loop, in the order of ringing."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        """To be made in the loop."""
        self._loop = loop
        self._calls: deque[Callable[[], object]] = deque()
        # A number that is closed may be somebody else's file the next moment: nobody may write to it then.
        self._guard = threading.Lock()
        self._counter: int | None = None
        self._install()

    def ring(self, callback: Callable[[*Ts], object], *args: *Ts) -> None:
        """Have the loop call this soon, outside of tasks and contexts; in vain if it is closed."""
        if self._loop.is_closed():
            return
        self._calls.append(functools.partial(callback, *args))
        with self._guard:
            if self._counter is not None:
                os.eventfd_write(self._counter, 1)
                return
        with contextlib.suppress(RuntimeError):  # a program may end its loop without ending us
            self._loop.call_soon_threadsafe(self._answer, context=contextvars.Context())

    def take_down(self) -> None:
        """Answer who has rung by now; whoever rings later goes the slow way. Idempotent.

        In the loop, or when that is closed: then there is nobody left to answer.
        """
        with self._guard:
            counter, self._counter = self._counter, None
        if counter is None:
            return
        if self._loop.is_closed():
            self._calls.clear()
        else:
            self._loop.remove_reader(counter)
            self.answer()
        os.close(counter)

    def __del__(self) -> None:
        # The loop was closed before: as long as it listens it keeps us alive.
        if self._counter is not None:
            os.close(self._counter)

    def _install(self) -> None:
        if not hasattr(os, "eventfd"):
            return
        try:
            counter = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        except OSError:
            return  # too many open files: the slow way needs none
        try:
            self._loop.add_reader(counter, self._hear)
        except NotImplementedError:
            os.close(counter)
        else:
            self._counter = counter

    def answer(self) -> None:
        """Answer whoever has rung by now, and not only in the next turn of the loop; outside of tasks."""
        # Neither in the context of whoever happens to have opened the store nor in that of the last call.
        contextvars.Context().run(self._answer)

    def _hear(self) -> None:
        if self._counter is not None:
            with contextlib.suppress(BlockingIOError):
                os.eventfd_read(self._counter)
        self.answer()

    def _answer(self) -> None:
        calls = self._calls
        while calls:
            call = calls.popleft()
            try:
                call()
            except BaseException:
                # Whatever it was, the others are answered all the same.
                self._loop.call_soon(self._answer, context=contextvars.Context())
                raise
