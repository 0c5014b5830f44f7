"""Changing the number of partitions loses, repeats and reorders nothing, whoever dies meanwhile."""

import asyncio
import random
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from postbus import Event, InstanceMode, PgEventBus, Projection, StateStore
from postbus.policy.partitions import part_of
from tests.gaps.steps import writer
from tests.partitions.processes import Process, until_done
from tests.partitions.steps import (
    ID,
    History,
    check_once,
    check_order,
    look,
    make_bus,
    partitions_of,
    parts_of,
    publish,
    publishing,
    soon,
    until_partitions,
)
from tests.patience import PATIENCE

_POSITIONS = (
    "SELECT subscriber_id, last_global_sequence FROM postbus.event_bus_checkpoints "
    "WHERE subscriber_id LIKE 'mail#%' ORDER BY subscriber_id"
)


async def uneven(dsn: str, history: History, partitions: int, slow_part: int = 0) -> list[int]:
    """An instance that ends while one part is far behind the others; the numbers of all events."""

    def seconds(event: Event) -> float:
        is_slow = part_of(event.stream_id or event.id, partitions) == slow_part
        # Longer than all others take together, also on a busy machine.
        return 0.5 if is_slow else 0.0

    bus = make_bus(dsn, history.handler(f"of {partitions}", seconds), partitions)
    async with bus:
        before = len(history.handled)
        numbers = await publish(bus, 200)
        await soon(lambda: len(history.handled) > before + 50)
    return numbers


@pytest.mark.parametrize("instance_mode", list(InstanceMode))
async def test_the_number_of_partitions_can_be_changed(
    postgres_dsn: str, instance_mode: InstanceMode
) -> None:
    """From one to many to fewer to one; what was not processed comes once, in the order of its stream."""
    history, expected = History(), []
    for partitions in (1, 8, 3, 5, 1):
        bus = make_bus(
            postgres_dsn, history.handler(str(partitions), 0.001), partitions, instance_mode=instance_mode
        )
        async with bus:
            expected += await publish(bus, 150)
            await until_partitions(postgres_dsn, partitions)
    async with make_bus(postgres_dsn, history.handler("last"), 1) as bus:
        await bus.subscription(ID).caught_up(timeout=10)

    check_once(history.sequences, expected)
    history.check_order()


@pytest.mark.parametrize(("old", "new"), [(8, 3), (3, 8), (8, 1), (2, 7)])
async def test_parts_at_different_places_are_brought_to_one_first(
    postgres_dsn: str, old: int, new: int
) -> None:
    """Those behind go on up to the furthest and no further, before any new part begins."""
    history = History()
    expected = await uneven(postgres_dsn, history, old)
    positions = {row[1] for row in await look(postgres_dsn, _POSITIONS)}
    assert len(positions) > 1
    async with make_bus(postgres_dsn, history.handler("new"), new) as bus:
        await bus.subscription(ID).caught_up(timeout=20)

        check_once(history.sequences, expected)
        history.check_order()
        await until_partitions(postgres_dsn, new)
        assert bus.subscription(ID).checkpoint == expected[-1]
    rows = await look(postgres_dsn, _POSITIONS)
    assert len(rows) == (new if new > 1 else 0)


async def test_new_instances_stand_by_until_the_last_old_one_is_gone(postgres_dsn: str) -> None:
    """A rolling deploy: the old ones go on meanwhile; an old one that comes later stands by."""
    history = History()
    async with AsyncExitStack() as stack, parts_of(postgres_dsn) as parts:
        old = [make_bus(postgres_dsn, history.handler(f"old {at}"), 8) for at in range(2)]
        for bus in old:
            await bus.start()
        await parts.until(4, 4)
        new = [make_bus(postgres_dsn, history.handler(f"new {at}"), 3) for at in range(2)]
        for bus in new:
            await stack.enter_async_context(bus)
        await soon(lambda: [bus.subscription(ID).state for bus in new] == ["standby"] * 2)
        expected = await publish(new[0], 100)
        # Wherever the parts are.
        await new[1].subscription(ID).caught_up(timeout=10)
        assert {each.instance for each in history.handled} <= {"old 0", "old 1"}
        await old[0].shutdown()
        await parts.until(8)
        assert await partitions_of(postgres_dsn) == 8
        await old[1].shutdown()
        await until_partitions(postgres_dsn, 3)
        await parts.until(2, 1, count=3)
        late = await stack.enter_async_context(make_bus(postgres_dsn, history.handler("late"), 8))
        await soon(lambda: late.subscription(ID).state == "standby")
        expected += await publish(late, 100)
        await late.subscription(ID).caught_up(timeout=10)

        check_once(history.sequences, expected)
        history.check_order()
        assert not history.by("late")
        assert late.subscription(ID).checkpoint == expected[-1]


