"""What the tests of connections, sessions, wake-ups and locks on PostgreSQL share."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import asyncpg

from postbus.stores.postgres.database import Database
from tests.patience import PATIENCE
from tests.postgres.steps import ask


@asynccontextmanager
async def opened(target: Any, **options: Any) -> AsyncIterator[Database]:
    """A database whose session listens, open for the length of the block."""
    database = Database(target, **options)
    database.session.listen()
    await database.open()
    try:
        yield database
    finally:
        await database.close()


async def eventually(is_true: Callable[[], bool], within: float = PATIENCE) -> float:
    """Wait until it is true; how many seconds that took."""
    loop = asyncio.get_running_loop()
    began_at = loop.time()
    async with asyncio.timeout(within):
        while True:
            if is_true():
                return loop.time() - began_at
            await asyncio.sleep(0.002)


async def session_pid(database: Database) -> int:
    """The server process of the session."""
    pid: int = await database.session.run(lambda session: session.fetchval("SELECT pg_backend_pid()"))
    return pid


async def end_session(dsn: str, database: Database) -> None:
    """End the session's server process, as an administrator would."""
    pid = await session_pid(database)
    await ask(dsn, "SELECT pg_terminate_backend($1)", pid)
    await eventually(lambda: not database.session.is_up)


async def until_none(dsn: str, query: str) -> None:
    """Wait until a query, a count, finds nothing."""
    async with asyncio.timeout(10):
        while True:
            if await ask(dsn, query) == 0:
                return
            await asyncio.sleep(0.005)


class Listener:
    """Hears what is sent on the channel of a database, as any program could."""

    def __init__(self, connection: "asyncpg.Connection[asyncpg.Record]") -> None:
        self.connection = connection
        self.heard: list[str] = []

    def hear(self, _connection: object, _pid: int, _channel: str, payload: object) -> None:
        """Note it, unless a bus only probes its session."""
        if not str(payload).startswith("probe "):
            self.heard.append(str(payload))


@asynccontextmanager
async def listening(dsn: str, channel: str) -> AsyncIterator[Listener]:
    """A listener for the length of the block."""
    connection = await asyncpg.connect(dsn)
    listener = Listener(connection)
    try:
        await connection.add_listener(channel, listener.hear)
        yield listener
    finally:
        await connection.close()
