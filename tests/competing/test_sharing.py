"""Workers of several instances share the events of a subscriber, and each event is one worker's."""

import asyncio
from collections import Counter

import pytest

from postbus import Event, EventBus, InvalidConfigError, PgEventStore, Projection
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

BATCHED = CheckpointMode.batched(batch_size=20, max_delay=0.2)


@pytest.mark.parametrize("mode", [CheckpointMode.synchronous(), BATCHED])
async def test_every_event_is_processed_once_and_nothing_is_left(
    make_bus: MakeBus, dsn: str, mode: object
) -> None:
    """Without any failure exactly once; the rows of processed events are removed."""
    bus, noting = make_bus(), Noting()
    compete(bus, noting, checkpoint_mode=mode)
    await publish_numbers(bus, *range(300))
    await within(10, bus.subscription(ID).caught_up())

    assert sorted(noting.numbers) == list(range(300))
    assert await rows_of(dsn) == []


async def test_instances_share_the_events(make_bus: MakeBus, dsn: str) -> None:
    """None gets all, each event goes to one of them, and each instance knows when all are processed."""
    buses, notings = [make_bus() for _ in range(3)], [Noting() for _ in range(3)]

    for bus, noting in zip(buses, notings, strict=True):

        async def handle(event: Event, noting: Noting = noting) -> None:
            await asyncio.sleep(0.002)
            await noting(event)

        compete(bus, handle, concurrency=2)
        await bus.start()
    await publish_numbers(buses[0], *range(600))
    for bus in buses:
        await within(20, bus.subscription(ID).caught_up())

    counts = Counter(number for noting in notings for number in noting.numbers)
    assert counts == Counter(range(600))
    assert all(len(noting.numbers) > 60 for noting in notings)
    assert await rows_of(dsn) == []


async def test_no_more_than_concurrency_handlers_run_at_once(make_bus: MakeBus) -> None:
    """Nor are many more rows taken than handlers can begin with."""
    bus, holding = make_bus(), Holding()
    compete(bus, holding, concurrency=4)
    await publish_numbers(bus, *range(50))
    await until(lambda: holding.running == 4)
    other, noting = make_bus(), Noting()
    compete(other, noting)
    await other.start()
    await until(lambda: len(noting.events) >= 40)
    holding.released.set()
    await within(10, bus.idle())

    assert holding.most_at_once == 4
    assert sorted(holding.begun + noting.numbers) == list(range(50))


async def test_concurrency_is_ten_by_default(make_bus: MakeBus) -> None:
    """Ten handlers at once in each instance."""
    bus, holding = make_bus(), Holding()
    compete(bus, holding)
    await publish_numbers(bus, *range(30))
    await until(lambda: holding.running == 10)
    holding.released.set()
    await within(10, bus.idle())

    assert holding.most_at_once == 10


async def test_events_of_other_types_are_not_for_the_workers(make_bus: MakeBus) -> None:
    """And a wait for a number that nobody wants comes to its end in every instance."""
    buses, noting = [make_bus(), make_bus()], Noting()
    for bus in buses:
        compete(bus, noting)
        await bus.start()
    await publish_numbers(buses[0], 1, 2)
    await publish_numbers(buses[0], 3, type="stock.counted")
    for bus in buses:
        await within(10, bus.subscription(ID).caught_up())

    assert sorted(noting.numbers) == [1, 2]


async def test_an_event_that_comes_to_an_idle_pool_is_processed_at_once(make_bus: MakeBus) -> None:
    """Both in the instance that feeds the outbox and in another that only works."""
    feeder, noting = make_bus(poll_interval=30.0), Noting()
    compete(feeder, noting)
    await feeder.start()
    await until(lambda: feeder.subscription(ID).state == "live")
    worker, elsewhere = make_bus(poll_interval=30.0), Noting()
    compete(worker, elsewhere)
    await worker.start()
    await until(lambda: worker.subscription(ID).state == "live")
    await publish_numbers(worker, 1)
    first = await until(lambda: len(noting.events + elsewhere.events) == 1)
    await feeder.subscription(ID).pause()
    await publish_numbers(worker, 2)
    second = await until(lambda: len(elsewhere.events) >= 1 and len(noting.events + elsewhere.events) == 2)

    assert first < 5.0
    assert second < 5.0


async def test_pools_have_nothing_to_do_with_each_other(make_bus: MakeBus) -> None:
    """Each of two subscribers gets every event, and one that hangs does not hold up the other."""
    bus, holding, noting = make_bus(), Holding(), Noting()
    compete(bus, holding, id="slow")
    compete(bus, noting, id="quick")
    await publish_numbers(bus, *range(40))
    await within(10, bus.subscription("quick").caught_up())

    assert sorted(noting.numbers) == list(range(40))
    assert len(holding.begun) == 10
    holding.released.set()
    await within(10, bus.idle())
    assert sorted(holding.begun) == list(range(40))


async def test_an_event_that_was_purged_is_delivered_without_its_payload(make_bus: MakeBus) -> None:
    """That it happened stays."""
    bus, noting = make_bus(), Noting()
    event_id = await bus.publish("order.placed", {"name": "Ada"})
    await bus.store.purge(event_id, "gdpr")
    compete(bus, noting)
    await within(10, bus.idle())

    assert [(event.id, event.payload, event.purger_id) for event in noting.events] == [
        (event_id, None, "gdpr")
    ]


async def test_a_row_whose_event_is_gone_from_the_log_is_removed(make_bus: MakeBus, dsn: str) -> None:
    """Nobody can process it, and it holds up nobody."""
    bus, noting = make_bus(), Noting()
    compete(bus, noting)
    await bus.start()
    await bus.subscription(ID).pause()
    await publish_numbers(bus, 1, 2)
    await until_rows(dsn, lambda rows: len(rows) == 2)
    store = bus.store
    assert isinstance(store, PgEventStore)
    async with store._database.connection() as connection:
        await connection.execute("DELETE FROM postbus.events WHERE global_sequence = 1")
    await bus.subscription(ID).resume()
    await within(10, bus.idle())

    assert noting.numbers == [2]


def test_only_postgresql_has_competing_workers() -> None:
    """The refusal says where there are some."""
    with pytest.raises(InvalidConfigError, match="PostgreSQL"):
        EventBus("memory:").subscribe("*", Noting(), id=ID, mode="competing")


def test_an_observer_with_a_state_is_refused(make_bus: MakeBus) -> None:
    """Two workers would overwrite each other's state."""

    class Counting(Projection[int]):
        subscriber_id = "count"
        patterns = ("order.*",)

        async def apply(self, state: int | None, event: Event) -> int:
            return (state or 0) + 1

    from postbus import PgStateStore

    bus = make_bus()
    with pytest.raises(InvalidConfigError, match="state"):
        bus.subscribe(Counting(PgStateStore(bus.store, "counts", int)), mode="competing")
