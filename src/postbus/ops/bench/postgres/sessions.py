"""Connections that ask one question."""

from typing import TypeAlias

import asyncpg

Session: TypeAlias = "asyncpg.Connection[asyncpg.Record]"

_DURABILITY = ("fsync", "synchronous_commit")


async def ask(dsn: str, query: str, *arguments: object) -> object:
    """The first value of the first row, by a connection of its own."""
    session = await asyncpg.connect(dsn)
    try:
        return await session.fetchval(query, *arguments)
    finally:
        await session.close()


async def durability(dsn: str) -> str:
    """What decides about durability, as a connection to the database reports it."""
    return await report_settings(dsn, _DURABILITY)


async def report_settings(dsn: str, names: tuple[str, ...] = _DURABILITY) -> str:
    """Settings of the server, as a connection to the database reports them."""
    session = await asyncpg.connect(dsn)
    try:
        values = [await session.fetchval("SELECT current_setting($1)", name) for name in names]
        return ", ".join(f"{name}={value}" for name, value in zip(names, values, strict=True))
    finally:
        await session.close()
