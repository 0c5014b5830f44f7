"""Tasks that go on until they are told to end: one that breaks off is started again."""

import asyncio
import contextvars
import logging
from collections.abc import Callable, Coroutine
from typing import Any

from postbus.delivery.patience import StoppedError
from postbus.errors import StoreClosedError

logger = logging.getLogger("postbus")

_SECONDS_AFTER_ERROR = 1.0

Work = Callable[[], Coroutine[Any, Any, None]]


class Crew:
    """The tasks of one worker."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._tasks: set[asyncio.Task[None]] = set()
        self._restarts: set[asyncio.TimerHandle] = set()
        self._is_stopping = False

    def keep(self, work: Work) -> "asyncio.Task[None]":
        """Run this until it returns; if it is cancelled from outside or fails, once more a little later."""
        task = self.run(work())
        task.add_done_callback(lambda ended: self._keep_on(ended, work))
        return task

    def run(self, coroutine: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        """Run this once."""
        # Without the context of whoever happens to start it: handlers run in it.
        task = asyncio.get_running_loop().create_task(
            coroutine, name=f"postbus {self._name}", context=contextvars.Context()
        )
        self._tasks.add(task)
        task.add_done_callback(self._tell)
        return task

    def stop(self) -> None:
        """Start nothing again."""
        self._is_stopping = True
        for restart in self._restarts:
            restart.cancel()

    async def cut_off(self, by: "asyncio.Task[object] | None", seconds: float) -> None:
        """End all but the one who asks for it."""
        self.stop()
        tasks = [task for task in self._tasks if task is not by]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=seconds)

    def _tell(self, task: "asyncio.Task[None]") -> None:
        """What ends must not end in silence."""
        self._tasks.discard(task)
        if task.cancelled():
            if not self._is_stopping:
                logger.warning("a task of the %s was cancelled from outside; it starts again", self._name)
        elif isinstance(error := task.exception(), StoreClosedError):
            if not self._is_stopping:
                logger.error("the %s stops: %s", self._name, error)
        elif error is not None and not isinstance(error, StoppedError):
            # Ours to mend.
            logger.error("the %s met an error that postbus did not expect", self._name, exc_info=error)

    def _keep_on(self, task: "asyncio.Task[None]", work: Work) -> None:
        error = None if task.cancelled() else task.exception()
        is_over = error is None and not task.cancelled()
        if self._is_stopping or is_over or isinstance(error, StoppedError | StoreClosedError):
            return

        def restart() -> None:
            self._restarts.discard(timer)
            self.keep(work)

        # Later, and not at all where the event loop is about to end.
        timer = asyncio.get_running_loop().call_later(_SECONDS_AFTER_ERROR, restart)
        self._restarts.add(timer)
