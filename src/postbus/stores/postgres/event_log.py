"""All events in the order of their global sequence and in streams, in PostgreSQL."""

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any

import asyncpg
import msgspec

from postbus.errors import EventNotFoundError, InvalidConfigError, StoreUnavailableError
from postbus.events import Draft, Event, Gap, GlobalSequence, LogPage, LogPosition, OpenWriter
from postbus.ports import Clock, WantedEvents
from postbus.storable import LARGEST_NUMBER
from postbus.stores.postgres.answers import Stored
from postbus.stores.postgres.appending import Appending
from postbus.stores.postgres.database import Database
from postbus.stores.postgres.lent import is_over
from postbus.stores.postgres.log_pages import LogPages, decode_page
from postbus.stores.postgres.pool import Connection, is_gone
from postbus.stores.postgres.query_parts import fill_parts
from postbus.stores.postgres.rows import columns_from_rows, event_from_draft, event_from_row
from postbus.stores.postgres.samples import Samples
from postbus.stores.postgres.translation import translated
from postbus.stores.postgres.wake_ups import WakeUps

# As many as a subscriber keeps.
_MOST_OPEN_GAPS = 10_000
# What looks through the whole log may take its time: it is asked once in the life of a subscriber.
_PATIENCE = 3600.0
# How a holder is named that has ended, and one that may have had another name before it was prepared.
_ENDED, _PREPARED = "/0", "-1/"


