"""A clock on which back-offs and open circuit breakers pass ten thousand times faster."""

import asyncio
import time
from datetime import UTC, datetime

_SPEED = 10_000


class FastClock:
    """The moment is the real one, so that events keep their order; only waiting is quick."""

    def now(self) -> datetime:
        return datetime.now(UTC)

    def monotonic(self) -> float:
        return time.monotonic() * _SPEED

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds / _SPEED)

    async def until(self, deadline: float) -> None:
        while (seconds := deadline - self.monotonic()) > 0:
            await self.sleep(seconds)


# A timeout on this clock that nobody reaches: 100 real seconds.
NO_TIMEOUT = 100.0 * _SPEED
