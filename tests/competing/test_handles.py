"""What the handle of a subscriber whose workers compete says and does."""

import asyncio

import pytest

from postbus import Event, EventBus, PgEventBus, SubscriptionStoppedError, WaitsForItselfError
from postbus.config import CheckpointMode
from tests.competing.steps import (
    ID,
    Holding,
    MakeBus,
    Noting,
    compete,
    publish_numbers,
    rows_of,
    until,
    until_rows,
    within,
)


async def test_a_wait_ends_when_everything_up_to_there_is_processed(make_bus: MakeBus) -> None:
    """Not when it is in the outbox; and what comes later is not waited for."""
    bus, holding, noting = make_bus(), Holding(), Noting()

    async def handle(event: Event) -> None:
        await (holding if event.payload == 2 else noting)(event)

    compete(bus, handle)
    await publish_numbers(bus, 1, 2, 3)
    handle_ = bus.subscription(ID)
    await within(10, handle_.wait_for(1))
    with pytest.raises(TimeoutError):
        await handle_.wait_for(3, timeout=0.3)
    checkpoint, lag = handle_.checkpoint, handle_.lag
    holding.released.set()
    await within(10, handle_.wait_for(3))

    assert (checkpoint, lag) == (1, 2)
    assert (handle_.checkpoint, handle_.lag) == (3, 0)


async def test_a_wait_does_not_wait_for_a_batch_to_fill_up(make_bus: MakeBus, dsn: str) -> None:
    """Whoever waits has what was processed written at once."""
    bus, noting = make_bus(), Noting()
    compete(bus, noting, checkpoint_mode=CheckpointMode.batched(batch_size=1000, max_delay=60.0))
    await publish_numbers(bus, *range(10))
    await until(lambda: len(noting.events) == 10)
    unwritten = await rows_of(dsn)
    await within(2, bus.subscription(ID).caught_up())

    assert len(unwritten) == 10
    assert await rows_of(dsn) == []


async def test_a_batch_is_written_after_its_delay(make_bus: MakeBus, dsn: str) -> None:
    """Although nobody waits."""
    bus, noting = make_bus(), Noting()
    compete(bus, noting, checkpoint_mode=CheckpointMode.batched(batch_size=1000, max_delay=0.3))
    await publish_numbers(bus, *range(10))
    await until(lambda: len(noting.events) == 10)

    assert len(await rows_of(dsn)) == 10
    await until_rows(dsn, lambda rows: rows == [])


async def test_a_pause_lets_others_go_on(make_bus: MakeBus, dsn: str) -> None:
    """The events at hand are finished, what was not begun is given back, and others get all that comes."""
    paused, holding = make_bus(), Holding()
    compete(paused, holding, concurrency=2)
    await publish_numbers(paused, *range(6))
    await until(lambda: holding.running == 2)
    pausing = asyncio.ensure_future(paused.subscription(ID).pause())
    await until_rows(dsn, lambda rows: sum(row["status"] == "processing" for row in rows) == 2)
    other, noting = make_bus(), Noting()
    compete(other, noting)
    await other.start()
    await until(lambda: len(noting.events) == 4)
    holding.released.set()
    await within(10, pausing)
    state = paused.subscription(ID).state
    await publish_numbers(paused, 6, 7)
    await within(10, other.subscription(ID).caught_up())
    begun = len(holding.begun)
    await paused.subscription(ID).resume()
    await other.subscription(ID).pause()
    await publish_numbers(other, 8)
    await within(10, paused.subscription(ID).caught_up())

    assert state == "paused"
    assert begun == 2
    assert sorted(noting.numbers + holding.begun) == list(range(9))


async def test_a_pause_by_its_own_handler_begins_when_that_ends(make_bus: MakeBus) -> None:
    """It returns at once: else it would wait for itself."""
    bus, seen = make_bus(), []

    async def handle(event: Event) -> None:
        seen.append(event.payload)
        await bus.subscription(ID).pause()

    compete(bus, handle, concurrency=1)
    await publish_numbers(bus, 1, 2)
    await until(lambda: seen == [1] and bus.subscription(ID).state == "paused")
    await within(5, bus.subscription(ID).pause())
    await bus.subscription(ID).resume()
    await until(lambda: seen == [1, 2])


