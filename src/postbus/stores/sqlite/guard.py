"""Lends the writing connection to a handler so that only the handler's own work can suffer."""

import contextlib
import sqlite3
import time

from postbus.stores import lent_connection
from postbus.stores.sqlite.connection import is_closed

# How many steps of SQLite's machine pass between two looks at the time.
_STEPS_BETWEEN_LOOKS = 10_000
_OUR_SAVEPOINTS = ("postbus_event", "postbus_call")


class TransactionGuard:
    """Refuses, while the connection is lent, to end the transaction and to run statements for too long.

    The authorizer is asked when a statement is prepared, and only then. It is set once, because setting
    it has every statement prepared anew; so no statement of ours that begins or ends a transaction may
    have the words of a handler's: Python would find it prepared and nobody would be asked.
    """

    def __init__(self) -> None:
        self.is_lent = False
        """Whether a handler has the connection."""
        self._stops_at = 0.0
        self.was_refused = False
        """Whether the transaction would have been ended."""
        self.was_interrupted = False
        """Whether a statement ran for too long."""

    def install(self, connection: sqlite3.Connection) -> None:
        """Watch over this connection from now on."""
        connection.set_authorizer(self._authorize)

    def begin(self, connection: sqlite3.Connection) -> None:
        """The connection is about to be lent once or several times."""
        connection.set_progress_handler(self._is_overdue, _STEPS_BETWEEN_LOOKS)

    def is_hanging(self, seconds: float) -> bool:
        """Whether the handler has gone on for so long after its time was up."""
        return self.is_lent and time.monotonic() > self._stops_at + seconds

    def hurry(self) -> None:
        """The store is about to close: the time of a handler is up."""
        self._stops_at = min(self._stops_at, time.monotonic())

    def lend(self, connection: sqlite3.Connection, timeout: float) -> None:
        """The handler has the connection from now on."""
        lent_connection.lend(connection)
        self.was_refused = self.was_interrupted = False
        self._stops_at = time.monotonic() + timeout
        self.is_lent = True

    def take_back(self, connection: sqlite3.Connection) -> None:
        """The handler is done, and whatever it left open is closed."""
        self.is_lent = False
        lent_connection.take_back(connection)

    def end(self, connection: sqlite3.Connection) -> None:
        """Make the connection what it was, whatever handlers did to it."""
        if is_closed(connection):
            return
        connection.set_progress_handler(None, 0)
        connection.row_factory = None
        connection.text_factory = str
        if connection.isolation_level is not None:
            # Python would commit at this moment; refused, it only remembers the setting.
            self.is_lent = True
            with contextlib.suppress(sqlite3.Error):
                connection.isolation_level = None
            self.is_lent = False

    def _authorize(self, action: int, *words: str | None) -> int:
        if self.is_lent and (
            action == sqlite3.SQLITE_TRANSACTION
            or (action == sqlite3.SQLITE_SAVEPOINT and str(words[1]).lower() in _OUR_SAVEPOINTS)
        ):
            self.was_refused = True
            return sqlite3.SQLITE_DENY
        return sqlite3.SQLITE_OK

    def _is_overdue(self) -> bool:
        if self.is_lent and time.monotonic() >= self._stops_at:
            self.was_interrupted = True
            return True
        return False
