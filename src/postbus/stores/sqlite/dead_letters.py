"""Events that used up their attempts, in SQLite."""

import sqlite3
from collections.abc import Callable
from datetime import UTC, datetime

from postbus.errors import EventNotFoundError, NotADeadLetterError
from postbus.events import DeadLetterPage
from postbus.ports import Clock
from postbus.stores.named_queries import load_queries
from postbus.stores.sqlite.access import FileAccess
from postbus.stores.sqlite.rows import COLUMNS, event_from_row, moment_to_text

_QUERIES = load_queries("postbus.stores.sqlite", "queries.sql")
_READ_PAGE = _QUERIES["read_dead_letters"].format(columns=COLUMNS)


class SQLiteDeadLetters:
    """The DeadLetterStore port; *announce* tells a bus of this process that events are pending again."""

    def __init__(self, file: FileAccess, clock: Clock, announce: Callable[[], None]) -> None:
        self._file, self._clock, self._announce = file, clock, announce

    async def page(self, limit: int, offset: int) -> DeadLetterPage:
        """The newest first."""

        def read(connection: sqlite3.Connection) -> tuple[list[tuple[object, ...]], int]:
            # One transaction, so that the page and the total are of the same moment.
            connection.execute("BEGIN")
            try:
                rows = connection.execute(_READ_PAGE, (limit, offset)).fetchall()
                (total,) = connection.execute(_QUERIES["count_dead_letters"]).fetchone()
            finally:
                connection.execute("ROLLBACK")
            return rows, total

        rows, total = await self._file.read(read)
        return DeadLetterPage(events=[event_from_row(row) for row in rows], total=total)

    async def revive(self, event_id: str) -> None:
        """Back to pending with no attempts and no errors."""
        values = (self._now(), event_id)

        def revive(connection: sqlite3.Connection) -> None:
            if connection.execute(_QUERIES["revive_event"], values).rowcount == 0:
                row = connection.execute(_QUERIES["read_event_status"], (event_id,)).fetchone()
                raise EventNotFoundError(event_id) if row is None else NotADeadLetterError(event_id, row[0])

        await self._file.write(revive)
        self._announce()

    async def revive_all(self, event_type: str | None) -> int:
        """Revive every dead letter, or those of one type."""
        name, values = "revive_events", [self._now()]
        if event_type is not None:
            name, values = "revive_events_of_type", [self._now(), event_type]
        count = await self._file.write(lambda connection: connection.execute(_QUERIES[name], values).rowcount)
        self._announce()
        return count

    async def purge(self, cutoff: datetime) -> int:
        """Delete dead letters with created_at <= cutoff."""
        values = (moment_to_text(cutoff.astimezone(UTC)),)
        return await self._file.write(
            lambda connection: connection.execute(_QUERIES["purge_dead_letters"], values).rowcount
        )

    def _now(self) -> str:
        return moment_to_text(self._clock.now())
