"""Notices when the database or a file beside it is deleted or replaced while it is open.

SQLite does not: it goes on with the files that it has, which nobody can open any more, and whatever
is written to them is gone when the process ends.
"""

from pathlib import Path


class OpenedFiles:
    """The database, its write-ahead log and the index of that, as they were when they were opened."""

    def __init__(self, path: Path) -> None:
        """To be made when they are there."""
        paths = [path.with_name(f"{path.name}{ending}") for ending in ("", "-wal", "-shm")]
        self._opened = {each: _identity(each) for each in paths if each.exists()}

    def find_replaced(self) -> Path | None:
        """The path at which there is not any more what was opened; None: as far as one can see, there is."""
        for path, identity in self._opened.items():
            try:
                if _identity(path) != identity:
                    return path
            except FileNotFoundError:
                return path
            except OSError:
                continue
        return None


def _identity(path: Path) -> tuple[int, int]:
    # Not by opening it: to close it again would drop the locks of every connection to it.
    found = path.stat()
    return found.st_dev, found.st_ino
