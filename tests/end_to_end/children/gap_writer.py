"""Writes events in transactions of every kind, on several connections and through a bus.

Arguments: the DSN, its notes, a seed, how many transactions, for how many seconds at most, "1" if the server
may die meanwhile. Ends with exit code 0 when everything that it has begun has ended.
"""

import asyncio
import itertools
import logging
import random
import sys
import time
from pathlib import Path

import asyncpg

from postbus import NewEvent, PgEventBus
from postbus.errors import StoreError
from tests.end_to_end.children.gap_subscribers import FILTERED, start_patiently
from tests.end_to_end.gap_history import Notes, Transaction
from tests.end_to_end.gap_transactions import (
    COMMITTED,
    KINDS,
    ROLLED_BACK,
    STREAM_COUNT,
    UNKNOWN,
    Work,
    choose_type,
    gid_of,
    prepare,
    roll_back,
)

CONNECTION_COUNT = 7
PUBLISHER_COUNT = 2
# The server of the tests allows 20, for all writers together.
MOST_PREPARED = 6
# How far subscribers may be behind, changing all the time: at the head of the log they see gaps while the
# writers are at work on them, far behind it they read in another way.
MOST_LAG = (50, 200, 1_500)
SECONDS_TO_CHANGE = 3.0
# One with a filter writes nothing as long as nothing comes for it.
_LAG = f"""
SELECT coalesce((SELECT max(global_sequence) FROM postbus.events), 0) - coalesce((
    SELECT min(coalesce(head, last_global_sequence)) FROM postbus.event_bus_checkpoints
    WHERE subscriber_id <> '{FILTERED}'
), 0)
"""
_LOST = (
    asyncpg.PostgresConnectionError,
    asyncpg.OperatorInterventionError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
    StoreError,
    OSError,
)


