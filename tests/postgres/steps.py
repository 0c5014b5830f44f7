"""Steps that tests of PostgreSQL have in common."""

import asyncio
from typing import TypeAlias

import asyncpg

Session: TypeAlias = "asyncpg.Connection[asyncpg.Record]"


async def ask(dsn: str, query: str, *arguments: object) -> object:
    """The first value of the first row, by a connection of its own."""
    session = await asyncpg.connect(dsn)
    try:
        return await session.fetchval(query, *arguments)
    finally:
        await session.close()


async def until_executing(dsn: str, query: str) -> None:
    """Return when another session executes *query*."""
    active = "SELECT count(*) FROM pg_stat_activity WHERE query = $1 AND state = 'active'"
    async with asyncio.timeout(30):
        while await ask(dsn, active, query) != 1:
            pass
