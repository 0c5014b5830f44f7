"""The one thread that writes: whatever has queued up while it was busy shares its next commit.

A commit waits for the disk, so it must not happen in the event loop, and one commit
for each event would let concurrent publishers wait for each other's disk.
"""

import asyncio
import contextlib
import itertools
import os
import queue
import random
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Generic, TypeVar

import msgspec

from postbus.errors import BusLoopError, DuplicateEventIdError, PostbusError, StoreClosedError, StoreError
from postbus.events import Draft, GlobalSequence
from postbus.ports import Clock, OnStored
from postbus.stores.named_queries import load_queries
from postbus.stores.sqlite.connection import translated_errors
from postbus.stores.sqlite.rows import draft_to_row, moment_to_text

_QUERIES = load_queries("postbus.stores.sqlite", "queries.sql")
_ROWS_PER_STATEMENT = 128

# How long a finished event may wait for a commit to ride in.
_FINISH_DELAY = 0.01
# How often an idle writer looks whether another process has written.
_TICK = 0.02
# How long we wait for another process that holds the database.
_LOCK_TIMEOUT = 60.0
# After so many rows the log is copied into the database file.
_CHECKPOINT_ROWS = 8_000
# A commit without rows of ours still adds pages.
_ROWS_PER_COMMIT = 4
# A writer that is not done after this long may be waiting for a busy event loop to let go of the GIL.
_NUDGE_AFTER = 0.002
_NUDGE_SECONDS = 0.002

T = TypeVar("T")


class Insert:
    """Drafts to store, all or none."""

    __slots__ = ("drafts", "error", "on_stored", "sequences")

    def __init__(self, drafts: Sequence[Draft], on_stored: OnStored) -> None:
        self.drafts, self.on_stored = drafts, on_stored
        self.sequences: Sequence[int | None] = ()
        self.error: StoreError | None = None

    def settle(self) -> None:
        """Tell the publisher, in the event loop."""
        self.on_stored(() if self.error else self.sequences, self.error)


class Call(Generic[T]):
    """Any other piece of work inside the transaction; it raises before it writes, or not at all."""

    __slots__ = ("_future", "_result", "_run", "error")

    def __init__(self, run: Callable[[sqlite3.Connection], T], future: "asyncio.Future[T]") -> None:
        self._run, self._future = run, future
        self._result: T | None = None
        self.error: PostbusError | None = None

    def run(self, connection: sqlite3.Connection) -> None:
        """Do it; an answer such as EventNotFoundError is this caller's alone."""
        self.error = None
        try:
            self._result = self._run(connection)
        except PostbusError as error:
            self.error = error

    def settle(self) -> None:
        """Tell the caller, in the event loop."""
        if self._future.done():
            return
        if self.error is not None:
            self._future.set_exception(self.error)
        else:
            self._future.set_result(self._result)  # type: ignore[arg-type]


Job = Insert | Call[object]


