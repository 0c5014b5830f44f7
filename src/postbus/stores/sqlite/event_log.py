"""All events in the order of their global sequence and in streams, in SQLite."""

import asyncio
import sqlite3
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any

from postbus.errors import EventNotFoundError, NoForeignTransactionError, StoreError
from postbus.events import Draft, Event, GlobalSequence, LogPage, LogPosition, OpenWriter
from postbus.ports import Clock, WantedEvents
from postbus.storable import LARGEST_NUMBER
from postbus.stores.named_queries import load_queries
from postbus.stores.sqlite.access import FileAccess
from postbus.stores.sqlite.event_queue import may_be_pending
from postbus.stores.sqlite.jobs import Insert
from postbus.stores.sqlite.log_pages import read_head, read_page
from postbus.stores.sqlite.rows import (
    COLUMNS,
    event_from_draft,
    event_from_row,
    moment_to_text,
)

_QUERIES = load_queries("postbus.stores.sqlite", "queries.sql")
_READ_EVENT = _QUERIES["read_event"].format(columns=COLUMNS)
_READ_STREAM = _QUERIES["read_stream"].format(columns=COLUMNS)


class SQLiteEventLog:
    """The EventLog port; *announce* tells a bus of this process that events are pending."""

    def __init__(self, file: FileAccess, clock: Clock, announce: Callable[[], None]) -> None:
        self._file, self._clock, self._announce = file, clock, announce
        self._watchers: list[Callable[[], None]] = []

    async def append(self, drafts: Sequence[Draft]) -> list[Event]:
        """Store the drafts, all or none, in one transaction; the stored events, in order."""
        if not drafts:
            return []
        await self._file.open_on_first_use()
        stored: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        has_work = may_be_pending(drafts)

        def on_stored(_: Sequence[int | None], __: Sequence[int | None], error: StoreError | None) -> None:
            if error is None and has_work:
                self._announce()
            if stored.done():
                return  # the caller was cancelled
            if error is None:
                stored.set_result(None)
            else:
                stored.set_exception(error)

        inserting = Insert(drafts, on_stored)
        # The short way does not tell with which status they were stored.
        inserting.is_plain = False
        self._file.writer.submit(inserting)
        await stored
        return await self._stored_events(inserting)

    async def store(self, drafts: Sequence[Draft]) -> None:
        """As append, for whoever does not need the events."""
        await self.append(drafts)

    async def append_within(self, connection: Any, drafts: Sequence[Draft]) -> list[Event]:  # noqa: ARG002
        """The writer's thread has the only connection that writes events."""
        raise NoForeignTransactionError("SQLiteStore")

    async def read(
        self,
        after: LogPosition,
        limit: int,
        wanted: WantedEvents | None,
        *,
        with_sample: bool = False,  # noqa: ARG002
    ) -> LogPage:
        """At most *limit* events after a position whose type is wanted; None: all are."""
        return await self._file.read_committed(
            lambda connection: read_page(connection, after.head, limit, wanted)
        )

    async def now(self, head: GlobalSequence) -> LogPosition:
        """Numbers commit in order: nothing can appear below the head."""
        return LogPosition(head)

    async def open_writers(self) -> list[OpenWriter]:
        """Nobody: numbers commit in order."""
        return []

    async def read_stream(self, stream_id: str, from_version: int, to_version: int | None) -> list[Event]:
        """The events of a stream in the order of their versions, both bounds included."""
        values = (stream_id, from_version, LARGEST_NUMBER if to_version is None else to_version)
        return await self._file.read(
            lambda connection: [event_from_row(row) for row in connection.execute(_READ_STREAM, values)]
        )

    async def get(self, event_id: str) -> Event:
        """The event with this id. EventNotFoundError."""
        row = await self._file.read(
            lambda connection: connection.execute(_READ_EVENT, (event_id,)).fetchone()
        )
        if row is None:
            raise EventNotFoundError(event_id)
        return event_from_row(row)

    async def head(self) -> GlobalSequence:
        """The highest number that was ever used and is durable; 0 if there is none."""
        return await self._file.read_committed(read_head)

    async def position_at(self, moment: datetime) -> GlobalSequence:
        """The number just before the first event whose created_at is *moment* or later; else the head."""
        values = (moment_to_text(moment.astimezone(UTC)),)

        def find(connection: sqlite3.Connection) -> GlobalSequence:
            # Asked first: an event that is stored meanwhile comes after it.
            head = read_head(connection)
            row = connection.execute(_QUERIES["read_position_at"], values).fetchone()
            return head if row is None else GlobalSequence(row[0])

        return await self._file.read_committed(find)

    async def purge(self, event_id: str, purger_id: str) -> None:
        """Take the payload away, also from its dead letters; the event stays. EventNotFoundError."""
        values = (purger_id, moment_to_text(self._clock.now()), event_id)

        def purge(connection: sqlite3.Connection) -> None:
            if connection.execute(_QUERIES["read_event_status"], (event_id,)).fetchone() is None:
                raise EventNotFoundError(event_id)
            connection.execute(_QUERIES["purge_event"], values)
            connection.execute(_QUERIES["purge_event_from_dead_letters"], values)

        await self._file.write(purge)

    @property
    def known_head(self) -> GlobalSequence:
        """The head as far as this process has noticed."""
        return GlobalSequence(self._file.known_head)

    def watch(self, on_append: Callable[[], None]) -> None:
        """Call this in the event loop when the log may have grown, or a retry may be wanted."""
        if on_append not in self._watchers:
            self._watchers.append(on_append)
            self._file.listen_to_others()

    def unwatch(self, on_append: Callable[[], None]) -> None:
        """Do not call it any more. Idempotent."""
        if on_append in self._watchers:
            self._watchers.remove(on_append)

    def wake(self) -> None:
        """Tell all watchers. Called in the event loop."""
        for on_append in list(self._watchers):
            # One of them may have sent another away.
            if on_append in self._watchers:
                on_append()

    @property
    def is_watched(self) -> bool:
        """Whether anybody watches."""
        return bool(self._watchers)

    def forget_watchers(self) -> None:
        """Nobody watches a closed store."""
        self._watchers.clear()

    async def _stored_events(self, inserted: Insert) -> list[Event]:
        versions = inserted.versions or [None] * len(inserted.drafts)
        return [
            await self.get(draft.id)
            if sequence is None
            else event_from_draft(draft, sequence, version, inserted.unrouted_status)
            for draft, sequence, version in zip(inserted.drafts, inserted.sequences, versions, strict=True)
        ]
