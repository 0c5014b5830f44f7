"""Handlers that work inside the transaction in which their subscriber's checkpoint moves."""

import asyncio
import inspect
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, cast

import asyncpg

from postbus.closing import is_closing
from postbus.errors import (
    StoreError,
    StoreUnavailableError,
    SubscriberFencedError,
    TransactionEndedError,
    TransactionFailedError,
)
from postbus.events import (
    BatchOutcome,
    Event,
    GlobalSequence,
    LogPosition,
    RetryOutcome,
    SubscriberId,
)
from postbus.stores.postgres.burials import note_retry
from postbus.stores.postgres.database import Database
from postbus.stores.postgres.lent import TimedConnection, was_closed
from postbus.stores.postgres.lock_keys import batch_key
from postbus.stores.postgres.pool import Connection, is_gone
from postbus.stores.postgres.saving import array_to_gaps, gaps_to_array
from postbus.stores.postgres.translation import DRIVER_ERRORS

# What the driver raises when the connection is gone; it may also lose count of its own state.
_CONNECTION_LOST = (
    asyncpg.PostgresConnectionError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
    OSError,
)
# What is wrong with the server or its machine, and not with the handler.
_OF_THE_STORE = (
    asyncpg.PostgresConnectionError,
    asyncpg.InsufficientResourcesError,
    asyncpg.OperatorInterventionError,
    asyncpg.PostgresSystemError,
)
_PROBE_SECONDS = 2.0
# What constraints have at least that are checked last, although the handler has used up its time.
_LEAST_SECONDS = 2.0
# How much longer than its time a handler may leave the transaction idle until the server ends it.
GRACE_SECONDS = 5.0
# In milliseconds: what the server takes.
LONGEST_PATIENCE = 2**31 - 1


class _UndoneError(Exception):
    """Rolls a transaction back because of one of its first *suspect_count* events."""

    def __init__(
        self, suspect_count: int, error: BaseException, *, is_last: bool, is_at_end: bool = False
    ) -> None:
        super().__init__(suspect_count)
        self.suspect_count, self.error = suspect_count, error
        # Whether it was our own work after the handlers that failed.
        self.is_at_end = is_at_end
        # Whether it is known to be the last of them.
        self.is_certain = is_last or suspect_count == 1


