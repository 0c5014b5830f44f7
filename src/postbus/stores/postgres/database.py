"""One PostgreSQL database: a small pool for statements, one session for locks and wake-ups."""

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, cast

import asyncpg

from postbus.config import check_whole_number
from postbus.errors import BusLoopError, InvalidConfigError, InvalidTargetError, StoreClosedError
from postbus.stores.named_queries import load_queries
from postbus.stores.postgres.borrowed_pool import BorrowedPool, check_codecs
from postbus.stores.postgres.channels import channel_name
from postbus.stores.postgres.connecting import connect
from postbus.stores.postgres.leases import Lease, StatementLease, TimedLease, in_transaction
from postbus.stores.postgres.lent import LentConnection
from postbus.stores.postgres.migrations import migrate
from postbus.stores.postgres.own_pool import OwnPool
from postbus.stores.postgres.pool import (
    CLOSE_SECONDS,
    Connection,
    Pool,
    break_off,
    close_gently,
    outlive_caller,
)
from postbus.stores.postgres.schema_name import schema_in_query
from postbus.stores.postgres.session import Session
from postbus.stores.postgres.soundness import check_sound
from postbus.stores.postgres.statement_limit import StatementLimit
from postbus.stores.postgres.translation import translate, translated

_PACKAGE = "postbus.stores.postgres"
# Handlers keep their connection for long; so many stay for publishers and readers.
_KEPT_FROM_HANDLERS = 2
_SMALLEST_POOL = 2
_EXAMPLE_DSN = '"postgresql://localhost/app"'

Preparation = Callable[[Connection], Awaitable[None]]


