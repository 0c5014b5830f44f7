"""How far each durable subscriber has come, in PostgreSQL."""

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Any

import asyncpg
import msgspec

from postbus.errors import LayoutChangedError, StoreBusyError, StoreReadOnlyError
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
from postbus.stores.postgres.lock_keys import batch_key
from postbus.stores.postgres.number_lists import to_literal
from postbus.stores.postgres.query_parts import fill_parts
from postbus.stores.postgres.saving import Saving, array_to_gaps, gaps_to_array
from postbus.stores.postgres.transactions import Batch
from postbus.stores.postgres.wake_ups import WakeUps

logger = logging.getLogger("postbus")

# How long a new owner waits for a write of the former one to end by itself, and then without a limit.
_SHORT_WAIT = "300ms"
_LONG_WAIT = "0"

_decode = msgspec.json.Decoder(list[int]).decode


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
        self._has_warned = False

    async def load(self, subscriber_id: SubscriberId) -> Checkpoint | None:
        """Its checkpoint, if it has one."""
        row = await self._database.fetch_row(self._queries["read_checkpoint"], subscriber_id)
        return None if row is None else checkpoint_from_row(row)

    async def list(self) -> list[Checkpoint]:
        """All, by subscriber id."""
        rows = await self._database.fetch(self._queries["read_checkpoints"])
        return [checkpoint_from_row(row) for row in rows]

    async def claim(self, subscriber_id: SubscriberId, start: LogPosition | None) -> Checkpoint:
        """Become the owner under a new, higher epoch; *start* counts if there is no checkpoint yet.

        None: it is a part, whose checkpoint is made with its layout. LayoutChangedError.

        A transaction of the former owner is ended, unless it ends in a moment: its process may stand still,
        or its host be gone, and it would hold us up for as long as a handler may take.
        """
        try:
            return await self._claim(subscriber_id, start, _SHORT_WAIT)
        except StoreBusyError:
            await self._end_batches(subscriber_id)
            return await self._claim(subscriber_id, start, _LONG_WAIT)

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
        dead_letters_of: SubscriberId | None = None,
    ) -> BatchOutcome:
        """Call handle(event, connection) for one event after the other and move the checkpoint along."""
        batch = Batch(
            database=self._database,
            queries=self._queries,
            subscriber_id=subscriber_id,
            dead_letters_of=dead_letters_of or subscriber_id,
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

    async def _claim(
        self, subscriber_id: SubscriberId, start: LogPosition | None, lock_timeout: str
    ) -> Checkpoint:
        values = (subscriber_id, self._clock.now(), lock_timeout)
        if start is None:
            row = await self._database.fetch_row(self._queries["claim_part"], *values)
        else:
            place = (start.contiguous, start.head, to_literal(gaps_to_array(start.open)))
            row = await self._database.fetch_row(self._queries["claim_checkpoint"], *values, *place)
        if row is None:
            raise LayoutChangedError(subscriber_id)
        return checkpoint_from_row(row)

    async def _end_batches(self, subscriber_id: SubscriberId) -> None:
        key = batch_key(self._database.schema, subscriber_id)
        try:
            rows = await self._database.fetch(self._queries["end_batches"], *key)
        except StoreReadOnlyError as error:
            log = logger.debug if self._has_warned else logger.warning
            self._has_warned = True
            log("subscriber %s has to wait for a transaction of its former owner: %s", subscriber_id, error)
            return
        for row in rows:
            logger.warning(
                "subscriber %s was taken over; the transaction in which its former owner was (process %d of "
                "the server) is ended",
                subscriber_id,
                row[0],
                extra={"subscriber_id": subscriber_id},
            )

    async def drain(self) -> None:
        """Return when no save is on its way any more, whoever gave up waiting for it."""
        await self._saving.drain()


def checkpoint_from_row(row: asyncpg.Record) -> Checkpoint:
    """A row of event_bus_checkpoints."""
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
        open=array_to_gaps(_decode(row["open_gaps"])),
        # Only a claim asks for it.
        server=row.get("server"),
    )
