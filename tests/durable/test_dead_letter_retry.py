"""A dead letter of a durable subscriber gets one more attempt when somebody asks for it."""

import pytest

from postbus import DLQInspector, Event, NotADeadLetterError, RetryPolicy
from postbus.testing import ManualClock
from tests.contracts.effects import Hand
from tests.delivery.steps import ALWAYS, FlakyHandler, soon, until
from tests.durable.steps import (
    ID,
    Database,
    MakeBus,
    let_others_run,
    letters_of,
    opened,
    position_of,
    publish_numbers,
    until_resolved,
)

ONCE = RetryPolicy(max_retries=0)


async def test_a_running_subscriber_takes_it_up_and_resolves_it(
    make_bus: MakeBus, clock: ManualClock
) -> None:
    bus, handler = make_bus(), FlakyHandler(1)
    bus.subscribe("*", handler, id=ID, retry=ONCE)
    await publish_numbers(bus, 1, 2)
    await soon(bus.subscription(ID).caught_up())
    (letter,) = await letters_of(bus)
    await clock.advance(60)
    await bus.dlq.retry(letter.dead_letter_id)
    await until(lambda: len(handler.events) == 3)
    await soon(until_resolved(bus))
    found = await bus.dlq.get(letter.dead_letter_id)

    assert handler.payloads == [1, 2, 1]
    assert (found.resolved_at, found.resolved_by, found.last_retry_at) == (clock.now(), ID, clock.now())
    assert found.errors == ["ValueError: boom 1"]
    assert await position_of(bus) == 2


async def test_another_failure_is_one_error_more(make_bus: MakeBus) -> None:
    """One attempt, no back-off; it stays a dead letter."""
    bus, handler = make_bus(), FlakyHandler(ALWAYS)
    bus.subscribe("*", handler, id=ID, retry=RetryPolicy(max_retries=1, base_delay=0))
    await publish_numbers(bus, 1)
    await soon(bus.idle())
    (letter,) = await letters_of(bus)
    await bus.dlq.retry(letter.dead_letter_id)
    await until(lambda: len(handler.events) == 3)
    await publish_numbers(bus, 2)
    await soon(bus.idle())
    (_, letter) = await letters_of(bus)

    assert letter.errors == ["ValueError: boom 1", "ValueError: boom 2", "ValueError: boom 3"]
    assert letter.retry_count == 3
    assert letter.last_retry_at is not None
    assert letter.resolved_at is None


async def test_the_events_id_will_do_as_well(make_bus: MakeBus) -> None:
    bus, handler = make_bus(), FlakyHandler(1)
    bus.subscribe("*", handler, id=ID, retry=ONCE)
    event_id = await bus.publish("a", 1)
    await soon(bus.idle())
    await bus.dlq.retry(event_id)
    await until(lambda: len(handler.events) == 2)
    await soon(until_resolved(bus))
    with pytest.raises(NotADeadLetterError):
        await bus.dlq.retry(event_id)


async def test_all_of_one_subscriber(make_bus: MakeBus) -> None:
    bus, handler, other = make_bus(), FlakyHandler(25), FlakyHandler(25)
    bus.subscribe("*", handler, id=ID, retry=ONCE)
    bus.subscribe("*", other, id="other", retry=ONCE)
    await publish_numbers(bus, *range(25))
    await soon(bus.idle())
    assert await bus.dlq.retry_all(subscriber_id=ID) == 25
    await until(lambda: len(handler.events) == 50)
    await soon(until_resolved(bus))

    assert handler.payloads == [*range(25), *range(25)]
    assert len(other.events) == 25
    assert len(await letters_of(bus, "other")) == 25


async def test_what_was_asked_for_while_no_bus_ran_is_done_at_the_next_start(
    database: Database, make_bus: MakeBus
) -> None:
    first = make_bus()
    first.subscribe("*", FlakyHandler(ALWAYS), id=ID, retry=ONCE)
    await publish_numbers(first, 1)
    await soon(first.idle())
    await first.shutdown()
    async with opened(database) as store:
        (letter,) = (await DLQInspector(store).list()).events
        await DLQInspector(store).retry(letter.dead_letter_id)
    second, handler = make_bus(), FlakyHandler()
    second.subscribe("*", handler, id=ID)
    await second.start()
    await until(lambda: len(handler.events) == 1)
    await soon(until_resolved(second))

    assert handler.payloads == [1]