class Writer:
    """All that one process writes."""

    def __init__(
        self, dsn: str, notes: Notes, seed: str, count: int, seconds: float, *, server_dies: bool
    ) -> None:
        self._dsn, self._notes, self._name, self._left = dsn, notes, seed, count
        self._ends_at = time.monotonic() + seconds
        self._survived = _LOST if server_dies else ()
        self._chance = random.Random(seed)
        self._numbers = itertools.count(1)
        self._bus = PgEventBus(dsn, pool_size=3)
        # When the second phase is due. Whichever connection comes by sees to it.
        self._prepared: list[tuple[float, Work]] = []
        self._preparing_count = 0
        self._may_go_on = asyncio.Event()
        self._is_done = False

    async def run(self) -> None:
        """Until everything is written and ended."""
        await start_patiently(self._bus)
        async with self._bus:
            watching = asyncio.create_task(self._watch_lag())
            async with asyncio.TaskGroup() as publishing:
                for _ in range(PUBLISHER_COUNT):
                    publishing.create_task(self._publish())
                async with asyncio.TaskGroup() as writing:
                    for _ in range(CONNECTION_COUNT):
                        writing.create_task(self._write())
                self._is_done = True
            watching.cancel()

    async def _write(self) -> None:
        connection = None
        while self._has_more or self._prepared:
            try:
                if connection is None or connection.is_closed():
                    connection = await asyncpg.connect(self._dsn, timeout=10)
                await self._end_prepared(connection)
                await self._may_go_on.wait()
                if self._has_more:
                    self._left -= 1
                    await self._write_one(connection)
                else:
                    await asyncio.sleep(0.01)
            except self._survived:
                if connection is not None:
                    connection.terminate()
                self._put_off_second_phases()
                await asyncio.sleep(0.1)
        if connection is not None:
            await connection.close()

    async def _write_one(self, connection: "asyncpg.Connection[asyncpg.Record]") -> None:
        (write,) = self._chance.choices(list(KINDS), list(KINDS.values()))
        if write is prepare and len(self._prepared) + self._preparing_count >= MOST_PREPARED:
            write = roll_back
        work = Work(write.__name__, connection, self._chance, self._bus, self._new_id)
        if write is prepare:
            await self._prepare(work)
            return
        outcome = UNKNOWN
        try:
            outcome = await write(work)
        finally:
            self._notes.transaction(work.told(outcome))

    async def _prepare(self, work: Work) -> None:
        self._preparing_count += 1
        try:
            await prepare(work)
        finally:
            self._preparing_count -= 1
            # Also where the answer was lost: it may be prepared.
            if work.stored:
                is_left_alone = self._chance.random() < 0.03
                wait = self._chance.uniform(0.5, 2.0) if is_left_alone else self._chance.uniform(0.0, 0.1)
                self._prepared.append((time.monotonic() + wait, work))

    def _put_off_second_phases(self) -> None:
        """Subscribers shall meet prepared transactions that have outlived the server."""
        now = time.monotonic()
        self._prepared = [(now + self._chance.uniform(0.5, 3.0), work) for _, work in self._prepared]

    async def _end_prepared(self, connection: "asyncpg.Connection[asyncpg.Record]") -> None:
        due = next((each for each in self._prepared if each[0] <= time.monotonic()), None)
        if due is None:
            return
        self._prepared.remove(due)
        _, work = due
        verb, outcome = ("COMMIT", COMMITTED) if self._chance.random() < 0.7 else ("ROLLBACK", ROLLED_BACK)
        try:
            await connection.execute(f"{verb} PREPARED '{gid_of(work)}'")
        except asyncpg.UndefinedObjectError:
            # It was never prepared, or this is the second time and the first answer was lost.
            if not self._survived:
                raise
            outcome = UNKNOWN
        except self._survived:
            self._prepared.append(due)
            raise
        self._notes.transaction(work.told(outcome))

    async def _publish(self) -> None:
        while not self._is_done:
            await self._may_go_on.wait()
            began_at, event_ids, outcome = time.monotonic(), [], UNKNOWN
            try:
                event_ids, outcome = await self._publish_some(), COMMITTED
            except StoreError:
                if not self._survived:
                    raise
            told = Transaction("publish", outcome, began_at, time.monotonic(), tuple(event_ids), ())
            self._notes.transaction(told)
            await asyncio.sleep(self._chance.uniform(0.0, 0.4))

    async def _publish_some(self) -> list[str]:
        type, stream_id = choose_type(self._chance), f"stream-{self._chance.randrange(STREAM_COUNT)}"
        match self._chance.randrange(4):
            case 0:
                return [await self._bus.publish(type, 1)]
            case 1:
                return await self._bus.publish_many([NewEvent(type, 1, stream_id=stream_id)] * 3)
            case 2:
                # Several calls at once go together in one statement.
                calls = [self._bus.publish(type, 1, stream_id=stream_id) for _ in range(4)]
                return await asyncio.gather(*calls)
            case _:
                return [await self._bus.publish(type, 1, event_id=self._new_id(), stream_id=stream_id)]

    async def _watch_lag(self) -> None:
        connection, most_lag, change_at = None, 0, 0.0
        while True:
            if time.monotonic() > change_at:
                most_lag = self._chance.choice(MOST_LAG)
                change_at = time.monotonic() + SECONDS_TO_CHANGE
            try:
                if connection is None or connection.is_closed():
                    connection = await asyncpg.connect(self._dsn, timeout=10)
                if await connection.fetchval(_LAG) < most_lag:
                    self._may_go_on.set()
                else:
                    self._may_go_on.clear()
            except self._survived:
                connection = None
            await asyncio.sleep(0.03)

    @property
    def _has_more(self) -> bool:
        return self._left > 0 and time.monotonic() < self._ends_at

    def _new_id(self) -> str:
        return f"{self._name}-{next(self._numbers)}"


def main(dsn: str, notes: str, seed: str, count: str, seconds: str, server_dies: str) -> None:
    """Write so many transactions."""
    logging.getLogger("postbus").setLevel(logging.ERROR)
    writer = Writer(dsn, Notes(Path(notes)), seed, int(count), float(seconds), server_dies=server_dies == "1")
    asyncio.run(writer.run())


if __name__ == "__main__":
    main(*sys.argv[1:])
