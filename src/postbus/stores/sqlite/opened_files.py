"""Notices when the database or a file beside it is deleted or replaced while it is open.

SQLite does not: it goes on with the files that it has, which nobody can open any more, and whatever
is written to them is gone when the process ends.
"""

import contextlib
import os
from pathlib import Path

_Identity = tuple[int, int]


class OpenedFiles:
    """The database, its write-ahead log and the index of that, as they were when they were opened."""

    def __init__(self, path: Path) -> None:
        """To be made when they are there."""
        # SQLite keeps the other two beside the file to which a link leads.
        real = Path(os.path.realpath(path))
        self._database = path
        self._log, self._index = (real.with_name(f"{real.name}{ending}") for ending in ("-wal", "-shm"))
        self._opened: dict[Path, _Identity] = {}
        for each in (path, self._log, self._index):
            with contextlib.suppress(OSError):
                self._opened[each] = _identity(os.stat(each))  # noqa: PTH116 - as for descriptors
        self._descriptor = _find_descriptor(self._opened.get(path))

    def find_replaced(self) -> Path | None:
        """The path at which there is not any more what was opened; None: as far as one can see, there is."""
        for path, identity in self._opened.items():
            try:
                if _identity(os.stat(path)) != identity:  # noqa: PTH116
                    return path
            except FileNotFoundError:
                # Where the folder is not to be found either, the program may have moved to another root.
                if path.parent.exists() or self._is_deleted():
                    return path
            except OSError:
                continue
        return None

    @property
    def can_be_saved(self) -> bool:
        """Whether our log may be copied into the database: that is still ours, and nobody else's by now."""
        return self._is_as_opened(self._database) and not self.have_successors

    @property
    def have_successors(self) -> bool:
        """Whether others have opened anew what is there now: SQLite would delete their log with ours."""
        if not self._is_as_opened(self._database):
            return self._log.exists()
        # Whoever has found the index of our log knows of that; a new log beside it is an empty file.
        return self._index.exists() and not self._is_as_opened(self._index)

    def _is_as_opened(self, path: Path) -> bool:
        with contextlib.suppress(OSError):
            return _identity(os.stat(path)) == self._opened.get(path)  # noqa: PTH116
        return False

    def _is_deleted(self) -> bool:
        if self._descriptor is None:
            return False
        with contextlib.suppress(OSError):
            found = os.fstat(self._descriptor)
            return _identity(found) == self._opened.get(self._database) and not found.st_nlink
        return False


def _identity(found: os.stat_result) -> _Identity:
    return found.st_dev, found.st_ino


def _find_descriptor(identity: _Identity | None) -> int | None:
    """That under which SQLite has the file open. (To open it once more and close it would drop its locks.)"""
    with contextlib.suppress(OSError):
        for name in os.listdir("/dev/fd"):  # noqa: PTH208
            with contextlib.suppress(OSError, ValueError):
                if _identity(os.fstat(int(name))) == identity:
                    return int(name)
    return None
