"""0002, sections 7.1 to 7.3, and 0005, section 6.2: the cases that they name, on every store.

What only PostgreSQL can lose, a connection, is in test_reliable_delivery_postgres.py.
"""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from postbus import (
    CheckpointMode,
    Event,
    EventBus,
    InMemoryStore,
    Projection,
    ReliableDeliveryConfig,
    RetryPolicy,
    StateStore,
    StoreFullError,
)
from postbus.policy.retry import retry_delay
from postbus.testing import ManualClock
from tests.delivery.steps import A_DAY, ALWAYS, BlockingHandler, FlakyHandler, soon, until
from tests.durable.steps import (
    DATABASES,
    ID,
    Database,
    MakeBus,
    crash,
    faulty,
    letters_of,
    opened,
    position_of,
    publish_numbers,
    try_again,
)


@pytest.fixture
def still() -> ManualClock:
    """Stands still until it is moved."""
    return ManualClock()


@pytest.fixture(params=DATABASES)
def any_database(request: pytest.FixtureRequest, still: ManualClock) -> Database:
    """A database of each kind, perhaps with something of earlier tests in it."""
    return DATABASES[request.param](request, still)


@pytest.fixture
async def durable(any_database: Database) -> Database:
    """What outlives a bus."""
    await any_database.empty()
    return any_database


@pytest.fixture
async def new_bus(durable: Database, still: ManualClock) -> AsyncIterator[MakeBus]:
    """Makes buses on it, and shuts them down."""
    made: list[EventBus] = []

    def make(store: Any = None, **options: Any) -> EventBus:
        settings: dict[str, Any] = {
            "clock": still,
            "noise": lambda: 0.0,
            "handler_timeout": A_DAY,
            "shutdown_timeout": A_DAY,
        }
        made.append(EventBus(store or durable.new_store(), **{**settings, **options}))
        return made[-1]

    yield make
    for bus in made:
        await soon(bus.shutdown())


def batched(size: int, delay: float) -> ReliableDeliveryConfig:
    return ReliableDeliveryConfig(checkpoint_mode=CheckpointMode.batched(size, delay))


class Total(Projection[dict[str, Any]]):
    """Remembers what it has seen, and so is idempotent."""

    subscriber_id = ID

    def state_key(self, event: Event) -> str:
        return "total"

    def apply(self, state: dict[str, Any] | None, event: Event) -> dict[str, Any]:
        state = state or {"seen": [], "total": 0}
        if event.id in state["seen"]:
            return state
        return {"seen": [*state["seen"], event.id], "total": state["total"] + event.payload}


class TestUnit:
    async def test_checkpoint_read_write_operations(self, new_bus: MakeBus) -> None:
        """The position, the last event's id and the moment are what was written."""
        bus = new_bus()
        bus.subscribe("*", FlakyHandler(), id=ID)
        await bus.publish("order.placed", event_id="e-1")
        await soon(bus.subscription(ID).caught_up())
        (checkpoint,) = await bus.store.checkpoints.list()

        assert (checkpoint.subscriber_id, checkpoint.position, checkpoint.event_id) == (ID, 1, "e-1")

    def test_retry_delay_calculations_exponential_backoff(self) -> None:
        """Doubles from initial_retry_delay to max_retry_delay."""
        policy = ReliableDeliveryConfig().retry

        assert [retry_delay(policy, failures, 0) for failures in range(1, 9)] == [1, 2, 4, 8, 16, 32, 60, 60]

    def test_reliable_delivery_config_defaults(self) -> None:
        config = ReliableDeliveryConfig()

        assert (config.max_retries, config.initial_retry_delay, config.max_retry_delay) == (3, 1.0, 60.0)
        assert config.catch_up_batch_size == 100
        assert config.checkpoint_mode == CheckpointMode.synchronous()

    async def test_deduplication_by_global_sequence(self, new_bus: MakeBus) -> None:
        """Wake-ups that come too often deliver nothing twice."""
        bus, handler = new_bus(), FlakyHandler()
        bus.subscribe("*", handler, id=ID)
        await publish_numbers(bus, 1, 2, 3)
        for _ in range(20):
            bus._subscribers.wake()
            await asyncio.sleep(0)
        await soon(bus.idle())

        assert handler.payloads == [1, 2, 3]


