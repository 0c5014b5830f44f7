"""Dead letters of the in-process handlers and of durable subscribers, in SQLite."""

import sqlite3
from collections.abc import Callable
from datetime import UTC, datetime

from postbus.errors import EventNotFoundError, NotADeadLetterError
from postbus.events import DeadLetter, DeadLetterPage, Event, FencedOwner, Part, SubscriberId
from postbus.ports import Clock, WantedEvents
from postbus.storable import LARGEST_NUMBER
from postbus.stores.named_queries import load_queries
from postbus.stores.sqlite.access import FileAccess
from postbus.stores.sqlite.rows import (
    HANDLER_COLUMNS,
    SUBSCRIBER_COLUMNS,
    dead_letter_from_row,
    moment_to_text,
)
from postbus.stores.wishes import as_wanted

_QUERIES = load_queries("postbus.stores.sqlite", "queries.sql")


def _query(name: str) -> str:
    return _QUERIES[name].format(handler_columns=HANDLER_COLUMNS, subscriber_columns=SUBSCRIBER_COLUMNS)


_READ_PAGE, _READ_PAGE_OF_SUBSCRIBER = _query("read_dead_letters"), _query("read_dead_letters_of_subscriber")
_READ_WANTED_RETRIES = _query("read_wanted_retries")
# Where an id is looked for, one after the other.
_READ_ONE = [
    _query(name)
    for name in ("read_subscriber_dead_letter", "read_handler_dead_letter", "read_dead_letter_of_event")
]


class SQLiteDeadLetters:
    """The DeadLetterStore port.

    *announce* tells a bus of this process that events are pending again, *wake* its durable
    subscribers that a retry is wanted.
    """

    def __init__(
        self, file: FileAccess, clock: Clock, announce: Callable[[], None], wake: Callable[[], None]
    ) -> None:
        self._file, self._clock, self._announce, self._wake = file, clock, announce, wake

    async def page(self, limit: int, offset: int, subscriber_id: SubscriberId | None) -> DeadLetterPage:
        """The unresolved ones of both kinds, or of one subscriber, newest first."""

        def read(connection: sqlite3.Connection) -> DeadLetterPage:
            # One transaction, so that the page and the total are of the same moment.
            connection.execute("BEGIN")
            try:
                if subscriber_id is None:
                    most = min(limit + offset, LARGEST_NUMBER)
                    values = {"limit": limit, "offset": offset, "most": most}
                    rows = connection.execute(_READ_PAGE, values).fetchall()
                    total = connection.execute(_QUERIES["count_dead_letters"])
                else:
                    place = (subscriber_id, limit, offset)
                    rows = connection.execute(_READ_PAGE_OF_SUBSCRIBER, place).fetchall()
                    total = connection.execute(_QUERIES["count_dead_letters_of_subscriber"], place[:1])
                return DeadLetterPage([dead_letter_from_row(row) for row in rows], total.fetchone()[0])
            finally:
                connection.execute("ROLLBACK")

        return await self._file.read(read)

    async def get(self, dead_letter_id: str) -> DeadLetter:
        """One, resolved or not. EventNotFoundError, NotADeadLetterError (an event that is none)."""

        def read(connection: sqlite3.Connection) -> DeadLetter:
            for query in _READ_ONE:
                row = connection.execute(query, (dead_letter_id,)).fetchone()
                if row is not None:
                    return dead_letter_from_row(row)
            raise _why_not(connection, dead_letter_id)

        return await self._file.read(read)

    async def revive(self, dead_letter_id: str) -> None:
        """Give it another chance; an event's id stands for all its dead letters."""
        now = self._now()

        def revive(connection: sqlite3.Connection) -> None:
            _check_unresolved(connection, dead_letter_id)
            connection.execute(_QUERIES["revive_event"], (now, dead_letter_id))
            connection.execute(_QUERIES["want_retry"], {"now": now, "id": dead_letter_id})

        await self._file.write(revive, self._tell)

    async def revive_all(self, event_type: str | None, subscriber_id: SubscriberId | None) -> int:
        """Revive every unresolved dead letter, or those of one type, of one subscriber; how many."""
        now = self._now()
        of_type = "" if event_type is None else "_of_type"
        of_subscriber = "" if subscriber_id is None else "_of_subscriber"
        values = {"now": now, "event_type": event_type, "subscriber_id": subscriber_id}

        def revive(connection: sqlite3.Connection) -> int:
            count = connection.execute(_QUERIES[f"want_retries{of_type}{of_subscriber}"], values).rowcount
            if subscriber_id is None:
                place = (now,) if event_type is None else (now, event_type)
                count += connection.execute(_QUERIES[f"revive_events{of_type}"], place).rowcount
            return count

        return await self._file.write(revive, self._tell)

    async def resolve(self, dead_letter_id: str, by: str, notes: str | None) -> None:
        """Somebody has seen to it: it leaves the list and stays on record."""
        values = {"now": self._now(), "by": by, "notes": notes, "id": dead_letter_id}

        def resolve(connection: sqlite3.Connection) -> None:
            _check_unresolved(connection, dead_letter_id)
            connection.execute(_QUERIES["resolve_event"], values)
            connection.execute(_QUERIES["resolve_subscriber_dead_letter"], values)

        await self._file.write(resolve)

    async def purge(self, cutoff: datetime) -> int:
        """Delete dead letters with created_at <= cutoff, resolved ones too; how many."""
        last = moment_to_text(cutoff.astimezone(UTC))
        now = self._now()

        def purge(connection: sqlite3.Connection) -> int:
            count = connection.execute(_QUERIES["keep_purged_events"], (now, last)).rowcount
            count += connection.execute(_QUERIES["purge_dead_letters"], (last,)).rowcount
            return count + connection.execute(_QUERIES["purge_subscriber_dead_letters"], (last,)).rowcount

        return await self._file.write(purge)

    async def wanted_retries(
        self,
        subscriber_id: SubscriberId,
        limit: int,
        part: Part | None = None,  # noqa: ARG002
    ) -> list[DeadLetter]:
        """Dead letters of this subscriber that are marked for one more attempt, oldest first."""
        values = (subscriber_id, limit)
        rows = await self._file.read_committed(
            lambda connection: connection.execute(_READ_WANTED_RETRIES, values).fetchall()
        )
        return [as_wanted(dead_letter_from_row(row), row[-1]) for row in rows]

    async def bury_late(
        self,
        subscriber_id: SubscriberId,  # noqa: ARG002
        wanted: WantedEvents | None,  # noqa: ARG002
        error: str,  # noqa: ARG002
        owner: FencedOwner,  # noqa: ARG002
    ) -> list[Event]:
        """None: numbers commit in order, so no number is ever given up."""
        return []

    def _tell(self) -> None:
        self._announce()
        self._wake()

    def _now(self) -> str:
        return moment_to_text(self._clock.now())


def _check_unresolved(connection: sqlite3.Connection, dead_letter_id: str) -> None:
    (is_unresolved,) = connection.execute(_QUERIES["find_dead_letters"], {"id": dead_letter_id}).fetchone()
    if is_unresolved is None:
        raise _why_not(connection, dead_letter_id)
    if not is_unresolved:
        raise NotADeadLetterError(dead_letter_id, "resolved")


def _why_not(connection: sqlite3.Connection, event_id: str) -> EventNotFoundError | NotADeadLetterError:
    row = connection.execute(_QUERIES["read_event_status"], (event_id,)).fetchone()
    return EventNotFoundError(event_id) if row is None else NotADeadLetterError(event_id, row[0])
