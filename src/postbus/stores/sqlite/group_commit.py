"""Writes a group of jobs in one transaction. Runs in the writer's thread."""

import contextlib
import sqlite3
import threading
from collections.abc import Sequence
from pathlib import Path

from postbus.errors import StoreBusyError, StoreError, StoreFullError, StoreReadOnlyError
from postbus.events import Draft, GlobalSequence
from postbus.ports import Clock
from postbus.stores.named_queries import load_queries
from postbus.stores.sqlite.connection import patiently, translated_errors
from postbus.stores.sqlite.dispatch_lock import FileDispatchLock
from postbus.stores.sqlite.jobs import Call, Insert, Job
from postbus.stores.sqlite.rows import draft_to_row, drafts_to_json, moment_to_text, sequences_to_json

_QUERIES = load_queries("postbus.stores.sqlite", "queries.sql")

# What is no single job's fault.
_CONCERNS_ALL = (StoreBusyError, StoreFullError, StoreReadOnlyError)
# After about so many pages the log is copied into the database file: in a long log look-ups are slow.
_CHECKPOINT_PAGES = 2_000
_LONGEST_LOG = 8_000
_PAGES_PER_COMMIT = 5
_PAGES_PER_EVENT = 0.15
# A group with more payload is written event by event: SQLite takes no text of more than a gigabyte,
# and the text of a group is one more copy of all its payloads.
_LARGEST_STATEMENT = 16 * 1024 * 1024
# Fewer events are written one by one: what a group costs beyond its events is more than that.
_SMALLEST_GROUP = 4