class TestIntegration:
    async def test_subscriber_reconnection_catches_up_on_missed_events(self, new_bus: MakeBus) -> None:
        bus, handler = new_bus(), FlakyHandler()
        bus.subscribe("*", handler, id=ID)
        await publish_numbers(bus, 1)
        await soon(bus.idle())
        handle = bus.subscription(ID)
        bus.unsubscribe(ID)
        await until(lambda: handle.state == "stopped")
        await publish_numbers(bus, 2, 3)
        bus.subscribe("*", handler, id=ID)
        await soon(bus.idle())

        assert handler.payloads == [1, 2, 3]

    async def test_application_restart_resumes_from_checkpoint(self, new_bus: MakeBus) -> None:
        first = new_bus()
        first.subscribe("*", FlakyHandler(), id=ID)
        await publish_numbers(first, 1, 2)
        await soon(first.idle())
        await first.shutdown()
        second, handler = new_bus(), FlakyHandler()
        second.subscribe("*", handler, id=ID)
        await publish_numbers(second, 3)
        await soon(second.idle())

        assert handler.payloads == [3]

    async def test_failed_events_go_to_dlq_after_max_retries(
        self, new_bus: MakeBus, still: ManualClock
    ) -> None:
        bus, handler = new_bus(), FlakyHandler(4)
        bus.subscribe("*", handler, id=ID)
        await publish_numbers(bus, 1, 2)
        await soon(try_again(still, 3))
        await soon(bus.idle())
        (letter,) = await letters_of(bus)

        assert (letter.payload, letter.retry_count) == (1, 4)
        assert handler.payloads == [1, 1, 1, 1, 2]

    async def test_multiple_subscribers_maintain_independent_checkpoints(self, new_bus: MakeBus) -> None:
        bus, slow = new_bus(), BlockingHandler()
        bus.subscribe("*", slow, id="slow")
        bus.subscribe("*", FlakyHandler(), id="fast")
        await publish_numbers(bus, 1, 2)
        await soon(bus.subscription("fast").caught_up())

        assert (await position_of(bus, "fast"), await position_of(bus, "slow")) == (2, 0)
        slow.released.set()

    async def test_high_volume_catch_up(self, durable: Database, new_bus: MakeBus) -> None:
        """Ten thousand events, each once and in order."""
        async with opened(durable) as store:
            for start in range(0, 10_000, 1000):
                await store.append("s", [("a", number) for number in range(start, start + 1000)])
        bus, seen = new_bus(config=batched(500, 5)), list[int]()

        @bus.on("*", id=ID)
        async def take(event: Event) -> None:
            seen.append(event.payload)

        await bus.start()
        await soon(bus.subscription(ID).caught_up())

        assert seen == list(range(10_000))

    async def test_catch_up_with_concurrent_real_time_events(
        self, durable: Database, new_bus: MakeBus
    ) -> None:
        async with opened(durable) as store:
            await store.append("s", [("a", number) for number in range(200)])
        bus, seen = new_bus(config=ReliableDeliveryConfig(catch_up_batch_size=10)), list[int]()

        @bus.on("*", id=ID)
        async def take(event: Event) -> None:
            seen.append(event.payload)
            await asyncio.sleep(0)

        await bus.start()
        for number in range(200, 250):
            await bus.publish("a", number)
        await soon(bus.subscription(ID).caught_up())

        assert seen == list(range(250))

    async def test_idempotent_projection_handles_duplicate_delivery(
        self, durable: Database, new_bus: MakeBus
    ) -> None:
        """Its state lives in another database, which can't commit together with the checkpoint."""
        other = InMemoryStore()
        await other.open()
        first = new_bus(faulty(durable))
        first.subscribe(Total(StateStore(other, "totals")), checkpoint_mode=CheckpointMode.batched(100, 60))
        await publish_numbers(first, 1, 2)
        await soon(first.idle())
        await crash(first)
        second = new_bus()
        total = Total(StateStore(other, "totals"))
        second.subscribe(total)
        await publish_numbers(second, 4)
        await soon(second.subscription(ID).caught_up())
        state = await total.states.get("total")

        assert state is not None
        assert state["total"] == 7


