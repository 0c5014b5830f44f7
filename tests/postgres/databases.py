"""A database of its own for each test."""

import asyncio
import itertools
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import asyncpg

from tests.postgres.existing import Postgres
from tests.postgres.steps import Session

# Nobody can have put anything there.
_EMPTY = "template0"
# How often sessions are asked whether they are gone before DROP DATABASE has to wait for them.
_LOOKS = 500


class Databases:
    """Makes databases on one server, as copies of templates that are prepared once."""

    def __init__(self, server: Postgres) -> None:
        self._server = server
        # Several test runs may share the server.
        self._prefix = f"postbus_test_{secrets.token_hex(4)}"
        self._numbers = itertools.count(1)
        self._templates: dict[str, str] = {}

    @asynccontextmanager
    async def make(self, template: str | None = None) -> AsyncIterator[str]:
        """The DSN of a new database, empty or a copy of *template*; dropped at the end, whoever uses it."""
        name = f"{self._prefix}_{next(self._numbers)}"
        try:
            async with self._session() as session:
                await session.execute(f'CREATE DATABASE "{name}" TEMPLATE "{template or _EMPTY}"')
            yield self._server.dsn(name)
        finally:
            await self._drop(name)

    async def template(self, name: str, prepare: Callable[[str], Awaitable[object]]) -> str:
        """The name of a database for make(): *prepare* gets its DSN and fills it, at the first call only."""
        if name not in self._templates:
            database = f"{self._prefix}_{name}"
            try:
                await self._make_template(database, prepare)
            except BaseException:
                await self._drop(database)
                raise
            self._templates[name] = database
        return self._templates[name]

    async def close(self) -> None:
        """Drop the templates."""
        while self._templates:
            await self._drop(self._templates.popitem()[1])

    async def _make_template(self, database: str, prepare: Callable[[str], Awaitable[object]]) -> None:
        async with self._session() as session:
            await session.execute(f'CREATE DATABASE "{database}" TEMPLATE {_EMPTY}')
            await prepare(self._server.dsn(database))
            # A database with sessions can't be copied.
            await session.execute(f'ALTER DATABASE "{database}" ALLOW_CONNECTIONS false')
            await _end_sessions(session, database)

    async def _drop(self, database: str) -> None:
        async with self._session() as session:
            await _end_sessions(session, database)
            await session.execute(f'DROP DATABASE IF EXISTS "{database}" WITH (FORCE)')

    @asynccontextmanager
    async def _session(self) -> AsyncIterator[Session]:
        session = await asyncpg.connect(self._server.dsn("postgres"))
        try:
            yield session
        finally:
            await session.close()


async def _end_sessions(session: Session, database: str) -> None:
    """End them and see them gone: DROP DATABASE looks only every 100 ms whether they are."""
    for _ in range(_LOOKS):
        ended = await session.fetch(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = $1", database
        )
        if not ended:
            return
        await asyncio.sleep(0.002)
