"""A database of its own for each run, on a server that has others."""

import asyncio
import contextlib
import secrets
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from urllib.parse import urlsplit

import asyncpg

from postbus.errors import StoreError
from postbus.ops.bench.postgres.sessions import report_settings
from postbus.stores.postgres.connecting import connect, describe
from postbus.stores.postgres.pool import Connection
from postbus.stores.postgres.translation import translated

_NAMES = ("server_version", "fsync", "synchronous_commit", "shared_buffers", "max_wal_size")
# How often sessions are asked whether they are gone before DROP DATABASE has to wait for them.
_LOOKS = 500


def describe_server(dsn: str) -> str:
    """The version of the server and what decides over its figures."""
    return asyncio.run(report_settings(dsn, _NAMES))


@contextmanager
def new_database(dsn: str) -> Iterator[str]:
    """The DSN of a new, empty database beside that of *dsn*; StoreError if there can be none.

    Dropping it makes the server write what it still has to write.
    """
    name = f"postbus_bench_{secrets.token_hex(6)}"
    _create_or_nothing(dsn, name)
    try:
        yield _with_database(dsn, name)
    finally:
        _drop_or_tell(dsn, name)


def _with_database(dsn: str, name: str) -> str:
    # Not by urlunsplit(), which leaves out the slashes of "postgresql:///shop?host=/run/postgresql".
    parts = urlsplit(dsn)
    query = f"?{parts.query}" if parts.query else ""
    return f"{parts.scheme}://{parts.netloc}/{name}{query}"


async def _create(dsn: str, name: str) -> None:
    async with _session(dsn) as session:
        try:
            # Nobody can have put anything into template0.
            await session.execute(f'CREATE DATABASE "{name}" TEMPLATE template0')
        except asyncpg.InsufficientPrivilegeError as error:
            user = await session.fetchval("SELECT current_user")
            raise StoreError(
                f"{user!r} may not create databases on the server of {describe(dsn)}, and the benchmark does "
                f'not touch yours; ask for: ALTER ROLE "{user}" CREATEDB, or name another server'
            ) from error


def _create_or_nothing(dsn: str, name: str) -> None:
    try:
        asyncio.run(_create(dsn, name))
    except BaseException:
        # It may be there all the same: the connection was lost before the answer came.
        with contextlib.suppress(StoreError):
            asyncio.run(_drop(dsn, name))
        raise


def _drop_or_tell(dsn: str, name: str) -> None:
    try:
        asyncio.run(_drop(dsn, name))
    except StoreError as error:
        raise StoreError(f'could not drop the database "{name}", please do it yourself: {error}') from error


async def _drop(dsn: str, name: str) -> None:
    async with _session(dsn) as session:
        await _end_sessions(session, name)
        await session.execute(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')


async def _end_sessions(session: Connection, name: str) -> None:
    """End them and see them gone: DROP DATABASE looks only every 100 ms whether they are."""
    for _ in range(_LOOKS):
        ended = await session.fetch(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = $1", name
        )
        if not ended:
            return
        await asyncio.sleep(0.002)


@asynccontextmanager
async def _session(dsn: str) -> AsyncIterator[Connection]:
    with translated():
        session = await connect(dsn)
        try:
            yield session
        finally:
            await session.close()
