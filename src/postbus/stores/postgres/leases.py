"""Connections and transactions for the length of a block, given back whatever happens in it."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from types import TracebackType
from typing import cast

import asyncpg
from asyncpg.transaction import Transaction

from postbus.stores.postgres import lent
from postbus.stores.postgres.own_pool import OwnPool
from postbus.stores.postgres.pool import Connection, Pool
from postbus.stores.postgres.statement_limit import StatementLimit
from postbus.stores.postgres.translation import DRIVER_ERRORS, translate

_ROLLBACK_SECONDS = 2.0
_UNSETTLING = (TimeoutError, asyncpg.InternalClientError)


class Lease:
    """`async with`: a connection that goes back to its pool; driver errors leave the block translated."""

    # Not a generator: it is entered for every single statement.
    __slots__ = ("_acquire", "_connection", "_is_changed", "_pool")

    def __init__(
        self, acquire: Callable[[], Awaitable[tuple[Pool, Connection]]], *, is_changed: bool = False
    ) -> None:
        self._acquire = acquire
        self._is_changed = is_changed

    async def __aenter__(self) -> Connection:
        self._pool, self._connection = await self._acquire()
        return self._connection

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        # After a timeout or a cancellation the server may still be at work on the statement.
        is_settled = error is None or (isinstance(error, Exception) and not isinstance(error, _UNSETTLING))
        await self._pool.release(self._connection, is_settled=is_settled, is_changed=self._is_changed)
        if error is not None and (translation := translate(error)) is not None:
            raise translation from error


class TimedLease(Lease):
    """As Lease, for statements of ours."""

    __slots__ = ()

    async def __aenter__(self) -> Connection:
        return cast(Connection, lent.TimedConnection(await super().__aenter__()))


class StatementLease(Lease):
    """As Lease, for one statement of ours on a connection of our own: the limit is for the whole block."""

    __slots__ = ("_is_cut_off", "_limit", "_request_count", "_take_idle", "_task")

    def __init__(
        self,
        take_idle: Callable[[], tuple[Pool, Connection] | None],
        acquire: Callable[[], Awaitable[tuple[Pool, Connection]]],
        limit: StatementLimit,
    ) -> None:
        """*acquire* waits for a connection if there is none to take at once."""
        self._take_idle, self._acquire, self._is_changed = take_idle, acquire, False
        self._limit, self._is_cut_off = limit, False

    async def __aenter__(self) -> Connection:
        # Few calls, here and at the end: this is a part of what every small statement takes.
        self._pool, self._connection = self._take_idle() or await self._acquire()
        self._task = asyncio.current_task()
        assert self._task is not None, "statements are awaited in tasks"
        self._request_count = self._task.cancelling()
        self._limit.begin(self)
        return self._connection

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._limit.end(self)
        if self._is_cut_off:
            error = self._judge(error)
        elif error is None and isinstance(self._pool, OwnPool) and self._pool.give_back(self._connection):
            return
        await super().__aexit__(kind, error, traceback)

    def cut_off(self) -> None:
        """The driver has the server cancel the statement when its caller is cancelled."""
        if not self._is_cut_off:
            assert self._task is not None
            self._is_cut_off = True
            self._task.cancel()

    def _judge(self, error: BaseException | None) -> BaseException | None:
        assert self._task is not None
        # Somebody else may want the task gone as well: then it is not the time alone.
        is_ours = self._task.uncancel() <= self._request_count
        return TimeoutError() if is_ours and isinstance(error, asyncio.CancelledError) else error


@asynccontextmanager
async def in_transaction(connection: Connection) -> AsyncIterator[None]:
    """A READ COMMITTED transaction, whatever the default of the server is."""
    # With the driver's own object: a handler can open a nested one inside.
    transaction = connection.transaction(isolation="read_committed")
    async with asyncio.timeout(lent.COMMAND_SECONDS):
        await transaction.start()
    try:
        yield
    except Exception:
        await _roll_back(transaction)
        raise
    # One who was cancelled is not to wait for a rollback: the pool does not take such a connection back.
    async with asyncio.timeout(lent.COMMAND_SECONDS):
        await transaction.commit()


async def _roll_back(transaction: Transaction) -> None:
    with contextlib.suppress(*DRIVER_ERRORS):
        async with asyncio.timeout(_ROLLBACK_SECONDS):
            await transaction.rollback()
