"""Connections are few: whoever keeps them for long does not keep the others from their work."""

import asyncio
from contextlib import AsyncExitStack

import asyncpg
import pytest

from postbus import Event, PgEventBus, ReliableDeliveryConfig
from postbus.stores.postgres import borrowed_pool
from tests.faults.steps import backend_count, until, until_live
from tests.gaps.steps import ID, running, soon
from tests.postgres.steps import Session

CONFIG = ReliableDeliveryConfig(poll_interval=0.05)


class SlowHandlers:
    """Transactional handlers that keep their connection until they are let go."""

    def __init__(self) -> None:
        self.released = asyncio.Event()
        self.began: list[str] = []
        self.ended: list[str] = []

    def subscribe(self, bus: PgEventBus, *ids: str) -> None:
        for subscriber_id in ids:

            async def work(event: Event, transaction: Session, name: str = subscriber_id) -> None:
                self.began.append(name)
                await transaction.execute("SELECT 1")
                await self.released.wait()
                self.ended.append(name)

            bus.subscribe("slow.*", work, id=subscriber_id)


@pytest.mark.parametrize("pool_size", [2, 5])
async def test_slow_transactional_handlers_stop_no_publisher_and_no_other_subscriber(
    postgres_dsn: str, pool_size: int
) -> None:
    """More of them than there are connections, and each holds its own for as long as it likes."""
    slow, seen = SlowHandlers(), list[object]()
    bus = PgEventBus(postgres_dsn, config=CONFIG, pool_size=pool_size)
    ids = [f"slow-{number}" for number in range(10)]
    slow.subscribe(bus, *ids)

    @bus.on("test.*", id=ID)
    async def take(event: Event) -> None:
        seen.append(event.payload)

    async with bus:
        await bus.publish("slow.work")
        await soon(lambda: bool(slow.began))
        for number in range(50):
            await bus.publish("test.done", number)
        await soon(lambda: seen == list(range(50)))
        await soon(lambda: bus.subscription(ID).lag == 0)

        assert not slow.ended

        slow.released.set()
        await soon(lambda: sorted(slow.ended) == sorted(ids))
        for subscriber_id in ids:
            await bus.subscription(subscriber_id).caught_up(timeout=20)


async def test_a_users_pool_that_is_empty_makes_subscribers_wait_and_not_fail_for_ever(
    postgres_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The application has taken all connections; given back, everything goes on."""
    monkeypatch.setattr(borrowed_pool, "ACQUIRE_SECONDS", 1.0)
    async with (
        asyncpg.create_pool(postgres_dsn, min_size=0, max_size=4) as pool,
        PgEventBus(postgres_dsn) as other,
        running(pool) as (bus, [seen]),  # type: ignore[arg-type]
    ):
        async with AsyncExitStack() as taken:
            for _ in range(pool.get_max_size() - 1):
                await taken.enter_async_context(pool.acquire())
            event_id = await other.publish("test.done")
            await soon(lambda: bus.subscription(ID).state == "failed", within=30)

            assert "max_size" in (bus.subscription(ID).reason or "")

        await until_live(bus)
        await soon(lambda: [event.id for event in seen.events] == [event_id])


@pytest.mark.parametrize("subscriber_count", [1, 30])
async def test_a_bus_has_one_session_and_its_pool_whatever_the_number_of_subscribers(
    postgres_dsn: str, subscriber_count: int
) -> None:
    """Also while all of them are busy."""
    pool_size = 3
    ids = [f"subscriber-{number}" for number in range(subscriber_count)]
    counts = set[int]()
    async with running(postgres_dsn, *ids, pool_size=pool_size) as (bus, all_seen):

        async def publish() -> None:
            for number in range(20):
                await bus.publish("test.done", number)

        publishing = asyncio.gather(*[publish() for _ in range(5)])
        while not publishing.done():
            counts.add(await backend_count(postgres_dsn))
        await publishing
        await soon(lambda: all(len(seen.events) == 100 for seen in all_seen), within=30)
        counts.add(await backend_count(postgres_dsn))

    assert max(counts) <= 1 + pool_size
    await until(lambda: backend_count(postgres_dsn), lambda count: count == 0)
