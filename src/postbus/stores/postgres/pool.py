"""What lends connections for statements, and how one is ended or made fit for the next user."""

import asyncio
import contextlib
import weakref
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import asyncpg

from postbus.stores.postgres.translation import DRIVER_ERRORS

if TYPE_CHECKING:
    from asyncpg.pool import PoolConnectionProxy

    Connection: TypeAlias = asyncpg.Connection[asyncpg.Record] | PoolConnectionProxy[asyncpg.Record]
else:
    Connection = asyncpg.Connection

Connect: TypeAlias = Callable[[], Awaitable[Connection]]

ACQUIRE_SECONDS = 10.0
CLOSE_SECONDS = 2.0
_SETTLE_SECONDS = 2.0
# RESET ALL leaves both as they are. Back to what a new connection has: that need not be its session's user.
_RESET_ROLES = "RESET SESSION AUTHORIZATION; RESET ROLE"
# Those on which values are read or written in another way now.
_SPOILT: "weakref.WeakSet[Any]" = weakref.WeakSet()


class Pool(Protocol):
    """Lends connections."""

    async def acquire(self) -> Connection:
        """A connection for one user; StoreUnavailableError if none becomes free in time."""
        ...

    async def release(self, connection: Connection, *, is_settled: bool, is_changed: bool = False) -> None:
        """Take it back.

        Unless it is settled, a statement on it may have been cancelled. If it is changed, somebody may
        have altered settings of its session.
        """
        ...

    def drop_idle(self) -> None:
        """The network or the server has changed: open new connections from now on."""
        ...

    async def close(self) -> None:
        """Lend no more; bounded, whatever the server does. Idempotent."""
        ...


async def settle(connection: Connection, statement: str = "SELECT 1") -> bool:
    """Wait until the server has ended a cancelled statement; whether the connection can be used again."""
    # The driver holds any statement back until the one before it has ended.
    with contextlib.suppress(*DRIVER_ERRORS):
        await connection.execute(statement, timeout=_SETTLE_SECONDS)
        return not connection.is_in_transaction()
    return False


async def reset(connection: Connection) -> bool:
    """As settle(); and undo what its user has set for the whole session."""
    # First: a role of the user's may be one that may not reset other settings.
    if await settle(connection, _RESET_ROLES):
        with contextlib.suppress(*DRIVER_ERRORS):
            await connection.reset(timeout=_SETTLE_SECONDS)
            return True
    return False


def note_spoilt(connection: Connection) -> None:
    """Its user has changed what nothing brings back: nobody else is to have it."""
    # What a pool of asyncpg lends is of a kind that can't be noted, and its user's to reset.
    if type(connection) is asyncpg.Connection:
        _SPOILT.add(connection)


def is_spoilt(connection: Connection) -> bool:
    """Whether that was noted."""
    return connection in _SPOILT


def is_gone(connection: Connection) -> bool:
    """Whether it is closed; a pool of asyncpg takes such a connection back by itself."""
    try:
        return connection.is_closed()
    except asyncpg.InterfaceError:
        return True


async def close_gently(connection: Connection) -> None:
    """Close it so that the server knows at once, or else break it off."""
    with contextlib.suppress(*DRIVER_ERRORS):
        await connection.close(timeout=CLOSE_SECONDS / 2)


def break_off(connection: Connection) -> None:
    """End it at once, however the server or the network is."""
    # One of a user's pool that is closed already belongs to the pool again.
    with contextlib.suppress(asyncpg.InterfaceError, asyncpg.InternalClientError):
        connection.terminate()


async def outlive_caller(
    opening: Coroutine[Any, Any, Connection],
    tasks: "set[asyncio.Task[Any]]",
    on_unwanted: Callable[[Connection], object],
) -> Connection:
    """Connect to the end: asyncpg, cancelled on the way, leaves an error behind that nobody asks for.

    A connection whose caller was cancelled is given to *on_unwanted*.
    """
    task = asyncio.create_task(opening, name="postbus connecting")
    tasks.add(task)
    task.add_done_callback(tasks.discard)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        task.add_done_callback(partial(_dispose, on_unwanted))
        raise


def _dispose(on_unwanted: Callable[[Connection], object], task: "asyncio.Task[Connection]") -> None:
    if not task.cancelled() and task.exception() is None:
        on_unwanted(task.result())


def keep(tasks: "set[asyncio.Task[Any]]", work: Coroutine[Any, Any, None]) -> None:
    """Start it; the set keeps it alive until it is done."""
    task = asyncio.create_task(work)
    tasks.add(task)
    task.add_done_callback(tasks.discard)
