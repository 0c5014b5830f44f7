"""Which event ended the process? Those that may have done so are tried one after the other.

When a process ends, every attempt that was written as begun counts: that of the event which ended it, and
those of the events that other subscribers were at. From then on all of them are suspects, and only one
suspect at a time has an attempt: if the process ends again, no innocent one has lost another.
"""

import asyncio

from postbus.delivery.patience import Patience


class Suspects:
    """Lets one suspect of a bus in at a time. Who asks is known by identity."""

    def __init__(self) -> None:
        self._inside: object | None = None
        self._waiting: list[asyncio.Future[None]] = []

    async def enter(self, me: object, patience: Patience) -> None:
        """Wait until no other suspect has an attempt. StoppedError."""
        while self._inside is not None and self._inside is not me:
            left: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(left)
            await patience.race(left)
        self._inside = me

    def leave(self, me: object) -> None:
        """The attempt has ended, one way or another. Idempotent."""
        if self._inside is me:
            self._inside = None
            waiting, self._waiting = self._waiting, []
            for left in waiting:
                if not left.done():
                    left.set_result(None)
