"""Where and when a run took place."""

import importlib.metadata
import os
import platform
import sqlite3
import statistics
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

_QUIET_LOAD = 0.5
# What SQLite writes with one event.
_COMMIT_SIZE = 4 * 4096


def describe(packages: Sequence[str]) -> dict[str, str]:
    """Everything that figures depend on, but for where the files are."""
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "cores": str(_core_count()),
        "cpu": _cpu(),
        "os": f"{platform.system()} {platform.release().partition('-')[0]}",
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "sqlite": sqlite3.sqlite_version,
        "packages": ", ".join(_version(package) for package in packages),
        "load at the start": load(),
    }


def describe_folder(base: Path) -> str:
    """On what kind of disk the files are, and what it takes to have something there."""
    kind, device = _file_system(base)
    return f"{kind} on {device}, fdatasync {_fdatasync_ms(base):.2f} ms"


def load() -> str:
    """How many processes wanted a core, on average, in the last 1, 5 and 15 minutes."""
    return ", ".join(f"{value:.2f}" for value in os.getloadavg())


def is_busy() -> bool:
    """Whether others are at work here, so that figures, and ratios too, are not to be trusted."""
    return os.getloadavg()[0] > _QUIET_LOAD * _core_count()


def is_in_memory(base: Path) -> bool:
    """Whether files there never reach a disk, so that durability costs nothing."""
    return _file_system(base)[0] in ("tmpfs", "ramfs")


def _core_count() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _version(package: str) -> str:
    try:
        return f"{package} {importlib.metadata.version(package)}"
    except importlib.metadata.PackageNotFoundError:
        return f"{package} not installed"


def _cpu() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text("utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _file_system(base: Path) -> tuple[str, str]:
    """Its kind, and the name of its device."""
    mounts = Path("/proc/self/mounts")
    resolved, best, found = base.resolve(), Path(), ("file system not known", "device not known")
    for line in mounts.read_text("utf-8").splitlines() if mounts.exists() else ():
        device, point, kind = line.split()[:3]
        if resolved.is_relative_to(point) and len(point) >= len(str(best)):
            best, found = Path(point), (kind, Path(device).name)
    return found


def _fdatasync_ms(base: Path, count: int = 30) -> float:
    """The median of writing four pages anew and syncing them: the floor under every commit."""
    path = base / f"postbus-bench-{os.getpid()}.sync"
    times: list[float] = []
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        # As a log that is used again and again: to make a file longer takes more than to write in it.
        for number in range(count):
            os.pwrite(file, b"x" * _COMMIT_SIZE, number * _COMMIT_SIZE)
        os.fsync(file)
        for number in range(count):
            os.pwrite(file, b"y" * _COMMIT_SIZE, number * _COMMIT_SIZE)
            before = time.perf_counter()
            getattr(os, "fdatasync", os.fsync)(file)
            times.append(time.perf_counter() - before)
    finally:
        os.close(file)
        path.unlink()
    return statistics.median(times) * 1000
