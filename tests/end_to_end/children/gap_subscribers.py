"""Forks processes with four durable subscribers on PostgreSQL, one after the other, for somebody to kill.

Arguments: the DSN, the folder for the notes. Lines in: the name of a life. Lines out: its process, then
"begun" when it has handled something, then its exit code.
"""

import asyncio
import logging
import os
import sys
from pathlib import Path
from typing import Any

from postbus import CheckpointMode, Event, PgEventBus, ReliableDeliveryConfig
from postbus.errors import StoreUnavailableError
from tests.end_to_end.forks import run_in_fork, tell
from tests.end_to_end.gap_history import Notes

SYNCHRONOUS, BATCHED, FILTERED, TRANSACTIONAL = "synchronous", "batched", "filtered", "transactional"
SUBSCRIBERS = (SYNCHRONOUS, BATCHED, FILTERED, TRANSACTIONAL)
# What is filtered out leaves no gap, and what is missing does, wherever it is sorted out.
RARE = "stress.rare"
BATCH_SIZE = 50
EFFECTS = """
CREATE TABLE effects (
    place bigint GENERATED ALWAYS AS IDENTITY,
    event_id text NOT NULL UNIQUE,
    global_sequence bigint NOT NULL
)
"""
_INSERT_EFFECT = "INSERT INTO effects (event_id, global_sequence) VALUES ($1, $2)"
# An attempt that the process did not survive counts. So many of the same event are no accident any more.
_CONFIG = ReliableDeliveryConfig(
    max_retries=20, initial_retry_delay=0.0005, max_retry_delay=0.001, poll_interval=0.1
)


async def start_patiently(bus: PgEventBus) -> None:
    """Also while the server is away."""
    while True:
        try:
            await bus.start()
            return
        except StoreUnavailableError:
            await asyncio.sleep(0.1)


async def live(dsn: str, notes: Notes) -> None:
    """Until somebody ends it."""
    bus = PgEventBus(dsn, config=_CONFIG)
    has_begun = False

    def note(subscriber_id: str, event: Event) -> None:
        nonlocal has_begun
        assert event.global_sequence is not None
        notes.delivery(
            subscriber_id, event.global_sequence, event.id, (event.stream_id, event.stream_version)
        )
        if not has_begun:
            has_begun = True
            tell("begun")

    @bus.on("stress.*", id=SYNCHRONOUS)
    async def handle_synchronously(event: Event) -> None:
        note(SYNCHRONOUS, event)

    @bus.on("stress.*", id=BATCHED, checkpoint_mode=CheckpointMode.batched(BATCH_SIZE, 0.2))
    async def handle_in_batches(event: Event) -> None:
        note(BATCHED, event)

    @bus.on(RARE, id=FILTERED, checkpoint_mode=CheckpointMode.batched(BATCH_SIZE, 0.2))
    async def handle_few(event: Event) -> None:
        note(FILTERED, event)

    @bus.on("stress.*", id=TRANSACTIONAL)
    async def insert(event: Event, transaction: Any) -> None:
        await transaction.execute(_INSERT_EFFECT, event.id, event.global_sequence)
        # An attempt and no more: what became of it is seen in the table.
        note(TRANSACTIONAL, event)

    parent = os.getppid()
    await start_patiently(bus)
    async with bus:
        # A campaign that is killed itself must leave nobody behind, and nobody can tell of its end.
        while os.getppid() == parent:  # noqa: ASYNC110
            await asyncio.sleep(1.0)


def main(dsn: str, folder: str) -> None:
    """One life after the other."""
    # Errors, because with its warnings a server that dies would bury everything else.
    logging.getLogger("postbus").setLevel(logging.ERROR)
    for line in sys.stdin:
        notes = Path(folder) / f"life-{line.strip()}"

        def live_and_note(notes: Path = notes) -> None:
            asyncio.run(live(dsn, Notes(notes)))

        tell(run_in_fork(live_and_note, on_fork=tell))


if __name__ == "__main__":
    main(*sys.argv[1:])
