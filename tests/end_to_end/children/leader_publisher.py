"""Publishes at a steady rate until its standard input ends, and notes what was acknowledged.

Arguments: the DSN, the file for the notes, how many events a second.
"""

import asyncio
import sys
import threading
import time
from pathlib import Path

from postbus import PgEventBus
from tests.end_to_end.gap_history import Notes, Transaction
from tests.end_to_end.gap_transactions import COMMITTED


async def publish(dsn: str, notes: Notes, rate: float, is_over: threading.Event) -> None:
    """One event after the other, each noted before the next."""
    async with PgEventBus(dsn) as bus:
        began_at = time.monotonic()
        count = 0
        while not is_over.is_set():
            event_id = await bus.publish("order.placed", count)
            now = time.monotonic()
            notes.transaction(Transaction("publish", COMMITTED, now, now, (event_id,), ()))
            count += 1
            await asyncio.sleep(max(0.0, began_at + count / rate - now))


def main(dsn: str, path: str, rate: str) -> None:
    """Until there are no more lines, of which there are none."""
    is_over = threading.Event()

    def wait_for_end() -> None:
        sys.stdin.read()
        is_over.set()

    threading.Thread(target=wait_for_end, daemon=True).start()
    asyncio.run(publish(dsn, Notes(Path(path)), float(rate), is_over))


if __name__ == "__main__":
    main(*sys.argv[1:])
