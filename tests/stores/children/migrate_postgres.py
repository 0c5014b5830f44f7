"""Connects, says so, and migrates when it is told to."""

import asyncio
import sys

import asyncpg

from postbus.stores.postgres.migrations import migrate


async def main(dsn: str, schema: str) -> None:
    connection = await asyncpg.connect(dsn)
    print("ready", flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    await migrate(connection, schema)
    await connection.close()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
