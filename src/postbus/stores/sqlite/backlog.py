"""Stored events that no publisher is waiting for, in SQLite."""

import asyncio
import contextlib
import sqlite3
from collections.abc import Callable, Collection, Sequence

from postbus.errors import StoreError
from postbus.events import Event, GlobalSequence
from postbus.ports import Clock
from postbus.stores.named_queries import load_queries
from postbus.stores.sqlite.access import FileAccess
from postbus.stores.sqlite.dispatch_lock import FileDispatchLock
from postbus.stores.sqlite.rows import (
    COLUMNS,
    MOST_CHARACTERS,
    event_from_row,
    moment_to_text,
    sequences_to_json,
)

_QUERIES = load_queries("postbus.stores.sqlite", "queries.sql")
_READ_PENDING = _QUERIES["read_pending"]


class SQLiteBacklog:
    """The Backlog port, and the look-out for what other processes write."""

    def __init__(self, file: FileAccess, clock: Clock, lock: FileDispatchLock) -> None:
        self._file, self._clock, self._lock = file, clock, lock
        self._on_change: Callable[[], None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._connection: Callable[[], sqlite3.Connection] | None = None
        self._data_version = 0

    async def recover(self, error: str, error_of_several: str) -> int:
        """Put what an ended process left in processing back to pending, as a failed attempt."""
        now = self._now()

        def recover(connection: sqlite3.Connection) -> int:
            (is_one_of_several,) = connection.execute(_QUERIES["is_one_of_several"]).fetchone()
            values = (now, error_of_several if is_one_of_several else error)
            return connection.execute(_QUERIES["recover_events"], values).rowcount

        return await self._file.write(recover, self.announce)

    async def pending(self, after: GlobalSequence, limit: int, without: Collection[str] = ()) -> list[Event]:
        """Pending events with a higher sequence number, in order, but none of the types in *without*."""
        query = _READ_PENDING.format(columns=COLUMNS, types=", ".join("?" * len(without)))
        values = (after, *without, limit)

        def read(connection: sqlite3.Connection) -> list[Event]:
            events: list[Event] = []
            size = 0
            for row in connection.execute(query, values):
                events.append(event_from_row(row))
                size += len(row[3])
                if size >= MOST_CHARACTERS:
                    break
            return events

        return await self._file.read_committed(read)

    async def pending_count(self, up_to: GlobalSequence) -> int:
        """How many are pending up to this sequence number."""
        (count,) = await self._file.read_committed(
            lambda connection: connection.execute(_QUERIES["count_pending"], (up_to,)).fetchone()
        )
        return int(count)

    async def claim(self, sequences: Sequence[GlobalSequence]) -> set[GlobalSequence]:
        """Move pending events to processing; those that still were pending."""
        values = (self._now(), sequences_to_json(sequences))
        rows = await self._file.write(
            lambda connection: connection.execute(_QUERIES["claim_events"], values).fetchall()
        )
        return {GlobalSequence(sequence) for (sequence,) in rows}

    async def settle_pending(self, sequences: Sequence[GlobalSequence]) -> int:
        """Mark pending events done unseen."""
        values = (self._now(), sequences_to_json(sequences))
        return await self._file.write(
            lambda connection: connection.execute(_QUERIES["settle_pending_events"], values).rowcount
        )

    def watch(self, on_change: Callable[[], None] | None) -> None:
        """Call *on_change* in this event loop when events may have become pending, or the owner gone."""
        self._on_change = on_change
        self._loop = None if on_change is None else asyncio.get_running_loop()
        if on_change is not None:
            self._file.listen_to_others()

    def announce(self) -> None:
        """This process made events pending."""
        if self._on_change is not None:
            self._on_change()

    def begin_watching(self, connection: Callable[[], sqlite3.Connection]) -> None:
        """Look through this connection: SQLite's data_version tells of the others' commits only."""
        self._connection = connection
        self._data_version = self._read_data_version()

    def look(self) -> bool:
        """Whether another process has written; called by the writer's thread now and then."""
        version = self._read_data_version()
        has_changed = version != self._data_version
        self._data_version = version
        on_change, loop = self._on_change, self._loop
        if on_change is not None and loop is not None:
            has_become_owner = self._try_to_own()
            if has_changed or has_become_owner:
                with contextlib.suppress(RuntimeError):  # the loop is closed
                    loop.call_soon_threadsafe(on_change)
        return has_changed

    def _try_to_own(self) -> bool:
        # The thread must live on; who starts a bus on this file hears of the reason.
        with contextlib.suppress(StoreError):
            return self._lock.take_over()
        return False

    def _read_data_version(self) -> int:
        if self._connection is None:
            return 0
        try:
            return int(self._connection().execute("PRAGMA data_version").fetchone()[0])
        except sqlite3.Error:
            return self._data_version

    def _now(self) -> str:
        return moment_to_text(self._clock.now())
