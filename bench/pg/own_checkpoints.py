"""A checkpoint for each event by the statement of the bus, and by nothing else of it."""

import asyncio
from datetime import UTC, datetime

from postbus.events import GlobalSequence, LogPosition, SubscriberId
from postbus.ids import new_event_id
from postbus.ops.bench.model import Effort, Sample
from postbus.ops.bench.postgres.bursts import repeat_together
from postbus.ops.bench.postgres.raw import connected
from postbus.pg import PgEventStore
from postbus.stores.named_queries import load_queries
from postbus.stores.postgres.query_parts import fill_parts

_SUBSCRIBER = SubscriberId("bench")
_PACKAGE = "postbus.stores.postgres"
_PLACE = "SELECT ctid FROM postbus.event_bus_checkpoints WHERE subscriber_id = 'bench'"
_CHECKPOINT = "SELECT last_global_sequence FROM postbus.event_bus_checkpoints WHERE subscriber_id = 'bench'"


def commit_own_checkpoints(dsn: str, effort: Effort) -> Sample:
    """Fenced by the epoch and the server of a claim, only forwards, with its gaps; nothing is read."""

    async def commit() -> Sample:
        async with PgEventStore(dsn) as store:
            claim = await store.checkpoints.claim(_SUBSCRIBER, LogPosition(GlobalSequence(0)))
        server = load_queries(_PACKAGE, "log.sql")["server"]
        queries = fill_parts(load_queries(_PACKAGE, "checkpoints.sql"), server=server, schema="postbus")
        async with connected(dsn, 1) as [session]:
            moving, place, position = queries["move_checkpoint"], await session.fetchval(_PLACE), 0

            async def step() -> int:
                nonlocal place, position
                position += 1
                where = (_SUBSCRIBER, claim.epoch, position, position, None, new_event_id())
                place = await session.fetchval(moving, *where, datetime.now(UTC), claim.server, None, place)
                return 1

            burst = await repeat_together([step], effort)
            return await burst.sample(dsn, _CHECKPOINT)

    return asyncio.run(commit())
