"""Keeps an event loop that never rests from starving our threads.

A thread that waits for the GIL asks for it after 5 ms; but each time the loop lets go of it for
an instant, as it does in every turn, the 5 ms begin anew. Beside a loop that always has
something to do, a commit or a read could so take seconds.
"""

import asyncio
import threading
import time
from collections.abc import Callable

# A thread that is not done after this long may be waiting for the GIL: most groups take less.
_NUDGE_AFTER = 0.0005
# Or for its disk: after each nudge that was in vain the next one comes later, up to this.
_LONGEST_WAIT = 0.008
_NUDGE_SECONDS = 0.002
# A loop that rests for more than the remainder lets go of the GIL by itself: then the disk is slow.
_BUSY_SHARE = 0.9


class Nudge:
    """Lets go of the GIL for a moment while the loop is busy and waits for a thread."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, is_waiting: Callable[[], bool], answer: Callable[[], None]
    ) -> None:
        """*answer* hears what the thread has told: the next turn of a busy loop may be long in coming."""
        self._loop, self._is_waiting, self._answer = loop, is_waiting, answer
        self.is_armed = False
        """Whether it looks by itself soon."""
        self._armed_with = (0.0, 0.0)
        self._wait = _NUDGE_AFTER
        # Setting an Event costs more than asking whether anybody waits for it.
        self._is_nudging = False
        self._news = threading.Event()
        self._news_count = 0
        self.heard_count = 0
        """How much of what the thread has told the loop has got."""

    def arm(self) -> None:
        """The loop waits for the thread from now on."""
        if not self.is_armed:
            self.is_armed = True
            self._armed_with = (time.monotonic(), time.thread_time())
            self._loop.call_later(self._wait, self._nudge)

    def tell(self) -> None:
        """The thread has told the loop something; called in the thread."""
        self._news_count += 1
        if self._is_nudging:
            self._news.set()

    def _nudge(self) -> None:
        self.is_armed = False
        if not self._is_waiting():
            return
        armed_at, worked_before = self._armed_with
        worked = time.thread_time() - worked_before
        has_news = self._news_count > self.heard_count
        if not has_news and worked > _BUSY_SHARE * (time.monotonic() - armed_at):
            self._news.clear()
            self._is_nudging = True
            has_news = self._news.wait(_NUDGE_SECONDS)
            self._is_nudging = False
            self._wait = _NUDGE_AFTER if has_news else min(2 * self._wait, _LONGEST_WAIT)
        self.arm()
        if has_news:
            self._answer()
