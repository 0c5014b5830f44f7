"""The raw limit for whoever notifies after the commit, so that no writer waits for another."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime

from postbus.ids import new_event_id
from postbus.ops.bench.measuring import EVENT_TYPE
from postbus.ops.bench.postgres.ends import Send
from postbus.ops.bench.postgres.raw import INSERT, connected, receiver

__all__ = ["receiver", "sender"]


@asynccontextmanager
async def sender(dsn: str) -> AsyncIterator[Send]:
    """Publishes by an INSERT, and notifies on the same connection when it is committed."""
    async with connected(dsn, 1) as [session]:

        async def send(moment: float) -> None:
            row = (new_event_id(), EVENT_TYPE, str(moment), datetime.now(UTC))
            number = await session.fetchval(INSERT, *row)
            await session.execute("SELECT pg_notify('raw_events', $1)", str(number))

        yield send
