"""A subscriber changes from ordered to competing and back while events flow: nothing is lost or repeated."""

import asyncio
from collections import Counter
from typing import Any

import pytest

from postbus import Event, PgEventBus, PgStateStore, Projection
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


def subscribe(bus: PgEventBus, handler: Any, mode: Any, **options: Any) -> None:
    bus.subscribe("order.*", handler, id=ID, mode=mode, **options)


@pytest.mark.parametrize("modes", [("ordered", "competing"), ("competing", "ordered")])
async def test_a_change_of_mode_between_two_runs_repeats_nothing(
    make_bus: MakeBus, dsn: str, modes: tuple[str, str]
) -> None:
    """Each goes on where the other was."""
    noting = Noting()
    for number, mode in enumerate(modes):
        bus = make_bus()
        subscribe(bus, noting, mode)
        await publish_numbers(bus, *range(number * 50, number * 50 + 50))
        await within(10, bus.idle())
        await bus.shutdown()

    assert sorted(noting.numbers) == list(range(100))
    assert await rows_of(dsn) == []


async def leave_behind(make_bus: MakeBus, dsn: str, count: int) -> None:
    """So many events in the outbox, and no worker any more."""
    bus = make_bus()
    subscribe(bus, Noting(), "competing")
    await bus.start()
    await bus.subscription(ID).pause()
    await publish_numbers(bus, *range(count))
    await until_rows(dsn, lambda rows: len(rows) == count)
    await bus.shutdown()


async def test_partitions_process_first_what_workers_left(make_bus: MakeBus, dsn: str) -> None:
    """Before the subscriber is split."""
    await leave_behind(make_bus, dsn, 20)
    bus, noting = make_bus(), Noting()
    subscribe(bus, noting, "ordered", partitions=3)
    await publish_numbers(bus, *range(20, 40))
    await within(20, bus.subscription(ID).caught_up())

    assert sorted(noting.numbers[:20]) == list(range(20))
    assert sorted(noting.numbers) == list(range(40))
    assert await rows_of(dsn) == []


async def test_workers_go_on_where_partitions_were(make_bus: MakeBus, dsn: str) -> None:
    """Nothing is lost or repeated."""
    first, noting = make_bus(), Noting()
    subscribe(first, noting, "ordered", partitions=3)
    await publish_numbers(first, *range(20))
    await within(20, first.subscription(ID).caught_up())
    await first.shutdown()
    second = make_bus()
    subscribe(second, noting, "competing")
    await publish_numbers(second, *range(20, 40))
    await within(20, second.subscription(ID).caught_up())

    assert sorted(noting.numbers) == list(range(40))
    assert await rows_of(dsn) == []


async def test_what_workers_left_is_processed_before_anything_is_read_in_order(
    make_bus: MakeBus, dsn: str
) -> None:
    """Oldest first, and then the log goes on in order."""
    bus, holding = make_bus(), Holding()
    subscribe(bus, holding, "competing", concurrency=1)
    await publish_numbers(bus, *range(10))
    await until(lambda: holding.running == 1)
    bus.unsubscribe(ID)
    holding.released.set()
    await within(10, bus.shutdown())
    left = len(await rows_of(dsn))
    ordered, noting = make_bus(), Noting()
    subscribe(ordered, noting, "ordered")
    await publish_numbers(ordered, *range(10, 20))
    await within(10, ordered.idle())

    assert left == 9
    assert noting.numbers == list(range(1, 20))


async def test_failures_of_workers_are_counted_on_in_order(make_bus: MakeBus) -> None:
    """A row that waits for its next attempt is waited for, and its story goes on."""
    bus, noting = make_bus(), Noting(failure_count=1)
    subscribe(bus, noting, "competing", retry={"max_retries": 1, "base_delay": 0.5})
    await publish_numbers(bus, 1)
    await until(lambda: noting.numbers == [1])
    await bus.shutdown()
    ordered, again = make_bus(), Noting(failure_count=1)
    subscribe(ordered, again, "ordered", retry={"max_retries": 1, "base_delay": 0.5})
    await publish_numbers(ordered, 2)
    await until(lambda: again.numbers[:1] == [1])
    await until(lambda: again.numbers == [1, 2, 2])

    (letter,) = (await ordered.dlq.list()).events
    assert (letter.payload, letter.errors) == (1, ["ValueError: no 1", "ValueError: no 1"])


