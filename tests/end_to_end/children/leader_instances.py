"""Forks instances with three durable subscribers on PostgreSQL, one after the other, for somebody to disturb.

Arguments: the DSN, the folder for the notes, the failover timeout. Lines in: the name of an instance, which
its connections have, too. Lines out: its process, then its exit code.
"""

import asyncio
import logging
import os
import sys
from pathlib import Path
from typing import Any

from postbus import CheckpointMode, Event, PgEventBus, ReliableDeliveryConfig
from tests.end_to_end.forks import run_in_fork, tell
from tests.end_to_end.gap_history import Notes

SYNCHRONOUS, BATCHED, TRANSACTIONAL = "synchronous", "batched", "transactional"
SUBSCRIBERS = (SYNCHRONOUS, BATCHED, TRANSACTIONAL)
# Of a handler that has only just begun: what is lost in the middle of it must come again.
BEGAN = "began-"
BATCH_SIZE = 50
_INSERT_EFFECT = """
INSERT INTO effects (event_id, instance, epoch)
SELECT $1, current_setting('application_name'), epoch
FROM postbus.event_bus_checkpoints WHERE subscriber_id = $2
"""


def subscribe(bus: PgEventBus, notes: Notes) -> None:
    """One subscriber of each kind."""

    def note(who: str, event: Event) -> None:
        notes.delivery(who, event.global_sequence or 0, event.id, (None, None))

    @bus.on("order.*", id=SYNCHRONOUS)
    async def handle_synchronously(event: Event) -> None:
        note(BEGAN + SYNCHRONOUS, event)
        await asyncio.sleep(0.0005)
        note(SYNCHRONOUS, event)

    @bus.on("order.*", id=BATCHED, checkpoint_mode=CheckpointMode.batched(BATCH_SIZE, 0.2))
    async def handle_in_batches(event: Event) -> None:
        note(BATCHED, event)

    @bus.on("order.*", id=TRANSACTIONAL)
    async def insert(event: Event, transaction: Any) -> None:
        await transaction.execute(_INSERT_EFFECT, event.id, TRANSACTIONAL)
        # An attempt and no more: what became of it is seen in the table.
        note(TRANSACTIONAL, event)


async def live(dsn: str, notes: Notes, failover_timeout: float) -> None:
    """Until somebody ends it."""
    config = ReliableDeliveryConfig(
        # An attempt that the process did not survive counts. So many of one event are no accident any more.
        max_retries=20,
        initial_retry_delay=0.0005,
        max_retry_delay=0.001,
        poll_interval=0.1,
        failover_timeout=failover_timeout,
    )
    bus = PgEventBus(dsn, config=config)
    subscribe(bus, notes)
    parent = os.getppid()
    async with bus:
        # A campaign that is killed itself must leave nobody behind, and nobody can tell of its end.
        while os.getppid() == parent:  # noqa: ASYNC110
            await asyncio.sleep(1.0)


def main(dsn: str, folder: str, failover_timeout: str) -> None:
    """One life after the other."""
    logging.getLogger("postbus").setLevel(logging.ERROR)
    for line in sys.stdin:
        name = line.strip()

        def live_and_note(name: str = name) -> None:
            notes = Notes(Path(folder) / f"life-{name}")
            asyncio.run(live(f"{dsn}?application_name={name}", notes, float(failover_timeout)))

        tell(run_in_fork(live_and_note, on_fork=tell))


if __name__ == "__main__":
    main(*sys.argv[1:])
