"""When the checkpoint is written: after every event, or after so many, or after so long."""

import asyncio
from typing import Any

import pytest

from postbus import CheckpointMode, Event, EventBus, ReliableDeliveryConfig, RetryPolicy
from postbus.config import AnyCheckpointMode
from postbus.testing import ManualClock
from tests.delivery.steps import BlockingHandler, FlakyHandler, soon, start, until
from tests.durable.steps import (
    ID,
    Database,
    MakeBus,
    crash,
    faulty,
    let_others_run,
    opened,
    position_of,
    publish_numbers,
)

A_LOT, AN_HOUR = 1_000_000, 3600.0
# Where there are none that begin at once, there is but one way.
TASK_FACTORIES = [None, *([asyncio.eager_task_factory] if hasattr(asyncio, "eager_task_factory") else [])]


def a_bus(make_bus: MakeBus, mode: AnyCheckpointMode) -> EventBus:
    return make_bus(config=ReliableDeliveryConfig(checkpoint_mode=mode))


async def handled(handler: FlakyHandler, count: int) -> None:
    await until(lambda: len(handler.events) >= count)


async def deliver(bus: EventBus, count: int) -> FlakyHandler:
    """A subscriber that has processed so many events."""
    handler = FlakyHandler()
    bus.subscribe("order.*", handler, id=ID)
    await publish_numbers(bus, *range(1, count + 1))
    await soon(bus.idle())
    return handler


class TestSynchronous:
    async def test_every_event_is_written_before_the_next_begins(self, make_bus: MakeBus) -> None:
        bus = make_bus()
        written: list[int] = []

        @bus.on("*", id=ID)
        async def look(_: object) -> None:
            written.append(await position_of(bus))

        await bus.publish_many([("a", number) for number in range(5)])
        await soon(bus.idle())

        assert written == [0, 1, 2, 3, 4]

    async def test_a_crash_repeats_the_event_at_hand_and_no_other(
        self, database: Database, make_bus: MakeBus
    ) -> None:
        bus, handler = make_bus(faulty(database)), BlockingHandler()
        bus.subscribe("*", handler, id=ID)
        quick = FlakyHandler()
        await bus.publish_many([("a", 1)])
        await soon(handler.started.wait())
        handler.released.set()
        await soon(bus.idle())
        handler.released.clear()
        handler.started.clear()
        await bus.publish_many([("a", 2), ("a", 3)])
        await soon(handler.started.wait())
        await crash(bus)
        second = make_bus()
        second.subscribe("*", quick, id=ID)
        await second.start()
        await soon(second.idle())

        assert quick.payloads == [2, 3]


class TestBatchSize:
    async def test_four_of_five_are_not_written_and_the_fifth_is(self, make_bus: MakeBus) -> None:
        bus = a_bus(make_bus, CheckpointMode.batched(5, 60))
        handler = await deliver(bus, 4)
        assert await position_of(bus) == 0
        assert (bus.subscription(ID).checkpoint, bus.subscription(ID).lag) == (0, 0)

        await publish_numbers(bus, 5)
        await until(lambda: bus.subscription(ID).checkpoint == 5)
        assert await position_of(bus) == 5
        assert handler.payloads == [1, 2, 3, 4, 5]

    @pytest.mark.parametrize("page_size", [100, 5, 3])
    async def test_it_is_written_at_every_fifth_during_catch_up_too(
        self, database: Database, make_bus: MakeBus, page_size: int
    ) -> None:
        """Never more than a batch is unwritten, also where it is written while the next page is read."""
        async with opened(database) as store:
            await store.append("s", [("a", number) for number in range(1, 24)])
        mode = CheckpointMode.batched(5, AN_HOUR)
        bus = make_bus(config=ReliableDeliveryConfig(checkpoint_mode=mode, catch_up_batch_size=page_size))
        unwritten: list[int] = []

        @bus.on("*", id=ID)
        async def look(event: object) -> None:
            unwritten.append(event.payload - await position_of(bus))  # type: ignore[attr-defined]

        await bus.start()
        await soon(bus.idle())

        assert unwritten == [1, 2, 3, 4, 5] * 4 + [1, 2, 3]
        assert await position_of(bus) == 20

    async def test_one_mode_for_one_subscriber(self, make_bus: MakeBus) -> None:
        """The bus's own mode is a default."""
        bus = make_bus()
        bus.subscribe("*", FlakyHandler(), id="slow", checkpoint_mode=CheckpointMode.batched(A_LOT, AN_HOUR))
        bus.subscribe("*", FlakyHandler(), id="sure")
        await publish_numbers(bus, 1, 2)
        await soon(bus.subscription("sure").caught_up())
        await soon(bus.idle())

        assert (await position_of(bus, "slow"), await position_of(bus, "sure")) == (0, 2)

    async def test_a_crash_repeats_at_most_a_batch(self, database: Database, make_bus: MakeBus) -> None:
        bus = make_bus(
            faulty(database), config=ReliableDeliveryConfig(checkpoint_mode=CheckpointMode.batched(5, 60))
        )
        await deliver(bus, 8)
        await crash(bus)
        second, handler = make_bus(), FlakyHandler()
        second.subscribe("order.*", handler, id=ID)
        await second.start()
        await soon(second.idle())

        assert handler.payloads == [6, 7, 8]


