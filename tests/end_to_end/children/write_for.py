"""Publishes for a while, or starts and ends a bus again and again for a while.

Arguments: the database, the history, "publish" or "restart", seconds.
Lines in: "begin". Lines out: how often it did it.
Any error ends it with exit code 1.
"""

import asyncio
import sys
import time
from pathlib import Path

from postbus import Event, EventBus
from tests.end_to_end.history import ACKNOWLEDGED, DELIVERED, History

PUBLISHER_COUNT = 5


def make_bus(path: str, history: History) -> EventBus:
    bus = EventBus(path)

    @bus.on("ok.*")
    async def succeed(event: Event) -> None:
        history.note(f"{DELIVERED}-by-writer", event.id)

    return bus


async def publish(path: str, history: History, seconds: float) -> int:
    """All the time, several at once."""

    async def publish_until(deadline: float) -> int:
        count = 0
        while time.monotonic() < deadline:
            history.note(ACKNOWLEDGED, await bus.publish("ok.event", count))
            count += 1
        return count

    async with make_bus(path, history) as bus:
        deadline = time.monotonic() + seconds
        return sum(await asyncio.gather(*(publish_until(deadline) for _ in range(PUBLISHER_COUNT))))


async def restart(path: str, history: History, seconds: float) -> int:
    """Each time with everything that opening and closing a file takes."""
    count, deadline = 0, time.monotonic() + seconds
    while time.monotonic() < deadline:
        async with make_bus(path, history) as bus:
            history.note(ACKNOWLEDGED, await bus.publish("ok.event", count))
            await bus.dlq.list()
        count += 1
    return count


if __name__ == "__main__":
    arguments = (sys.argv[1], History(Path(sys.argv[2])), float(sys.argv[4]))
    sys.stdin.readline()
    print(asyncio.run(publish(*arguments) if sys.argv[3] == "publish" else restart(*arguments)), flush=True)
