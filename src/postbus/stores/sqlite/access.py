"""What the SQLite ports need of their store."""

import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Protocol, TypeVar

from postbus.stores.sqlite.guard import TransactionGuard
from postbus.stores.sqlite.writer import Writer

T = TypeVar("T")


class FileAccess(Protocol):
    """Reading and writing one file, each in its thread."""

    @property
    def writer(self) -> Writer:
        """The writing thread of an open store."""
        ...

    @property
    def path(self) -> Path:
        """Where the file is."""
        ...

    @property
    def guard(self) -> TransactionGuard:
        """Watches over the writing connection while a handler has it."""
        ...

    @property
    def known_head(self) -> int:
        """The last number of which this process knows that it is durable."""
        ...

    def listen_to_others(self) -> None:
        """Have other processes wake this one as soon as they have written."""
        ...

    async def open_on_first_use(self) -> None:
        """Open the file unless it is open, or was closed on purpose."""
        ...

    async def write(
        self,
        run: Callable[[sqlite3.Connection], T],
        on_done: Callable[[], None] | None = None,
        *,
        waits_for_disk: bool = True,
    ) -> T:
        """Run something inside a transaction, opening the store on first use.

        *on_done* is called in the event loop once it is durable, even if the caller was cancelled meanwhile.
        What need not wait for the disk survives the process, and may be lost in a power cut.
        """
        ...

    async def read(self, run: Callable[[sqlite3.Connection], T]) -> T:
        """Run a query beside the writer, after what this process has written so far."""
        ...

    async def read_committed(self, run: Callable[[sqlite3.Connection], T]) -> T:
        """Run a query beside the writer on what is committed at this moment."""
        ...