async def test_an_ordered_owner_waits_for_workers_that_are_still_at_it(make_bus: MakeBus) -> None:
    """Their events are theirs: they are not repeated, and what comes after waits."""
    competing, holding = make_bus(), Holding()
    subscribe(competing, holding, "competing", concurrency=2)
    await publish_numbers(competing, 0, 1)
    await until(lambda: holding.running == 2)
    ordered, noting = make_bus(), Noting()
    subscribe(ordered, noting, "ordered")
    await ordered.start()
    await until(lambda: ordered.subscription(ID).state == "standby")
    stopping = asyncio.ensure_future(competing.shutdown())
    await publish_numbers(ordered, 2, 3)
    await until(lambda: ordered.subscription(ID).state == "catching_up")
    with pytest.raises(TimeoutError):
        await ordered.subscription(ID).wait_for(4, timeout=0.3)
    begun = list(noting.numbers)
    holding.released.set()
    await within(10, stopping)
    await within(10, ordered.subscription(ID).caught_up())

    assert begun == []
    assert noting.numbers == [2, 3]


async def test_a_pause_ends_the_work_on_what_was_left(make_bus: MakeBus, dsn: str) -> None:
    """And after it the rest is processed first, as before."""
    await leave_behind(make_bus, dsn, 5)
    ordered, seen = make_bus(), Noting()

    async def handle(event: Event) -> None:
        await seen(event)
        if event.payload == 1:
            await ordered.subscription(ID).pause()

    subscribe(ordered, handle, "ordered")
    await publish_numbers(ordered, 5, 6)
    await until(lambda: ordered.subscription(ID).state == "paused")
    await within(5, ordered.subscription(ID).pause())
    before = list(seen.numbers)
    await ordered.subscription(ID).resume()
    await within(10, ordered.idle())

    assert before == [0, 1]
    assert seen.numbers == list(range(7))


class Summing(Projection[int]):
    """One state for all events."""

    subscriber_id = ID
    patterns = ("order.*",)

    def state_key(self, event: Event) -> str:
        return "sum"

    async def apply(self, state: int | None, event: Event) -> int:
        return (state or 0) + int(event.payload)


async def test_a_projection_takes_over_from_workers(make_bus: MakeBus, dsn: str) -> None:
    """Its state has what they left and what comes after."""
    await leave_behind(make_bus, dsn, 4)
    ordered = make_bus()
    states = PgStateStore(ordered.store, "sums", int)
    ordered.subscribe(Summing(states))
    await publish_numbers(ordered, 4)
    await within(10, ordered.idle())

    assert await states.get("sum") == 10


async def test_a_rolling_change_there_and_back_is_exact(make_bus: MakeBus, dsn: str) -> None:
    """Instances are replaced one by one while events flow; none is killed, so nothing comes twice."""
    noting, publisher = Noting(), make_bus()
    published = 0
    is_over = False

    async def publish() -> None:
        nonlocal published
        while not is_over:
            await publish_numbers(publisher, published)
            published += 1
            await asyncio.sleep(0.003)

    def instance(mode: str) -> PgEventBus:
        bus = make_bus()
        subscribe(bus, noting, mode)
        return bus

    publishing = asyncio.ensure_future(publish())
    running: list[PgEventBus] = []
    for mode in ("ordered", "competing", "ordered", "competing"):
        for _ in range(2):
            bus = instance(mode)
            await bus.start()
            running.append(bus)
            await asyncio.sleep(0.1)
            if len(running) > 2:
                await within(10, running.pop(0).shutdown())
                await asyncio.sleep(0.1)
    is_over = True
    await publishing
    await within(10, running[0].subscription(ID).caught_up())

    counts = Counter(noting.numbers)
    assert counts == Counter(range(published))
    assert await rows_of(dsn) == []


async def test_nothing_left_costs_an_ordered_subscriber_one_look(make_bus: MakeBus) -> None:
    """It is at the end of the log at once."""
    bus, noting = make_bus(), Noting()
    subscribe(bus, noting, "ordered")
    compete(bus, Noting(), id="others")
    await publish_numbers(bus, 1)

    assert await until(lambda: noting.numbers == [1]) < 5.0