@pytest.mark.parametrize(("old", "new"), [(1, 4), (4, 1)])
async def test_whole_and_split_subscribers_wait_for_each_other(postgres_dsn: str, old: int, new: int) -> None:
    """One that stands by for the old ones counts as one of them: it would take over."""
    history = History()
    first = make_bus(postgres_dsn, history.handler("first"), old)
    second = make_bus(postgres_dsn, history.handler("second"), old)
    await first.start()
    await soon(lambda: first.subscription(ID).state == "live")
    await second.start()
    async with make_bus(postgres_dsn, history.handler("new"), new) as bus:
        await soon(lambda: bus.subscription(ID).state == "standby")
        expected = await publish(bus, 50)
        await first.shutdown()
        await soon(lambda: second.subscription(ID).state == "live")
        assert await partitions_of(postgres_dsn) == old
        expected += await publish(bus, 50)
        await second.shutdown()
        await until_partitions(postgres_dsn, new)
        expected += await publish(bus, 50)
        await bus.subscription(ID).caught_up(timeout=10)

        check_once(history.sequences, expected)
        history.check_order()
        assert history.by("new")


async def test_one_of_several_new_instances_makes_the_change(postgres_dsn: str) -> None:
    """All want the same; each part is run once."""
    history = History()
    expected = await uneven(postgres_dsn, history, 8)
    async with AsyncExitStack() as stack:
        buses = [make_bus(postgres_dsn, history.handler(f"new {at}", 0.001), 5) for at in range(4)]
        await asyncio.gather(*[stack.enter_async_context(bus) for bus in buses])
        await buses[3].subscription(ID).caught_up(timeout=20)

        check_once(history.sequences, expected)
        history.check_order()
        assert {bus.subscription(ID).checkpoint for bus in buses[3:]} == {expected[-1]}


async def test_new_instances_of_different_layouts_do_not_hinder_each_other(postgres_dsn: str) -> None:
    """One of them gets its way, and the others follow one after the other."""
    history = History()
    expected = await uneven(postgres_dsn, history, 8)
    buses = {count: make_bus(postgres_dsn, history.handler(str(count)), count) for count in (1, 3, 5)}
    await asyncio.gather(*[bus.start() for bus in buses.values()])
    seen = []
    while buses:
        running = 0
        async with asyncio.timeout(20):
            while running not in buses:
                await asyncio.sleep(0.05)
                running = await partitions_of(postgres_dsn)
        bus = buses.pop(running)
        await bus.subscription(ID).caught_up(timeout=10)
        await soon(lambda bus=bus: bus.subscription(ID).state == "live")  # type: ignore[misc]
        seen.append(running)
        expected += await publish(bus, 20)
        await bus.shutdown()
    async with make_bus(postgres_dsn, history.handler("last"), 2) as bus:
        await bus.subscription(ID).caught_up(timeout=10)

    assert sorted(seen) == [1, 3, 5]
    check_once(history.sequences, expected)
    history.check_order()


async def test_a_paused_change_goes_on_when_it_is_resumed(postgres_dsn: str) -> None:
    """Nothing is delivered meanwhile, of the old parts neither."""
    history = History()
    expected = await uneven(postgres_dsn, history, 4)
    before = len(history.handled)
    for count in (3, 1):
        async with make_bus(postgres_dsn, history.handler("new", 0.001), count) as bus:
            await bus.subscription(ID).pause()
            await soon(lambda bus=bus: bus.subscription(ID).state == "paused")  # type: ignore[misc]
            paused_at = len(history.handled)
            await asyncio.sleep(0.2)
            assert len(history.handled) == paused_at
            if count == 1:
                await bus.subscription(ID).resume()
                await bus.subscription(ID).caught_up(timeout=10)

    assert len(history.handled) > before
    check_once(history.sequences, expected)
    history.check_order()