class TestFailureInjection:
    async def test_simulate_projection_errors_verify_retry_then_dlq(
        self, new_bus: MakeBus, still: ManualClock
    ) -> None:
        bus, handler = new_bus(), FlakyHandler(ALWAYS)
        bus.subscribe("*", handler, id=ID, retry=RetryPolicy(max_retries=1, base_delay=1))
        await publish_numbers(bus, 1)
        await soon(try_again(still))
        await soon(bus.idle())

        assert len(handler.events) == 2
        assert len(await letters_of(bus)) == 1

    async def test_database_unavailable_during_checkpoint_write_verify_event_redelivered(
        self, durable: Database, new_bus: MakeBus, still: ManualClock
    ) -> None:
        store = faulty(durable)
        first = new_bus(store)
        first.subscribe("*", FlakyHandler(), id=ID)
        await first.start()
        await until(lambda: first.subscription(ID).state == "live")
        store.checkpoints.fail("save", StoreFullError("full"))
        await publish_numbers(first, 1)
        await soon(still.wait_for_sleepers(1))
        await soon(first.shutdown())
        second, handler = new_bus(), FlakyHandler()
        second.subscribe("*", handler, id=ID)
        await second.start()
        await soon(second.idle())

        assert handler.payloads == [1]

    async def test_crash_between_processing_and_checkpoint_verify_at_least_once_delivery(
        self, durable: Database, new_bus: MakeBus
    ) -> None:
        first, before = new_bus(faulty(durable), config=batched(100, 60)), FlakyHandler()
        first.subscribe("*", before, id=ID)
        await publish_numbers(first, 1, 2)
        await soon(first.idle())
        await crash(first)
        second, after = new_bus(), FlakyHandler()
        second.subscribe("*", after, id=ID)
        await second.start()
        await soon(second.idle())

        assert before.payloads == after.payloads == [1, 2]


class TestBatchedCheckpoints:
    async def test_batched_checkpoint_flushes_at_batch_size(self, new_bus: MakeBus) -> None:
        bus = new_bus(config=batched(5, 60))
        bus.subscribe("*", FlakyHandler(), id=ID)
        await publish_numbers(bus, 1, 2, 3, 4)
        await soon(bus.idle())
        assert await position_of(bus) == 0

        await publish_numbers(bus, 5)
        await until(lambda: bus.subscription(ID).checkpoint == 5)
        assert await position_of(bus) == 5

    async def test_batched_checkpoint_flushes_at_max_delay(
        self, new_bus: MakeBus, still: ManualClock
    ) -> None:
        bus = new_bus(config=batched(100, 0.5))
        bus.subscribe("*", FlakyHandler(), id=ID)
        await publish_numbers(bus, 1, 2, 3)
        await soon(bus.idle())
        await still.advance(0.4)
        assert await position_of(bus) == 0

        await still.advance(0.2)
        await until(lambda: bus.subscription(ID).checkpoint == 3)
        assert await position_of(bus) == 3

    async def test_batched_checkpoint_on_reconnection(self, new_bus: MakeBus) -> None:
        """What every store can do: letting go of the subscriber writes what is pending."""
        bus, handler = new_bus(config=batched(100, 60)), FlakyHandler()
        bus.subscribe("*", handler, id=ID)
        await publish_numbers(bus, 1, 2, 3)
        await soon(bus.idle())
        handle = bus.subscription(ID)
        bus.unsubscribe(ID)
        await until(lambda: handle.state == "stopped")
        assert await position_of(bus) == 3

        bus.subscribe("*", handler, id=ID)
        await publish_numbers(bus, 4)
        await soon(bus.idle())
        assert handler.payloads == [1, 2, 3, 4]

    async def test_batched_catchup_performance(self, durable: Database, new_bus: MakeBus) -> None:
        """A thousand events take ten writes instead of a thousand; bench/ has the times."""
        async with opened(durable) as store:
            await store.append("s", [("a", number) for number in range(1000)])
        counts: list[int] = []
        for mode in (CheckpointMode.synchronous(), CheckpointMode.batched(100, 60)):
            failing, count = faulty(durable), [0]

            async def note(count: list[int] = count) -> None:
                count[0] += 1

            failing.checkpoints.before("save", note)
            bus = new_bus(failing)
            bus.subscribe("*", FlakyHandler(), id=f"mode-{len(counts)}", checkpoint_mode=mode)
            await bus.start()
            await soon(bus.idle())
            counts.append(count[0])
            await bus.shutdown()

        assert counts == [1000, 10]

    async def test_batched_deduplication_still_works(self, new_bus: MakeBus) -> None:
        """The position in memory moves at once, whenever it is written."""
        bus, handler = new_bus(config=batched(100, 60)), FlakyHandler()
        bus.subscribe("*", handler, id=ID)
        for number in range(10):
            await publish_numbers(bus, number)
            bus._subscribers.wake()
        await soon(bus.idle())

        assert handler.payloads == list(range(10))
        assert await position_of(bus) == 0
