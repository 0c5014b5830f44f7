"""Copies the write-ahead log into the database, and has it begun anew before it grows large.

Used in the writer's thread, by one process at a time.
"""

import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager

# A log of so many pages is begun anew even if others have to pause for that.
_LONGEST_LOG = 8_000
# How long all of them are made to wait at first and at most: those who read the log are to end meanwhile.
_SHORTEST_PAUSE = 0.005
_LONGEST_PAUSE = 0.5
# So many times as long they are left alone when that was in vain.
_BETWEEN_PAUSES = 20


class LogCopy:
    """What the tries before have taught about who is in the way."""

    def __init__(self) -> None:
        self._pause, self._next_pause_at = _SHORTEST_PAUSE, 0.0
        # Where the last try came to its end; None: it got through.
        self._stuck_at: int | None = None

    def copy(self, connection: sqlite3.Connection) -> None:
        """Copy as much as the others allow."""
        _, log_pages, copied_pages = connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
        if log_pages <= _LONGEST_LOG:
            self._note_success()
        # Whoever reads for long holds the copy up where the read began: as long as it does not get beyond
        # that, waiting is in vain.
        elif copied_pages != self._stuck_at and time.monotonic() >= self._next_pause_at:
            self._begin_anew(connection)

    def _begin_anew(self, connection: sqlite3.Connection) -> None:
        # Others never pause, so that the log never comes to its end: make them, for a moment.
        with waiting_at_most(connection, self._pause):
            is_busy, _, copied_pages = connection.execute("PRAGMA wal_checkpoint(RESTART)").fetchone()
        if not is_busy:
            self._note_success()
            return
        self._stuck_at = copied_pages
        self._next_pause_at = time.monotonic() + self._pause * _BETWEEN_PAUSES
        # Many short reads, each begun before another ends, need a longer one.
        self._pause = min(self._pause * 2, _LONGEST_PAUSE)

    def _note_success(self) -> None:
        self._pause, self._next_pause_at, self._stuck_at = _SHORTEST_PAUSE, 0.0, None


@contextmanager
def waiting_at_most(connection: sqlite3.Connection, seconds: float) -> Iterator[None]:
    """Have SQLite wait no longer for others in here."""
    (usual,) = connection.execute("PRAGMA busy_timeout").fetchone()
    set_patience(connection, seconds)
    try:
        yield
    finally:
        connection.execute(f"PRAGMA busy_timeout = {usual}")


def set_patience(connection: sqlite3.Connection, seconds: float) -> None:
    """Have SQLite wait so long for others from now on."""
    connection.execute(f"PRAGMA busy_timeout = {round(seconds * 1000)}")
