"""A future that need not take a turn of the event loop to let its waiter go on.

Each turn asks the system for news and lets go of the GIL; one who publishes alone would wait
for two of them with every event, which is as long as everything else that happens in the loop.
"""

import asyncio
from collections.abc import Callable
from contextvars import Context
from typing import Any, Self


class PromptFuture(asyncio.Future[None]):
    """A future for one waiter."""

    _waiter: tuple[Callable[[Any], object], Context] | None = None

    def add_done_callback(
        self, callback: Callable[[Self], object], /, *, context: Context | None = None
    ) -> None:
        """As with every future; whoever came last can be called at once."""
        self._waiter = None if context is None else (callback, context)
        super().add_done_callback(callback, context=context)

    def finish_at_once(self) -> None:
        """Let the waiter go on before this returns. Not within a task: two can't run at a time."""
        if self._waiter is None:
            self.set_result(None)
            return
        callback, context = self._waiter
        self.remove_done_callback(callback)
        self.set_result(None)
        context.run(callback, self)
