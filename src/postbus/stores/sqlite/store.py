"""SQLiteStore: one file, one writing thread, one reading thread, seen through the ports."""

import asyncio
import atexit
import os
import sqlite3
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Self, TypeVar

from postbus.clock import SystemClock
from postbus.errors import BusLoopError, EventNotFoundError, InvalidConfigError, StoreClosedError
from postbus.events import Event
from postbus.ports import Clock
from postbus.stores.named_queries import load_queries
from postbus.stores.sqlite.backlog import SQLiteBacklog
from postbus.stores.sqlite.connection import open_connection, patiently, translated_errors
from postbus.stores.sqlite.dead_letters import SQLiteDeadLetters
from postbus.stores.sqlite.dispatch_lock import FileDispatchLock
from postbus.stores.sqlite.event_queue import SQLiteEventQueue
from postbus.stores.sqlite.group_commit import GroupCommit
from postbus.stores.sqlite.nudge import Nudge
from postbus.stores.sqlite.rows import COLUMNS, event_from_row
from postbus.stores.sqlite.schema import check_ours, migrate
from postbus.stores.sqlite.subscriptions import SQLiteSubscriptionTable
from postbus.stores.sqlite.writer import Writer

_QUERIES = load_queries("postbus.stores.sqlite", "queries.sql")
_READ_EVENT = _QUERIES["read_event"].format(columns=COLUMNS)
_DURABILITY = ("FULL", "NORMAL", "EXTRA")

T = TypeVar("T")
_Opened = tuple[sqlite3.Connection, GroupCommit]


class SQLiteStore:
    """Events in a SQLite file.

    *synchronous* is SQLite's own setting: "FULL" (the default) has every published event
    on disk before publish returns; "NORMAL" survives a killed process, not a power cut.
    """

    def __init__(self, path: str | Path, *, synchronous: str = "FULL", clock: Clock | None = None) -> None:
        if synchronous.upper() not in _DURABILITY:
            raise InvalidConfigError("synchronous", synchronous, f"one of {', '.join(_DURABILITY)}")
        # Absolute: the file, its lock and its reader stay together whatever the current folder becomes.
        self.path = Path(path).absolute()
        self._synchronous = synchronous.upper()
        self._clock: Clock = clock or SystemClock()
        self._opening = asyncio.Lock()
        self._writer: Writer | None = None
        self._was_closed = False
        self._is_closing = threading.Event()
        self._process = os.getpid()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._reader: ThreadPoolExecutor | None = None
        self._reading: sqlite3.Connection | None = None
        self.dispatch_lock = FileDispatchLock(self.path)
        self.backlog = SQLiteBacklog(self, self._clock, self.dispatch_lock)
        self.queue = SQLiteEventQueue(self, self._clock, self.backlog.announce)
        self.subscriptions = SQLiteSubscriptionTable(self)
        self.dead_letters = SQLiteDeadLetters(self, self._clock, self.backlog.announce)

    async def open(self) -> None:
        """Open or create the file and bring its schema up to date. Idempotent."""
        async with self._opening:
            if self._writer is None:
                writing, commit = await self._connect()
                self.backlog.begin_watching(writing)
                self._writer = Writer(
                    self.path, commit, self.backlog.look, lambda: self.dispatch_lock.is_held
                )
                self._reader = ThreadPoolExecutor(1, f"postbus reader {self.path.name}")
                self._was_closed = False
                self._is_closing.clear()
                self._process, self._loop = os.getpid(), asyncio.get_running_loop()
                atexit.register(self._close_files)

    async def close(self) -> None:
        """Write what is waiting, let the dispatch go and close. Idempotent."""
        async with self._opening:
            self.backlog.watch(None)
            self._was_closed = True
            await asyncio.to_thread(self._close_files)

    async def get(self, event_id: str) -> Event:
        """The event with this id. EventNotFoundError."""
        row = await self.read(lambda connection: connection.execute(_READ_EVENT, (event_id,)).fetchone())
        if row is None:
            raise EventNotFoundError(event_id)
        return event_from_row(row)

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.close()

    @property
    def writer(self) -> Writer:
        """The writing thread of an open store."""
        if self._writer is None:
            raise StoreClosedError(f"the store on {self.path} is closed; await store.open() first")
        return self._writer

    async def write(self, run: Callable[[sqlite3.Connection], T]) -> T:
        """Run something inside a transaction, opening the store on first use."""
        await self._open_on_first_use()
        return await self.writer.call(run)

    async def read(self, run: Callable[[sqlite3.Connection], T]) -> T:
        """Run a query beside the writer, after what this process has written so far."""
        await self._open_on_first_use()
        await self.writer.flush()
        return await self.read_committed(run)

    async def read_committed(self, run: Callable[[sqlite3.Connection], T]) -> T:
        """Run a query beside the writer on what is committed at this moment."""
        await self._open_on_first_use()
        loop = asyncio.get_running_loop()
        nudge = Nudge(loop, lambda: not reading.done())
        reading = loop.run_in_executor(self._reader, self._read_and_tell, run, nudge)
        nudge.arm()
        return await reading

    def _read_and_tell(self, run: Callable[[sqlite3.Connection], T], nudge: Nudge) -> T:
        try:
            return patiently(lambda: self._read(run), self._is_closing)
        finally:
            nudge.tell()

    async def _open_on_first_use(self) -> None:
        # Not again after close(): a handler that outlives its bus must not open the file behind its back.
        if self._writer is None and not self._was_closed:
            await self.open()
        self._check_home()

    def _check_home(self) -> None:
        # Elsewhere there is no thread that would answer: the caller would wait for ever.
        if self._writer is None:
            return
        if os.getpid() != self._process:
            raise BusLoopError(
                f"the store on {self.path} was opened before this process was forked; open one in the child"
            )
        if asyncio.get_running_loop() is not self._loop:
            raise BusLoopError(
                f"the store on {self.path} was opened in another event loop; make one for each event loop"
            )

    def _read(self, run: Callable[[sqlite3.Connection], T]) -> T:
        if self._writer is None:
            raise StoreClosedError(f"the store on {self.path} is closed; await store.open() first")
        with translated_errors(self.path):
            if self._reading is None:
                self._reading = open_connection(self.path, self._synchronous, read_only=True)
            return run(self._reading)

    async def _connect(self) -> _Opened:
        given_up = threading.Event()
        opening = asyncio.get_running_loop().run_in_executor(None, patiently, self._open_connection, given_up)
        try:
            return await asyncio.shield(opening)
        except asyncio.CancelledError:
            # The thread goes on, and nobody is left to take what it opens.
            given_up.set()
            opening.add_done_callback(_close_unwanted)
            raise

    def _open_connection(self) -> _Opened:
        connection = open_connection(self.path, self._synchronous, check=check_ours)
        try:
            with translated_errors(self.path):
                migrate(connection, self.path, self._clock.now())
            return connection, GroupCommit(self.path, connection, self._clock)
        except BaseException:
            connection.close()
            raise

    def _close_files(self) -> None:
        atexit.unregister(self._close_files)
        if os.getpid() != self._process:
            # A forked child has neither the threads nor a right to the connections, not even to close them.
            return
        self._is_closing.set()
        writer, self._writer = self._writer, None
        reader, self._reader = self._reader, None
        if reader is not None:
            reader.shutdown()
        if self._reading is not None:
            self._reading.close()
            self._reading = None
        if writer is not None:
            writer.close()
        self.dispatch_lock.release()


def _close_unwanted(opening: "asyncio.Future[_Opened]") -> None:
    if not opening.cancelled() and opening.exception() is None:
        opening.result()[0].close()
