"""Buses on PostgreSQL that the workloads use."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from postbus import CheckpointMode, Event, EventBus, ReliableDeliveryConfig
from postbus.ops.bench.measuring import EVENT_TYPE, PAYLOAD
from postbus.ops.bench.postgres.bursts import Step
from postbus.ops.bench.postgres.ends import Receive, Send
from postbus.pg import PgEventBus

COUNT_EVENTS = "SELECT count(*) FROM postbus.events"
BATCHED = CheckpointMode.batched(batch_size=100)


def batched_config(batch_size: int) -> ReliableDeliveryConfig:
    """Read and checkpointed in batches of one size."""
    return ReliableDeliveryConfig(
        catch_up_batch_size=batch_size, checkpoint_mode=CheckpointMode.batched(batch_size=batch_size)
    )


def publish_step(bus: EventBus) -> Step:
    """Publishes one event."""

    async def step() -> int:
        await bus.publish(EVENT_TYPE, PAYLOAD)
        return 1

    return step


class Counting:
    """A handler that does nothing but count, and says when all are there."""

    def __init__(self, expected: int) -> None:
        self.count = 0
        self._expected, self._is_complete = expected, asyncio.Event()

    async def handle(self, _event: Event) -> None:
        """Called by the bus."""
        self.count += 1
        if self.count == self._expected:
            self._is_complete.set()

    async def complete(self) -> None:
        """Return when every expected event was handled."""
        await self._is_complete.wait()


@asynccontextmanager
async def sender(dsn: str) -> AsyncIterator[Send]:
    """Publishes a moment."""
    async with PgEventBus(dsn) as bus:

        async def send(moment: float) -> None:
            await bus.publish(EVENT_TYPE, moment)

        yield send


@asynccontextmanager
async def receiver(dsn: str, receive: Receive) -> AsyncIterator[None]:
    """A durable subscriber that begins now."""
    bus = PgEventBus(dsn)

    async def enter(event: Event[float]) -> None:
        receive(event.payload)

    bus.subscribe(EVENT_TYPE, enter, id="bench", start_from="now", checkpoint_mode=BATCHED)
    async with bus:
        await bus.subscription("bench").caught_up()
        yield
