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
# Not a class of its own: asyncio.timeout() knows no cancellation but the plain one on older Pythons.
_GOES_ON = "the function goes on in its thread"

T = TypeVar("T")


class _Job:
    """One call of a function, on its way into a thread and back."""

    __slots__ = ("context", "error", "function", "future", "has_begun", "has_ended", "is_given_up", "result")

    def __init__(self, function: Callable[[], object], future: "asyncio.Future[object]") -> None:
        self.function, self.future = function, future
        self.context = contextvars.copy_context()
        self.has_begun = self.has_ended = self.is_given_up = False
        self.result: object = None
        self.error: BaseException | None = None

    def call(self) -> None:
        try:
            self.result = self.context.run(self.function)
        except BaseException as raised:
            self.error = raised

    def settle(self) -> None:
        """Tell the caller, in the event loop."""
        if isinstance(self.error, StopIteration | GeneratorExit | SystemExit | KeyboardInterrupt):
            # A future can't carry the first, a task that awaits it would be closed by the second, and the
            # loop ended by the others, which no signal has raised here.
            self.future.set_exception(RuntimeError(f"handler raised {self.error!r}"))
        elif self.error is not None:
            self.future.set_exception(self.error)
        else:
            self.future.set_result(self.result)


def goes_on_in_thread(error: BaseException | None) -> bool:
    """Whether this is the cancellation of a wait for a function that runs in its thread nevertheless."""
    return isinstance(error, asyncio.CancelledError) and error.args == (_GOES_ON,)


class HandlerThreads:
    """Starts threads as they are needed and keeps them until stop()."""

    def __init__(self) -> None:
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._guard = threading.Lock()
        self._thread_count = 0
        self._busy_count = 0
        self.places = asyncio.Semaphore(_MOST_THREADS)
        """One for each call: who holds it has a thread, or will have it at once."""

    async def run(self, function: Callable[[], T]) -> T:
        """Call it in a thread, in the caller's context.

        Cancelling gives up waiting, not the thread: see goes_on_in_thread().
        """
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        job = _Job(function, future)  # type: ignore[arg-type]
        self._busy_count += 1
        self._jobs.put(job)
        self._start_thread_if_needed()
        try:
            return await future
        except asyncio.CancelledError:
            if future.cancelled() and self._give_up(job):
                raise asyncio.CancelledError(_GOES_ON) from None
            raise

    def stop(self) -> None:
        """Let every thread end after what it is doing."""
        for _ in range(self._thread_count):
            self._jobs.put(None)
        self._thread_count = 0

    def _start_thread_if_needed(self) -> None:
        if self._busy_count > self._thread_count and self._thread_count < _MOST_THREADS:
            self._thread_count += 1
            threading.Thread(target=self._serve, name="postbus handler", daemon=True).start()

    def _give_up(self, job: _Job) -> bool:
        """Nobody waits for the job: it will not begin any more, and if it hangs another thread steps in.

        Whether it runs.
        """
        with self._guard:
            job.is_given_up = True
            is_running = job.has_begun and not job.has_ended
        self._busy_count -= 1
        if is_running and self._thread_count:
            self._thread_count -= 1
            self._start_thread_if_needed()
        return is_running

    def _settle(self, job: _Job) -> None:
        if not job.is_given_up:
            self._busy_count -= 1
            job.settle()

    # From here on: one of the threads.

    def _serve(self) -> None:
        while (job := self._jobs.get()) is not None:
            with self._guard:
                if job.is_given_up:
                    continue
                job.has_begun = True
            job.call()
            if self._note_end(job):
                return  # another thread is here in place of this one
            # The loop may be closed when a handler outlives its bus.
            with contextlib.suppress(RuntimeError):
                job.future.get_loop().call_soon_threadsafe(self._settle, job)

    def _note_end(self, job: _Job) -> bool:
        """Whether the caller had given it up by then."""
        with self._guard:
            job.has_ended = True
            return job.is_given_up