@dataclass(kw_only=True, slots=True)
class Batch:
    """Events for one handler."""

    database: Database
    queries: Mapping[str, str]
    subscriber_id: SubscriberId
    dead_letters_of: SubscriberId
    epoch: int
    server: str | None
    events: Sequence[Event]
    handle: Callable[[Event, Any], Any]
    reached: Callable[[int], LogPosition]
    timeout: float
    time_budget: float
    retried: str | None
    now: datetime
    # When the time of the handler is up that was called last.
    ends_at: float = -math.inf

    async def run(self) -> BatchOutcome:
        """Call the handler for one event after the other, and move the checkpoint behind the last of them."""
        events, error, time_budget = self.events, None, self.time_budget
        while True:
            try:
                done_count = await self._run_once(events, time_budget)
            except _UndoneError as undone:
                # The effects of the events before are undone as well: they have to be made again.
                if undone.is_certain:
                    if undone.is_at_end and self.retried is None:
                        await self._prove_writable()
                    # All of them, although time may be up: else the failure would be forgotten, and its
                    # event be handled more often than it has attempts.
                    events, error, time_budget = events[: undone.suspect_count - 1], undone.error, math.inf
                else:
                    # The events after the half come next time: so the one that did it is found.
                    events, error = events[: undone.suspect_count // 2], None
            else:
                return BatchOutcome(done_count, error if done_count == len(events) else None)

    async def _run_once(self, events: Sequence[Event], time_budget: float) -> int:
        """How many of the events were processed; none of them has been if this raises."""
        async with self.database.handler_transaction() as connection:
            # The statements of handlers take the time that handlers are given; our own are short.
            ours = cast(Connection, TimedConnection(connection))
            is_processed = await self._take_checkpoint(ours)
            if not events:
                return 0
            await ours.execute(self.queries["guard_transaction"])
            done_count = await self._call_handlers(connection, events, is_processed, time_budget)
            try:
                await self._end_guard(connection, done_count)
                await self._finish(ours, events[:done_count])
            except (asyncpg.PostgresError, asyncpg.InterfaceError) as error:
                if is_gone(connection) or _is_of_the_store(error):
                    raise
                raise _UndoneError(done_count, self._blame(error), is_last=False, is_at_end=True) from error
        return done_count

    async def _prove_writable(self) -> None:
        """Raise if the checkpoint can't be written without a handler either: then it is nobody's fault."""
        async with self.database.handler_transaction() as connection:
            ours = cast(Connection, TimedConnection(connection))
            await self._take_checkpoint(ours)
            # To where it is already, or was before: that changes nothing.
            await self._advance(ours, LogPosition(GlobalSequence(0)), None)

    async def _take_checkpoint(self, connection: Connection) -> Callable[[Event], bool]:
        """Lock it for this transaction; which events were processed in one whose answer got lost."""
        patience = min((self.timeout + self.time_budget + GRACE_SECONDS) * 1000, LONGEST_PATIENCE)
        row = await connection.fetchrow(
            self.queries["lock_checkpoint"],
            self.subscriber_id,
            self.epoch,
            str(int(patience)),
            self.server,
            *batch_key(self.database.schema, self.subscriber_id),
        )
        if row is None:
            raise SubscriberFencedError(self.subscriber_id, self.epoch)
        if self.retried is None:
            processed = _processed_up_to(*row[:3])
            return lambda event: (
                event.global_sequence is not None and processed.has_passed(event.global_sequence)
            )
        is_resolved: bool = await connection.fetchval(
            self.queries["is_resolved_by_subscriber"], self.retried, self.dead_letters_of
        )
        return lambda _: is_resolved

    async def _call_handlers(
        self,
        connection: Connection,
        events: Sequence[Event],
        is_processed: Callable[[Event], bool],
        time_budget: float,
    ) -> int:
        # Not the clock of the store: that is not for measuring how long code takes.
        ends_at = time.monotonic() + time_budget
        for done_count, event in enumerate(events, 1):
            if not is_processed(event):
                error = await self._call(event, connection)
                if error is not None or is_gone(connection) or not connection.is_in_transaction():
                    raise await self._undone(connection, done_count, error)
            if time.monotonic() >= ends_at:
                return done_count
        return len(events)

    async def _call(self, event: Event, connection: Connection) -> BaseException | None:
        """Why the event must take no effect, or None."""
        task = asyncio.current_task()
        assert task is not None
        cancel_count = task.cancelling()
        error: BaseException | None = None
        self.ends_at = ends_at = time.monotonic() + self.timeout
        limit: asyncio.Timeout | None = None
        try:
            result = self.handle(event, connection)
            if inspect.isawaitable(result):
                async with asyncio.timeout(self.timeout) as limit:
                    await result
        except (SystemExit, KeyboardInterrupt):
            raise
        except BaseException as raised:
            # A user's code ends here: whatever it raised is this event's, a cancellation of something that
            # it waited for included. One of ourselves is not.
            if is_closing(raised):
                raise
            if isinstance(raised, asyncio.CancelledError) and task.cancelling() > cancel_count:
                raise
            error = raised
        # Also if it did not mind that it was cancelled, or has held up the event loop.
        if (limit is not None and limit.expired()) or time.monotonic() >= ends_at:
            return TimeoutError(f"handler took longer than {self.timeout:g} s and was cancelled")
        return error

    async def _undone(
        self, connection: Connection, suspect_count: int, error: BaseException | None
    ) -> BaseException:
        """Why to roll back after the last of so many events: an error of the store, or a handler's."""
        loss = await self._find_loss(connection, error)
        if loss is not None:
            return loss
        answer = _answer_behind(error)
        if answer is not None and answer is not error and await self._probe(connection) is not None:
            # bus.publish(…, connection=…) was given the answer that the handler would have been given.
            error = answer
        # The statement that failed first may be one of an earlier handler, who did not mind.
        is_last = not isinstance(error, asyncpg.InFailedSQLTransactionError)
        is_ended = was_closed(connection) or not (is_gone(connection) or connection.is_in_transaction())
        if error is None or (is_ended and not isinstance(error, TimeoutError)):
            error = TransactionEndedError(self.subscriber_id)
        return _UndoneError(suspect_count, error, is_last=is_last)

    async def _find_loss(self, connection: Connection, error: BaseException | None) -> BaseException | None:
        """The error of the store that is behind what a handler did, if there is one."""
        if was_closed(connection):
            return None
        if is_gone(connection):
            # Time would be up with any; and the server may have ended one that was idle for too long.
            return None if isinstance(error, TimeoutError) else self._loss(error)
        if isinstance(error, TimeoutError):
            silence = await self._probe(connection)
            # One that is there may be busy with what the handler has left behind.
            return silence if is_gone(connection) or isinstance(silence, TimeoutError) else None
        # The handler may use connections of its own, to other servers.
        if _is_of_the_store(_answer_behind(error)) and await self._probe(connection) is not None:
            return error
        return None

    def _loss(self, error: BaseException | None) -> BaseException:
        """What is raised for a connection that was lost, whatever the handler made of that."""
        if isinstance(error, _CONNECTION_LOST) or _is_of_the_store(error):
            assert error is not None
            return error
        loss = StoreUnavailableError(
            f"the connection was lost while the handler of {self.subscriber_id!r} had it; nothing of its "
            "transaction was stored; its events come again"
        )
        loss.__cause__ = error
        return loss

    async def _probe(self, connection: Connection) -> Exception | None:
        """Why the transaction can't go on, if so."""
        try:
            async with asyncio.timeout(_PROBE_SECONDS):
                await connection.execute(self.queries["probe_transaction"])
        except DRIVER_ERRORS as error:
            return error
        return None

    async def _end_guard(self, connection: Connection, done_count: int) -> None:
        """Have constraints checked that are checked last, which is work of the handlers."""
        seconds_left = max(self.ends_at - time.monotonic(), _LEAST_SECONDS)
        try:
            await connection.execute(self.queries["end_guard"], timeout=seconds_left)
        except TimeoutError as error:
            silence = await self._probe(connection)
            if is_gone(connection) or isinstance(silence, TimeoutError):
                raise
            overdue = TimeoutError(
                f"handler took longer than {self.timeout:g} s, with the constraints that are checked at the "
                "end of its transaction"
            )
            raise _UndoneError(done_count, overdue, is_last=False, is_at_end=True) from error

    async def _finish(self, connection: Connection, done: Sequence[Event]) -> None:
        if self.retried is not None:
            resolved = RetryOutcome(self.retried, None)
            await note_retry(connection, self.queries, self.dead_letters_of, resolved, self.now)
            return
        await self._advance(connection, self.reached(len(done)), done[-1].id)

    async def _advance(self, connection: Connection, position: LogPosition, event_id: str | None) -> None:
        await connection.execute(
            self.queries["advance_checkpoint"],
            self.subscriber_id,
            position.contiguous,
            position.head,
            gaps_to_array(position.open),
            event_id,
            self.now,
        )

    def _blame(self, error: BaseException) -> BaseException:
        """What a handler is told that has left the transaction in this state."""
        if isinstance(error, asyncpg.InFailedSQLTransactionError):
            return TransactionFailedError(self.subscriber_id)
        if isinstance(error, asyncpg.InvalidCursorNameError):
            # The guard went with the transaction it was declared in.
            return TransactionEndedError(self.subscriber_id)
        return error


def _processed_up_to(position: int, head: int | None, gaps: Sequence[int]) -> LogPosition:
    """What a checkpoint shows as processed."""
    found = LogPosition(GlobalSequence(position if head is None else head), array_to_gaps(gaps))
    # If they do not belong together, such as after somebody moved the position by hand, that counts.
    return found if found.contiguous == position else LogPosition(GlobalSequence(position))


def _answer_behind(error: BaseException | None) -> asyncpg.PostgresError | None:
    """What a server has said, perhaps to a store."""
    answer = error.__cause__ if isinstance(error, StoreError) else error
    return answer if isinstance(answer, asyncpg.PostgresError) else None


def _is_of_the_store(error: BaseException | None) -> bool:
    return isinstance(error, _OF_THE_STORE) and not isinstance(error, asyncpg.QueryCanceledError)
