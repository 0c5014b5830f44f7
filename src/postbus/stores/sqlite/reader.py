"""The one thread that reads, beside the writer."""

import asyncio
import sqlite3
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from postbus.errors import StoreClosedError
from postbus.stores.sqlite.connection import open_connection, patiently, read_leniently, translated_errors
from postbus.stores.sqlite.nudge import Nudge

T = TypeVar("T")


class Reader:
    """Runs queries one after the other on a connection of its own."""

    def __init__(self, path: Path, synchronous: str) -> None:
        self._path, self._synchronous = path, synchronous
        self._threads = ThreadPoolExecutor(1, f"postbus reader {path.name}")
        self._connection: sqlite3.Connection | None = None
        self._is_closing = threading.Event()

    async def read(self, run: Callable[[sqlite3.Connection], T]) -> T:
        """Run a query on what is committed at this moment."""
        loop = asyncio.get_running_loop()
        nudge = Nudge(loop, lambda: not reading.done())
        reading = loop.run_in_executor(self._threads, self._read_and_tell, run, nudge)
        nudge.arm()
        return await reading

    def close(self) -> None:
        """Wait for the query that runs, and close. Blocks; safe from any thread."""
        self._is_closing.set()
        self._threads.shutdown()
        if self._connection is not None:
            self._connection.close()

    # From here on: the reader's thread.

    def _read_and_tell(self, run: Callable[[sqlite3.Connection], T], nudge: Nudge) -> T:
        try:
            return patiently(lambda: self._read(run), self._is_closing)
        finally:
            nudge.tell()

    def _read(self, run: Callable[[sqlite3.Connection], T]) -> T:
        if self._is_closing.is_set():
            raise StoreClosedError(f"the store on {self._path} is closed; await store.open() first")
        with translated_errors(self._path):
            if self._connection is None:
                self._connection = self._open()
            return read_leniently(self._connection, run)

    def _open(self) -> sqlite3.Connection:
        connection = open_connection(self._path, self._synchronous)
        try:
            connection.execute("PRAGMA query_only = 1")
        except BaseException:
            connection.close()
            raise
        return connection
