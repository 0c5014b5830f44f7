"""Whether what is written to the file now will be there later: if not, nothing is acknowledged.

Two things can come in between: the files were deleted or replaced, or the disk has failed to take what
SQLite takes for written.
"""

import contextlib
import logging
import sqlite3
import threading
from pathlib import Path

from postbus.errors import FileReplacedError, StoreError
from postbus.stores.sqlite.connection import is_closed
from postbus.stores.sqlite.opened_files import OpenedFiles

logger = logging.getLogger("postbus")


class FileTrust:
    """What the writer of a file knows of it. Used in the writer's thread."""

    def __init__(self, path: Path) -> None:
        """To be made when the file is open."""
        self._path, self._files = path, OpenedFiles(path)
        self._replaced_path: Path | None = None
        self._is_log_doubtful = False
        self.is_lost = False
        """Whether nothing may be stored at the moment."""

    @property
    def refusal(self) -> StoreError:
        """Why nothing is stored at the moment."""
        if self._replaced_path is None:
            return StoreError(
                f"{self._path}: the disk has failed, and the log has to be copied before anything more is "
                "stored; nothing was stored; try again"
            )
        return FileReplacedError(
            f"{self._replaced_path} was deleted or replaced while {self._path} was open; nothing more is "
            "stored; end every process that has it open, see to the file and start again"
        )

    def note_error(self, raised: Exception) -> None:
        """Something could not be written."""
        # After a sync that failed the system takes its pages for clean: what had been written without waiting
        # for the disk may be missing in the log, and all that follows it would be lost in a power cut. What
        # could not be written is only written again.
        if getattr(raised, "sqlite_errorcode", sqlite3.SQLITE_OK) == sqlite3.SQLITE_IOERR_FSYNC:
            self._is_log_doubtful = self.is_lost = True

    def look(self, connection: sqlite3.Connection) -> None:
        """Notice when the files were deleted or replaced, and save what is in a log that is lost."""
        # With the last connection SQLite itself deletes what is beside the database.
        if self._replaced_path is not None or is_closed(connection):
            return
        self._replaced_path = self._files.find_replaced()
        if self._replaced_path is None:
            return
        self.is_lost = True
        logger.error("%s", self.refusal)
        if self._files.can_be_saved:
            # SQLite still has the log open; should the process be killed, it is gone.
            with contextlib.suppress(sqlite3.Error):
                connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()

    @property
    def needs_new_log(self) -> bool:
        """Whether the log has to be copied, and begun anew, before anything more is acknowledged."""
        return self._is_log_doubtful and self._replaced_path is None

    def renew_log(self, connection: sqlite3.Connection) -> None:
        """Do that: the database gets everything from memory, and waits for the disk."""
        is_busy, _, _ = connection.execute("PRAGMA wal_checkpoint(RESTART)").fetchone()
        self._is_log_doubtful = self.is_lost = bool(is_busy)

    def close(self, connection: sqlite3.Connection) -> None:
        """Close the last connection, unless that would delete what is now the log of others, by its name.

        Then it stays open for as long as the process lives: a thread that is never ended keeps what it has.
        """
        if self._replaced_path is not None and self._files.have_successors:
            threading.Thread(target=_keep, args=(connection,), daemon=True).start()
            return
        with contextlib.suppress(sqlite3.Error):
            connection.close()


def _keep(_: sqlite3.Connection) -> None:
    threading.Event().wait()
