"""Writes a group of jobs in one transaction. Runs in the writer's thread."""

import contextlib
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path

from postbus.errors import FileReplacedError, StoreBusyError, StoreError, StoreFullError, StoreReadOnlyError
from postbus.events import Draft, GlobalSequence
from postbus.ports import Clock
from postbus.stores.named_queries import load_queries
from postbus.stores.sqlite.connection import is_closed, patiently, translate, translated_errors
from postbus.stores.sqlite.dispatch_lock import FileDispatchLock
from postbus.stores.sqlite.file_trust import FileTrust
from postbus.stores.sqlite.group_statement import MOST_EVENTS, Finished, write_group
from postbus.stores.sqlite.inserting import LARGEST_STATEMENT, insert_events
from postbus.stores.sqlite.jobs import Call, Insert, Job, TransactionLostError
from postbus.stores.sqlite.log_copy import LogCopy, set_patience
from postbus.stores.sqlite.log_pages import read_head
from postbus.stores.sqlite.rows import moment_to_text, sequences_to_json, to_json

_QUERIES = load_queries("postbus.stores.sqlite", "queries.sql")

# What is no single job's fault.
_CONCERNS_ALL = (FileReplacedError, StoreBusyError, StoreFullError, StoreReadOnlyError)
# After about so many pages the log is copied into the database file: in a long log look-ups are slow.
_CHECKPOINT_PAGES = 2_000
_PAGES_PER_COMMIT = 5
# From so many publishers on, finished events are marked by the statement that stores the new ones: it runs
# while the event loop is busy with the group before, and a statement of its own would hold up the next group.
# Fewer publishers are often all waiting: for them it is the other way round.
_LARGE_GROUP = 16
# So many times as many as there are publishers; more would hold them up.
_MOST_BESIDE = 2
# How long each write still waits for others while the store is closing, after the first that did so in vain.
_SECONDS_AT_LAST = 0.01
# SQLite's number for synchronous=NORMAL, at which a commit does not wait for the disk.
_NORMAL = 1
# A changed row, and an event that is written the short way. It takes less of the log than this; but its page
# has to be copied, while of what every commit writes only the last version has, and a commit that comes
# meanwhile waits for all of it.
_PAGES_PER_CHANGE = 0.7


