"""Transactional subscribers of a store in memory: their effects go to a SQLite database in memory."""

import contextlib
import sqlite3
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from postbus.errors import StoreError, TransactionEndedError
from postbus.events import BatchOutcome, Event, SubscriberId
from postbus.stores.lent_connection import LentConnection

# How many steps of SQLite's machine pass between two looks at the time.
_STEPS_BETWEEN_LOOKS = 1000
_SAVEPOINT = "postbus_event"


@dataclass(slots=True)
class _Loan:
    """What a handler was refused while it had the connection, and whether its time was up."""

    ends_at: float
    refusals: list[str] = field(default_factory=list)
    is_overdue: bool = False

    def authorize(self, action: int, operation: str | None, name: str | None, *_: object) -> int:
        """Asked for every statement that is prepared."""
        is_end = action == sqlite3.SQLITE_TRANSACTION
        if not is_end and (action != sqlite3.SQLITE_SAVEPOINT or name != _SAVEPOINT):
            return sqlite3.SQLITE_OK
        self.refusals.append(operation or "")
        return sqlite3.SQLITE_DENY

    def look_at_the_time(self) -> bool:
        """Asked while a statement runs; True interrupts it."""
        self.is_overdue = time.monotonic() >= self.ends_at
        return self.is_overdue


class EffectsConnection(LentConnection):
    """A connection that a handler can't close while it is lent."""

    loan: _Loan | None = None

    def close(self) -> None:
        """Close, unless a handler tries to: the database would be gone with it."""
        if self.loan is not None:
            self.loan.refusals.append("CLOSE")
            raise sqlite3.ProgrammingError("this connection is lent: leave close() to postbus")
        super().close()


class EffectsDatabase:
    """A SQLite database in memory, made on first use; it lives as long as this object does."""

    def __init__(self) -> None:
        self._connection: EffectsConnection | None = None

    def connect(self) -> EffectsConnection:
        """Its one connection."""
        if self._connection is None:
            # Autocommit: whoever makes tables here leaves no transaction open. And the garbage
            # collector, which closes it, may run in any thread.
            self._connection = sqlite3.connect(
                ":memory:", isolation_level=None, check_same_thread=False, factory=EffectsConnection
            )
            weakref.finalize(self, self._connection.close)
        return self._connection


def run_batch(
    connection: EffectsConnection,
    subscriber_id: SubscriberId,
    events: Sequence[Event],
    handle: Callable[[Event, sqlite3.Connection], object],
    timeout: float,
    time_budget: float,
) -> BatchOutcome:
    """Call the handler for each event in one transaction; the effects of an event that raises are undone."""
    # Not the clock of the store: nobody can move that while a statement runs.
    ends_at = time.monotonic() + time_budget
    done_count, error = 0, None
    _begin(connection)
    for event in events:
        error = _run_one(connection, subscriber_id, event, handle, timeout)
        if error is not None:
            break
        done_count += 1
        if time.monotonic() >= ends_at:
            break
    if connection.in_transaction:
        return _commit(connection, BatchOutcome(done_count, error))
    # The effects of the events before are lost too: they have to be made again.
    again = run_batch(connection, subscriber_id, events[:done_count], handle, timeout, time_budget)
    return again if again.done_count < done_count else BatchOutcome(done_count, error)


def _begin(connection: sqlite3.Connection) -> None:
    if connection.in_transaction:
        raise StoreError(
            "somebody left a transaction open in the connection of this InMemoryStore; "
            "commit or roll it back first; no handler was called"
        )
    connection.execute("BEGIN IMMEDIATE")


def _commit(connection: sqlite3.Connection, outcome: BatchOutcome) -> BatchOutcome:
    try:
        connection.execute("COMMIT")
    except sqlite3.Error as failure:
        # A constraint that is checked last; nothing tells whose effects break it.
        connection.execute("ROLLBACK")
        return BatchOutcome(0, failure)
    return outcome


def _run_one(
    connection: EffectsConnection,
    subscriber_id: SubscriberId,
    event: Event,
    handle: Callable[[Event, sqlite3.Connection], object],
    timeout: float,
) -> BaseException | None:
    """Why the event took no effect, or None."""
    error: BaseException | None = None
    connection.execute(f"SAVEPOINT {_SAVEPOINT}")
    with _lent(connection, timeout) as loan:
        try:
            handle(event, connection)
        except BaseException as raised:
            error = raised
    if loan.is_overdue:
        error = TimeoutError(f"handler took longer than {timeout:g} s and was interrupted")
    elif loan.refusals or not connection.in_transaction:
        # The latter is what INSERT OR ROLLBACK does.
        error = TransactionEndedError(subscriber_id)
    if not connection.in_transaction:
        return error
    try:
        if error is not None:
            connection.execute(f"ROLLBACK TO {_SAVEPOINT}")
        connection.execute(f"RELEASE {_SAVEPOINT}")
    except sqlite3.Error as refused:
        # A statement is at work on a cursor that was made without asking the connection.
        connection.execute("ROLLBACK")
        return error or refused
    return error


@contextlib.contextmanager
def _lent(connection: EffectsConnection, timeout: float) -> Iterator[_Loan]:
    """Keep the handler from ending the transaction and from taking too long."""
    loan = connection.loan = _Loan(time.monotonic() + timeout)
    connection.forget_opened()
    before = (connection.row_factory, connection.text_factory)
    # Setting it has every statement prepared anew, our own COMMIT among them.
    connection.set_authorizer(loan.authorize)
    connection.set_progress_handler(loan.look_at_the_time, _STEPS_BETWEEN_LOOKS)
    try:
        yield loan
    finally:
        connection.close_opened()
        connection.row_factory, connection.text_factory = before
        if connection.isolation_level is not None:
            # Python would commit at this moment; refused, it only remembers the setting.
            refusals_before = len(loan.refusals)
            with contextlib.suppress(sqlite3.Error):
                connection.isolation_level = None
            del loan.refusals[refusals_before:]
        connection.set_authorizer(None)
        connection.set_progress_handler(None, 0)
        connection.loan = None
