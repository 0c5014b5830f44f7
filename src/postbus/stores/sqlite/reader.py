"""The one thread that reads, beside the writer."""

import asyncio
import queue
import sqlite3
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Generic, TypeVar

from postbus.doorbell import Doorbell
from postbus.errors import StoreClosedError
from postbus.stores.sqlite.connection import open_connection, patiently, read_leniently, translated_errors
from postbus.stores.sqlite.nudge import Nudge

T = TypeVar("T")


class _Query(Generic[T]):
    """Something to read, and who waits for it."""

    def __init__(self, run: Callable[[sqlite3.Connection], T], answer: "asyncio.Future[T]") -> None:
        self._run, self.answer = run, answer
        self._result: T | None = None
        self._error: BaseException | None = None

    def run(self, read: Callable[[Callable[[sqlite3.Connection], T]], T]) -> None:
        """Read it, in the reader's thread."""
        try:
            self._result = read(self._run)
        except BaseException as error:
            self._error = error

    def settle(self) -> None:
        """Tell the caller, in the event loop."""
        if self.answer.done():
            return
        if self._error is not None:
            self.answer.set_exception(self._error)
        else:
            self.answer.set_result(self._result)  # type: ignore[arg-type]


class Reader:
    """Runs queries one after the other on a connection of its own."""

    def __init__(self, path: Path, synchronous: str, bell: Doorbell) -> None:
        self._path, self._synchronous, self._bell = path, synchronous, bell
        self._loop = asyncio.get_running_loop()
        self._queries: queue.SimpleQueue[_Query[object] | None] = queue.SimpleQueue()
        self._unanswered_count = 0
        self._nudge = Nudge(self._loop, lambda: self._unanswered_count > 0, bell.answer)
        self._thread: threading.Thread | None = None
        self._connection: sqlite3.Connection | None = None
        # So that no query comes after the end.
        self._guard = threading.Lock()
        self._is_closing = threading.Event()

    async def read(self, run: Callable[[sqlite3.Connection], T]) -> T:
        """Run a query on what is committed at this moment."""
        answer: asyncio.Future[T] = self._loop.create_future()
        self._submit(_Query(run, answer))  # type: ignore[arg-type]
        return await answer

    def close(self) -> None:
        """Wait for the query that runs, and close. Blocks; safe from any thread."""
        with self._guard:
            self._is_closing.set()
            self._queries.put(None)
        if self._thread is not None:
            self._thread.join()
        if self._connection is not None:
            self._connection.close()

    def _submit(self, query: _Query[object]) -> None:
        with self._guard:
            if self._is_closing.is_set():
                raise self._closed_error()
            self._unanswered_count += 1
            self._queries.put(query)
        self._nudge.arm()
        if self._thread is None:
            # A daemon: a program that ends without shutdown() must not hang; the store closes it at exit.
            self._thread = threading.Thread(
                target=self._serve, name=f"postbus reader {self._path.name}", daemon=True
            )
            self._thread.start()

    def _settle(self, query: _Query[object]) -> None:
        self._unanswered_count -= 1
        self._nudge.heard_count += 1
        query.settle()

    def _closed_error(self) -> StoreClosedError:
        return StoreClosedError(f"the store on {self._path} is closed; await store.open() first")

    # From here on: the reader's thread.

    def _serve(self) -> None:
        while (query := self._queries.get()) is not None:
            if not query.answer.cancelled():
                query.run(self._read_patiently)
            self._bell.ring(self._settle, query)
            self._nudge.tell()

    def _read_patiently(self, run: Callable[[sqlite3.Connection], T]) -> T:
        return patiently(lambda: self._read(run), self._is_closing)

    def _read(self, run: Callable[[sqlite3.Connection], T]) -> T:
        if self._is_closing.is_set():
            raise self._closed_error()
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
