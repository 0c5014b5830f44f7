"""The PostgreSQL server of a run, and a database of its own for each candidate."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import asyncpg

from tests.postgres.databases import Databases
from tests.postgres.existing import ExistingServer, Postgres
from tests.postgres.server import Server
from tests.postgres.steps import Session

# PostgreSQL's own defaults, where the tests have smaller ones; fsync and synchronous_commit are on.
_SETTINGS = {"shared_buffers": "128MB", "max_wal_size": "1GB"}
_DSN_FILE = "dsn"
_DURABILITY = ("fsync", "synchronous_commit")
_NAMES = ("server_version", *_DURABILITY, "shared_buffers", "max_wal_size")


@contextmanager
def server_in(base: Path, dsn: str | None) -> Iterator[Postgres]:
    """The server behind a DSN, or one of our own whose files are in *base*. LookupError if there is none."""
    if dsn is not None:
        yield ExistingServer(dsn)
        return
    with Server(base=base, settings=_SETTINGS) as server:
        yield server


@contextmanager
def database_on(server: Postgres) -> Iterator[str]:
    """The DSN of a new, empty database. Dropping it makes the server write what it still has to write."""
    making = Databases(server).make()
    with asyncio.Runner() as runner:
        dsn = runner.run(making.__aenter__())
        try:
            yield dsn
        finally:
            runner.run(making.__aexit__(None, None, None))


def describe(server: Postgres) -> str:
    """The version of the server and what decides over its figures."""
    return asyncio.run(_report(server.dsn("postgres"), _NAMES))


def leave_dsn(folder: Path, dsn: str) -> None:
    """Tell the processes that work in a folder which database is theirs."""
    (folder / _DSN_FILE).write_text(dsn, "utf-8")


def dsn_in(folder: Path) -> str:
    """What leave_dsn() has left."""
    return (folder / _DSN_FILE).read_text("utf-8")


async def durability(dsn: str) -> str:
    """What decides about durability, as a connection to the database reports it."""
    return await _report(dsn, _DURABILITY)


async def durability_of(session: Session) -> str:
    """What decides about durability, as this connection reports it."""
    return await _settings(session, _DURABILITY)


async def _report(dsn: str, names: tuple[str, ...]) -> str:
    session = await asyncpg.connect(dsn)
    try:
        return await _settings(session, names)
    finally:
        await session.close()


async def _settings(session: Session, names: tuple[str, ...]) -> str:
    values = [await session.fetchval("SELECT current_setting($1)", name) for name in names]
    return ", ".join(f"{name}={value}" for name, value in zip(names, values, strict=True))
