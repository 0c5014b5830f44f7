"""What transactional handlers do on each kind of store, told in one way.

A handler of a test is a coroutine function that gets a Hand. Where transactions are async it is awaited;
elsewhere its hand never makes it wait, so that it can be run to its end like a plain function.
"""

import sqlite3
from collections.abc import Callable, Coroutine
from contextlib import closing
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import asyncpg

from postbus.events import Event
from postbus.stores.memory import InMemoryStore

_LOOK = "SELECT event_id FROM effects ORDER BY number"
_SQLITE_TABLE = "CREATE TABLE effects (number INTEGER PRIMARY KEY, event_id TEXT UNIQUE)"
_PG_TABLE = """
    CREATE TABLE effects (number bigint GENERATED ALWAYS AS IDENTITY, event_id text UNIQUE)
"""


class Hand(Protocol):
    """The transaction in the hand of a handler; statements have $1, $2 for their values."""

    @property
    def connection(self) -> Any:
        """What a handler of a user gets."""
        ...

    async def execute(self, statement: str, *values: object) -> None:
        """Run a statement."""
        ...

    async def fetch_value(self, statement: str, *values: object) -> object:
        """The first value of its first row."""
        ...

    async def wait_too_long(self) -> None:
        """Run a statement that does not end."""
        ...

    @property
    def serial(self) -> str:
        """The type of a column that counts the rows."""
        ...


Handler: TypeAlias = Callable[[Event, Hand], Coroutine[Any, Any, None]]


class Effects(Protocol):
    """A table for the effects of handlers, seen from outside."""

    duplicate_error: type[Exception]
    """What a handler gets that breaks a rule of the database."""

    async def make_table(self) -> None:
        """Make the table, empty."""
        ...

    async def committed(self) -> list[str]:
        """What is committed, in the order in which it was written."""
        ...

    def transactional(self, handler: Handler) -> Callable[[Event, Any], Any]:
        """The handler as a user would write it for this store."""
        ...


class _SQLiteHand:
    serial = "INTEGER PRIMARY KEY"

    def __init__(self, connection: sqlite3.Connection) -> None:
        self.connection = connection

    async def execute(self, statement: str, *values: object) -> None:
        self.connection.execute(statement.replace("$", "?"), values)

    async def fetch_value(self, statement: str, *values: object) -> object:
        return self.connection.execute(statement.replace("$", "?"), values).fetchone()[0]

    async def wait_too_long(self) -> None:
        endless = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n"
        self.connection.execute(endless).fetchall()


class _PgHand:
    serial = "bigserial PRIMARY KEY"

    def __init__(self, connection: "asyncpg.Connection[asyncpg.Record]") -> None:
        self.connection = connection

    async def execute(self, statement: str, *values: object) -> None:
        await self.connection.execute(statement, *values)

    async def fetch_value(self, statement: str, *values: object) -> object:
        return await self.connection.fetchval(statement, *values)

    async def wait_too_long(self) -> None:
        await self.connection.execute("SELECT pg_sleep(60)")


def as_plain_function(handler: Handler) -> Callable[[Event, sqlite3.Connection], None]:
    """Runs the handler to its end, which it reaches without waiting."""

    def handle(event: Event, transaction: sqlite3.Connection) -> None:
        try:
            handler(event, _SQLiteHand(transaction)).send(None)
        except StopIteration:
            return
        raise AssertionError("a handler that waits can't be a plain function")

    return handle


def as_coroutine_function(handler: Handler) -> Callable[[Event, Any], Coroutine[Any, Any, None]]:
    """Awaits the handler."""

    async def handle(event: Event, transaction: Any) -> None:
        await handler(event, _PgHand(transaction))

    return handle


class _SQLiteHandlers:
    duplicate_error: type[Exception] = sqlite3.IntegrityError

    def transactional(self, handler: Handler) -> Callable[[Event, Any], Any]:
        """A plain function."""
        return as_plain_function(handler)


class MemoryEffects(_SQLiteHandlers):
    """In the database that an InMemoryStore lends to its handlers."""

    def __init__(self, store: InMemoryStore) -> None:
        self._store = store

    async def make_table(self) -> None:
        """Make the table, empty."""
        self._store.connection.execute(_SQLITE_TABLE)

    async def committed(self) -> list[str]:
        """What is committed."""
        return [row[0] for row in self._store.connection.execute(_LOOK)]


class SQLiteEffects(_SQLiteHandlers):
    """In the file of the store, seen through another connection."""

    def __init__(self, path: Path) -> None:
        self._path = path

    async def make_table(self) -> None:
        """Make the table, empty."""
        self._execute(_SQLITE_TABLE)

    async def committed(self) -> list[str]:
        """What is committed."""
        return [row[0] for row in self._execute(_LOOK)]

    def _execute(self, statement: str) -> list[Any]:
        with closing(sqlite3.connect(self._path, timeout=10.0, isolation_level=None)) as connection:
            return connection.execute(statement).fetchall()


class PgEffects:
    """In the database of the store, seen through another connection."""

    duplicate_error: type[Exception] = asyncpg.UniqueViolationError

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn

    async def make_table(self) -> None:
        """Make the table, empty."""
        await self._fetch(_PG_TABLE)

    async def committed(self) -> list[str]:
        """What is committed."""
        return [row[0] for row in await self._fetch(_LOOK)]

    async def _fetch(self, statement: str) -> list[Any]:
        connection = await asyncpg.connect(self._dsn)
        try:
            return await connection.fetch(statement)
        finally:
            await connection.close()

    def transactional(self, handler: Handler) -> Callable[[Event, Any], Any]:
        """A coroutine function."""
        return as_coroutine_function(handler)
