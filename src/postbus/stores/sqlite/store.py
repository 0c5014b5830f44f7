"""SQLiteStore: one file, one writing thread, one reading thread, seen through the ports."""

import asyncio
import atexit

# Not left to asyncio, which loads it with its first thread: by then a program may have given up the right to
# read its own modules.
import concurrent.futures.thread  # noqa: F401
import os
import sqlite3
import threading
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn, Self, TypeVar, cast

from postbus.clock import SystemClock
from postbus.doorbell import Doorbell
from postbus.errors import (
    BusLoopError,
    InvalidConfigError,
    StoreClosedError,
)
from postbus.events import Event
from postbus.ports import Clock
from postbus.stores.sqlite.backlog import SQLiteBacklog
from postbus.stores.sqlite.checkpoints import SQLiteCheckpoints
from postbus.stores.sqlite.connection import check_path, open_connection, patiently, translated_errors
from postbus.stores.sqlite.dead_letters import SQLiteDeadLetters
from postbus.stores.sqlite.dispatch_lock import FileDispatchLock
from postbus.stores.sqlite.event_log import SQLiteEventLog
from postbus.stores.sqlite.event_queue import SQLiteEventQueue
from postbus.stores.sqlite.group_commit import GroupCommit
from postbus.stores.sqlite.guard import TransactionGuard
from postbus.stores.sqlite.reader import Reader
from postbus.stores.sqlite.schema import check_ours, migrate
from postbus.stores.sqlite.states import SQLiteStateTable
from postbus.stores.sqlite.subscriber_locks import FileSubscriberLocks
from postbus.stores.sqlite.subscriptions import SQLiteSubscriptionTable
from postbus.stores.sqlite.wake_up import FileWakeUps
from postbus.stores.sqlite.writer import Writer
from postbus.stores.user_calls import UserCalls

_DURABILITY = ("FULL", "NORMAL", "EXTRA")

T = TypeVar("T")


