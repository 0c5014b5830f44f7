"""The processes of this machine, as far as killing a whole server needs them."""

import subprocess
import time
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import NamedTuple

PATIENCE = 60.0


class Process(NamedTuple):
    """One process; *state* is the letter that ps shows."""

    pid: int
    parent: int
    state: str


def children_of(pid: int) -> list[int]:
    """Its children of the moment."""
    return [process.pid for process in _processes() if process.parent == pid]


def is_stopped(pid: int) -> bool:
    """Whether it stands still after a SIGSTOP."""
    return any(process.pid == pid and process.state == "T" for process in _processes())


def alive(pids: Collection[int]) -> set[int]:
    """Those of *pids* that may still do something: a zombie has only not been waited for."""
    return {process.pid for process in _processes() if process.pid in pids and process.state != "Z"}


def wait_until(condition: Callable[[], bool], what: Callable[[], str]) -> None:
    """Ask again and again; *what* tells what was waited for in vain."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited {PATIENCE:g} s in vain until {what()}")
        time.sleep(0.005)


def _processes() -> Iterator[Process]:
    if Path("/proc/self/stat").exists():
        yield from _processes_of_linux()
        return
    listed = subprocess.run(["ps", "-Ao", "pid=,ppid=,state="], check=True, capture_output=True, text=True)
    for line in listed.stdout.splitlines():
        pid, parent, state = line.split()
        yield Process(int(pid), int(parent), state[0])


def _processes_of_linux() -> Iterator[Process]:
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            stat = (folder / "stat").read_text()
        except (FileNotFoundError, ProcessLookupError):
            continue
        # The name in parentheses may hold anything, parentheses too.
        state, parent = stat.rpartition(")")[2].split()[:2]
        yield Process(int(folder.name), int(parent), state)
