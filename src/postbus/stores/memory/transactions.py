"""Transactional subscribers of a store in memory: their effects go to a SQLite database in memory."""

import contextlib
import sqlite3
import time
import weakref
from collections.abc import Callable, Iterator, Sequence

from postbus.errors import TransactionEndedError
from postbus.events import BatchOutcome, Event, SubscriberId

# How many steps of SQLite's machine pass between two looks at the time.
_STEPS_BETWEEN_LOOKS = 1000
_SAVEPOINT = "postbus_event"


class EffectsDatabase:
    """A SQLite database in memory, made on first use; it lives as long as this object does."""

    def __init__(self) -> None:
        self._connection: sqlite3.Connection | None = None

    def connect(self) -> sqlite3.Connection:
        """Its one connection."""
        if self._connection is None:
            # Autocommit: whoever makes tables here leaves no transaction open. And the garbage
            # collector, which closes it, may run in any thread.
            self._connection = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
            weakref.finalize(self, self._connection.close)
        return self._connection


def run_batch(
    connection: sqlite3.Connection,
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
    connection.execute("BEGIN IMMEDIATE")
    for event in events:
        error = _run_one(connection, subscriber_id, event, handle, timeout)
        if error is not None:
            break
        done_count += 1
        if time.monotonic() >= ends_at:
            break
    if not connection.in_transaction:
        # A statement such as INSERT OR ROLLBACK has undone all of it.
        return BatchOutcome(0, error or TransactionEndedError(subscriber_id))
    try:
        connection.execute("COMMIT")
    except sqlite3.Error as failure:
        # A constraint that is checked last; nothing tells whose effects break it.
        connection.execute("ROLLBACK")
        return BatchOutcome(0, failure)
    return BatchOutcome(done_count, error)


def _run_one(
    connection: sqlite3.Connection,
    subscriber_id: SubscriberId,
    event: Event,
    handle: Callable[[Event, sqlite3.Connection], object],
    timeout: float,
) -> BaseException | None:
    """Why the event took no effect, or None."""
    error: BaseException | None = None
    connection.execute(f"SAVEPOINT {_SAVEPOINT}")
    with _lent(connection, timeout) as refusals:
        try:
            handle(event, connection)
        except BaseException as raised:
            error = raised
    if refusals:
        error = TransactionEndedError(subscriber_id)
    if connection.in_transaction:
        if error is not None:
            connection.execute(f"ROLLBACK TO {_SAVEPOINT}")
        connection.execute(f"RELEASE {_SAVEPOINT}")
    return error


@contextlib.contextmanager
def _lent(connection: sqlite3.Connection, timeout: float) -> Iterator[list[str]]:
    """Keep the handler from ending the transaction and from waiting too long; what was refused."""
    refusals: list[str] = []
    stops_at = time.monotonic() + timeout

    def authorize(action: int, operation: str | None, name: str | None, *_: object) -> int:
        is_end = action == sqlite3.SQLITE_TRANSACTION
        if not is_end and (action != sqlite3.SQLITE_SAVEPOINT or name != _SAVEPOINT):
            return sqlite3.SQLITE_OK
        refusals.append(operation or "")
        return sqlite3.SQLITE_DENY

    before = (connection.row_factory, connection.text_factory)
    # Setting it has every statement prepared anew, our own COMMIT among them.
    connection.set_authorizer(authorize)
    connection.set_progress_handler(lambda: time.monotonic() >= stops_at, _STEPS_BETWEEN_LOOKS)
    try:
        yield refusals
    finally:
        connection.row_factory, connection.text_factory = before
        if connection.isolation_level is not None:
            # Python would commit at this moment; refused, it only remembers the setting.
            refusals_before = len(refusals)
            with contextlib.suppress(sqlite3.Error):
                connection.isolation_level = None
            del refusals[refusals_before:]
        connection.set_authorizer(None)
        connection.set_progress_handler(None, 0)