class PgEventLog:
    """The EventLog port."""

    def __init__(self, database: Database, appending: Appending, wake_ups: WakeUps, clock: Clock) -> None:
        self._database, self._appending, self._wake_ups, self._clock = database, appending, wake_ups, clock
        self._queries = fill_parts(database.queries("log.sql"))
        self._pages = LogPages(database)
        self._samples = Samples(self._queries, database.schema)
        database.at_open(self._learn_head)

    async def append(self, drafts: Sequence[Draft]) -> list[Event]:
        """Store the drafts, all or none, in one transaction; the stored events, in order."""
        await self._database.ensure_open()
        stored = await self._appending.append(drafts)
        return [
            await self.get(draft.id) if each.sequence is None else _as_stored(draft, each)
            for draft, each in zip(drafts, stored, strict=True)
        ]

    async def store(self, drafts: Sequence[Draft]) -> None:
        """As append, for whoever does not need the events."""
        await self._appending.store(drafts)

    async def append_within(self, connection: Any, drafts: Sequence[Draft]) -> list[Event]:
        """As append, inside the caller's own transaction."""
        if isinstance(connection, asyncpg.Connection):
            _check_inside_transaction(connection)
        stored = await self._appending.insert_within(connection, drafts)
        events = [
            await self._find(connection, draft.id) if each.sequence is None else _as_stored(draft, each)
            for draft, each in zip(drafts, stored, strict=True)
        ]
        self._wake_ups.watch_foreign([each.sequence for each in stored if each.sequence is not None])
        return events

    async def read(
        self, after: LogPosition, limit: int, wanted: WantedEvents | None, *, with_sample: bool = False
    ) -> LogPage:
        """The events in the open gaps of a position and at most *limit* after its head, in order."""
        if not with_sample and (found := await self._pages.read_next(after, limit, wanted)) is not None:
            page, head = found
        elif not with_sample:
            async with self._database.connection() as connection:
                page, head = await self._pages.read(connection, after, limit, wanted)
        else:
            # One transaction, so that a pooler in between does not give them to two sessions.
            async with self._database.transaction() as connection:
                sample = await self._samples.take(connection)
                page, head = await self._pages.read(connection, after, limit, wanted)
            page = msgspec.structs.replace(page, sample=sample)
        self._wake_ups.note_head(head)
        return page

    async def now(self, head: GlobalSequence) -> LogPosition:
        """Everything up to *head* that is visible at this moment: what can still appear below is open."""
        async with self._database.connection() as connection:
            sample = await self._samples.take(connection)
            # Events may have been deleted, or lost with the server that had them.
            head = GlobalSequence(min(head, sample.high))
            writers = {holder for holder in sample.holders if not holder.endswith(_ENDED)}
            gaps: list[Gap] = []
            bottom: int = head
            while writers and bottom > 0 and len(gaps) < _MOST_OPEN_GAPS:
                rows = await connection.fetch(self._queries["read_missing"], bottom)
                gaps += [Gap(*row) for row in rows[1:]]
                bottom = rows[0][0] - 1
                # When they have ended nothing can appear any more: no need to look through all of the log.
                holders = (await self._samples.take(connection)).holders
                writers = {each for each in holders if each in writers or each.startswith(_PREPARED)}
        return LogPosition(head, tuple(sorted(gaps[:_MOST_OPEN_GAPS])))

    async def open_writers(self) -> list[OpenWriter]:
        """The transactions that may still fill a gap, the oldest first."""
        async with self._database.connection() as connection:
            return await self._samples.open_writers(connection)

    async def read_stream(self, stream_id: str, from_version: int, to_version: int | None) -> list[Event]:
        """The events of a stream in the order of their versions, both bounds included."""
        last = LARGEST_NUMBER if to_version is None else to_version
        rows = await self._database.fetch(self._queries["read_stream"], stream_id, from_version, last)
        return list(await decode_page(columns_from_rows(rows)))

    async def get(self, event_id: str) -> Event:
        """The event with this id. EventNotFoundError."""
        async with self._database.connection() as connection:
            return await self._find(connection, event_id)

    async def head(self) -> GlobalSequence:
        """The highest number in the log; 0 if there is none."""
        async with self._database.connection() as connection:
            return await self._read_head(connection)

    async def position_at(self, moment: datetime) -> GlobalSequence:
        """The number just before the first event whose created_at is *moment* or later; else the head."""
        async with self._database.connection() as connection:
            query = self._queries["read_position_at"]
            position: int = await connection.fetchval(query, moment.astimezone(UTC), timeout=_PATIENCE)
            return GlobalSequence(position)

    async def purge(self, event_id: str, purger_id: str) -> None:
        """Take the payload away, also from its dead letters; the event stays. EventNotFoundError."""
        values = (event_id, purger_id, self._clock.now())
        async with self._database.transaction() as connection:
            if not await connection.fetchval(self._queries["has_event"], event_id):
                raise EventNotFoundError(event_id)
            await connection.execute(self._queries["purge_event"], *values)
            # A statement of its own: it sees the copies of whoever buried the event meanwhile.
            await connection.execute(self._queries["purge_event_from_dead_letters"], *values)

    @property
    def known_head(self) -> GlobalSequence:
        """The head as far as this process has noticed."""
        return GlobalSequence(self._wake_ups.known_head)

    def watch(self, on_append: Callable[[], None]) -> None:
        """Call this in the event loop when the log may have grown, or a retry may be wanted."""
        self._wake_ups.watch(on_append)

    def unwatch(self, on_append: Callable[[], None]) -> None:
        """Do not call it any more. Idempotent."""
        self._wake_ups.unwatch(on_append)

    async def _learn_head(self, connection: Connection) -> None:
        await self._read_head(connection)

    async def _read_head(self, connection: Connection) -> GlobalSequence:
        head: int = await connection.fetchval(self._queries["read_head"])
        self._wake_ups.note_head(head)
        return GlobalSequence(head)

    async def _find(self, connection: Connection, event_id: str) -> Event:
        # The connection may be the user's.
        with translated():
            row = await connection.fetchrow(self._queries["read_event"], event_id)
        if row is None:
            raise EventNotFoundError(event_id)
        return event_from_row(row)


def _check_inside_transaction(connection: Connection) -> None:
    if is_over(connection):
        raise InvalidConfigError(
            "connection",
            connection,
            "one inside a transaction, and that of a handler is over when it returns: await everything "
            "before; nothing was stored",
        )
    if is_gone(connection):
        # A pool of asyncpg takes back what was lost, so that it looks as if its user had given it back.
        raise StoreUnavailableError(
            f"connection is {connection!r}, which was lost, closed or given back to its pool; expected one "
            "inside a transaction (async with connection.transaction()); nothing was stored; run the "
            "transaction again with another"
        )
    if not connection.is_in_transaction():
        raise InvalidConfigError(
            "connection",
            connection,
            "one inside a transaction (async with connection.transaction()); nothing was stored",
        )


def _as_stored(draft: Draft, stored: Stored) -> Event:
    assert stored.sequence is not None
    return event_from_draft(draft, stored.sequence, stored.stream_version)
