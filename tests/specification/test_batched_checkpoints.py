"""0005: checkpoints in batches, what they cost and what they save, on every store.

What only PostgreSQL can lose, a connection, is in test_reliable_delivery_postgres.py.
"""

import pytest

from postbus import CheckpointMode, Event, ReliableDeliveryConfig, StoreClosedError
from postbus.config import AnyCheckpointMode
from postbus.testing import ManualClock
from tests.contracts.effects import Hand
from tests.delivery.steps import FlakyHandler, soon, until
from tests.durable.steps import ID, Database, MakeBus, crash, faulty, opened, position_of, publish_numbers


def batched(size: int, delay: float) -> ReliableDeliveryConfig:
    return ReliableDeliveryConfig(checkpoint_mode=CheckpointMode.batched(size, delay))


async def fill(database: Database, count: int) -> None:
    """A log of so many events."""
    async with opened(database) as store:
        await store.append("s", [("a", number) for number in range(1, count + 1)])


class TestIntegration:
    """Section 6.2."""

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
        """Also 2.1: a thousand events take ten writes instead of a thousand; bench/ has the times."""
        await fill(durable, 1000)
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


class TestTradeoff:
    """Section 2.1; its row about writes is test_batched_catchup_performance, bench/ has the throughput."""

    @pytest.mark.parametrize(
        ("mode", "repeated"),
        [(CheckpointMode.synchronous(), [8]), (CheckpointMode.batched(4, 60), [5, 6, 7, 8])],
        ids=["synchronous: one event", "batched: a batch"],
    )
    async def test_duplicates_on_crash(
        self, durable: Database, new_bus: MakeBus, mode: AnyCheckpointMode, repeated: list[int]
    ) -> None:
        """The worst moment for either: an event was processed, and its checkpoint can't be written."""
        await fill(durable, 8)
        store, before = faulty(durable), list[int]()
        first = new_bus(store, config=ReliableDeliveryConfig(checkpoint_mode=mode))

        @first.on("*", id=ID)
        async def take(event: Event) -> None:
            before.append(event.payload)
            if event.payload == 8:
                store.checkpoints.fail("save", StoreClosedError("the process has ended"))

        await first.start()
        await until(lambda: len(before) == 8)
        await crash(first)
        second, after = new_bus(), FlakyHandler()
        second.subscribe("*", after, id=ID)
        await second.start()
        await soon(second.idle())

        assert (before, after.payloads) == ([1, 2, 3, 4, 5, 6, 7, 8], repeated)


class TestDetails:
    """Section 4, where 6.2 does not test it."""

    async def test_flush_on_shutdown(self, durable: Database, new_bus: MakeBus) -> None:
        """4.5: what is pending is written when the bus ends, and does not come again."""
        first = new_bus(config=batched(100, 60))
        first.subscribe("*", FlakyHandler(), id=ID)
        await publish_numbers(first, 1, 2, 3)
        await soon(first.idle())
        before = await position_of(first)
        await first.shutdown()
        second, handler = new_bus(config=batched(100, 60)), FlakyHandler()
        second.subscribe("*", handler, id=ID)
        await publish_numbers(second, 4)
        await soon(second.idle())

        assert (before, handler.payloads) == (0, [4])

    async def test_catch_up_behavior(self, durable: Database, new_bus: MakeBus) -> None:
        """4.6: written a batch at a time there as well: so many events, and no more, are unwritten."""
        await fill(durable, 23)
        store, writes, unwritten = faulty(durable), [0], list[int]()

        async def note() -> None:
            writes[0] += 1

        store.checkpoints.before("save", note)
        bus = new_bus(store, config=batched(5, 60))

        @bus.on("*", id=ID)
        async def look(event: Event) -> None:
            unwritten.append(event.payload - await position_of(bus))

        await bus.start()
        await soon(bus.idle())

        assert unwritten == [1, 2, 3, 4, 5] * 4 + [1, 2, 3]
        assert (await position_of(bus), writes[0]) == (20, 4)


class TestFutureConsiderations:
    """Section 8. 8.2 is test_batch_processing_logic: what is read at once grows by itself."""

    async def test_transactional_batching(self, durable: Database, new_bus: MakeBus) -> None:
        """8.1: effects of many events and the checkpoint behind them are one transaction."""
        await fill(durable, 100)
        store, transactions = faulty(durable), [0]

        async def count() -> None:
            transactions[0] += 1

        store.checkpoints.before("process", count)

        async def enter(event: Event, hand: Hand) -> None:
            await hand.execute("CREATE TABLE IF NOT EXISTS ledger (number INTEGER)")
            await hand.execute("INSERT INTO ledger VALUES ($1)", event.payload)

        bus = new_bus(store)
        bus.subscribe("*", durable.transactional(enter), id=ID)
        await bus.start()
        await soon(bus.idle())

        assert await durable.query("SELECT count(*), sum(number) FROM ledger") == [(100, 5050)]
        assert await position_of(bus) == 100
        assert 0 < transactions[0] <= 20
