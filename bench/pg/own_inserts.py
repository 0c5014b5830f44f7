"""Single events by the statement of the bus, into its table, and by nothing else of it."""

import asyncio
from datetime import UTC, datetime

import msgspec

from postbus.ids import new_event_id
from postbus.ops.bench.measuring import EVENT_TYPE, PAYLOAD
from postbus.ops.bench.model import Effort, Sample
from postbus.ops.bench.postgres.bursts import repeat_together
from postbus.ops.bench.postgres.buses import COUNT_EVENTS
from postbus.ops.bench.postgres.raw import connected
from postbus.pg import PgEventStore
from postbus.stores.named_queries import load_queries
from postbus.stores.postgres.query_parts import fill_parts

_encode = msgspec.json.Encoder().encode


def append_own(dsn: str, effort: Effort) -> Sample:
    """One INSERT and one commit for each event; nothing is checked, watched or told to others."""

    async def append() -> Sample:
        async with PgEventStore(dsn):
            pass  # it has made the tables
        queries = fill_parts(load_queries("postbus.stores.postgres", "appending.sql"), schema="postbus")
        async with connected(dsn, 1) as [session]:
            inserting = queries["insert_event"]

            async def step() -> int:
                payload = _encode(PAYLOAD).decode()
                await session.fetchval(inserting, new_event_id(), EVENT_TYPE, payload, datetime.now(UTC))
                return 1

            burst = await repeat_together([step], effort)
            return await burst.sample(dsn, COUNT_EVENTS)

    return asyncio.run(append())
