"""Opens the SQLite file the way postbus needs it, and says in our words what SQLite refuses."""

import os
import random
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from postbus.errors import (
    DuplicateEventIdError,
    InvalidTargetError,
    NotADatabaseError,
    StoreBusyError,
    StoreError,
    StoreFullError,
    StoreReadOnlyError,
)
from postbus.stores.lent_connection import LendableConnection

# How long SQLite itself waits for another process before we look whether to go on waiting.
_BUSY_SECONDS = 1.0
_LOCK_TIMEOUT = 60.0

T = TypeVar("T")
Check = Callable[[sqlite3.Connection, Path], None]


def check_path(path: object) -> str:
    """The path as text, if a file can have it. InvalidTargetError."""
    text = os.fspath(path) if isinstance(path, os.PathLike) else path
    if not isinstance(text, str):
        raise InvalidTargetError(path, f"is of type {type(path).__qualname__}")
    if text == ":memory:":
        raise InvalidTargetError(
            path, 'is no file, and SQLite keeps it no longer than one connection; use "memory:" for tests'
        )
    try:
        name = os.fsencode(text)
    except UnicodeEncodeError as error:
        raise InvalidTargetError(path, "contains a lone surrogate") from error
    if b"\0" in name:
        raise InvalidTargetError(path, "contains a NUL character")
    return text


def open_connection(path: Path, synchronous: str, *, check: Check | None = None) -> sqlite3.Connection:
    """A connection in WAL mode on which every transaction is begun and ended by hand.

    *check* raises if the file is not ours: WAL mode is a change to the file.
    """
    with translated_errors(path):
        _check_place(path)
        connection = sqlite3.connect(
            path,
            timeout=_BUSY_SECONDS,
            isolation_level=None,
            check_same_thread=False,
            factory=LendableConnection,
        )
        try:
            if check is not None:
                check(connection, path)
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute(f"PRAGMA synchronous = {synchronous}")
            # Before 3.51.3 two connections that checkpoint at once can corrupt the file,
            # so nobody does it in passing: the writer of the owner does it on purpose.
            connection.execute("PRAGMA wal_autocheckpoint = 0")
            # On macOS a plain fsync leaves the data in the cache of the drive; elsewhere it changes nothing.
            connection.execute("PRAGMA fullfsync = 1")
        except BaseException:
            connection.close()
            raise
        return connection


def is_closed(connection: sqlite3.Connection) -> bool:
    """Whether somebody has closed it; SQLite has undone its transaction then."""
    try:
        connection.in_transaction  # noqa: B018
    except sqlite3.ProgrammingError:
        return True
    return False


def read_leniently(connection: sqlite3.Connection, run: Callable[[sqlite3.Connection], T]) -> T:
    """Run a query; what another program wrote may be no text at all, and must not hide the rows behind it."""
    try:
        return run(connection)
    except sqlite3.OperationalError as error:
        if not str(error).startswith("Could not decode"):
            raise
    # Not from the start: a call for every text that is read takes a third of the speed.
    connection.text_factory = lambda text: text.decode(errors="backslashreplace")
    try:
        return run(connection)
    finally:
        connection.text_factory = str


def patiently(run: Callable[[], T], given_up: threading.Event) -> T:
    """Call it again while another connection is in the way, for a minute at most.

    Not every lock heeds SQLite's own timeout: opening a file and putting its log in order do not.
    """
    deadline = time.monotonic() + _LOCK_TIMEOUT
    while True:
        try:
            return run()
        except StoreBusyError:
            # Not in step with the other processes that wait.
            if time.monotonic() > deadline or given_up.wait(random.uniform(0.001, 0.02)):
                raise


@contextmanager
def translated_errors(path: Path) -> Iterator[None]:
    """Raise SQLite's errors as StoreErrors that say what to do."""
    try:
        yield
    except sqlite3.Error as error:
        raise translate(error, path) from error


def _check_place(path: Path) -> None:
    # Only questions about names: opening the file ourselves and closing it again would
    # drop the POSIX locks of every SQLite connection that this process has on it.
    try:
        path.stat()
    except PermissionError:
        return  # nothing can be asked there, and SQLite says so
    except (FileNotFoundError, NotADirectoryError):
        pass  # yet to be made
    except OSError as error:
        # Symbolic links in a circle, or a name that is too long.
        raise StoreError(f"{path} can't be opened: {error.strerror}; check the path") from error
    if path.is_dir():
        raise NotADatabaseError(
            f"{path} is a directory; expected the path of a file, such as {path / 'events.db'}"
        )
    if not path.parent.is_dir():
        raise StoreError(f"{path} can't be opened: its folder does not exist; create the folder first")


def translate(error: sqlite3.Error, path: Path) -> StoreError:
    """What SQLite refused, in our words."""
    words = f"SQLite says: {error}"
    code = getattr(error, "sqlite_errorcode", 0)
    match code & 0xFF:
        case sqlite3.SQLITE_FULL:
            return StoreFullError(
                f"no room left for {path}; nothing was stored; make room and try again; {words}"
            )
        case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED:
            return StoreBusyError(f"another connection holds {path}; nothing was stored; try again; {words}")
        case sqlite3.SQLITE_NOTADB:
            return NotADatabaseError(
                f"{path} is not a SQLite database; check the path; the file was left as it is"
            )
        case sqlite3.SQLITE_READONLY | sqlite3.SQLITE_PERM:
            return _read_only(path, words)
        case sqlite3.SQLITE_CANTOPEN:
            may_write_folder = os.access(path.parent, os.W_OK | os.X_OK)
            if not may_write_folder or (path.exists() and not os.access(path, os.W_OK)):
                return _read_only(path, words)
            return StoreError(f"{path} can't be opened; check the path and its permissions; {words}")
        case sqlite3.SQLITE_CORRUPT:
            return StoreError(
                f"{path} is damaged; restore it from a backup or run SQLite's .recover; {words}"
            )
        case sqlite3.SQLITE_CONSTRAINT if code == sqlite3.SQLITE_CONSTRAINT_UNIQUE:
            return DuplicateEventIdError(
                f"an event with the same id is stored in {path} already; nothing was stored; "
                f"give an id_factory whose ids are unique; {words}"
            )
        case _:
            return StoreError(f"{path}: {words}")


def _read_only(path: Path, words: str) -> StoreReadOnlyError:
    return StoreReadOnlyError(
        f"{path} can't be written; postbus needs to write the file and its folder "
        f"(SQLite keeps -wal and -shm files beside it); nothing was stored; {words}"
    )
