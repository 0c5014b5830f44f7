"""A hundred publishers for two seconds, and a ticker in the same event loop.

Argument: the database. Lines out: the 99th percentile of the ticks' lateness in seconds beside the
publishers, the same beside tasks that only compute, the number of events published, and a report.
"""

import asyncio
import sys
import time

from postbus import Event, EventBus
from tests.end_to_end.ticker import Ticker

PUBLISHER_COUNT = 100
SECONDS = 2.0
NOISE_SECONDS = 0.5


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

    noise = await measure_noise()
    async with bus, Ticker() as ticker:
        deadline = time.monotonic() + SECONDS
        counts = await asyncio.gather(*(publish_until(deadline) for _ in range(PUBLISHER_COUNT)))
    noise = max(noise, await measure_noise())
    for line in (ticker.percentile(0.99), noise, sum(counts), ticker.report()):
        print(line, flush=True)


async def measure_noise() -> float:
    """How late a ticker is in a loop that is as busy and has no bus: the machine's doing."""

    async def compute_until(deadline: float) -> None:
        while time.monotonic() < deadline:
            sum(range(500))
            await asyncio.sleep(0)

    async with Ticker() as ticker:
        deadline = time.monotonic() + NOISE_SECONDS
        await asyncio.gather(*(compute_until(deadline) for _ in range(PUBLISHER_COUNT)))
    return ticker.percentile(0.99)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