async def test_a_handler_that_waits_for_itself_is_told(make_bus: MakeBus) -> None:
    """As for any other subscriber."""
    bus, errors = make_bus(), []

    async def handle(_: Event) -> None:
        for wait in (bus.subscription(ID).caught_up, bus.idle):
            try:
                await wait()
            except WaitsForItselfError as error:
                errors.append(error)

    compete(bus, handle)
    await publish_numbers(bus, 1)
    await within(10, bus.idle())

    assert len(errors) == 2


async def test_unsubscribing_ends_after_the_events_at_hand(make_bus: MakeBus, dsn: str) -> None:
    """What was not begun is left to others at once, and a new subscription goes on."""
    bus, holding = make_bus(), Holding()
    compete(bus, holding, concurrency=2)
    await publish_numbers(bus, *range(5))
    await until(lambda: holding.running == 2)
    handle = bus.subscription(ID)
    bus.unsubscribe(ID)
    await until_rows(dsn, lambda rows: sum(row["status"] == "processing" for row in rows) == 2)
    waiting = asyncio.ensure_future(handle.wait_for(5))
    holding.released.set()
    with pytest.raises(SubscriptionStoppedError):
        await within(10, waiting)
    noting = Noting()
    compete(bus, noting)
    await within(10, bus.idle())

    assert len(holding.begun) == 2
    assert sorted(holding.begun + noting.numbers) == list(range(5))


async def test_states_tell_what_goes_on(make_bus: MakeBus) -> None:
    """Workers of all instances are at work: none stands by."""
    first, second, holding = make_bus(), make_bus(), Holding()
    compete(first, holding)
    compete(second, holding)
    before = first.subscription(ID).state
    await first.start()
    await second.start()
    await until(lambda: [bus.subscription(ID).state for bus in (first, second)] == ["live", "live"])
    await publish_numbers(first, *range(100))
    await until(lambda: first.subscription(ID).state == "catching_up")
    holding.released.set()
    await within(10, first.idle())
    await until(lambda: [bus.subscription(ID).state for bus in (first, second)] == ["live", "live"])
    await first.shutdown()

    assert before == "starting"
    assert first.subscription(ID).state == "stopped"


async def test_a_bus_is_idle_when_the_whole_pool_is(make_bus: MakeBus) -> None:
    """Also when the last events are another instance's."""
    first, second, noting, holding = make_bus(), make_bus(), Noting(), Holding()
    compete(first, noting)
    compete(second, holding)
    await first.start()
    await until(lambda: first.subscription(ID).state == "live")
    await second.start()
    await until(lambda: second.subscription(ID).state == "live")
    await first.subscription(ID).pause()
    await publish_numbers(first, 1)
    await until(lambda: holding.running == 1)
    await first.subscription(ID).resume()
    idle = asyncio.ensure_future(first.idle())
    await asyncio.wait([idle], timeout=0.3)
    was_idle = idle.done()
    holding.released.set()
    await within(10, idle)

    assert not was_idle


async def test_it_starts_from_where_it_is_told(make_bus: MakeBus) -> None:
    """A pool that is new gets what comes from there on."""
    bus, noting = make_bus(), Noting()
    await publish_numbers(bus, 1, 2, 3)
    compete(bus, noting, start_from=2)
    await publish_numbers(bus, 4)
    await within(10, bus.idle())

    assert sorted(noting.numbers) == [3, 4]


def test_a_bus_that_never_started_says_so(make_bus: MakeBus) -> None:
    """Nothing is known of it, and it can be stopped."""
    bus: EventBus = make_bus()
    assert isinstance(bus, PgEventBus)
    compete(bus, Noting())

    assert (bus.subscription(ID).state, bus.subscription(ID).checkpoint) == ("starting", None)
    bus.unsubscribe(ID)
