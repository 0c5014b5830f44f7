"""Steps that tests of appending to PostgreSQL have in common."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import asyncpg
import msgspec

from postbus.events import Draft
from postbus.stores.postgres.appending import Appending
from tests.contracts.steps import make_draft
from tests.postgres.steps import Session
from tests.stores.postgres_steps import opened


@asynccontextmanager
async def open_appending(target: Any, **options: Any) -> AsyncIterator[Appending]:
    """Appending to a database whose tables are made; what is announced does not matter."""
    async with opened(target, **options) as database:
        appending = Appending(database, lambda *_: None)
        try:
            yield appending
        finally:
            await appending.drain()


@asynccontextmanager
async def open_session(dsn: str) -> AsyncIterator[Session]:
    """A connection as any program may have one."""
    session = await asyncpg.connect(dsn)
    try:
        yield session
    finally:
        await session.close()


def large_draft(size: int, **more: object) -> Draft:
    """A draft whose payload has so many bytes."""
    return msgspec.structs.replace(make_draft(payload="x" * size), **more)


async def stored_ids(session: Session) -> list[str]:
    """The ids of all events in the order of the log."""
    rows = await session.fetch("SELECT id FROM postbus.events ORDER BY global_sequence")
    return [row["id"] for row in rows]


async def until_waiting_for_lock(dsn: str, *, count: int = 1) -> None:
    """Return when so many sessions wait for a lock."""
    waiting = (
        "SELECT count(*) FROM pg_stat_activity "
        "WHERE datname = current_database() AND wait_event_type = 'Lock'"
    )
    # Asked outside a transaction: inside one the answer would never change.
    async with open_session(dsn) as session, asyncio.timeout(10):
        while await session.fetchval(waiting) < count:
            pass