class SQLiteStore(UserCalls):
    """Events in a SQLite file.

    *synchronous* is SQLite's own setting: "FULL" (the default) has every published event
    on disk before publish returns; "NORMAL" survives a killed process, not a power cut.
    """

    has_handlers = True
    has_async_transactions = False
    # One process at a time runs a subscriber.
    layouts = members = outbox = None

    def __init__(
        self, path: "str | os.PathLike[str]", *, synchronous: str = "FULL", clock: Clock | None = None
    ) -> None:
        if not isinstance(synchronous, str) or synchronous.upper() not in _DURABILITY:
            raise InvalidConfigError("synchronous", synchronous, f"one of {', '.join(_DURABILITY)}")
        # Absolute: the file, its lock and its reader stay together whatever the current folder becomes.
        self.path = Path(check_path(path)).absolute()
        self._synchronous = synchronous.upper()
        self._clock: Clock = clock or SystemClock()
        super().__init__(self._clock)
        self._opening = asyncio.Lock()
        self._closing: asyncio.Future[None] | None = None
        self._writer: Writer | None = None
        self._closed = cast(Writer, _ClosedWriter(self.path))
        self.writer = self._closed
        """The writing thread of an open store. An attribute: every event asks for it twice."""
        self._reader: Reader | None = None
        self._commit: GroupCommit | None = None
        self._bell: Doorbell | None = None
        self._was_closed = False
        self._process = os.getpid()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._wake_ups = FileWakeUps(self.path)
        self.guard = TransactionGuard()
        self.dispatch_lock = FileDispatchLock(self.path)
        self.subscriber_locks = FileSubscriberLocks(self.path)
        self.backlog = SQLiteBacklog(self, self._clock, self.dispatch_lock)
        announce = self.backlog.announce
        self.queue = SQLiteEventQueue(self, self._clock, announce)
        self.subscriptions = SQLiteSubscriptionTable(self)
        self.log: SQLiteEventLog = SQLiteEventLog(self, self._clock, announce)
        self.dead_letters = SQLiteDeadLetters(self, self._clock, announce, self.log.wake)
        self.checkpoints = SQLiteCheckpoints(self, self._clock, announce)
        self.states = SQLiteStateTable(self, self._clock)

    async def open(self) -> None:
        """Open or create the file and bring its schema up to date. Idempotent."""
        async with self._opening:
            await self._until_closed()
            if self._writer is None:
                self._commit = commit = await self._connect()
                self.backlog.begin_watching(lambda: commit.connection)
                self._bell = bell = Doorbell(asyncio.get_running_loop())
                self.writer = self._writer = Writer(
                    self.path,
                    commit,
                    tick=self.backlog.look,
                    is_owner=lambda: self.dispatch_lock.is_held,
                    on_growth=self.log.wake,
                    announce=self._wake_ups.announce,
                    guard=self.guard,
                    bell=bell,
                )
                self._reader = Reader(self.path, self._synchronous, bell)
                self._was_closed = False
                self._process, self._loop = os.getpid(), asyncio.get_running_loop()
                atexit.register(self._close_files)
                if self.log.is_watched:
                    self.listen_to_others()

    async def close(self) -> None:
        """Write what is waiting, let all locks go and close. Idempotent."""
        async with self._opening:
            self.backlog.watch(None)
            self.log.forget_watchers()
            self._was_closed = True
            bell, self._bell = self._bell, None
            try:
                await self._until_closed()
                # It goes on if we are cancelled, and whoever comes next waits for it.
                self._closing = asyncio.ensure_future(asyncio.to_thread(self._close_files))
                await self._until_closed()
            finally:
                # Not in a forked child, which shares with its parent what the loop listens to.
                if bell is not None and os.getpid() == self._process:
                    bell.take_down()

    async def read_all(self, after: int = 0, limit: int = 100) -> list[Event]:
        """At most *limit* events with a higher global sequence, in order. InvalidPageError."""
        await self.open_on_first_use()
        # So that what was finished in this process shows as done.
        await self.writer.flush()
        return await super().read_all(after, limit)

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.close()

    # What the ports need.

    @property
    def known_head(self) -> int:
        """The last number of which this process knows that it is durable."""
        return 0 if self._commit is None else self._commit.head

    def listen_to_others(self) -> None:
        """Have other processes wake this one as soon as they have written, once the store is open."""
        if self._writer is not None and not self._wake_ups.is_listening:
            self._wake_ups.listen(self._writer.look_now)

    async def write(
        self,
        run: Callable[[sqlite3.Connection], T],
        on_done: Callable[[], None] | None = None,
        *,
        waits_for_disk: bool = True,
    ) -> T:
        """Run something inside a transaction, opening the store on first use."""
        await self.open_on_first_use()
        return await self.writer.call(run, on_done, waits_for_disk=waits_for_disk)

    async def read(self, run: Callable[[sqlite3.Connection], T]) -> T:
        """Run a query beside the writer, after what this process has written so far."""
        await self.open_on_first_use()
        await self.writer.flush()
        return await self.read_committed(run)

    async def read_committed(self, run: Callable[[sqlite3.Connection], T]) -> T:
        """Run a query beside the writer on what is committed at this moment."""
        await self.open_on_first_use()
        if self._reader is None:
            raise StoreClosedError(f"the store on {self.path} is closed; await store.open() first")
        return await self._reader.read(run)

    async def open_on_first_use(self) -> None:
        """Open the file unless it is open, or was closed on purpose."""
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

    async def _connect(self) -> GroupCommit:
        given_up = threading.Event()
        opening = asyncio.get_running_loop().run_in_executor(None, patiently, self._begin_commits, given_up)
        try:
            return await asyncio.shield(opening)
        except asyncio.CancelledError:
            # The thread goes on, and nobody is left to take what it opens.
            given_up.set()
            opening.add_done_callback(_close_unwanted)
            raise

    def _begin_commits(self) -> GroupCommit:
        return GroupCommit(self.path, self._open_connection, self._clock)

    def _open_connection(self) -> sqlite3.Connection:
        connection = open_connection(self.path, self._synchronous, check=check_ours)
        try:
            with translated_errors(self.path):
                migrate(connection, self.path, self._clock.now())
            self.guard.install(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    async def _until_closed(self) -> None:
        if self._closing is not None and not self._closing.done():
            await asyncio.shield(self._closing)

    def _close_files(self) -> None:
        atexit.unregister(self._close_files)
        if os.getpid() != self._process:
            # A forked child has neither the threads nor a right to the connections, not even to close them.
            return
        writer, self._writer, self.writer = self._writer, None, self._closed
        reader, self._reader = self._reader, None
        if reader is not None:
            reader.close()
        if writer is not None:
            writer.close()
        self._wake_ups.close()
        self.subscriber_locks.release_all()
        self.dispatch_lock.release()


class _ClosedWriter:
    """In the place of a Writer."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __getattr__(self, name: str) -> NoReturn:
        raise StoreClosedError(f"the store on {self._path} is closed; await store.open() first")


def _close_unwanted(opening: "asyncio.Future[GroupCommit]") -> None:
    if not opening.cancelled() and opening.exception() is None:
        opening.result().close()
