"""How far each durable subscriber has come, in PostgreSQL."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import asyncpg

from postbus.events import (
    BatchOutcome,
    Checkpoint,
    Event,
    GlobalSequence,
    LogPosition,
    Progress,
    SubscriberId,
)
from postbus.ports import Clock
from postbus.stores.postgres.appending import Appending
from postbus.stores.postgres.database import Database
from postbus.stores.postgres.query_parts import fill_parts
from postbus.stores.postgres.saving import Saving, array_to_gaps, gaps_to_array
from postbus.stores.postgres.transactions import Batch
from postbus.stores.postgres.wake_ups import WakeUps


class PgCheckpoints:
    """Fulfils ports.CheckpointStore."""

    def __init__(self, database: Database, appending: Appending, wake_ups: WakeUps, clock: Clock) -> None:
        self._database, self._clock = database, clock
        self._queries = fill_parts(
            database.queries("checkpoints.sql"), server=database.queries("log.sql")["server"]
        )
        self._saving = Saving(database, self._queries, appending, wake_ups)
        # A batch holds the row of its checkpoint for as long as its handlers take: a save of the same
        # subscriber waits here, and not with a connection, nor with the saves of others in its group.
        self._turns: dict[SubscriberId, asyncio.Lock] = {}

    async def load(self, subscriber_id: SubscriberId) -> Checkpoint | None:
        """Its checkpoint, if it has one."""
        row = await self._database.fetch_row(self._queries["read_checkpoint"], subscriber_id)
        return None if row is None else _checkpoint_from_row(row)

    async def list(self) -> list[Checkpoint]:
        """All, by subscriber id."""
        rows = await self._database.fetch(self._queries["read_checkpoints"])
        return [_checkpoint_from_row(row) for row in rows]

    async def claim(self, subscriber_id: SubscriberId, start: LogPosition) -> Checkpoint:
        """Become the owner under a new, higher epoch; *start* counts if there is no checkpoint yet."""
        row = await self._database.fetch_row(
            self._queries["claim_checkpoint"],
            subscriber_id,
            start.contiguous,
            start.head,
            gaps_to_array(start.open),
            self._clock.now(),
        )
        assert row is not None
        return _checkpoint_from_row(row)

    async def save(self, progress: Progress) -> None:
        """Write all of it in one transaction, or nothing; what has a write_id only once.

        SubscriberFencedError, and the errors of its drafts.
        """
        turn = self._turns.get(progress.subscriber_id)
        if turn is None:
            await self._saving.save(progress, self._clock.now())
            return
        async with turn:
            await self._saving.save(progress, self._clock.now())

    async def process(
        self,
        subscriber_id: SubscriberId,
        epoch: int,
        events: Sequence[Event],
        handle: Callable[[Event, Any], Any],
        reached: Callable[[int], LogPosition],
        *,
        timeout: float,
        time_budget: float,
        retried: str | None = None,
        server: str | None = None,
    ) -> BatchOutcome:
        """Call handle(event, connection) for one event after the other and move the checkpoint along."""
        batch = Batch(
            database=self._database,
            queries=self._queries,
            subscriber_id=subscriber_id,
            epoch=epoch,
            server=server,
            events=events,
            handle=handle,
            reached=reached,
            timeout=timeout,
            time_budget=time_budget,
            retried=retried,
            now=self._clock.now(),
        )
        async with self._turns.setdefault(subscriber_id, asyncio.Lock()):
            return await batch.run()

    async def release(self, subscriber_id: SubscriberId, epoch: int, server: str | None = None) -> None:
        """Let go in good order. Nothing happens if the epoch is not the present one, or the server is not."""
        await self._database.execute(self._queries["release_checkpoint"], subscriber_id, epoch, server)

    async def drain(self) -> None:
        """Return when no save is on its way any more, whoever gave up waiting for it."""
        await self._saving.drain()


def _checkpoint_from_row(row: asyncpg.Record) -> Checkpoint:
    return Checkpoint(
        subscriber_id=SubscriberId(row["subscriber_id"]),
        position=GlobalSequence(row["last_global_sequence"]),
        event_id=row["last_event_id"],
        updated_at=row["updated_at"],
        epoch=row["epoch"],
        was_interrupted=row["was_interrupted"],
        attempt_sequence=row["attempt_sequence"],
        attempt_count=row["attempt_count"],
        head=row["head"],
        open=array_to_gaps(row["open_gaps"]),
        # Only a claim asks for it.
        server=row.get("server"),
    )
