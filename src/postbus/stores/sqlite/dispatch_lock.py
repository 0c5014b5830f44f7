"""One process per file runs the in-process handlers: a lock that ends with its process."""

import fcntl
import os
import threading
import weakref
from pathlib import Path

from postbus.errors import StoreError, StoreReadOnlyError

# A forked child shares the parent's lock and would keep it alive beyond the parent's death.
_held_locks: "weakref.WeakSet[FileDispatchLock]" = weakref.WeakSet()


class FileDispatchLock:
    """A lock on a file beside the database; the system releases it when the process ends, however it ends."""

    def __init__(self, database: Path) -> None:
        self._path = Path(f"{os.path.realpath(database)}-dispatch")
        self._guard = threading.Lock()
        self._file: int | None = None
        # Asked for and not released since.
        self.is_wanted = False
        _held_locks.add(self)

    @property
    def is_held(self) -> bool:
        """Whether this process is the owner."""
        return self._file is not None

    def try_acquire(self) -> bool:
        """Become or stay the owner, without waiting. Safe from any thread."""
        with self._guard:
            self.is_wanted = True
            return self._lock()

    def take_over(self) -> bool:
        """Become the owner if that is still wanted; whether it is now. Safe from any thread."""
        with self._guard:
            return self.is_wanted and self._file is None and self._lock()

    def _lock(self) -> bool:
        if self._file is None:
            self._file = _lock_file(self._path)
        return self._file is not None

    def release(self) -> None:
        """Let another process become the owner. Idempotent."""
        with self._guard:
            self.is_wanted = False
            if self._file is not None:
                os.close(self._file)
                self._file = None


def _lock_file(path: Path) -> int | None:
    try:
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise StoreReadOnlyError(
            f"{path} can't be opened for writing ({error.strerror}); "
            "with it one process at a time runs the handlers; check the permissions of the folder"
        ) from error
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(file)
        return None
    except OSError as error:
        os.close(file)
        raise StoreError(
            f"{path} can't be locked ({error.strerror}); put the database on a local disk"
        ) from error
    return file


def _forget_locks_in_child() -> None:
    for lock in list(_held_locks):
        lock._guard = threading.Lock()
        lock.release()


os.register_at_fork(after_in_child=_forget_locks_in_child)
