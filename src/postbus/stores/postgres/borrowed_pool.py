"""The pool of a user who has one already."""

import asyncio
import contextlib
from datetime import UTC, datetime
from typing import Any

import asyncpg

from postbus.errors import InvalidConfigError, StoreClosedError, StoreUnavailableError
from postbus.stores.named_queries import load_queries
from postbus.stores.postgres.pool import (
    ACQUIRE_SECONDS,
    CLOSE_SECONDS,
    Connection,
    break_off,
    is_gone,
    keep,
    outlive_caller,
    settle,
)
from postbus.stores.postgres.schema_name import text_literal
from postbus.stores.postgres.translation import DRIVER_ERRORS, translate

_PROBE = load_queries("postbus.stores.postgres", "connecting.sql")["probe_codec"]
# What our statements read and write. Not JSON: it goes as text, because many programs have a codec for it.
_SAMPLES = {
    "bool": True,
    "int4": 7,
    "int8": 2**40,
    "text": " Ab",
    "varchar": " Ab",
    "timestamptz": datetime(2026, 1, 1, 12, 30, 0, 123456, UTC),
}


class BorrowedPool:
    """The user's own pool, whatever its settings are."""

    def __init__(self, pool: "asyncpg.Pool[asyncpg.Record]") -> None:
        # Its connections are of a kind that only it takes back.
        self._pool: Any = pool
        self._tasks: set[asyncio.Task[Any]] = set()
        self._is_closed = False

    async def acquire(self) -> Connection:
        """A connection of the user's pool."""
        if self._is_closed:
            raise StoreClosedError("the store is closed; await store.open() first")
        try:
            return await outlive_caller(self._acquire(), self._tasks, self._give_back)
        except TimeoutError:
            raise StoreUnavailableError(
                f"the given pool of {self._pool.get_max_size()} connections had none within "
                f"{ACQUIRE_SECONDS:g} s; try again, or give it a larger max_size"
            ) from None

    async def release(
        self,
        connection: Connection,
        *,
        is_settled: bool,
        is_changed: bool = False,  # noqa: ARG002, what is left of a session is the user's to decide
    ) -> None:
        """Give it back to the user's pool, which resets it in its own way."""
        if is_settled and not is_gone(connection) and not connection.is_in_transaction():
            # One that breaks in this moment is the pool's to replace.
            with contextlib.suppress(*DRIVER_ERRORS):
                await self._pool.release(connection)
        else:
            self._give_back(connection)

    def drop_idle(self) -> None:
        """The user's pool has its own way with dead connections."""

    async def close(self) -> None:
        """Have all of ours back in the user's pool; it stays open."""
        self._is_closed = True
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=CLOSE_SECONDS)

    async def _acquire(self) -> Connection:
        connection: Connection = await self._pool.acquire(timeout=ACQUIRE_SECONDS)
        return connection

    def _give_back(self, connection: Connection) -> None:
        keep(self._tasks, self._restore(connection))

    async def _restore(self, connection: Connection) -> None:
        if not await settle(connection):
            break_off(connection)
        # The pool may be closed already.
        with contextlib.suppress(*DRIVER_ERRORS):
            await self._pool.release(connection)


async def check_codecs(connection: Connection) -> None:
    """InvalidConfigError if the user's connections read or write what we need in a way of their own."""
    for type_name, value in _SAMPLES.items():
        found = await _probe(connection, type_name, value)
        if not isinstance(found, type(value)) or found != value:
            raise InvalidConfigError(
                f"{type_name}, read or written with the codec of the given pool,",
                found,
                f"{value!r}; give postbus the DSN, so that it has a pool of its own, or set the codec on the "
                "connections of another pool",
            ) from (found if isinstance(found, Exception) else None)


async def _probe(connection: Connection, type_name: str, value: object) -> object:
    """What becomes of the value when it is read, or when it is written."""
    query = _PROBE.replace("{type}", type_name).replace("{literal}", text_literal(str(value)))
    try:
        row = await connection.fetchrow(query, value)
    except Exception as error:
        # What is neither the driver's nor the network's comes out of the codec.
        if translate(error) is not None and not isinstance(error, asyncpg.DataError):
            raise
        return error
    assert row is not None
    return row[0] if row[1] is None else row[1]
