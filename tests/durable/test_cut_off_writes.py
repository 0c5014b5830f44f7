"""A write that is cut off may come to its end all the same: nothing older is written over it."""

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path

from postbus import CheckpointMode, Event, EventBus, Saga, SagaContext, SQLiteStateStore


class Counting(Saga[int]):
    """Counts events, and publishes with the second."""

    subscriber_id = "saga"
    patterns = ("order.placed",)

    def __init__(self, states: SQLiteStateStore[int], blocker: sqlite3.Connection) -> None:
        super().__init__(states)
        self.blocker, self.is_blocked = blocker, asyncio.Event()

    def saga_id(self, event: Event) -> str:
        return "all"

    def handle(self, state: int | None, event: Event, ctx: SagaContext) -> int:
        count = (state or 0) + 1
        if count == 2:
            ctx.publish("order.counted")
            # Another program holds the file from now on.
            self.blocker.execute("BEGIN IMMEDIATE")
            self.is_blocked.set()
        return count


async def test_the_state_of_a_saga_never_goes_back(tmp_path: Path) -> None:
    path = tmp_path / "events.db"
    bus = EventBus(path, shutdown_timeout=0.2)
    async with bus:
        pass
    bus = EventBus(path, shutdown_timeout=0.2)
    with closing(sqlite3.connect(path, isolation_level=None, check_same_thread=False)) as blocker:
        saga = Counting(SQLiteStateStore(bus.store, "counts", int), blocker)
        bus.subscribe(saga, checkpoint_mode=CheckpointMode.batched(100, 100.0))
        await bus.start()
        await bus.publish_many([("order.placed", 1), ("order.placed", 2)])
        await saga.is_blocked.wait()
        asyncio.get_running_loop().call_later(0.5, blocker.execute, "COMMIT")
        await bus.shutdown()
    with closing(sqlite3.connect(path)) as connection:
        (position,) = connection.execute("SELECT last_global_sequence FROM event_bus_checkpoints").fetchone()
        states = connection.execute("SELECT state FROM postbus_states").fetchall()

    # Both events, or none of them: the checkpoint and the state agree.
    assert (position, [int(state) for (state,) in states]) in ((2, [2]), (0, []))
