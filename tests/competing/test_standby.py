"""An instance that stands by for others, of which one side has competing workers, tells how far they are."""

import asyncio
from typing import Any

import pytest

from postbus import PgEventBus
from tests.competing.steps import (
    ID,
    Holding,
    MakeBus,
    Noting,
    publish_numbers,
    query,
    until,
    until_rows,
    within,
)
from tests.gaps.steps import Writer, writer

_OTHER_WAYS: dict[str, dict[str, Any]] = {"ordered": {}, "partitions": {"partitions": 3}}


async def start(make_bus: MakeBus, handler: Any, **options: Any) -> PgEventBus:
    """An instance that serves the subscriber in this way."""
    bus = make_bus()
    bus.subscribe("*", handler, id=ID, **options)
    await bus.start()
    return bus


async def start_standby(make_bus: MakeBus, handler: Any, **options: Any) -> PgEventBus:
    """The same, while others serve it in another way."""
    bus = await start(make_bus, handler, **options)
    await until(lambda: bus.subscription(ID).state == "standby")
    return bus


async def is_reached(bus: PgEventBus, number: int) -> bool:
    """Whether wait_for() returns; if not, after some looks at the others."""
    try:
        await bus.subscription(ID).wait_for(number, timeout=1.5)
    except TimeoutError:
        return False
    return True


@pytest.mark.parametrize("way", list(_OTHER_WAYS))
async def test_what_workers_elsewhere_still_process_is_waited_for(
    make_bus: MakeBus, dsn: str, way: str
) -> None:
    """Their feeder is beyond it, which says nothing."""
    holding = Holding()
    competing = await start(make_bus, holding, mode="competing")
    bus = await start_standby(make_bus, Noting(), **_OTHER_WAYS[way])
    await publish_numbers(bus, 1)
    await until(lambda: holding.running == 1)
    await until_rows(dsn, lambda rows: len(rows) == 1)

    assert not await is_reached(bus, 1)
    assert (bus.subscription(ID).checkpoint, bus.subscription(ID).lag) == (0, 1)

    holding.released.set()
    await bus.subscription(ID).caught_up(timeout=10)

    assert holding.ended == [1]
    assert (bus.subscription(ID).checkpoint, bus.subscription(ID).lag) == (1, 0)
    await within(10, competing.shutdown())


@pytest.mark.parametrize("way", list(_OTHER_WAYS))
async def test_the_same_holds_beyond_an_open_gap(make_bus: MakeBus, dsn: str, way: str) -> None:
    """There the feeder's head is beyond it, and not its position."""
    holding = _HoldingOne(3)
    await start(make_bus, holding, mode="competing")
    bus = await start_standby(make_bus, Noting(), **_OTHER_WAYS[way])
    async with writer(dsn) as a:
        await _open_gap(a, bus)
        await until(lambda: holding.begun == [3])
        is_third_reached = await is_reached(bus, 3)
        holding.released.set()
        await a.run("COMMIT")
        await bus.subscription(ID).caught_up(timeout=10)

    assert not is_third_reached
    assert sorted(holding.seen) == [1, 2, 3]


async def test_what_workers_have_processed_beyond_an_open_gap_is_known_to_partitions(
    make_bus: MakeBus, dsn: str
) -> None:
    """Below the oldest that they still process all is processed, but for what is missing."""
    holding = _HoldingOne(3)
    await start(make_bus, holding, mode="competing")
    bus = await start_standby(make_bus, Noting(), partitions=3)
    async with writer(dsn) as a:
        await _open_gap(a, bus)
        await until(lambda: holding.begun == [3])
        reached = [await is_reached(bus, number) for number in (2, 1)]
        checkpoint = bus.subscription(ID).checkpoint
        await a.run("ROLLBACK")
        holding.released.set()

        assert (reached, checkpoint) == ([True, False], 0)


async def test_workers_that_stand_by_for_partitions_say_so(make_bus: MakeBus) -> None:
    """Nobody waits for them to become idle, and when the others have gone they are live."""
    others, seen = Noting(), Noting()
    partitioned = await start(make_bus, others, partitions=3)
    await publish_numbers(partitioned, 1)
    await partitioned.subscription(ID).caught_up(timeout=10)
    bus = await start_standby(make_bus, seen, mode="competing")
    await publish_numbers(partitioned, 2)
    await within(5, bus.idle())
    await bus.subscription(ID).wait_for(2, timeout=5)

    assert (others.numbers, seen.numbers) == ([1, 2], [])
    assert (bus.subscription(ID).checkpoint, bus.subscription(ID).lag) == (2, 0)

    await within(10, partitioned.shutdown())
    await until(lambda: bus.subscription(ID).state == "live")
    await publish_numbers(bus, 3)
    await within(10, bus.idle())

    assert seen.numbers == [3]


async def test_workers_that_stand_by_wait_for_the_part_that_is_furthest_behind(
    make_bus: MakeBus, dsn: str
) -> None:
    """Also for what fills a gap of the parts."""
    others = _HoldingOne(2)
    partitioned = await start(make_bus, others, partitions=3)
    bus = await start_standby(make_bus, Noting(), mode="competing")
    async with writer(dsn) as a:
        await _open_gap(a, partitioned)
        await until(lambda: sorted(others.begun) == [2])
        await until(lambda: 3 in others.seen)
        is_second_reached = await is_reached(bus, 2)
        others.released.set()
        await bus.subscription(ID).wait_for(3, timeout=10)
        is_first_reached = await is_reached(bus, 1)
        await a.run("COMMIT")
        await publish_numbers(partitioned, 4)
        await bus.subscription(ID).caught_up(timeout=10)

    assert (is_second_reached, is_first_reached) == (False, False)
    assert sorted(others.seen) == [1, 2, 3, 4]
    assert bus.subscription(ID).checkpoint == 4


async def test_what_workers_have_left_is_waited_for_also_when_the_locks_are_lost(
    make_bus: MakeBus, dsn: str
) -> None:
    """An ordered owner works it off: between two ownerships it is not taken for processed."""
    first = await start(make_bus, Noting(), mode="competing")
    await first.subscription(ID).pause()
    await publish_numbers(first, 1, 2)
    await until_rows(dsn, lambda rows: len(rows) == 2)
    await first.shutdown()
    begun, released = [], {1: asyncio.Event(), 2: asyncio.Event()}

    async def wait_for_release(event: Any) -> None:
        begun.append(event.global_sequence)
        await released[event.global_sequence].wait()

    bus = await start(make_bus, wait_for_release)
    await until(lambda: begun == [1])
    waiting = asyncio.ensure_future(bus.subscription(ID).wait_for(2))
    await query(dsn, "SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory'")
    released[1].set()
    await until(lambda: 2 in begun)
    is_early = waiting.done()
    released[2].set()
    await within(10, waiting)

    assert not is_early


class _HoldingOne:
    """Holds the event with one number until it is released."""

    def __init__(self, number: int) -> None:
        self._number = number
        self.begun: list[int] = []
        self.seen: list[int] = []
        self._holding = Holding()
        self.released = self._holding.released

    async def __call__(self, event: Any) -> None:
        if event.global_sequence == self._number:
            self.begun.append(event.global_sequence)
            await self._holding(event)
        self.seen.append(event.global_sequence)


async def _open_gap(a: Writer, bus: PgEventBus) -> None:
    """Number 1 is open; 2 and 3, in streams of different parts of three, are there."""
    await a.run("BEGIN")
    assert await a.insert() == 1
    await bus.publish("order.placed", 2, stream_id="s-0")
    await bus.publish("order.placed", 3, stream_id="s-1")
