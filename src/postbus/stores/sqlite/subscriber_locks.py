"""A durable subscriber is active in one process: locks that end with their process."""

import fcntl
import hashlib
import os
import threading
import weakref
from collections.abc import Callable
from pathlib import Path

from postbus.errors import StoreError, StoreReadOnlyError
from postbus.events import SubscriberId


class FileSubscriberLocks:
    """One byte of a file beside the database for each subscriber; the system frees it with the process."""

    def __init__(self, database: Path) -> None:
        # Resolved when it is needed: the file may be made through a link that does not exist yet.
        self._database = database

    async def try_acquire(self, subscriber_id: SubscriberId) -> bool:
        """Become the holder without waiting; False if anybody is, this process included."""
        path = Path(f"{self._database.resolve()}-subscribers")
        with _guard:
            file = _files.get(path)
            if file is None:
                file = _files[path] = _LockFile(path)
            is_acquired = file.try_lock(self, subscriber_id)
            _drop_unused()
            return is_acquired

    def release(self, subscriber_id: SubscriberId) -> None:
        """Let another become the holder. Idempotent."""
        with _guard:
            for file in _files.values():
                file.unlock(self, subscriber_id)
            _drop_unused()

    def watch(
        self,
        on_lost: Callable[[], None] | None,
        on_free: Callable[[], None] | None,
        failover_timeout: float,
    ) -> None:
        """These locks are not lost before the process ends, and whoever wants one asks again."""

    def release_all(self) -> None:
        """Let go of everything, as the end of the process would."""
        with _guard:
            for file in _files.values():
                for subscriber_id in file.held_by(self):
                    file.unlock(self, subscriber_id)
            _drop_unused()


class _LockFile:
    """The one descriptor that this process has of a file.

    Such locks belong to the process and not to the descriptor: the same process gets a lock a second
    time, and loses all its locks as soon as it closes any descriptor of the file. So the stores of a
    process share one, and who holds what among them is known here.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._holders: dict[SubscriberId, weakref.ref[FileSubscriberLocks]] = {}
        try:
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise StoreReadOnlyError(
                f"{path} can't be opened for writing ({error.strerror}); with it one process at a time "
                "runs a durable subscriber; check the permissions of the folder"
            ) from error

    @property
    def is_unused(self) -> bool:
        return not self._holders

    def try_lock(self, holder: FileSubscriberLocks, subscriber_id: SubscriberId) -> bool:
        self._forget_the_dead()
        if subscriber_id in self._holders:
            return False
        try:
            fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, _place(subscriber_id))
        except (BlockingIOError, PermissionError):
            # POSIX leaves it to the system which of the two means "taken".
            return False
        except OSError as error:
            raise StoreError(
                f"{self._path} can't be locked ({error.strerror}); put the database on a local disk"
            ) from error
        self._holders[subscriber_id] = weakref.ref(holder)
        return True

    def unlock(self, holder: FileSubscriberLocks, subscriber_id: SubscriberId) -> None:
        held_by = self._holders.get(subscriber_id)
        if held_by is not None and held_by() is holder:
            self._unlock(subscriber_id)

    def held_by(self, holder: FileSubscriberLocks) -> list[SubscriberId]:
        return [each for each, held_by in self._holders.items() if held_by() is holder]

    def close(self) -> None:
        os.close(self._file)

    def _unlock(self, subscriber_id: SubscriberId) -> None:
        fcntl.lockf(self._file, fcntl.LOCK_UN, 1, _place(subscriber_id))
        del self._holders[subscriber_id]

    def _forget_the_dead(self) -> None:
        # A store that was thrown away without close() runs nothing any more.
        for subscriber_id in [each for each, held_by in self._holders.items() if held_by() is None]:
            self._unlock(subscriber_id)


def _place(subscriber_id: SubscriberId) -> int:
    digest = hashlib.blake2b(subscriber_id.encode(errors="surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest) >> 2


_guard = threading.Lock()
_files: dict[Path, _LockFile] = {}


def _drop_unused() -> None:
    for path in [path for path, file in _files.items() if file.is_unused]:
        _files.pop(path).close()


def _forget_locks_in_child() -> None:
    # The locks stay with the parent; closing the descriptors here takes none of them away.
    global _guard
    _guard = threading.Lock()
    for file in _files.values():
        file.close()
    _files.clear()


os.register_at_fork(after_in_child=_forget_locks_in_child)