class TestMaxDelay:
    @pytest.mark.parametrize("max_delay", [0.01, 0.5, 5.0, 3600.0])
    async def test_it_is_written_that_long_after_the_first_event_and_not_before(
        self, make_bus: MakeBus, clock: ManualClock, max_delay: float
    ) -> None:
        bus = a_bus(make_bus, CheckpointMode.batched(A_LOT, max_delay))
        handler = await deliver(bus, 2)
        await clock.advance(max_delay / 2)
        await publish_numbers(bus, 3)
        await soon(handled(handler, 3))
        await soon(bus.idle())
        await clock.advance(max_delay / 2 * 0.98)
        assert await position_of(bus) == 0

        await clock.advance(max_delay / 2 * 0.02)
        await until(lambda: bus.subscription(ID).checkpoint == 3)
        assert await position_of(bus) == 3

    async def test_no_delay_at_all_needs_no_time_to_pass(self, make_bus: MakeBus) -> None:
        bus = a_bus(make_bus, CheckpointMode.batched(A_LOT, 0))
        await deliver(bus, 3)
        await until(lambda: bus.subscription(ID).checkpoint == 3)

        assert await position_of(bus) == 3

    async def test_every_batch_has_a_delay_of_its_own(self, make_bus: MakeBus, clock: ManualClock) -> None:
        """The second one is not written with what is left of the first one's time."""
        bus = a_bus(make_bus, CheckpointMode.batched(3, 10))
        handler = await deliver(bus, 1)
        await clock.advance(9)
        await publish_numbers(bus, 2, 3)
        await until(lambda: bus.subscription(ID).checkpoint == 3)
        await publish_numbers(bus, 4)
        await soon(handled(handler, 4))
        await soon(bus.idle())
        await clock.advance(9.5)
        assert await position_of(bus) == 3

        await clock.advance(0.5)
        await until(lambda: bus.subscription(ID).checkpoint == 4)

    async def test_handlers_that_never_wait_do_not_put_it_off(
        self, make_bus: MakeBus, clock: ManualClock
    ) -> None:
        """Each takes a second of the event loop's own time: no timer can ring meanwhile."""
        bus = a_bus(make_bus, CheckpointMode.batched(A_LOT, 5))
        written: list[int] = []

        @bus.on("*", id=ID)
        async def compute(_: object) -> None:
            clock._elapsed += 1_000_000_000
            written.append(bus.subscription(ID).checkpoint or 0)

        await bus.publish_many([("a", None)] * 12)
        await soon(bus.idle())

        assert max(position - checkpoint for position, checkpoint in enumerate(written)) <= 6


class TestFlush:
    async def test_on_shutdown(self, database: Database, make_bus: MakeBus) -> None:
        bus = a_bus(make_bus, CheckpointMode.batched(A_LOT, AN_HOUR))
        await deliver(bus, 3)
        assert await position_of(bus) == 0
        await soon(bus.shutdown())

        async with opened(database) as store:
            (checkpoint,) = await store.checkpoints.list()
        assert checkpoint.position == 3

    async def test_on_unsubscribe(self, make_bus: MakeBus) -> None:
        bus = a_bus(make_bus, CheckpointMode.batched(A_LOT, AN_HOUR))
        await deliver(bus, 3)
        handle = bus.subscription(ID)
        bus.unsubscribe(ID)
        await until(lambda: handle.state == "stopped")

        assert await position_of(bus) == 3

    async def test_on_pause(self, make_bus: MakeBus) -> None:
        bus = a_bus(make_bus, CheckpointMode.batched(A_LOT, AN_HOUR))
        await deliver(bus, 3)
        await soon(bus.subscription(ID).pause())

        assert await position_of(bus) == 3

    async def test_for_whoever_waits_for_it(self, make_bus: MakeBus) -> None:
        bus = a_bus(make_bus, CheckpointMode.batched(A_LOT, AN_HOUR))
        await deliver(bus, 3)
        await soon(bus.subscription(ID).wait_for(2))

        assert await position_of(bus) == 3

    async def test_for_whoever_waits_for_an_event_that_is_not_processed_yet(self, make_bus: MakeBus) -> None:
        bus, handler = a_bus(make_bus, CheckpointMode.batched(A_LOT, AN_HOUR)), BlockingHandler()
        bus.subscribe("*", handler, id=ID)
        await publish_numbers(bus, 1)
        await soon(handler.started.wait())
        waiting = start(bus.subscription(ID).wait_for(1))
        await asyncio.sleep(0.01)
        handler.released.set()
        await soon(waiting)

        assert await position_of(bus) == 1

    async def test_before_a_back_off(self, make_bus: MakeBus, clock: ManualClock) -> None:
        """What was processed does not come again should the process end while it waits."""
        bus = a_bus(make_bus, CheckpointMode.batched(A_LOT, AN_HOUR))

        @bus.on("*", id=ID, retry=RetryPolicy(base_delay=60, max_delay=60))
        async def choke(event: object) -> None:
            if event.payload == 3:  # type: ignore[attr-defined]
                raise ValueError("three")

        await publish_numbers(bus, 1, 2, 3)
        await soon(clock.wait_for_sleepers(1))

        assert await position_of(bus) == 2

    async def test_with_a_dead_letter(self, make_bus: MakeBus) -> None:
        bus = a_bus(make_bus, CheckpointMode.batched(A_LOT, AN_HOUR))

        @bus.on("*", id=ID, retry=RetryPolicy(max_retries=0))
        async def choke(event: object) -> None:
            if event.payload == 3:  # type: ignore[attr-defined]
                raise ValueError("three")

        await publish_numbers(bus, 1, 2, 3, 4)
        await soon(bus.idle())

        assert await position_of(bus) == 3


