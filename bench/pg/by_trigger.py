"""The ends of a bus whose notifications are sent by a trigger, in the transaction of the insert."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from postbus.ops.bench.measuring import EVENT_TYPE
from postbus.ops.bench.postgres.buses import receiver
from postbus.ops.bench.postgres.ends import Send
from postbus.pg import PgEventBus

__all__ = ["receiver", "sender"]


@asynccontextmanager
async def sender(dsn: str) -> AsyncIterator[Send]:
    """Publishes a moment."""
    async with PgEventBus(dsn, notify="trigger") as bus:

        async def send(moment: float) -> None:
            await bus.publish(EVENT_TYPE, moment)

        yield send