class Writer:
    """Owns the writing connection. Everything public is called in the event loop."""

    def __init__(
        self,
        path: Path,
        connection: sqlite3.Connection,
        clock: Clock,
        tick: Callable[[], None],
        may_checkpoint: Callable[[], bool],
    ) -> None:
        self._path, self._connection, self._clock = path, connection, clock
        self._tick, self._may_checkpoint = tick, may_checkpoint
        self._loop = asyncio.get_running_loop()
        self._process = os.getpid()
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._unsettled = 0
        self._finished: deque[GlobalSequence] = deque()
        self._is_flush_due = False
        self._is_nudge_due = False
        self._nudge_at = 0.0
        self._written = threading.Event()
        self._written_count = self._settled_count = 0
        self._is_closed = False
        self._rows_since_checkpoint = 0
        # A daemon: a program that ends without shutdown() must not hang; an exit handler of the store closes it.
        self._thread = threading.Thread(target=self._run, name=f"postbus writer {path.name}", daemon=True)
        self._thread.start()

    def insert(self, drafts: Sequence[Draft], on_stored: OnStored) -> None:
        """Store drafts in the next commit."""
        self._submit(Insert(drafts, on_stored))

    async def call(self, run: Callable[[sqlite3.Connection], T]) -> T:
        """Run something inside the next transaction and return its result once that is durable."""
        future: asyncio.Future[T] = self._loop.create_future()
        self._submit(Call(run, future))  # type: ignore[arg-type]
        return await future

    def finish(self, sequence: GlobalSequence) -> None:
        """Mark an event done in some commit soon; its own commit would cost a third of the speed."""
        self._finished.append(sequence)
        if not self._is_flush_due:
            self._is_flush_due = True
            self._loop.call_later(_FINISH_DELAY, self._flush)

    async def flush(self) -> None:
        """Return when everything that was finished so far is written, so that readers see it."""
        if self._finished or self._unsettled:
            await self.call(lambda _: None)

    def close(self) -> None:
        """Write what is waiting, stop the thread and close the connection. Blocks; safe from any thread."""
        self._is_closed = True
        self._jobs.put(None)
        self._thread.join()

    def _submit(self, job: Job) -> None:
        if self._is_closed:
            raise StoreClosedError(f"the store on {self._path} was closed; open it again")
        if os.getpid() != self._process:
            raise BusLoopError(
                f"the store on {self._path} was opened before this process was forked; "
                "open it in the child: start the bus after the fork"
            )
        self._unsettled += 1
        self._jobs.put(job)
        if not self._is_nudge_due:
            self._is_nudge_due = True
            self._nudge_at = self._loop.time() + _NUDGE_AFTER
            self._loop.call_at(self._nudge_at, self._nudge)

    def _flush(self) -> None:
        self._is_flush_due = False
        if not self._finished or self._is_closed:
            return
        if not self._unsettled:
            self._submit(Call(lambda _: None, self._loop.create_future()))
        self._is_flush_due = True
        self._loop.call_later(_FINISH_DELAY, self._flush)

    def _nudge(self) -> None:
        """Let go of the GIL for a moment when this loop is so busy that the writer starves.

        A thread waits up to 5 ms for the GIL after each statement; a loop that is
        idle lets go of it by itself, and then a slow commit is the disk's doing.
        """
        self._is_nudge_due = False
        if not self._unsettled:
            return
        now = self._loop.time()
        is_late = now - self._nudge_at > _NUDGE_AFTER / 2
        if is_late and self._written_count == self._settled_count:
            self._written.clear()
            self._written.wait(_NUDGE_SECONDS)
            now = self._loop.time()
        self._is_nudge_due = True
        self._nudge_at = now + _NUDGE_AFTER
        self._loop.call_at(self._nudge_at, self._nudge)

    def _settle(self, jobs: Sequence[Job]) -> None:
        self._unsettled -= len(jobs)
        self._settled_count += 1
        for job in jobs:
            job.settle()

    # From here on: the writer's thread.

    def _run(self) -> None:
        is_open = True
        looked_at = time.monotonic()
        while is_open:
            jobs, is_open = self._take_jobs()
            if jobs or not is_open:
                self._write(jobs)
            if time.monotonic() - looked_at >= _TICK:
                self._tick()
                looked_at = time.monotonic()
        with contextlib.suppress(sqlite3.Error):
            self._connection.close()

    def _take_jobs(self) -> tuple[list[Job], bool]:
        """Everything that has queued up, and whether there will be more."""
        jobs: list[Job] = []
        with contextlib.suppress(queue.Empty):
            job = self._jobs.get(timeout=_TICK)
            while job is not None:
                jobs.append(job)
                job = self._jobs.get_nowait()
            return jobs, False
        return jobs, True

    def _write(self, jobs: list[Job]) -> None:
        self._write_group(jobs, self._take_finished())
        self._checkpoint_if_due()
        if jobs:
            self._written_count += 1
            self._written.set()
            # The loop may be closed already when a program ends without shutdown().
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._settle, jobs)

    def _take_finished(self) -> list[GlobalSequence]:
        finished = self._finished
        return [finished.popleft() for _ in range(len(finished))]

    def _write_group(self, jobs: Sequence[Job], finished: list[GlobalSequence]) -> None:
        """One commit for all of them; a job that can't be stored spoils no other job."""
        try:
            self._write_transaction(jobs, finished)
        except DuplicateEventIdError as error:
            if len(jobs) == 1:
                jobs[0].error = error
            for job in jobs if len(jobs) > 1 else ():
                self._write_group([job], [])
            self._finished.extendleft(reversed(finished))
        except Exception as error:
            # Whatever it was, its callers hear of it and the thread lives on.
            for job in jobs:
                job.error = error if isinstance(error, StoreError) else StoreError(f"{self._path}: {error!r}")
            # They are done all the same: the next commit takes them along.
            self._finished.extendleft(reversed(finished))

    def _write_transaction(self, jobs: Sequence[Job], finished: list[GlobalSequence]) -> None:
        with translated_errors(self._path):
            self._begin()
            try:
                self._insert([job for job in jobs if isinstance(job, Insert)])
                if finished:
                    now = moment_to_text(self._clock.now())
                    self._connection.execute(_QUERIES["finish_events"], (now, to_json_array(finished)))
                for job in jobs:
                    if isinstance(job, Call):
                        job.run(self._connection)
                self._connection.execute("COMMIT")
            except BaseException:
                # SQLite has rolled back by itself after some errors.
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
                raise

    def _begin(self) -> None:
        deadline = time.monotonic() + _LOCK_TIMEOUT
        while True:
            try:
                self._connection.execute("BEGIN IMMEDIATE")
                return
            except sqlite3.OperationalError as error:
                is_busy = error.sqlite_errorcode & 0xFF == sqlite3.SQLITE_BUSY
                if not is_busy or time.monotonic() > deadline:
                    raise
                # Not in step with the other processes that wait.
                time.sleep(random.uniform(0.001, 0.02))

    def _insert(self, inserts: list[Insert]) -> None:
        plain = [job for job in inserts if not any(draft.is_idempotent for draft in job.drafts)]
        rows = [draft_to_row(draft) for job in plain for draft in job.drafts]
        next_sequence = self._insert_rows(rows)
        for job in plain:
            count = len(job.drafts)
            job.sequences = range(next_sequence, next_sequence + count)
            next_sequence += count
        if len(plain) < len(inserts):
            for job in inserts:
                if job not in plain:
                    job.sequences = [self._insert_once(draft) for draft in job.drafts]
        self._rows_since_checkpoint += len(rows) + _ROWS_PER_COMMIT

    def _insert_rows(self, rows: list[tuple[object, ...]]) -> int:
        """Store the rows and return the first one's sequence number: AUTOINCREMENT counts without holes here."""
        last = 0
        for start in range(0, len(rows), _ROWS_PER_STATEMENT):
            chunk = rows[start : start + _ROWS_PER_STATEMENT]
            values = list(itertools.chain.from_iterable(chunk))
            last = self._connection.execute(_insert_statement(len(chunk)), values).lastrowid or 0
        return last - len(rows) + 1

    def _insert_once(self, draft: Draft) -> int | None:
        row = self._connection.execute(_QUERIES["insert_event_once"], draft_to_row(draft)).fetchone()
        return None if row is None else int(row[0])

    def _checkpoint_if_due(self) -> None:
        """Copy the write-ahead log into the database before it grows large. Losing a try loses nothing."""
        if self._rows_since_checkpoint >= _CHECKPOINT_ROWS and self._may_checkpoint():
            self._rows_since_checkpoint = 0
            with contextlib.suppress(sqlite3.Error):
                self._connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()


def to_json_array(sequences: Sequence[GlobalSequence]) -> str:
    """Sequence numbers as one bound value, however many there are."""
    return msgspec.json.encode(list(sequences)).decode()


_insert_statements: dict[int, str] = {}


def _insert_statement(row_count: int) -> str:
    statement = _insert_statements.get(row_count)
    if statement is None:
        rows = ", ".join([_QUERIES["insert_events_row"]] * row_count)
        statement = _insert_statements[row_count] = _QUERIES["insert_events"].format(rows=rows)
    return statement