@pytest.mark.parametrize("new", [3, 1])
async def test_an_open_gap_does_not_hold_up_a_change(postgres_dsn: str, new: int) -> None:
    """The new parts wait for it as the old ones did, and what fills it comes once."""
    history = History()
    async with writer(postgres_dsn) as slow, writer(postgres_dsn) as quick:
        async with make_bus(postgres_dsn, history.handler("old"), 4) as bus:
            expected = await publish(bus, 10)
            await slow.run("BEGIN")
            late = await slow.draw()
            await quick.run("BEGIN")
            filled = await quick.insert()
            expected += await publish(bus, 10)
            await bus.subscription(ID).wait_for(expected[-1], timeout=10)
        # A gap for all parts; its event is in one of them.
        await quick.run("COMMIT")
        async with make_bus(postgres_dsn, history.handler("new"), new) as bus:
            await until_partitions(postgres_dsn, new)
            expected += [filled, *await publish(bus, 10)]
            await soon(lambda: set(expected) <= set(history.sequences))
            assert bus.subscription(ID).checkpoint == late - 1
            await slow.insert(late)
            await slow.run("COMMIT")
            await bus.subscription(ID).wait_for(late, timeout=10)

            check_once(history.sequences, [*expected, late])


async def test_dead_letters_outlive_their_partition(postgres_dsn: str) -> None:
    """They are the subscriber's, and retried by whoever has their stream by then."""
    history, is_broken = History(), True
    handled: list[str] = []

    async def handle(event: Event) -> None:
        if is_broken and event.payload == 7:
            raise ValueError("not yet")
        handled.append(event.id)

    async with make_bus(postgres_dsn, handle, 8, max_retries=0) as bus:
        await publish(bus, 20)
        await bus.subscription(ID).caught_up(timeout=10)
        (letter,) = (await bus.dlq.list(subscriber_id=ID)).events
    is_broken = False
    async with make_bus(postgres_dsn, handle, 3) as bus:
        await bus.dlq.retry(letter.dead_letter_id)
        await soon(lambda: letter.id in handled)

        async with asyncio.timeout(PATIENCE):
            while (await bus.dlq.list()).total:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        assert len(handled) == len(set(handled)) == 20
        assert (await bus.dlq.get(letter.dead_letter_id)).resolved_by == ID
    assert history.handled == []


class Sums(Projection[int]):
    """A sum for each stream, or one for all of them."""

    subscriber_id = ID
    patterns = ("test.*",)

    def __init__(self, states: StateStore[int], *, is_whole: bool) -> None:
        super().__init__(states)
        self._is_whole = is_whole
        self.count = 0

    def state_key(self, event: Event) -> str | None:
        return "all" if self._is_whole else event.stream_id

    async def apply(self, state: int | None, event: Event) -> int:
        is_slow = not self._is_whole and part_of(event.stream_id or "", 8) < 4
        await asyncio.sleep(0.05 if is_slow else 0.001)
        self.count += 1
        return (state or 0) + int(event.payload)


async def test_parts_whose_states_become_one_do_not_overwrite_it(postgres_dsn: str) -> None:
    """They come to their end one after the other, where the code has one state for all streams by now."""
    async with PgEventBus(postgres_dsn) as bus:
        split = Sums(StateStore(bus.store, "sums", int), is_whole=False)
        bus.subscribe(split, partitions=8)
        await publish(bus, 200)
        await soon(lambda: split.count > 100)
    async with PgEventBus(postgres_dsn) as bus:
        states = StateStore(bus.store, "sums", int)
        whole = Sums(states, is_whole=True)
        bus.subscribe(whole)
        await bus.subscription(ID).caught_up(timeout=10)

        assert whole.count == 200 - split.count
        assert sum([state async for _, state in states.items()]) == sum(range(200))
        assert (await bus.dlq.list()).total == 0


@pytest.mark.timeout(240)
async def test_a_change_survives_whoever_makes_it(postgres_dsn: str, tmp_path: Path) -> None:
    """Instances of all layouts are killed at random moments: nothing is lost, and each stream in order."""
    rng = random.Random(7)
    processes: list[Process] = []
    kills = 0
    async with PgEventBus(postgres_dsn) as bus, AsyncExitStack() as stack:
        async with publishing(bus) as expected:
            for at in range(10):
                count = rng.choice([1, 3, 8])
                process = Process(postgres_dsn, tmp_path, f"p{at}", count, 0.002)
                processes.append(stack.enter_context(process))
                if at % 3 == 2:
                    await soon(lambda process=process: bool(process.done), 30.0)  # type: ignore[misc]
                else:
                    await asyncio.sleep(rng.uniform(0.8, 2.5))
                process.kill()
                kills += 1
        last = stack.enter_context(Process(postgres_dsn, tmp_path, "last", 3, 0.0))
        processes.append(last)
        done = await until_done(processes, expected)

    assert len(done) - len(expected) <= 8 * kills
    first_times: dict[int, Any] = {}
    for each in done:
        first_times.setdefault(each.sequence, each)
    check_order(list(first_times.values()))
