"""Running the command line and looking at what it did."""

import asyncio
import contextlib
import os
import pty
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from postbus import DLQInspector, Event, SQLiteStore

POSTBUS = (sys.executable, "-c", "import sys; from postbus.ops.cli import main; sys.exit(main())")
ESCAPE = "\x1b"


def run(*arguments: object, stdin: int = subprocess.DEVNULL) -> "subprocess.CompletedProcess[str]":
    """Run the real command in a process of its own."""
    command = [*POSTBUS, *map(str, arguments)]
    return subprocess.run(command, stdin=stdin, capture_output=True, text=True, check=False)


@contextlib.contextmanager
def terminal() -> Iterator[tuple[int, int]]:
    """A pseudo-terminal: our end of it, and the end for a command."""
    ends = pty.openpty()
    try:
        yield ends
    finally:
        for end in ends:
            os.close(end)


def stored(path: Path, event_id: str) -> Event:
    """The event, as the file has it."""

    async def get() -> Event:
        async with SQLiteStore(path) as store:
            return await store.get(event_id)

    return asyncio.run(get())


def dead_letter_count(path: Path) -> int:
    """How many dead letters the file has."""

    async def count() -> int:
        async with SQLiteStore(path) as store:
            return (await DLQInspector(store).list()).total

    return asyncio.run(count())
