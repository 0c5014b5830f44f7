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


class Announced:
    """What is told of new events; with *channel*, statements that store one event notify by themselves."""

    def __init__(self, channel: str | None = None) -> None:
        self.channel_of_next = channel
        self.numbers: list[tuple[int, int]] = []
        """The highest and the lowest of each commit."""
        self.notified: list[int] = []

    def announce(self, sequence: int, first: int | None = None) -> None:
        """As the wake-ups of a bus."""
        self.numbers.append((sequence, sequence if first is None else first))

    def note_notified(self, sequence: int) -> None:
        """As the wake-ups of a bus."""
        self.notified.append(sequence)


@asynccontextmanager
async def open_appending(
    target: Any, announced: Announced | None = None, **options: Any
) -> AsyncIterator[Appending]:
    """Appending to a database whose tables are made; mostly it does not matter what is announced."""
    async with opened(target, **options) as database:
        appending = Appending(database, announced or Announced())
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
