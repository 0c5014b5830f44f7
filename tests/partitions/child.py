"""An instance of a partitioned subscriber, in a process of its own that a test ends.

Arguments: the DSN, the file of its history, the number of partitions, the seconds that its handler takes,
what it is ("plain" or "transactional"), and its failover_timeout.
"""

import asyncio
import os
import signal
import sys
import time
from typing import Any

from postbus import Event, PgEventBus, ReliableDeliveryConfig


async def live(dsn: str, path: str, partitions: int, seconds: float, kind: str, failover: float) -> None:
    """Until it is told to end, or its parent is gone."""
    ending = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, ending.set)
    # A parent that is gone closes its end.
    loop.add_reader(sys.stdin.fileno(), ending.set)
    history = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def note(what: str, event: Event) -> None:
        line = f"{what} {time.monotonic()} {event.stream_id} {event.global_sequence} .\n"
        os.write(history, line.encode())

    async def handle(event: Event) -> None:
        note("began", event)
        await asyncio.sleep(seconds)
        note("done", event)

    async def write(event: Event, connection: Any) -> None:
        await asyncio.sleep(seconds)
        await connection.execute(
            "INSERT INTO effects (event_id, stream, sequence) VALUES ($1, $2, $3)",
            event.id,
            event.stream_id,
            event.global_sequence,
        )

    config = ReliableDeliveryConfig(poll_interval=0.1, max_retries=20, failover_timeout=failover)
    bus = PgEventBus(dsn, config=config)
    bus.subscribe("*", write if kind == "transactional" else handle, id="mail", partitions=partitions)
    async with bus:
        await ending.wait()


if __name__ == "__main__":
    dsn, path, partitions, seconds, kind, failover = sys.argv[1:]
    asyncio.run(live(dsn, path, int(partitions), float(seconds), kind, float(failover)))
