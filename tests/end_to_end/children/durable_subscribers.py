"""Forks processes with three durable subscribers, one after the other, for somebody to kill.

Arguments: the database, the history, SQLite's setting of synchronous. Lines in: "work" (publish and
subscribe), "subscribe", "publish" or "finish" (subscribe to the end of the log). Lines out: the process,
then "begun" when it has published or handled something, then its exit code.
"""

import asyncio
import itertools
import logging
import os
import sqlite3
import sys
from contextlib import closing
from pathlib import Path

from postbus import CheckpointMode, Event, EventBus, NewEvent, ReliableDeliveryConfig, SQLiteStore
from tests.end_to_end.durable_database import EFFECTS, INSERT_EFFECT
from tests.end_to_end.forks import run_in_fork, tell
from tests.end_to_end.history import ACKNOWLEDGED, History

SYNCHRONOUS, BATCHED, TRANSACTIONAL = "synchronous", "batched", "transactional"
SUBSCRIBERS = (SYNCHRONOUS, BATCHED, TRANSACTIONAL)
BATCH_SIZE = 100
PUBLISHER_COUNT = 4
# So that a kill finds subscribers at the head of the log as well as behind it.
MOST_LAG = 500
BATCH = ("order.ok", "order.flaky", "order.ok", "order.poison", "order.ok")
# An attempt that the process did not survive counts. So many of the same event are no accident any more.
CONFIG = ReliableDeliveryConfig(max_retries=9, initial_retry_delay=0.0005, max_retry_delay=0.001)


class Child:
    """One process."""

    def __init__(self, path: str, history: History, synchronous: str) -> None:
        self._history = history
        self._attempts: set[tuple[str, str]] = set()
        self._has_begun = False
        self._bus = EventBus(SQLiteStore(path, synchronous=synchronous), config=CONFIG)

    async def live(self, role: str) -> None:
        """Until somebody ends it, or to the end of the log."""
        if role != "publish":
            self._subscribe()
        async with self._bus:
            if role == "finish":
                for subscriber_id in SUBSCRIBERS:
                    await self._bus.subscription(subscriber_id).caught_up(timeout=60)
                return
            async with asyncio.TaskGroup() as tasks:
                if role != "subscribe":
                    for publisher in range(PUBLISHER_COUNT):
                        tasks.create_task(self._publish(publisher))
                tasks.create_task(asyncio.Event().wait())

    def _subscribe(self) -> None:
        bus = self._bus

        @bus.on("order.*", id=SYNCHRONOUS)
        async def handle_synchronously(event: Event) -> None:
            self._handle(SYNCHRONOUS, event)

        @bus.on("order.*", id=BATCHED, checkpoint_mode=CheckpointMode.batched(BATCH_SIZE, 0.1))
        async def handle_in_batches(event: Event) -> None:
            self._handle(BATCHED, event)

        @bus.on("order.*", id=TRANSACTIONAL)
        def insert(event: Event, transaction: sqlite3.Connection) -> None:
            transaction.execute(INSERT_EFFECT, (event.id, event.global_sequence))
            # Afterwards: what an attempt has written must be undone when it fails.
            self._fail_if_wanted(TRANSACTIONAL, event)

    def _handle(self, subscriber_id: str, event: Event) -> None:
        self._fail_if_wanted(subscriber_id, event)
        self._history.note(subscriber_id, event.id)
        self._tell()

    def _fail_if_wanted(self, subscriber_id: str, event: Event) -> None:
        if event.type == "order.poison":
            raise ValueError("nobody can process this")
        if event.type == "order.flaky" and (subscriber_id, event.id) not in self._attempts:
            self._attempts.add((subscriber_id, event.id))
            raise ConnectionError("the first attempt always fails")

    async def _publish(self, publisher: int) -> None:
        bus, stream_id = self._bus, f"stream-{os.getpid()}-{publisher}"
        for number in itertools.count():
            if number % 5 == publisher:
                await self._wait_for_subscribers()
            match (publisher * 2 + number) % 8:
                case 0 | 2:
                    event_ids = [await bus.publish("order.ok", number)]
                case 1 | 3:
                    event_ids = [await bus.publish("order.ok", number, stream_id=stream_id)]
                case 4 | 5 | 6:
                    event_ids = await bus.publish_many([("order.ok", number)] * 30)
                case _:
                    batch = {"batch": f"{stream_id}-{number}", "size": len(BATCH)}
                    event_ids = await bus.publish_many([NewEvent(type, batch) for type in BATCH])
            self._history.note(ACKNOWLEDGED, *event_ids)
            self._tell()

    async def _wait_for_subscribers(self) -> None:
        checkpoints = self._bus.store.checkpoints
        while True:
            positions = [each.position for each in await checkpoints.list()]
            if await self._bus.store.log.head() - min(positions, default=0) < MOST_LAG:
                return
            await asyncio.sleep(0.005)

    def _tell(self) -> None:
        if not self._has_begun:
            self._has_begun = True
            tell("begun")


def live_in_fork(role: str, path: str, history: str, synchronous: str) -> int:
    """The exit code of a process in this role."""

    def live() -> None:
        asyncio.run(Child(path, History(Path(history)), synchronous).live(role))

    return run_in_fork(live, on_fork=tell)


if __name__ == "__main__":
    logging.getLogger("postbus").setLevel(logging.CRITICAL)
    with closing(sqlite3.connect(sys.argv[1], timeout=10.0)) as connection:
        connection.execute(EFFECTS)
    for line in sys.stdin:
        tell(live_in_fork(line.strip(), *sys.argv[1:]))
