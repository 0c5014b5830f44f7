"""Another owner: whoever was there before writes nothing more, steps back, and comes again later."""

import asyncio

import pytest

from postbus import (
    CheckpointMode,
    Event,
    EventBus,
    InMemoryStore,
    InstanceMode,
    Projection,
    ReliableDeliveryConfig,
    StateStore,
)
from postbus.events import GlobalSequence, Progress, SubscriberId
from postbus.testing import ManualClock
from tests.contracts.effects import Hand
from tests.contracts.steps import BEGINNING
from tests.delivery.steps import BlockingHandler, FlakyHandler, soon, until
from tests.durable.steps import ID, Database, MakeBus, checkpoint_of, position_of, publish_numbers, try_again

MAIL = SubscriberId(ID)


async def test_a_write_after_the_claim_of_another_changes_nothing(
    make_bus: MakeBus, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    """It steps back with a warning, stands by for a second and is the owner again: nothing is lost."""
    bus, handler = make_bus(), BlockingHandler()
    bus.subscribe("*", handler, id=ID)
    await publish_numbers(bus, 1, 2)
    await soon(handler.started.wait())
    epoch = (await checkpoint_of(bus)).epoch
    await bus.store.checkpoints.claim(MAIL, BEGINNING)
    handler.released.set()
    await soon(clock.wait_for_sleepers(1))
    handle = bus.subscription(ID)
    assert (await position_of(bus), handle.state, handle.checkpoint) == (0, "standby", 0)
    assert "has another owner" in caplog.text
    assert len(handler.events) == 1

    await soon(try_again(clock))
    await soon(handle.caught_up())
    assert [event.payload for event in handler.events] == [1, 1, 2]
    assert (await checkpoint_of(bus)).epoch == epoch + 2


async def test_what_the_other_has_processed_does_not_come_again(
    make_bus: MakeBus, clock: ManualClock
) -> None:
    """The checkpoint never moves back to where this instance was."""
    bus, handler = make_bus(), BlockingHandler()
    bus.subscribe("*", handler, id=ID)
    await publish_numbers(bus, 1, 2, 3, 4)
    await soon(handler.started.wait())
    other = await bus.store.checkpoints.claim(MAIL, BEGINNING)
    await bus.store.checkpoints.save(
        Progress(subscriber_id=MAIL, epoch=other.epoch, position=GlobalSequence(3), event_id="third")
    )
    handler.released.set()
    await soon(try_again(clock))
    await soon(bus.subscription(ID).caught_up())

    assert [event.payload for event in handler.events] == [1, 4]
    assert await position_of(bus) == 4


async def test_a_fenced_failure_makes_no_dead_letter(make_bus: MakeBus, clock: ManualClock) -> None:
    """Burying is a write, too."""
    bus, released, started = make_bus(), asyncio.Event(), asyncio.Event()
    calls: list[int] = []

    @bus.on("*", id=ID, retry={"max_retries": 0})
    async def fail_once(event: Event) -> None:
        calls.append(event.payload)
        started.set()
        await released.wait()
        if len(calls) == 1:
            raise ValueError("once")

    await publish_numbers(bus, 1)
    await soon(started.wait())
    await bus.store.checkpoints.claim(MAIL, BEGINNING)
    released.set()
    await soon(clock.wait_for_sleepers(1))
    page = await bus.store.dead_letters.page(10, 0, MAIL)

    assert page.total == 0
    assert await position_of(bus) == 0


class Sum(Projection[int]):
    """The sum of all payloads."""

    subscriber_id = ID

    def state_key(self, event: Event) -> str:
        return "sum"

    def apply(self, state: int | None, event: Event) -> int | None:
        return (state or 0) + int(event.payload)


async def test_states_that_a_fenced_instance_could_not_write_are_forgotten(
    make_bus: MakeBus, clock: ManualClock
) -> None:
    """It begins anew from what is in the database: each event counts once."""
    bus = make_bus(config=ReliableDeliveryConfig(checkpoint_mode=CheckpointMode.batched(100, 5)))
    total = Sum(StateStore(bus.store, "sums", int))
    bus.subscribe(total)
    await publish_numbers(bus, 1, 2)
    await soon(bus.idle())
    await bus.store.checkpoints.claim(MAIL, BEGINNING)
    await clock.advance(5)
    await soon(try_again(clock))
    await publish_numbers(bus, 4)
    await soon(bus.subscription(ID).caught_up())

    assert await total.states.get("sum") == 7


async def test_a_transactional_subscriber_is_fenced_before_its_handler_is_called(
    database: Database, make_bus: MakeBus, clock: ManualClock
) -> None:
    bus, seen = make_bus(), list[int]()

    async def take(event: Event, hand: Hand) -> None:
        seen.append(event.payload)

    bus.subscribe("*", database.transactional(take), id=ID)
    await bus.start()
    await until(lambda: bus.subscription(ID).state == "live")
    await bus.store.checkpoints.claim(MAIL, BEGINNING)
    await publish_numbers(bus, 1)
    await soon(clock.wait_for_sleepers(1))
    assert seen == []

    await soon(try_again(clock))
    await soon(bus.subscription(ID).caught_up())
    assert seen == [1]


async def test_a_single_instance_asks_for_no_lock(make_bus: MakeBus) -> None:
    """The user sees to it that there is just one; the epoch still fences."""
    bus = make_bus(config=ReliableDeliveryConfig(instance_mode=InstanceMode.SINGLE_INSTANCE))
    handler = FlakyHandler()
    await bus.start()
    assert await bus.store.subscriber_locks.try_acquire(MAIL)
    bus.subscribe("*", handler, id=ID)
    await publish_numbers(bus, 1)
    await soon(bus.subscription(ID).caught_up())

    assert handler.payloads == [1]


async def test_a_shutdown_lets_go_of_the_subscriber(make_bus: MakeBus) -> None:
    """The next owner is not told of an interruption."""
    first = make_bus()
    first.subscribe("*", FlakyHandler(), id=ID)
    await publish_numbers(first, 1)
    await soon(first.idle())
    await first.shutdown()
    second = make_bus()
    await second.start()
    claimed = await second.store.checkpoints.claim(MAIL, BEGINNING)

    assert not claimed.was_interrupted
    assert claimed.position == 1


async def test_one_who_waits_for_an_unwritten_position_is_served_after_a_takeover() -> None:
    """The write beside the handler is refused; the subscriber notices, and takes over again."""
    store, calls = InMemoryStore(), asyncio.Queue[object]()
    bus = EventBus(store)

    @bus.on("*", id=ID, checkpoint_mode=CheckpointMode.batched(100, 1000.0))
    async def handle(event: Event) -> None:
        await calls.put(event.payload)

    async with bus:
        await bus.publish("order.placed", 1)
        await soon(calls.get())
        await store.checkpoints.claim(SubscriberId(ID), BEGINNING)
        await soon(bus.subscription(ID).caught_up())

        assert await soon(calls.get()) == 1
        assert bus.subscription(ID).checkpoint == 1
