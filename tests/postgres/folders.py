"""Folders that the server's account can reach; those of a killed test run are removed by the next."""

import fcntl
import os
import pwd
import shutil
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import IO

_PREFIX = "postbus-postgres-"
# The path of a Unix socket has at most 103 bytes, and ours adds some forty to this one.
_LONGEST_BASE = 60
_MEMORY = Path("/dev/shm")
_ROOM_IN_MEMORY = 2 * 1024**3

# An open file keeps its lock, and the lock keeps the folder.
_locks: dict[Path, IO[bytes]] = {}


@cache
def server_account() -> pwd.struct_passwd | None:
    """Who runs the server: PostgreSQL refuses root, so that root needs somebody else."""
    if os.geteuid() != 0:
        return None
    try:
        return pwd.getpwnam("postgres")
    except KeyError:
        return pwd.getpwnam("nobody")


def make_folder(*, in_memory: bool, base: Path | None = None) -> Path:
    """A new folder owned by the server's account: in *base*, on disk or, where there is room, in memory."""
    if base is not None:
        base = _first_usable([base.resolve()])
    else:
        base = _MEMORY if in_memory and _has_room_in_memory() else _base_on_disk()
    _remove_left_behind(base)
    folder = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=base))
    _lock(folder)
    if (account := server_account()) is not None:
        os.chown(folder, account.pw_uid, account.pw_gid)
    return folder


def remove_folder(folder: Path) -> None:
    """Remove what make_folder() made."""
    shutil.rmtree(folder)
    _locks.pop(folder).close()


def _has_room_in_memory() -> bool:
    return _MEMORY.is_dir() and shutil.disk_usage(_MEMORY).free >= _ROOM_IN_MEMORY


def _base_on_disk() -> Path:
    """The folder for temporary files, unless the server could not use it."""
    return _first_usable([Path(tempfile.gettempdir()), Path("/tmp"), Path("/var/tmp")])


def _first_usable(bases: list[Path]) -> Path:
    for base in bases:
        if len(os.fsencode(base)) <= _LONGEST_BASE and _is_reachable(base):
            return base
    raise LookupError(
        f"the server's account can't reach {', '.join(map(str, bases))}, or the path is too long for "
        "a socket: set TMPDIR, or --dir of the benchmark, to a folder that everybody may enter"
    )


def _is_reachable(base: Path) -> bool:
    if server_account() is None:
        return os.access(base, os.W_OK | os.X_OK)
    return all(folder.stat().st_mode & 0o001 for folder in (base, *base.parents))


def _lock(folder: Path) -> None:
    """Say that the folder is in use, until this process ends in whatever way."""
    lock = (folder / "lock.new").open("wb")
    fcntl.flock(lock, fcntl.LOCK_EX)
    # Only now: nobody may find a lock file that is not locked yet.
    (folder / "lock.new").rename(folder / "lock")
    _locks[folder] = lock


def _remove_left_behind(base: Path) -> None:
    for folder in _left_behind(base):
        # Another test run may be removing it too.
        shutil.rmtree(folder, ignore_errors=True)


def _left_behind(base: Path) -> Iterator[Path]:
    account = server_account()
    owner = os.geteuid() if account is None else account.pw_uid
    for folder in base.glob(f"{_PREFIX}*"):
        try:
            if folder.stat().st_uid == owner:
                with (folder / "lock").open("rb") as lock:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    yield folder
        except (FileNotFoundError, BlockingIOError):
            continue