class Database:
    """The tables of one schema, reached through few connections, whatever the number of subscribers."""

    def __init__(
        self,
        target: "str | asyncpg.Pool[asyncpg.Record]",
        *,
        schema: str = "postbus",
        session_dsn: str | None = None,
        pool_size: int = 5,
    ) -> None:
        _check_ways_in(target, session_dsn)
        self.schema = schema
        self.channel = channel_name(schema)
        self._schema_in_query = schema_in_query(schema)
        self._target = target
        # Where connections that must not be pooled lead.
        self._direct_dsn = session_dsn or (target if isinstance(target, str) else None)
        self._size = _usable_size(target, pool_size, has_own_session=self._direct_dsn is not None)
        self._pool: Pool | None = None
        self._limit = StatementLimit()
        self._openings: set[asyncio.Task[Any]] = set()
        self.most_handlers = max(1, self._size - _KEPT_FROM_HANDLERS)
        """How many handlers can have a transaction at once."""
        self._handler_places: asyncio.Semaphore
        self._is_open = self._was_closed = False
        self._opening = asyncio.Lock()
        self._preparations: list[Preparation] = []
        self._process = os.getpid()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._queries = self.queries("session.sql")
        self.session = Session(self._connect_session, self.channel, self._queries)
        self.session.on_lost(self._distrust_idle)

    def queries(self, file_name: str) -> Mapping[str, str]:
        """Every named block of an sql/ file, with the schema filled in."""
        blocks = load_queries(_PACKAGE, file_name)
        return {name: query.replace("{schema}", self._schema_in_query) for name, query in blocks.items()}

    def at_open(self, prepare: Preparation) -> None:
        """Have this called at every open(), on the connection that has migrated the schema."""
        self._preparations.append(prepare)

    async def open(self) -> None:
        """Connect, migrate and check the schema. Idempotent."""
        async with self._opening:
            if self._is_open:
                return
            self._pool = self._make_pool()
            # The last one is of the event loop in which it was opened then, and may still have work to do.
            self._limit = StatementLimit()
            self._handler_places = asyncio.Semaphore(self.most_handlers)
            try:
                await self._prepare()
                await self.session.start()
            except BaseException:
                await self._pool.close()
                raise
            self._process, self._loop = os.getpid(), asyncio.get_running_loop()
            self._is_open, self._was_closed = True, False

    async def close(self) -> None:
        """Close every connection; quick even when the server is gone. Idempotent."""
        async with self._opening:
            self._was_closed = True
            if not self._is_open or os.getpid() != self._process:
                # A forked child has no right to the connections, not even to close them.
                return
            self._is_open = False
            assert self._pool is not None
            await asyncio.gather(self.session.stop(), self._pool.close())
            if self._openings:
                _, late = await asyncio.wait(self._openings, timeout=CLOSE_SECONDS)
                # A server that does not answer would keep it for CONNECT_SECONDS, while the loop may end.
                for opening in late:
                    opening.cancel()
                if late:
                    await asyncio.wait(late, timeout=CLOSE_SECONDS)

    def connection(self) -> AbstractAsyncContextManager[Connection]:
        """A connection of the pool, outside a transaction; opens the database on first use."""
        return TimedLease(self._lend)

    def statement(self) -> AbstractAsyncContextManager[Connection]:
        """As connection(), for one statement: that is quicker, since the time limit is for the block."""
        if isinstance(self._target, str):
            return StatementLease(self._take_idle, self._lend, self._limit)
        # Those of a user's pool may have a limit of the user's, which only one of the statement's replaces.
        return TimedLease(self._lend)

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Connection]:
        """A connection in a READ COMMITTED transaction that ends with the block.

        If a statement fails, its error has to leave the block: after it PostgreSQL takes a COMMIT for a
        ROLLBACK.
        """
        async with self.connection() as connection, in_transaction(connection):
            await connection.execute(self._queries["end_when_idle"])
            yield connection

    @asynccontextmanager
    async def handler_transaction(self) -> AsyncIterator[Connection]:
        """As transaction(), for handlers: so few at once that publishers and readers find a connection."""
        await self.ensure_open()
        async with self._handler_places, Lease(self._lend, is_changed=True) as connection:
            lent = LentConnection(connection)
            async with in_transaction(connection):
                try:
                    yield cast(Connection, lent)
                finally:
                    lent.take_back()

    async def fetch(self, query: str, *args: object) -> Sequence[asyncpg.Record]:
        """The rows of one statement."""
        async with self.statement() as connection:
            return await connection.fetch(query, *args)

    async def fetch_row(self, query: str, *args: object) -> asyncpg.Record | None:
        """The first row of one statement."""
        async with self.statement() as connection:
            return await connection.fetchrow(query, *args)

    async def execute(self, query: str, *args: object) -> str:
        """Run one statement; its command tag."""
        async with self.statement() as connection:
            return await connection.execute(query, *args)

    async def ensure_open(self) -> None:
        """Open it unless it is open, or was closed on purpose; BusLoopError in a child or another loop."""
        # Not again after close(): a handler that outlives its bus must not connect behind its back.
        if not self._is_open:
            if self._was_closed:
                raise StoreClosedError("the store is closed; await store.open() first")
            await self.open()
        if os.getpid() != self._process:
            raise BusLoopError("the store was opened before this process was forked; open one in the child")
        if asyncio.get_running_loop() is not self._loop:
            raise BusLoopError("the store was opened in another event loop; make one for each event loop")

    def _take_idle(self) -> tuple[Pool, Connection] | None:
        if not self._is_usable or not isinstance(self._pool, OwnPool):
            return None
        connection = self._pool.take_idle()
        return None if connection is None else (self._pool, connection)

    @property
    def _is_usable(self) -> bool:
        return self._is_open and asyncio.get_running_loop() is self._loop and os.getpid() == self._process

    async def _lend(self) -> tuple[Pool, Connection]:
        if not self._is_usable:
            await self.ensure_open()
        assert self._pool is not None
        # For every statement: a block that translates would be three calls more.
        try:
            return self._pool, await self._pool.acquire()
        except Exception as error:
            if (translation := translate(error)) is None:
                raise
            raise translation from error

    async def _acquire(self) -> tuple[Pool, Connection]:
        assert self._pool is not None
        with translated():
            return self._pool, await self._pool.acquire()

    def _make_pool(self) -> Pool:
        target = self._target
        if isinstance(target, str):
            return OwnPool(lambda: connect(target), self._size)
        return BorrowedPool(target)

    async def _prepare(self) -> None:
        if not isinstance(self._target, str):
            async with TimedLease(self._acquire) as connection:
                await check_codecs(connection)
        async with self._patient_connection() as connection:
            with translated():
                await migrate(connection, self.schema)
                await check_sound(connection, self.schema)
                for prepare in self._preparations:
                    await prepare(connection)

    @asynccontextmanager
    async def _patient_connection(self) -> AsyncIterator[Connection]:
        """A connection whose statements may take as long as they need, where there is a DSN."""
        if self._direct_dsn is None:
            async with Lease(self._acquire) as connection:
                yield connection
            return
        connection = await self._connect_directly(self._direct_dsn)
        try:
            yield connection
            await close_gently(connection)
        finally:
            break_off(connection)

    async def _connect_directly(self, dsn: str) -> Connection:
        return await outlive_caller(connect(dsn), self._openings, break_off)

    async def _connect_session(self) -> Connection:
        if self._direct_dsn is not None:
            return await self._connect_directly(self._direct_dsn)
        return (await self._acquire())[1]

    def _distrust_idle(self) -> None:
        # What has cut off the session may have cut off the others, and an idle one would not notice.
        if self._pool is not None:
            self._pool.drop_idle()


def _check_ways_in(target: object, session_dsn: object) -> None:
    if not isinstance(target, str | asyncpg.Pool):
        expected = f"a DSN such as {_EXAMPLE_DSN} or a pool of asyncpg"
        raise InvalidTargetError(target, f"is of type {type(target).__qualname__}", expected)
    if not isinstance(session_dsn, str | None):
        # Its type alone: a DSN in bytes would show its password.
        raise InvalidConfigError("session_dsn", type(session_dsn), f"a str such as {_EXAMPLE_DSN}, or None")


def _usable_size(
    target: "str | asyncpg.Pool[asyncpg.Record]", pool_size: int, *, has_own_session: bool
) -> int:
    """How many connections there are for statements."""
    if isinstance(target, str):
        check_whole_number("pool_size", pool_size, at_least=_SMALLEST_POOL)
        return pool_size
    size = target.get_max_size() - (0 if has_own_session else 1)
    if size < _SMALLEST_POOL:
        needed = _SMALLEST_POOL if has_own_session else _SMALLEST_POOL + 1
        raise InvalidConfigError("max_size of the pool", target.get_max_size(), f"{needed} or more")
    return size
