"""Threads for plain functions, which would block the event loop.

Daemon threads of our own: a handler that hangs must not keep the program from ending,
as the threads of concurrent.futures would.
"""

import asyncio
import contextlib
import contextvars
import queue
import threading
from collections.abc import Callable
from typing import TypeVar

_MOST_THREADS = 32

T = TypeVar("T")
_Work = Callable[[], None]


class HandlerThreads:
    """Starts threads as they are needed and keeps them until stop()."""

    def __init__(self) -> None:
        self._work: queue.SimpleQueue[_Work | None] = queue.SimpleQueue()
        self._thread_count = 0
        self._busy_count = 0

    async def run(self, function: Callable[[], T]) -> T:
        """Call it in a thread, in the caller's context; cancelling gives up waiting, not the thread."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        context = contextvars.copy_context()
        self._busy_count += 1
        self._work.put(lambda: self._call(loop, future, context, function))
        if self._busy_count > self._thread_count and self._thread_count < _MOST_THREADS:
            self._thread_count += 1
            threading.Thread(target=self._serve, name="postbus handler", daemon=True).start()
        return await future

    def stop(self) -> None:
        """Let every thread end after what it is doing."""
        for _ in range(self._thread_count):
            self._work.put(None)
        self._thread_count = 0

    def _serve(self) -> None:
        while (work := self._work.get()) is not None:
            work()

    def _call(
        self,
        loop: asyncio.AbstractEventLoop,
        future: "asyncio.Future[T]",
        context: contextvars.Context,
        function: Callable[[], T],
    ) -> None:
        result: T | None = None
        error: BaseException | None = None
        try:
            result = context.run(function)
        except BaseException as raised:
            error = raised
        # The loop may be closed when a handler outlives its bus.
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(self._settle, future, result, error)

    def _settle(self, future: "asyncio.Future[T]", result: T, error: BaseException | None) -> None:
        self._busy_count -= 1
        if future.done():
            return
        if error is None:
            future.set_result(result)
        elif isinstance(error, StopIteration):
            # A future can't carry it.
            future.set_exception(RuntimeError(f"handler raised {error!r}"))
        else:
            future.set_exception(error)