class GroupCommit:
    """Owns the writing connection."""

    def __init__(self, path: Path, connection: sqlite3.Connection, clock: Clock) -> None:
        self._path, self._connection, self._clock = path, connection, clock
        self._pages_since_checkpoint = 0.0
        self._turn = FileDispatchLock(path)
        self.closing = threading.Event()
        with translated_errors(path):
            connection.execute(_QUERIES["create_unrouted_view"])
            connection.execute(_QUERIES["create_group_view"])
            connection.execute(_QUERIES["create_group_trigger"])
            connection.execute(_QUERIES["create_single_view"])
            connection.execute(_QUERIES["create_single_trigger"])
            self._last_sequence = self._read_last_sequence()

    def write(self, jobs: Sequence[Job], finished: Sequence[GlobalSequence]) -> bool:
        """Write all jobs, each of which learns its error, and the finished; whether the latter are written.

        A job that can't be stored spoils no other job.
        """
        try:
            with translated_errors(self._path):
                self._write(jobs, finished)
        except Exception as error:
            # Whatever it was, the callers hear of it and the thread lives on.
            if len(jobs) > 1 and not isinstance(error, _CONCERNS_ALL):
                for job in jobs:
                    self.write([job], [])
                return False
            for job in jobs:
                job.error = error if isinstance(error, StoreError) else StoreError(f"{self._path}: {error!r}")
            return False
        return True

    def checkpoint_if_due(self, is_owner: bool) -> None:
        """Copy the write-ahead log into the database before it grows large. A failed try loses nothing.

        One process at a time may do it: the owner of the dispatch, or while there is none whoever
        keeps a new one from coming up meanwhile.
        """
        if self._pages_since_checkpoint < _CHECKPOINT_PAGES:
            return
        self._pages_since_checkpoint = 0.0
        with contextlib.suppress(sqlite3.Error, StoreError):
            if is_owner or self._turn.try_acquire():
                _, log_pages, _ = self._connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
                if log_pages > _LONGEST_LOG:
                    # Others never pause, so that the log never comes to its end: make them, for a moment.
                    self._connection.execute("PRAGMA wal_checkpoint(RESTART)").fetchone()
        self._turn.release()

    def note_foreign_commits(self) -> None:
        """Others have written, who leave the checkpoints to us."""
        self._pages_since_checkpoint += _PAGES_PER_COMMIT * 25

    def close(self) -> None:
        """Close the connection."""
        with contextlib.suppress(sqlite3.Error):
            self._connection.close()

    def _write(self, jobs: Sequence[Job], finished: Sequence[GlobalSequence]) -> None:
        self._pages_since_checkpoint += _PAGES_PER_COMMIT
        inserts = _as_one_insert(jobs, finished)
        if inserts and self._write_at_once(inserts, finished):
            return
        self._begin()
        try:
            if inserts:
                self._last_sequence = self._read_last_sequence()
                self._insert(inserts, finished)
            else:
                self._finish(finished)
                for job in jobs:
                    self._write_job(job)
            self._connection.execute("COMMIT")
        except BaseException:
            # SQLite has rolled back by itself after some errors.
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
            raise

    def _write_at_once(self, inserts: Sequence[Insert], finished: Sequence[GlobalSequence]) -> bool:
        """One statement that is its own transaction; whether the numbers were free and no one in the way."""
        try:
            self._insert(inserts, finished)
        except (sqlite3.IntegrityError, sqlite3.OperationalError) as error:
            code = error.sqlite_errorcode
            if code == sqlite3.SQLITE_CONSTRAINT_TRIGGER or code & 0xFF == sqlite3.SQLITE_BUSY:
                return False
            raise
        return True

    def _begin(self) -> None:
        patiently(self._begin_at_once, self.closing)

    def _begin_at_once(self) -> None:
        with translated_errors(self._path):
            self._connection.execute("BEGIN IMMEDIATE")

    def _insert(self, inserts: Sequence[Insert], finished: Sequence[GlobalSequence]) -> None:
        drafts = [draft for job in inserts for draft in job.drafts]
        now = moment_to_text(self._clock.now())
        if len(drafts) == 1 and len(finished) <= 1:
            single = (self._last_sequence, *draft_to_row(drafts[0]), finished[0] if finished else None, now)
            self._connection.execute(_QUERIES["write_single"], single)
        else:
            group = (self._last_sequence, drafts_to_json(drafts), sequences_to_json(finished), now)
            self._connection.execute(_QUERIES["write_group"], group)
        next_sequence = self._last_sequence + 1
        for job in inserts:
            job.sequences = range(next_sequence, next_sequence + len(job.drafts))
            next_sequence += len(job.drafts)
        self._last_sequence += len(drafts)
        self._pages_since_checkpoint += len(drafts) * _PAGES_PER_EVENT

    def _finish(self, finished: Sequence[GlobalSequence]) -> None:
        if finished:
            values = (moment_to_text(self._clock.now()), sequences_to_json(finished))
            self._connection.execute(_QUERIES["finish_events"], values)

    def _write_job(self, job: Job) -> None:
        if isinstance(job, Call):
            job.run(self._connection)
        else:
            job.sequences = [self._insert_one(draft) for draft in job.drafts]
            self._pages_since_checkpoint += len(job.drafts) * _PAGES_PER_EVENT

    def _insert_one(self, draft: Draft) -> int | None:
        """Its number; None if it has a given id that is stored already."""
        if draft.is_idempotent or draft.status is None:
            query = _QUERIES["insert_event_once" if draft.is_idempotent else "insert_unrouted_event"]
            row = self._connection.execute(query, draft_to_row(draft)).fetchone()
            if row is None:
                return None
            self._last_sequence = int(row[0])
        else:
            row = draft_to_row(draft)
            cursor = self._connection.execute(_QUERIES["insert_event"], (*row, row[-1]))
            self._last_sequence = cursor.lastrowid or 0
        return self._last_sequence

    def _read_last_sequence(self) -> int:
        return int(self._connection.execute(_QUERIES["last_sequence"]).fetchone()[0])


def _as_one_insert(jobs: Sequence[Job], finished: Sequence[GlobalSequence]) -> list[Insert]:
    """The jobs, if all of them fit into one statement and are enough to be worth it, or just one."""
    inserts = [job for job in jobs if isinstance(job, Insert) and job.is_plain]
    if len(inserts) < len(jobs):
        return []
    count = sum([len(job.drafts) for job in inserts])
    if count < _SMALLEST_GROUP and (count != 1 or len(finished) > 1):
        return []
    return inserts if sum([job.size for job in inserts]) <= _LARGEST_STATEMENT else []
