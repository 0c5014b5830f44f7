"""A SQLite connection that can be lent to a handler; nothing that was opened meanwhile stays open."""

import contextlib
import sqlite3
import weakref
from typing import Any, TypeVar

# So many are remembered before those that are gone are sorted out: a handler may make millions.
_LEAST_REMEMBERED = 1_000

T = TypeVar("T", sqlite3.Cursor, sqlite3.Blob)


class LendableConnection(sqlite3.Connection):
    """One that may become a LentConnection, and a plain one again: its owner's statements cost no more."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        # A list, because every statement of a handler pays for it: a weak set would cost it twice as much.
        self._opened: list[weakref.ref[sqlite3.Cursor | sqlite3.Blob]] = []
        self._sorted_out_at = _LEAST_REMEMBERED


class LentConnection(LendableConnection):
    """Remembers the cursors and blobs that are made on it.

    A cursor that was not read to its end holds on to the snapshot of its transaction, and one that writes
    keeps the transaction from being ended. The handler may be long gone: a traceback keeps cursors too.
    """

    def cursor(self, *args: Any, **options: Any) -> Any:
        """A cursor."""
        return self._remember(super().cursor(*args, **options))

    def execute(self, *args: Any) -> sqlite3.Cursor:
        """A cursor on which the statement was executed."""
        return self._remember(super().execute(*args))

    def executemany(self, *args: Any) -> sqlite3.Cursor:
        """A cursor on which the statement was executed many times."""
        return self._remember(super().executemany(*args))

    def executescript(self, *args: Any) -> sqlite3.Cursor:
        """A cursor on which the statements were executed."""
        return self._remember(super().executescript(*args))

    def blobopen(self, *args: Any, **options: Any) -> sqlite3.Blob:
        """A blob."""
        return self._remember(super().blobopen(*args, **options))

    def close(self) -> None:
        """Close the connection, and its transaction: SQLite keeps that while a statement is at work."""
        self.close_opened()
        super().close()

    def forget_opened(self) -> None:
        """What is open now may stay open."""
        self._opened.clear()

    def close_opened(self) -> None:
        """Close what is still open of all that was made since it was lent."""
        for reference in self._opened:
            if (opened := reference()) is not None:
                _close(opened)
        self._opened.clear()

    def _remember(self, opened: T) -> T:
        if len(self._opened) >= self._sorted_out_at:
            self._opened = [reference for reference in self._opened if reference() is not None]
            self._sorted_out_at = max(_LEAST_REMEMBERED, 2 * len(self._opened))
        self._opened.append(weakref.ref(opened))
        return opened


def lend(connection: sqlite3.Connection) -> None:
    """Make a LendableConnection a LentConnection."""
    connection.__class__ = LentConnection


def take_back(connection: sqlite3.Connection) -> None:
    """Close what was opened on a LentConnection and make it a LendableConnection."""
    if isinstance(connection, LentConnection):
        connection.close_opened()
    connection.__class__ = LendableConnection


def _close(opened: sqlite3.Cursor | sqlite3.Blob) -> None:
    # It may be in use in another thread, or never have been a proper cursor.
    with contextlib.suppress(sqlite3.Error):
        # Not the method of a user's own class: it may do anything.
        if isinstance(opened, sqlite3.Cursor):
            sqlite3.Cursor.close(opened)
        else:
            opened.close()