async def test_a_paused_subscriber_retries_nothing(make_bus: MakeBus) -> None:
    bus, handler = make_bus(), FlakyHandler(1)
    bus.subscribe("*", handler, id=ID, retry=ONCE)
    await publish_numbers(bus, 1)
    await soon(bus.idle())
    await soon(bus.subscription(ID).pause())
    (letter,) = await letters_of(bus)
    await bus.dlq.retry(letter.dead_letter_id)
    await let_others_run()
    assert len(handler.events) == 1

    await bus.subscription(ID).resume()
    await until(lambda: len(handler.events) == 2)


async def test_a_pause_comes_between_two_retries(make_bus: MakeBus) -> None:
    """It does not wait for all that is marked."""
    bus = make_bus()
    seen: list[int] = []

    @bus.on("*", id=ID, retry=ONCE)
    async def take(event: Event) -> None:
        seen.append(event.payload)
        if len(seen) <= 5:
            raise ValueError("not yet")
        if len(seen) == 7:
            bus.subscription(ID)._service.pause()

    await publish_numbers(bus, *range(5))
    await soon(bus.idle())
    await bus.dlq.retry_all()
    await until(lambda: bus.subscription(ID).state == "paused")
    assert seen == [0, 1, 2, 3, 4, 0, 1]

    await bus.subscription(ID).resume()
    await soon(until_resolved(bus))
    assert seen == [0, 1, 2, 3, 4, 0, 1, 2, 3, 4]


async def test_new_events_come_between_two_retries(make_bus: MakeBus) -> None:
    """Thousands may be wanted, and nobody waits for all of them."""
    bus = make_bus()
    seen: list[object] = []

    @bus.on("*", id=ID, retry=ONCE)
    async def take(event: Event) -> None:
        seen.append(event.payload)
        if len(seen) <= 3:
            raise ValueError("not yet")
        if event.payload == 0:
            await bus.publish("a", "new")

    await publish_numbers(bus, 0, 1, 2)
    await soon(bus.idle())
    await bus.dlq.retry_all()
    await soon(until_resolved(bus))

    assert seen == [0, 1, 2, 0, "new", 1, 2]


async def test_a_resolved_one_is_not_retried(make_bus: MakeBus) -> None:
    bus, handler = make_bus(), FlakyHandler(1)
    bus.subscribe("*", handler, id=ID, retry=ONCE)
    await publish_numbers(bus, 1)
    await soon(bus.idle())
    (letter,) = await letters_of(bus)
    await bus.dlq.resolve(letter.dead_letter_id, by="ann", notes="seen to it")
    with pytest.raises(NotADeadLetterError):
        await bus.dlq.retry(letter.dead_letter_id)

    assert await letters_of(bus) == []


async def test_a_transactional_retry_takes_effect_and_is_resolved_together(
    database: Database, make_bus: MakeBus
) -> None:
    """And the checkpoint stays where it is."""
    bus, poison = make_bus(), {1}

    async def take(event: Event, hand: Hand) -> None:
        await hand.execute(f"CREATE TABLE IF NOT EXISTS ledger (line {hand.serial}, number INTEGER)")
        await hand.execute("INSERT INTO ledger (number) VALUES ($1)", event.payload)
        if event.payload in poison:
            raise ValueError("poison")

    bus.subscribe("*", database.transactional(take), id=ID, retry=ONCE)
    await publish_numbers(bus, 1, 2, 3)
    await soon(bus.idle())
    (letter,) = await letters_of(bus)
    await bus.dlq.retry(letter.dead_letter_id)
    while len((await bus.dlq.get(letter.dead_letter_id)).errors) < 2:
        await let_others_run()
    poison.clear()
    await bus.dlq.retry(letter.dead_letter_id)
    await soon(until_resolved(bus))

    assert await database.query("SELECT number FROM ledger ORDER BY line") == [(2,), (3,), (1,)]
    assert await position_of(bus) == 3
    assert (await bus.dlq.get(letter.dead_letter_id)).resolved_by == ID
