"""The time limit of statements: one timer for all of them.

A timer of the driver's own for each statement costs a part of what moving a checkpoint takes.
"""

import asyncio
import time
from typing import Protocol

from postbus.stores.postgres import lent

# An event loop that somebody has held up finds the answers that have come meanwhile: they are no reason to
# cut anything off.
_SECONDS_TO_ANSWER = 0.05


class Limited(Protocol):
    """Something that must not take too long."""

    def cut_off(self) -> None:
        """End it; may come more than once."""
        ...


class StatementLimit:
    """Cuts off what is not over within COMMAND_SECONDS. In one event loop."""

    def __init__(self) -> None:
        # When each has to be over, the first first: all have the same time.
        self._ends: dict[Limited, float] = {}
        # What was found to take too long by the last look.
        self._overdue: set[Limited] = set()
        self._timer: asyncio.TimerHandle | None = None

    def begin(self, limited: Limited) -> None:
        """Its time begins."""
        self._ends[limited] = time.monotonic() + lent.COMMAND_SECONDS
        # It is left as it is when a statement is over: mostly another one has begun by then.
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(lent.COMMAND_SECONDS, self._look)

    def end(self, limited: Limited) -> None:
        """It is over."""
        self._ends.pop(limited, None)

    def _look(self) -> None:
        loop, now = asyncio.get_running_loop(), time.monotonic()
        overdue = {limited for limited, end in self._ends.items() if end <= now}
        for limited in overdue & self._overdue:
            limited.cut_off()
        self._overdue, self._timer = overdue, None
        if overdue:
            self._timer = loop.call_later(_SECONDS_TO_ANSWER, self._look)
        elif self._ends:
            self._timer = loop.call_later(min(self._ends.values()) - now, self._look)
