"""The time limit of statements: one timer for all of them.

A timer of the driver's own for each statement costs a part of what moving a checkpoint takes.
"""

import asyncio
from typing import Protocol

from postbus.stores.postgres import lent


class Limited(Protocol):
    """Something that must not take too long."""

    def cut_off(self) -> None:
        """End it; may come more than once."""
        ...


class StatementLimit:
    """Cuts off what is not over within COMMAND_SECONDS."""

    def __init__(self) -> None:
        # When each has to be over, the first first: all have the same time.
        self._ends: dict[Limited, float] = {}
        self._timer: asyncio.TimerHandle | None = None

    def begin(self, limited: Limited) -> None:
        """Its time begins."""
        loop = asyncio.get_running_loop()
        self._ends[limited] = loop.time() + lent.COMMAND_SECONDS
        # It is left as it is when a statement is over: mostly another one has begun by then.
        if self._timer is None:
            self._timer = loop.call_later(lent.COMMAND_SECONDS, self._look)

    def end(self, limited: Limited) -> None:
        """It is over."""
        self._ends.pop(limited, None)

    def stop(self) -> None:
        """Cut nothing off any more."""
        self._ends.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self) -> None:
        self._timer = None
        loop = asyncio.get_running_loop()
        for limited, end in list(self._ends.items()):
            if end > loop.time():
                self._timer = loop.call_at(end, self._look)
                return
            limited.cut_off()
