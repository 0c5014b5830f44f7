"""SIGINT and SIGTERM: the first asks for a clean end, a second one ends the process at once."""

import asyncio
import logging
import os
import signal
import time
from collections.abc import Callable
from types import FrameType

logger = logging.getLogger("postbus.worker")

# Some senders signal a process and then its whole group, which is one request and not two.
_SAME_SECONDS = 0.1


class StopSignals:
    """Turns signals into an event. Lives as long as the process."""

    def __init__(self, stop: asyncio.Event, before_end: Callable[[], None] = lambda: None) -> None:
        self._stop, self._before_end = stop, before_end
        self._first_at: float | None = None

    def listen(self) -> None:
        """Begin, in the running event loop."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._ask, number)
            # Over it, one that works while a handler blocks the event loop. The loop still wakes up for
            # the other: it reads a pipe that Python writes to on every signal.
            signal.signal(number, self._count)

    def _ask(self, number: signal.Signals) -> None:
        if not self._stop.is_set():
            logger.info("%s: shutting down; a second signal ends it at once", number.name)
            self._stop.set()

    def _count(self, number: int, _frame: FrameType | None) -> None:
        now = time.monotonic()
        if self._first_at is None:
            self._first_at = now
        elif now - self._first_at >= _SAME_SECONDS:
            self._before_end()
            os._exit(128 + number)
