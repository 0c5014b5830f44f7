"""The real clock."""

import asyncio
import time
from datetime import UTC, datetime


class SystemClock:
    """The time of this machine.

    >>> SystemClock().now().tzname()
    'UTC'
    """

    __slots__ = ()

    # Not wrapped in a method: it is read for every outcome of every handler.
    monotonic = staticmethod(time.monotonic)

    def now(self) -> datetime:
        """The moment, aware, in UTC."""
        return datetime.now(UTC)

    async def sleep(self, seconds: float) -> None:
        """Return after *seconds*."""
        await asyncio.sleep(seconds)

    async def until(self, deadline: float) -> None:
        """Return when monotonic() has reached *deadline*."""
        await asyncio.sleep(max(0.0, deadline - time.monotonic()))
