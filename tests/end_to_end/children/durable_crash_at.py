"""One of everything that durable subscribers do, ended by os._exit at the k-th writing call of the database.

Lines in and out as of crash_at: the database, the history, k, "before" or "after"; the exit code.
"""

import asyncio
import functools
import logging
import sqlite3
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

from postbus import (
    CheckpointMode,
    Event,
    EventBus,
    NewEvent,
    ReliableDeliveryConfig,
    Saga,
    SagaContext,
    SQLiteStateStore,
    SQLiteStore,
)
from tests.end_to_end.children.crash_at import CrashingConnection, crashing
from tests.end_to_end.durable_database import EFFECTS, INSERT_EFFECT
from tests.end_to_end.forks import run_in_fork, tell
from tests.end_to_end.history import ACKNOWLEDGED, History

SYNCHRONOUS, BATCHED, TRANSACTIONAL, SAGA = "synchronous", "batched", "transactional", "saga"
SUBSCRIBERS = (SYNCHRONOUS, BATCHED, TRANSACTIONAL, SAGA)
BATCH_SIZE = 3
BATCH = ("order.ok", "order.flaky", "order.poison", "order.ok")
ANSWERED = "answer.given"
# Waits that a crash could fall into are of no interest here: only calls of the database are.
CONFIG = ReliableDeliveryConfig(max_retries=2, initial_retry_delay=0.001, poll_interval=30.0)


# A crash around one of these is a crash between the writes beside it.
READS = ("SELECT", "PRAGMA", "CREATE", "BEGIN")


class WriteCrashingConnection(CrashingConnection):
    """Ends the process at the k-th call that writes; those of an empty file's schema have their own test."""

    def execute(self, sql: str, *parameters: Any) -> sqlite3.Cursor:
        if sql.lstrip().startswith(READS):
            return sqlite3.Connection.execute(self, sql, *parameters)
        return super().execute(sql, *parameters)


class Answers(Saga[list[str]]):
    """Answers every order once, and remembers which."""

    subscriber_id = SAGA
    patterns = ("order.*",)

    def saga_id(self, event: Event) -> str:
        return event.stream_id or "none"

    def handle(self, state: list[str] | None, event: Event, ctx: SagaContext) -> list[str]:
        fail_if_poison(event)
        ctx.publish(ANSWERED, event.id)
        return [*(state or []), event.id]


def fail_if_poison(event: Event) -> None:
    if event.type == "order.poison":
        raise ValueError("nobody can process this")


def make_durable_bus(path: str, history: History) -> EventBus:
    """A bus with one durable subscriber of each kind."""
    with closing(sqlite3.connect(path, timeout=10.0)) as connection:
        connection.execute(EFFECTS)
    # What a process has written outlives it without a sync; a power cut has its own test.
    bus = EventBus(SQLiteStore(path, synchronous="NORMAL"), config=CONFIG)
    attempted: set[tuple[str, str]] = set()

    def handle(subscriber_id: str, event: Event) -> None:
        fail_if_poison(event)
        if event.type == "order.flaky" and (subscriber_id, event.id) not in attempted:
            attempted.add((subscriber_id, event.id))
            raise ConnectionError("the first attempt always fails")
        history.note(subscriber_id, event.id)

    @bus.on("*", id=SYNCHRONOUS)
    async def handle_synchronously(event: Event) -> None:
        handle(SYNCHRONOUS, event)

    @bus.on("*", id=BATCHED, checkpoint_mode=CheckpointMode.batched(BATCH_SIZE, 30.0))
    async def handle_in_batches(event: Event) -> None:
        handle(BATCHED, event)

    @bus.on("*", id=TRANSACTIONAL)
    def insert(event: Event, transaction: sqlite3.Connection) -> None:
        transaction.execute(INSERT_EFFECT, (event.id, event.global_sequence))
        handle(TRANSACTIONAL, event)

    bus.subscribe(Answers(SQLiteStateStore(bus.store, SAGA, list[str])))
    return bus


async def do_everything(path: str, history: History) -> None:
    bus = make_durable_bus(path, history)
    async with asyncio.timeout(30), bus:
        history.note(ACKNOWLEDGED, await bus.publish("order.ok", stream_id="a"))
        batch = {"batch": "only", "size": len(BATCH)}
        history.note(ACKNOWLEDGED, *await bus.publish_many([NewEvent(type, batch) for type in BATCH]))
        await catch_up(bus)
        for subscriber_id in SUBSCRIBERS:
            page = await bus.dlq.list(subscriber_id=subscriber_id)
            assert page.total == 1, (subscriber_id, page)
            await bus.dlq.retry(page.events[0].dead_letter_id)
        await bus.subscription(SYNCHRONOUS).pause()
        history.note(ACKNOWLEDGED, await bus.publish("order.ok", stream_id="a"))
        await bus.subscription(SYNCHRONOUS).resume()
        await catch_up(bus)


async def catch_up(bus: EventBus) -> None:
    """Until everybody has seen everything, the saga's own events too."""
    await bus.subscription(SAGA).caught_up()
    for subscriber_id in SUBSCRIBERS:
        await bus.subscription(subscriber_id).caught_up()


def crash(path: str, history: str, k: str, when: str) -> None:
    """Go through the scenario, or not to its end."""
    CrashingConnection.k, CrashingConnection.when = int(k), when
    with crashing(WriteCrashingConnection):
        asyncio.run(do_everything(path, History(Path(history))))


if __name__ == "__main__":
    logging.getLogger("postbus").setLevel(logging.CRITICAL)
    for line in sys.stdin:
        tell(run_in_fork(functools.partial(crash, *line.split())))