class GroupCommit:
    """Owns the writing connection."""

    def __init__(self, path: Path, connect: Callable[[], sqlite3.Connection], clock: Clock) -> None:
        self._path, self._connect, self._clock = path, connect, clock
        self._pages_since_checkpoint = 0.0
        self._log_copy = LogCopy()
        self._turn = FileDispatchLock(path)
        self.closing = threading.Event()
        self.finished_at = 0.0
        """When events were marked done last, or it was tried."""
        self._last_sequence = self._level = self._present_level = 0
        self._connection = self._open()
        self.head = self._last_sequence
        """The last number of which this process knows that it is durable; read by other threads too."""

    @property
    def connection(self) -> sqlite3.Connection:
        """The writing connection; another one after a handler has closed it."""
        return self._connection

    def insert(self, jobs: Sequence[Job], finished: deque[GlobalSequence]) -> bool:
        """Store new events by one statement that is its own transaction; False: nothing is written yet.

        Then write() does it, or tells what is wrong: others are in the way or have used the numbers,
        the connection is closed or in a transaction, or the jobs are more than plain events.
        The same statement may mark *finished* events done, which are taken out when that is written.
        """
        # Few calls: for a lone publisher, after whose last event the processor has turned to other things,
        # each of them takes a microsecond.
        drafts = _plain_drafts(jobs)
        if not drafts or self._trust.is_lost:
            return False
        goes_beside = len(jobs) >= _LARGE_GROUP and len(finished) <= len(jobs) * _MOST_BESIDE
        beside = list(finished) if goes_beside else []
        try:
            if self._connection.in_transaction:
                return False
            if self._present_level != self._level:
                self._wait_for_disk(True)
            count = write_group(self._connection, self._last_sequence, drafts, self._as_range(beside))
            if count < len(drafts):
                self._take_back(drafts, count)
                return False
        except Exception as raised:
            if _is_busy(raised) or is_closed(self._connection):
                return False
            if beside:
                # A constraint of somebody's own may forbid what looks like new events.
                return self.insert(jobs, deque())
            self._spoil(jobs, raised)
            return True
        if count > len(drafts):
            self.finished_at = time.monotonic()
            for _ in beside:
                finished.popleft()
        self._give_numbers(jobs)
        self._pages_since_checkpoint += _PAGES_PER_COMMIT + count * _PAGES_PER_CHANGE
        self.head = self._last_sequence
        return True

    def finish(self, finished: Sequence[GlobalSequence]) -> bool:
        """Mark events done by one statement that does not wait for the disk; False: nothing is written.

        The next commit that waits takes it there. If the power fails before, they are delivered again.
        """
        if self._trust.is_lost:
            return False
        try:
            self._wait_for_disk(False)
            self._finish(finished)
        except Exception as raised:
            self._trust.note_error(raised)
            return False
        self._pages_since_checkpoint += _PAGES_PER_COMMIT + len(finished) * _PAGES_PER_CHANGE
        return True

    def write(self, jobs: Sequence[Job], finished: Sequence[GlobalSequence]) -> bool:
        """Write all jobs, each of which learns its error, and the finished; whether the latter are written.

        A job that can't be stored spoils no other job.
        """
        try:
            self._write_until_kept(jobs, finished)
        except Exception as raised:
            self._spoil(jobs, raised)
            return False
        self.head = self._last_sequence
        return True

    def checkpoint_if_due(self, is_owner: Callable[[], bool]) -> None:
        """Copy the write-ahead log into the database before it grows large."""
        if self._pages_since_checkpoint < _CHECKPOINT_PAGES or self._trust.is_lost:
            return
        self._pages_since_checkpoint = 0.0
        self._in_turn(is_owner, lambda: self._log_copy.copy(self._connection))

    def look_after_file(self, is_owner: Callable[[], bool]) -> None:
        """See whether the file can still be trusted, and mend what can be mended."""
        self._trust.look(self._connection)
        if self._trust.needs_new_log:
            self._in_turn(is_owner, lambda: self._trust.renew_log(self._connection))

    def note_foreign_commits(self, commit_count: int) -> None:
        """Others have written, about so many times, and leave the checkpoints to us."""
        self._pages_since_checkpoint += _PAGES_PER_COMMIT * commit_count
        # Busy or damaged: the next write tells, and the next look reads it again.
        with contextlib.suppress(sqlite3.Error):
            self.head = self._last_sequence = read_head(self._connection)

    def close(self) -> None:
        """Close the connection."""
        self._trust.close(self._connection)

    def _spoil(self, jobs: Sequence[Job], raised: Exception) -> None:
        """Whatever it was, the callers hear of it and the thread lives on."""
        self._trust.note_error(raised)
        # Numbers were given to no one.
        self._last_sequence = self.head
        error = self._as_store_error(raised)
        if len(jobs) > 1 and not isinstance(error, _CONCERNS_ALL):
            for job in jobs:
                self.write([job], [])
        else:
            for job in jobs:
                job.error = error

    def _take_back(self, drafts: Sequence[Draft], stored_count: int) -> None:
        """Of a group that a trigger of somebody else has stored in part, nothing was acknowledged."""
        if stored_count:
            ids = to_json([draft.id for draft in drafts])
            self._connection.execute(_QUERIES["take_back_events"], (self._last_sequence, ids))

    def _in_turn(self, is_owner: Callable[[], bool], copy_log: Callable[[], None]) -> None:
        """One process at a time copies the log: the owner of the dispatch, or while there is none whoever
        keeps a new one from coming up meanwhile. A failed try loses nothing."""
        with contextlib.suppress(sqlite3.Error, StoreError):
            if is_owner() or self._turn.try_acquire():
                copy_log()
        self._turn.release()

    def _as_store_error(self, error: Exception) -> StoreError:
        if isinstance(error, StoreError):
            return error
        if not isinstance(error, sqlite3.Error):
            return StoreError(f"{self._path}: {error!r}")
        translated = translate(error, self._path)
        translated.__cause__ = error
        return translated

    def _open(self) -> sqlite3.Connection:
        connection = self._connect()
        try:
            with translated_errors(self._path):
                connection.execute(_QUERIES["create_unrouted_view"])
                self._last_sequence = read_head(connection)
                (self._level,) = connection.execute("PRAGMA synchronous").fetchone()
                self._present_level = self._level
            self._trust = FileTrust(self._path)
        except BaseException:
            connection.close()
            raise
        return connection

    def _write_until_kept(self, jobs: Sequence[Job], finished: Sequence[GlobalSequence]) -> None:
        while True:
            if self._trust.is_lost:
                raise self._trust.refusal
            if is_closed(self._connection):
                # A handler did it.
                self._connection = self._open()
            self._wait_for_disk(bool(finished) or not jobs or any(map(_needs_disk, jobs)))
            try:
                self._write_together(jobs, finished)
                return
            except TransactionLostError:
                # All that was written is undone, so it is written once more; each time the job that
                # lost it does less, until it does nothing that can fail.
                continue

    def _wait_for_disk(self, is_waiting: bool) -> None:
        """What is committed without waiting is on disk with the next commit that waits."""
        # Left as it is until somebody needs the other: checkpoints come one after the other.
        level = self._level if is_waiting else min(self._level, _NORMAL)
        if level != self._present_level:
            self._connection.execute(f"PRAGMA synchronous = {level}")
            self._present_level = level

    def _write_together(self, jobs: Sequence[Job], finished: Sequence[GlobalSequence]) -> None:
        self._begin()
        try:
            drafts = _plain_drafts(jobs)
            changes_before = self._connection.total_changes
            self._finish(finished)
            if drafts:
                self._last_sequence = read_head(self._connection)
                if write_group(self._connection, self._last_sequence, drafts) != len(drafts):
                    raise StoreError(
                        f"{self._path} took no event; nothing was stored; does a trigger ignore it?"
                    )
                self._give_numbers(jobs)
            else:
                self._write_jobs(jobs)
            self._connection.execute(_QUERIES["commit"])
            changes = self._connection.total_changes - changes_before
            self._pages_since_checkpoint += _PAGES_PER_COMMIT + changes * _PAGES_PER_CHANGE
        except BaseException:
            # SQLite has rolled back by itself after some errors.
            if not is_closed(self._connection) and self._connection.in_transaction:
                self._connection.execute(_QUERIES["rollback"])
            raise

    def _write_jobs(self, jobs: Sequence[Job]) -> None:
        """Events first, in as few statements as there can be; what the other jobs do does not touch them."""
        inserts = [job for job in jobs if isinstance(job, Insert)]
        if inserts:
            self._last_sequence = insert_events(self._connection, inserts)
        if len(inserts) == len(jobs):
            return
        for job in jobs:
            if isinstance(job, Call):
                job.run(self._connection)
                if not self._connection.in_transaction:
                    raise TransactionLostError
        if any(map(_needs_disk, jobs)):
            # They may have stored events too.
            self._last_sequence = read_head(self._connection)

    def _begin(self) -> None:
        try:
            patiently(self._begin_at_once, self.closing)
        except StoreBusyError:
            if not self.closing.is_set():
                raise
            # What still comes would wait as long, one after the other, for somebody who may never go; but
            # whoever has gone since the last look is in nobody's way.
            set_patience(self._connection, _SECONDS_AT_LAST)
            self._begin_at_once()

    def _begin_at_once(self) -> None:
        with translated_errors(self._path):
            self._connection.execute(_QUERIES["begin"])

    def _give_numbers(self, jobs: Sequence[Job]) -> None:
        """Their drafts were stored one after the other, after the last number."""
        for job in jobs:
            if isinstance(job, Insert):
                first, self._last_sequence = self._last_sequence + 1, self._last_sequence + len(job.drafts)
                job.sequences = range(first, self._last_sequence + 1)

    def _finish(self, finished: Sequence[GlobalSequence]) -> None:
        if (marked := self._as_range(finished)) is not None:
            self._connection.execute(_QUERIES["finish_range"], (marked.now, marked.first, marked.last))
        elif finished:
            values = (moment_to_text(self._clock.now()), sequences_to_json(finished))
            self._connection.execute(_QUERIES["finish_events"], values)

    def _as_range(self, finished: Sequence[GlobalSequence]) -> Finished | None:
        """None if there are none, or others between them."""
        if not finished:
            return None
        first, last = min(finished), max(finished)
        if len(set(finished)) != last - first + 1:
            return None
        return Finished(first, last, moment_to_text(self._clock.now()))


def _plain_drafts(jobs: Sequence[Job]) -> list[Draft]:
    """What the jobs are to store, if that is all they do and fits into one statement."""
    drafts: list[Draft] = []
    size = 0
    for job in jobs:
        if not isinstance(job, Insert) or not job.is_plain:
            return []
        drafts += job.drafts
        size += job.size
    return drafts if len(drafts) <= MOST_EVENTS and size <= LARGEST_STATEMENT else []


def _is_busy(raised: Exception) -> bool:
    return getattr(raised, "sqlite_errorcode", sqlite3.SQLITE_OK) & 0xFF == sqlite3.SQLITE_BUSY


def _needs_disk(job: Job) -> bool:
    return not isinstance(job, Call) or job.waits_for_disk
