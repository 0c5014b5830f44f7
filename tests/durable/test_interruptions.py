"""Processes that end in the middle of an event: it comes again, and not for ever."""

import asyncio

import pytest

from postbus import CheckpointMode, Event, EventBus, RetryPolicy
from postbus.config import AnyCheckpointMode
from postbus.testing import ManualClock
from tests.contracts.effects import Hand
from tests.delivery.steps import ALWAYS, BlockingHandler, FlakyHandler, soon
from tests.durable.steps import (
    ID,
    Database,
    MakeBus,
    checkpoint_of,
    crash,
    faulty,
    letters_of,
    publish_numbers,
)

INTERRUPTED = "interrupted: the process ended before this attempt did"
ONE_RETRY = RetryPolicy(max_retries=1)


async def die_in_handler(database: Database, make_bus: MakeBus, *numbers: int) -> list[object]:
    """A process that ends while its handler runs; what it was called with."""
    bus, handler = make_bus(faulty(database)), BlockingHandler()
    bus.subscribe("*", handler, id=ID, retry=ONE_RETRY)
    await bus.start()
    if numbers:
        await publish_numbers(bus, *numbers)
    await soon(handler.started.wait())
    await crash(bus)
    return [event.payload for event in handler.events]


async def survive(make_bus: MakeBus, handler: object | None = None) -> tuple[EventBus, FlakyHandler]:
    """A process that gets through."""
    bus, got = make_bus(), FlakyHandler() if handler is None else handler
    bus.subscribe("*", got, id=ID, retry=ONE_RETRY)  # type: ignore[arg-type]
    await bus.start()
    await soon(bus.subscription(ID).caught_up())
    return bus, got  # type: ignore[return-value]


async def test_an_event_comes_again_after_the_process_ended_in_it(
    database: Database, make_bus: MakeBus
) -> None:
    assert await die_in_handler(database, make_bus, 1, 2) == [1]
    bus, handler = await survive(make_bus)

    assert handler.payloads == [1, 2]
    assert await letters_of(bus) == []


async def test_an_event_that_ends_the_process_again_and_again_becomes_a_dead_letter(
    database: Database, make_bus: MakeBus
) -> None:
    """With the interrupted attempts in its story; the next event is delivered.

    The first end is not known to be the event's fault: nobody had written down that it began.
    """
    await die_in_handler(database, make_bus, 1, 2)
    for _ in range(2):
        assert await die_in_handler(database, make_bus) == [1]
    bus, handler = await survive(make_bus)
    (letter,) = await letters_of(bus)

    assert letter.payload == 1
    assert letter.errors == [INTERRUPTED, INTERRUPTED]
    assert handler.payloads == [2]


async def test_interrupted_and_failed_attempts_are_counted_together(
    database: Database, make_bus: MakeBus
) -> None:
    await die_in_handler(database, make_bus, 1)
    await die_in_handler(database, make_bus)
    bus, _ = await survive(make_bus, FlakyHandler(ALWAYS))
    (letter,) = await letters_of(bus)

    assert letter.errors == [INTERRUPTED, "ValueError: boom 1"]


@pytest.mark.parametrize("mode", [CheckpointMode.synchronous(), CheckpointMode.batched(100, 3600)])
async def test_kills_of_an_idle_process_bury_nobody(
    database: Database, make_bus: MakeBus, mode: AnyCheckpointMode
) -> None:
    """Its event was processed each time, whether that is written yet or not."""
    calls = 0
    for _ in range(6):
        bus, handler = make_bus(faulty(database)), FlakyHandler()
        bus.subscribe("*", handler, id=ID, retry=ONE_RETRY, checkpoint_mode=mode)
        await bus.start()
        if not calls:
            await publish_numbers(bus, 1)
        await soon(bus.idle())
        calls += len(handler.events)
        await crash(bus)
    bus, _ = await survive(make_bus)

    assert calls >= 1
    assert await letters_of(bus) == []


async def test_nothing_is_written_before_an_attempt_while_all_is_well(make_bus: MakeBus) -> None:
    """One write an event: only after an interruption are attempts written down before they begin."""
    bus, handler = make_bus(), BlockingHandler()
    bus.subscribe("*", handler, id=ID)
    await publish_numbers(bus, 1)
    await soon(handler.started.wait())

    assert (await checkpoint_of(bus)).attempt_sequence is None
    handler.released.set()


async def test_after_an_interruption_an_attempt_is_written_down_before_it_begins(
    database: Database, make_bus: MakeBus
) -> None:
    await die_in_handler(database, make_bus, 1)
    bus, handler = make_bus(), BlockingHandler()
    bus.subscribe("*", handler, id=ID)
    await bus.start()
    await soon(handler.started.wait())
    checkpoint = await checkpoint_of(bus)

    assert (checkpoint.attempt_sequence, checkpoint.attempt_count) == (1, 1)
    handler.released.set()
    await soon(bus.subscription(ID).caught_up())
    assert (await checkpoint_of(bus)).attempt_sequence is None


async def test_a_process_that_ends_in_a_back_off_loses_no_attempt(
    database: Database, make_bus: MakeBus, clock: ManualClock
) -> None:
    """After an interruption: an attempt that failed is one that was begun."""
    await die_in_handler(database, make_bus, 1)
    bus = make_bus(faulty(database))
    bus.subscribe("*", FlakyHandler(ALWAYS), id=ID, retry=ONE_RETRY)
    await bus.start()
    await soon(clock.wait_for_sleepers(1))
    await crash(bus)
    bus, _ = await survive(make_bus, FlakyHandler(ALWAYS))
    (letter,) = await letters_of(bus)

    assert letter.errors == [INTERRUPTED, "ValueError: boom 1"]


async def test_a_transactional_event_that_ends_the_process_becomes_a_dead_letter(
    database: Database, make_bus: MakeBus
) -> None:
    """Its transaction is undone with the process; its attempts are not forgotten."""

    seen: list[int] = []

    async def take(event: Event, hand: Hand) -> None:
        seen.append(event.payload)

    async def end_process(reached: asyncio.Event) -> None:
        reached.set()
        await asyncio.Event().wait()

    for number in range(3):
        store, reached = faulty(database), asyncio.Event()
        store.checkpoints.before("process", lambda reached=reached: end_process(reached))
        bus = make_bus(store)
        bus.subscribe("*", database.transactional(take), id=ID, retry=ONE_RETRY)
        await bus.start()
        if not number:
            await publish_numbers(bus, 1, 2)
        await soon(reached.wait())
        await crash(bus)
    bus = make_bus()
    bus.subscribe("*", database.transactional(take), id=ID, retry=ONE_RETRY)
    await bus.start()
    await soon(bus.subscription(ID).caught_up())
    (letter,) = await letters_of(bus)

    assert letter.errors == [INTERRUPTED, INTERRUPTED]
    assert seen == [2]
