"""A hundred publishers for two seconds, and a ticker in the same event loop.

Argument: the database. Line out: the 99th percentile of the ticks' lateness in seconds, the number of
events published, a report.
"""

import asyncio
import sys
import time

from postbus import Event, EventBus
from tests.end_to_end.ticker import Ticker

PUBLISHER_COUNT = 100
SECONDS = 2.0


async def main(path: str) -> None:
    bus = EventBus(path)

    @bus.on("*")
    async def succeed(event: Event) -> None:
        pass

    async def publish_until(deadline: float) -> int:
        count = 0
        while time.monotonic() < deadline:
            await bus.publish("order.placed", {"order": count})
            count += 1
        return count

    async with bus, Ticker() as ticker:
        deadline = time.monotonic() + SECONDS
        counts = await asyncio.gather(*(publish_until(deadline) for _ in range(PUBLISHER_COUNT)))
    print(ticker.percentile(0.99), sum(counts), ticker.report(), flush=True)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
