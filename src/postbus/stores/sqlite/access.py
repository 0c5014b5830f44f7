"""What the SQLite ports need of their store."""

import sqlite3
from collections.abc import Callable
from typing import Protocol, TypeVar

from postbus.stores.sqlite.writer import Writer

T = TypeVar("T")


class FileAccess(Protocol):
    """Reading and writing one file, each in its thread."""

    @property
    def writer(self) -> Writer:
        """The writing thread of an open store."""
        ...

    async def write(self, run: Callable[[sqlite3.Connection], T]) -> T:
        """Run something inside a transaction, opening the store on first use."""
        ...

    async def read(self, run: Callable[[sqlite3.Connection], T]) -> T:
        """Run a query beside the writer, after what this process has written so far."""
        ...

    async def read_committed(self, run: Callable[[sqlite3.Connection], T]) -> T:
        """Run a query beside the writer on what is committed at this moment."""
        ...
