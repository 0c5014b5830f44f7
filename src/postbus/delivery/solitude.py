"""One attempt runs while no other subscriber of the bus is at work.

When a process ends, every attempt that was written as begun counts as failed: that of the event which
ended it, and those of the events that other subscribers were at. On its last attempt an event is alone,
so that only the guilty one is buried.
"""

import asyncio

from postbus.delivery.patience import Patience


class Solitude:
    """Who is at work, and who wants to be alone. Participants are compared by identity."""

    def __init__(self) -> None:
        self._at_work: set[object] = set()
        self._alone: object | None = None
        self._waiting: list[asyncio.Future[None]] = []

    def is_wanted_by_other(self, me: object) -> bool:
        """Whether to stop after the event at hand, because somebody wants to be alone."""
        return self._alone is not None and self._alone is not me

    async def begin_work(self, me: object, patience: Patience) -> None:
        """Wait until nobody wants to be alone. StoppedError."""
        while self.is_wanted_by_other(me):
            await self._wait(patience)
        self._at_work.add(me)

    def end_work(self, me: object) -> None:
        """At rest, and not alone any more. Idempotent."""
        self._at_work.discard(me)
        if self._alone is me:
            self._alone = None
        self._tell()

    async def begin_alone(self, me: object, patience: Patience) -> None:
        """Wait until everybody else is at rest, and keep them so. StoppedError."""
        self._at_work.discard(me)
        self._tell()
        while self.is_wanted_by_other(me):
            await self._wait(patience)
        self._alone = me
        while self._at_work:
            await self._wait(patience)

    def end_alone(self, me: object) -> None:
        """The attempt has ended; work goes on. Idempotent."""
        if self._alone is me:
            self._alone = None
            self._at_work.add(me)
            self._tell()

    async def _wait(self, patience: Patience) -> None:
        change: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(change)
        await patience.race(change)

    def _tell(self) -> None:
        waiting, self._waiting = self._waiting, []
        for change in waiting:
            if not change.done():
                change.set_result(None)