class TestWritesBesideAHandler:
    """The alarm rings while a handler waits, and what was processed before it is written at once."""

    async def test_while_one_is_slow_no_more_than_a_batch_is_unwritten(
        self, database: Database, make_bus: MakeBus, clock: ManualClock
    ) -> None:
        store = faulty(database)
        mode = CheckpointMode.batched(5, 10)
        bus = make_bus(store, config=ReliableDeliveryConfig(checkpoint_mode=mode))
        is_waiting, may_go_on, unwritten = asyncio.Event(), asyncio.Event(), list[int]()

        @bus.on("*", id=ID)
        async def note(event: Event) -> None:
            if event.payload == 2:
                is_waiting.set()
                await may_go_on.wait()
            unwritten.append(event.payload - (bus.subscription(ID).checkpoint or 0))

        async def let_the_handler_go_on() -> None:
            may_go_on.set()
            await let_others_run()

        store.checkpoints.before("save", let_the_handler_go_on)
        await publish_numbers(bus, *range(1, 21))
        await soon(is_waiting.wait())
        await clock.advance(10)
        await soon(bus.idle())

        assert len(unwritten) == 20
        assert max(unwritten) <= 5

    @pytest.mark.parametrize("factory", TASK_FACTORIES)
    async def test_one_that_takes_longer_than_the_delay_does_not_keep_the_next_from_being_written(
        self, database: Database, make_bus: MakeBus, clock: ManualClock, factory: Any
    ) -> None:
        store = faulty(database)
        mode = CheckpointMode.batched(A_LOT, 10)
        bus = make_bus(store, config=ReliableDeliveryConfig(checkpoint_mode=mode))
        await bus.start()
        asyncio.get_running_loop().set_task_factory(factory)
        handled: asyncio.Queue[int] = asyncio.Queue()
        may_end = asyncio.Semaphore(0)

        @bus.on("*", id=ID)
        async def wait_at_even_ones(event: Event) -> None:
            handled.put_nowait(event.payload)
            if event.payload % 2 == 0:
                await may_end.acquire()

        is_writing, may_write = asyncio.Event(), asyncio.Event()

        async def hold() -> None:
            is_writing.set()
            await may_write.wait()

        store.checkpoints.before("save", hold)
        await publish_numbers(bus, *range(1, 7))
        for number in (1, 2):
            assert await soon(handled.get()) == number
        await clock.advance(10)
        await soon(is_writing.wait())
        await clock.advance(15)
        may_end.release()
        await let_others_run()
        may_write.set()
        for number in (3, 4):
            assert await soon(handled.get()) == number
        await clock.advance(10)
        await until(lambda: bus.subscription(ID).checkpoint == 3)
        may_end.release()
        for number in (5, 6):
            assert await soon(handled.get()) == number
        await clock.advance(10)
        await until(lambda: bus.subscription(ID).checkpoint == 5)
        asyncio.get_running_loop().set_task_factory(None)
        may_end.release()

    async def test_one_that_ends_during_the_shutdown_leaves_no_alarm_behind(
        self, database: Database, make_bus: MakeBus, clock: ManualClock
    ) -> None:
        store = faulty(database)
        mode = CheckpointMode.batched(A_LOT, 10)
        bus = make_bus(store, config=ReliableDeliveryConfig(checkpoint_mode=mode))
        handler, is_writing, may_write = BlockingHandler(), asyncio.Event(), asyncio.Event()
        bus.subscribe("*", handler, id=ID)

        async def hold() -> None:
            is_writing.set()
            await may_write.wait()

        store.checkpoints.before("save", hold)
        handler.released.set()
        await publish_numbers(bus, 1)
        await soon(bus.idle())
        handler.released.clear()
        await publish_numbers(bus, 2)
        await until(lambda: len(handler.events) == 2)
        await clock.advance(10)
        await soon(is_writing.wait())
        stopping = start(bus.shutdown())
        await let_others_run()
        handler.released.set()
        await until(lambda: handler.finish_count == 2)
        may_write.set()
        await soon(stopping)

        assert [task for task in asyncio.all_tasks() if task.get_name() == "postbus checkpoint"] == []
