"""0002, sections 2.2.4 and 7.1 to 7.3: the cases that they name, on every store.

What only PostgreSQL can lose, a connection, is in test_reliable_delivery_postgres.py.
"""

import asyncio
from typing import Any

import pytest

from postbus import (
    CheckpointMode,
    Event,
    InMemoryStore,
    Projection,
    ReliableDeliveryConfig,
    RetryPolicy,
    StateStore,
    StoreFullError,
    StoreUnavailableError,
)
from postbus.policy.retry import retry_delay
from postbus.testing import ManualClock
from tests.delivery.steps import ALWAYS, BlockingHandler, FlakyHandler, soon, until
from tests.durable.steps import (
    ID,
    Database,
    MakeBus,
    crash,
    faulty,
    let_others_run,
    letters_of,
    opened,
    position_of,
    publish_numbers,
    try_again,
)
from tests.patience import PATIENCE


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

    @pytest.mark.parametrize(("size", "batch_count"), [(1, 5), (7, 3), (100, 1)])
    async def test_batch_processing_logic(
        self, durable: Database, new_bus: MakeBus, size: int, batch_count: int
    ) -> None:
        """Batches of the configured size at first, then of twice that; each event once and in order."""
        async with opened(durable) as store:
            await store.append("s", [("a", number) for number in range(25)])
        counted, reads, seen = faulty(durable), [0], list[tuple[int, int]]()

        async def count() -> None:
            reads[0] += 1

        counted.log.before("read", count)
        bus = new_bus(counted, config=ReliableDeliveryConfig(catch_up_batch_size=size))

        @bus.on("*", id=ID)
        async def take(event: Event) -> None:
            seen.append((event.payload, reads[0]))

        await bus.start()
        await soon(bus.subscription(ID).caught_up())

        assert [payload for payload, _ in seen] == list(range(25))
        assert seen[-1] == (24, batch_count)

    async def test_checkpoint_mode_behavior(self, new_bus: MakeBus) -> None:
        """Synchronous: written before the next event begins. Batched: after so many, and not before."""
        bus, written = new_bus(), list[int]()

        @bus.on("*", id="synchronous")
        async def look(_: Event) -> None:
            written.append(await position_of(bus, "synchronous"))

        bus.subscribe("*", FlakyHandler(), id="batched", checkpoint_mode=CheckpointMode.batched(3, 60))
        await publish_numbers(bus, 1, 2, 3, 4, 5)
        await until(lambda: bus.subscription("batched").checkpoint == 3)
        await soon(bus.idle())

        assert written == [0, 1, 2, 3, 4]
        assert (await position_of(bus, "synchronous"), await position_of(bus, "batched")) == (5, 3)

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


class TestCatchUpFailure:
    """2.2.4."""

    async def test_catch_up_that_fails_partway_resumes_from_the_last_checkpoint(
        self, durable: Database, new_bus: MakeBus
    ) -> None:
        """What was processed before the process ended does not come again."""
        async with opened(durable) as store:
            await store.append("s", [("a", number) for number in range(10)])
        config = ReliableDeliveryConfig(catch_up_batch_size=3)
        first, before, is_stuck = new_bus(faulty(durable), config=config), list[int](), asyncio.Event()

        @first.on("*", id=ID)
        async def get_stuck(event: Event) -> None:
            if event.payload == 5:
                is_stuck.set()
                await asyncio.Event().wait()
            before.append(event.payload)

        await first.start()
        await soon(is_stuck.wait())
        await crash(first)
        second, after = new_bus(config=config), FlakyHandler()
        second.subscribe("*", after, id=ID)
        await second.start()
        await soon(second.idle())

        assert (before, after.payloads) == ([0, 1, 2, 3, 4], [5, 6, 7, 8, 9])

    async def test_a_log_that_cannot_be_read_for_a_while_is_read_on_from_there(
        self, durable: Database, new_bus: MakeBus, still: ManualClock
    ) -> None:
        """The store is away in the middle of a catch-up: nothing comes twice and nothing is passed over."""
        async with opened(durable) as store:
            await store.append("s", [("a", number) for number in range(10)])
        failing, handler, reads = faulty(durable), FlakyHandler(), [0]
        bus = new_bus(failing, config=ReliableDeliveryConfig(catch_up_batch_size=1))
        bus.subscribe("*", handler, id=ID)

        async def fail_from_the_third_on() -> None:
            reads[0] += 1
            if reads[0] == 3:
                failing.log.fail("read", StoreUnavailableError("the server is away"), times=2)

        failing.log.before("read", fail_from_the_third_on)
        await bus.start()
        async with asyncio.timeout(PATIENCE):
            while len(handler.events) < 10:
                await still.advance(1)
                await let_others_run()
        await soon(bus.idle())

        assert handler.payloads == list(range(10))
        assert reads[0] > 5


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
