"""Handlers that work inside the transaction in which their subscriber's checkpoint moves."""

import contextlib
import sqlite3
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from postbus.errors import StoreError, SubscriberFencedError, TransactionEndedError
from postbus.events import BatchOutcome, Event, RetryOutcome, SubscriberId
from postbus.stores.named_queries import load_queries
from postbus.stores.sqlite.burials import note_retry
from postbus.stores.sqlite.connection import is_closed, translate
from postbus.stores.sqlite.guard import TransactionGuard
from postbus.stores.sqlite.jobs import TransactionLostError

_QUERIES = load_queries("postbus.stores.sqlite", "queries.sql")

# What is wrong with the disk or the machine, and not with the handler.
_OF_THE_STORE = (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_NOMEM, sqlite3.SQLITE_CORRUPT)


@dataclass(kw_only=True, slots=True)
class Batch:
    """Events for one handler. Run again after its transaction was lost, it does less than before."""

    subscriber_id: SubscriberId
    epoch: int
    events: Sequence[Event]
    handle: Callable[[Event, sqlite3.Connection], object]
    timeout: float
    time_budget: float
    retried: str | None
    now: str
    path: Path
    guard: TransactionGuard
    # Why the event after the last of *events* lost the transaction.
    loss: BaseException | None = None

    def run(self, connection: sqlite3.Connection) -> BatchOutcome:
        """Call the handler for one event after the other and move the checkpoint behind the last of them."""
        if isinstance(self.loss, StoreError):
            raise self.loss
        if connection.execute(_QUERIES["read_epoch"], (self.subscriber_id,)).fetchone() != (self.epoch,):
            raise SubscriberFencedError(self.subscriber_id, self.epoch)
        self.guard.begin(connection)
        try:
            done_count, error = self._run_events(connection)
        finally:
            self.guard.end(connection)
        if done_count:
            self._note_done(connection, self.events[done_count - 1])
        if error is None and done_count == len(self.events):
            error = self.loss
        return BatchOutcome(done_count, error)

    def _run_events(self, connection: sqlite3.Connection) -> tuple[int, BaseException | None]:
        # Not the clock of the store: nobody can move that while a statement runs.
        ends_at = time.monotonic() + self.time_budget
        done_count = 0
        for event in self.events:
            connection.execute(_QUERIES["begin_event"])
            error = self._call(event, connection)
            if is_closed(connection) or not connection.in_transaction or _is_of_the_store(error):
                self._lose(done_count, self._blame(error))
            try:
                self._end_event(connection, error)
            except sqlite3.Error as refused:
                _give_up(connection)
                self._lose(
                    done_count, self._blame(refused) if _is_of_the_store(refused) else error or refused
                )
            if error is not None:
                return done_count, error
            done_count += 1
            if time.monotonic() >= ends_at:
                break
        return done_count, None

    def _call(self, event: Event, connection: sqlite3.Connection) -> BaseException | None:
        """Why the event must take no effect, or None."""
        error: BaseException | None = None
        self.guard.lend(connection, self.timeout)
        try:
            self.handle(event, connection)
        except BaseException as raised:
            # A user's code ends here: whatever it raised is this event's, and the thread lives on.
            error = raised
        finally:
            self.guard.take_back(connection)
        if self.guard.was_interrupted:
            return TimeoutError(f"handler took longer than {self.timeout:g} s and was interrupted")
        if self.guard.was_refused:
            return TransactionEndedError(self.subscriber_id)
        return error

    def _end_event(self, connection: sqlite3.Connection, error: BaseException | None) -> None:
        if error is not None:
            connection.execute(_QUERIES["undo_event"])
        connection.execute(_QUERIES["end_event"])

    def _lose(self, done_count: int, loss: BaseException) -> NoReturn:
        """Have the transaction begun anew, without the event after so many."""
        self.events, self.loss = self.events[:done_count], loss
        raise TransactionLostError

    def _blame(self, error: BaseException | None) -> BaseException:
        """Who is to hear that the transaction is lost: the user of the store, or the handler."""
        if isinstance(error, TimeoutError):
            return error
        if _is_of_the_store(error) and isinstance(error, sqlite3.Error):
            return translate(error, self.path)
        # INSERT OR ROLLBACK and the like, or close().
        return TransactionEndedError(self.subscriber_id)

    def _note_done(self, connection: sqlite3.Connection, last: Event) -> None:
        if self.retried is not None:
            note_retry(connection, self.subscriber_id, RetryOutcome(self.retried, None), self.now)
            return
        position = {"position": last.global_sequence, "event_id": last.id, "now": self.now}
        connection.execute(_QUERIES["advance_checkpoint"], {**position, "subscriber_id": self.subscriber_id})


def _give_up(connection: sqlite3.Connection) -> None:
    """A statement that we can't reach is at work: it would keep every transaction from being committed."""
    with contextlib.suppress(sqlite3.Error):
        # Before it is closed: SQLite keeps the transaction for as long as the statement.
        connection.execute(_QUERIES["rollback"])
    connection.close()


def _is_of_the_store(error: BaseException | None) -> bool:
    code = getattr(error, "sqlite_errorcode", 0) if isinstance(error, sqlite3.Error) else 0
    return code & 0xFF in _OF_THE_STORE
