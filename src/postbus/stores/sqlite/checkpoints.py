"""How far each durable subscriber has come, in SQLite."""

import contextlib
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from postbus.errors import SubscriberFencedError
from postbus.events import BatchOutcome, Checkpoint, Event, LogPosition, Progress, SubscriberId
from postbus.ports import Clock
from postbus.stores.named_queries import load_queries
from postbus.stores.sqlite.access import FileAccess
from postbus.stores.sqlite.burials import bury, note_retry
from postbus.stores.sqlite.event_queue import may_be_pending
from postbus.stores.sqlite.inserting import insert_events
from postbus.stores.sqlite.jobs import Insert
from postbus.stores.sqlite.rows import checkpoint_from_row, moment_to_text
from postbus.stores.sqlite.states import put_state
from postbus.stores.sqlite.transactions import Batch

_QUERIES = load_queries("postbus.stores.sqlite", "queries.sql")


class SQLiteCheckpoints:
    """The CheckpointStore port; *announce* tells a bus of this process that events are pending."""

    def __init__(self, file: FileAccess, clock: Clock, announce: Callable[[], None]) -> None:
        self._file, self._clock, self._announce = file, clock, announce

    async def load(self, subscriber_id: SubscriberId) -> Checkpoint | None:
        """Its checkpoint, if it has one."""
        row = await self._file.read_committed(
            lambda connection: connection.execute(_QUERIES["read_checkpoint"], (subscriber_id,)).fetchone()
        )
        return None if row is None else checkpoint_from_row(row)

    async def list(self) -> list[Checkpoint]:
        """All, by subscriber id."""
        rows = await self._file.read_committed(
            lambda connection: connection.execute(_QUERIES["read_checkpoints"]).fetchall()
        )
        return [checkpoint_from_row(row) for row in rows]

    async def claim(self, subscriber_id: SubscriberId, start: LogPosition) -> Checkpoint:
        """Become the owner under a new, higher epoch; *start* counts if there is no checkpoint yet."""
        values = (subscriber_id, start.contiguous, self._now())

        def claim(connection: sqlite3.Connection) -> Checkpoint:
            connection.execute(_QUERIES["claim_checkpoint"], values)
            row = connection.execute(_QUERIES["read_checkpoint"], (subscriber_id,)).fetchone()
            return checkpoint_from_row(row)

        return await self._file.write(claim)

    async def save(self, progress: Progress) -> None:
        """Write all of it in one transaction, or nothing."""
        now = self._now()
        announce = self._announce if may_be_pending(progress.drafts) else None
        if progress.drafts:
            await self._file.write(lambda connection: _save_with_drafts(connection, progress, now), announce)
        else:
            await self._file.write(
                lambda connection: _save(connection, progress, now),
                waits_for_disk=not progress.is_repeatable,
            )

    async def process(
        self,
        subscriber_id: SubscriberId,
        epoch: int,
        events: Sequence[Event],
        handle: Callable[[Event, Any], Any],
        reached: Callable[[int], LogPosition],  # noqa: ARG002
        *,
        timeout: float,
        time_budget: float,
        retried: str | None = None,
        server: str | None = None,  # noqa: ARG002
        dead_letters_of: SubscriberId | None = None,  # noqa: ARG002
    ) -> BatchOutcome:
        """Call handle(event, connection) for one event after the other and move the checkpoint along."""
        batch = Batch(
            subscriber_id=subscriber_id,
            epoch=epoch,
            events=events,
            handle=handle,
            timeout=timeout,
            time_budget=time_budget,
            retried=retried,
            now=self._now(),
            path=self._file.path,
            guard=self._file.guard,
        )
        return await self._file.write(batch.run)

    async def release(
        self,
        subscriber_id: SubscriberId,
        epoch: int,
        server: str | None = None,  # noqa: ARG002
    ) -> None:
        """Let go in good order. Nothing happens if the epoch is not the present one."""
        values = (subscriber_id, epoch)
        await self._file.write(lambda connection: connection.execute(_QUERIES["release_checkpoint"], values))

    def _now(self) -> str:
        return moment_to_text(self._clock.now())


def _save(connection: sqlite3.Connection, progress: Progress, now: str) -> None:
    checkpoint = {
        "subscriber_id": progress.subscriber_id,
        "epoch": progress.epoch,
        "position": progress.position,
        "event_id": progress.event_id,
        "now": now,
        "attempt_sequence": progress.attempt_sequence,
        "attempt_count": progress.attempt_count,
    }
    # First: whoever is fenced has written nothing.
    if connection.execute(_QUERIES["save_checkpoint"], checkpoint).rowcount == 0:
        raise SubscriberFencedError(progress.subscriber_id, progress.epoch)
    for burial in progress.burials:
        bury(connection, progress.subscriber_id, burial, now)
    for retry in progress.retries:
        note_retry(connection, progress.subscriber_id, retry, now)
    for state in progress.states:
        put_state(connection, state.store_name, state.key, state.state_json, now)


def _save_with_drafts(connection: sqlite3.Connection, progress: Progress, now: str) -> None:
    with _all_or_nothing(connection):
        _save(connection, progress, now)
        inserting = Insert(progress.drafts, lambda *_: None)
        insert_events(connection, [inserting])
        if inserting.error is not None:
            raise inserting.error


@contextlib.contextmanager
def _all_or_nothing(connection: sqlite3.Connection) -> Iterator[None]:
    connection.execute(_QUERIES["begin_call"])
    try:
        yield
    except BaseException:
        # Some errors undo the whole transaction, and the savepoint with it.
        if connection.in_transaction:
            connection.execute(_QUERIES["undo_call"])
            connection.execute(_QUERIES["end_call"])
        raise
    connection.execute(_QUERIES["end_call"])
