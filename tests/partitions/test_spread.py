"""Partitions are spread evenly over the live instances, and follow them as they come and go."""

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from postbus import InstanceMode, PgEventBus
from tests.partitions.processes import Process, all_done, until_done
from tests.partitions.steps import (
    ID,
    History,
    Parts,
    check_once,
    check_order,
    look,
    make_bus,
    parts_of,
    publish,
    publishing,
    soon,
)

_END_SESSION = (
    "SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory' AND objsubid = 2 AND pid = $1"
)


async def test_a_single_instance_has_all_parts(postgres_dsn: str) -> None:
    """As soon as it has started."""
    history = History()
    async with make_bus(postgres_dsn, history.handler("a")) as bus, parts_of(postgres_dsn) as parts:
        await parts.until(8)
        expected = await publish(bus, 40)
        await bus.idle()

        check_once(history.sequences, expected)
        assert bus.subscription(ID).state == "live"


@pytest.mark.parametrize(
    ("count", "expected"),
    [(8, [(8,), (4, 4), (3, 3, 2), (2, 2, 2, 2)]), (3, [(3,), (2, 1), (1, 1, 1), (1, 1, 1)])],
)
async def test_parts_are_spread_evenly_over_the_instances(
    postgres_dsn: str, count: int, expected: list[tuple[int, ...]]
) -> None:
    """Within two seconds after one has come; with more instances than parts the rest stands by."""
    history = History()
    async with AsyncExitStack() as stack, parts_of(postgres_dsn) as parts:
        buses = []
        for at, spread in enumerate(expected):
            bus = await stack.enter_async_context(make_bus(postgres_dsn, history.handler(str(at)), count))
            buses.append(bus)
            assert await parts.until(*spread, count=count) < 4.0
        states = sorted(["live"] * min(count, 4) + ["standby"] * max(0, 4 - count))

        await soon(lambda: sorted(bus.subscription(ID).state for bus in buses) == states)
        numbers = await publish(buses[0], 60, streams=60)
        await buses[-1].subscription(ID).caught_up(timeout=10)
        check_once(history.sequences, numbers)
        assert len({each.instance for each in history.handled}) == min(count, 4)


async def moved(parts: Parts, before: list[int | None]) -> int:
    """How many parts have another holder than before."""
    return sum(was != now for was, now in zip(before, await parts.holders(), strict=True))


async def test_a_rebalance_moves_no_more_parts_than_it_must(postgres_dsn: str) -> None:
    """A newcomer gets its share and nobody else anything; what a leaver had is all that moves."""
    async with (
        make_bus(postgres_dsn, History().handler("a")),
        make_bus(postgres_dsn, History().handler("b")),
        parts_of(postgres_dsn) as parts,
    ):
        await parts.until(4, 4)
        before = await parts.holders()
        async with make_bus(postgres_dsn, History().handler("c")):
            await parts.until(3, 3, 2)
            assert await moved(parts, before) == 2
            before = await parts.holders()
        await parts.until(4, 4)

        assert await moved(parts, before) == 2


async def test_what_an_instance_leaves_is_taken_at_once(postgres_dsn: str) -> None:
    """The others hear of it: no second goes by, and nothing comes twice."""
    history = History()
    async with make_bus(postgres_dsn, history.handler("a", 0.005)) as bus, parts_of(postgres_dsn) as parts:
        leaver = make_bus(postgres_dsn, history.handler("b", 0.005))
        await leaver.start()
        await parts.until(4, 4)
        expected = await publish(bus, 100)
        await leaver.shutdown()

        assert await parts.until(8) < 2.5
        await bus.subscription(ID).caught_up(timeout=10)
        check_once(history.sequences, expected)
        history.check_order()


async def test_unsubscribing_is_leaving(postgres_dsn: str) -> None:
    """The other instance has all parts; who subscribes again gets its share again."""
    history = History()
    async with (
        make_bus(postgres_dsn, history.handler("a")),
        make_bus(postgres_dsn, history.handler("b")) as other,
        parts_of(postgres_dsn) as parts,
    ):
        await parts.until(4, 4)
        other.unsubscribe(ID)
        assert await parts.until(8) < 2.5
        other.subscribe("*", history.handler("b"), id=ID, partitions=8)

        await parts.until(4, 4)
        expected = await publish(other, 50)
        await other.subscription(ID).caught_up(timeout=10)
        check_once(history.sequences, expected)


async def test_an_instance_that_lost_its_session_joins_again(postgres_dsn: str) -> None:
    """Its parts are free meanwhile; nothing is lost, and in the end the spread is even."""
    history = History()
    async with (
        make_bus(postgres_dsn, history.handler("a", 0.001)) as bus,
        make_bus(postgres_dsn, history.handler("b", 0.001)),
        parts_of(postgres_dsn) as parts,
    ):
        await parts.until(4, 4)
        for _ in range(3):
            going_on = asyncio.ensure_future(publish(bus, 100))
            holder = (await parts.holders())[0]
            assert holder is not None
            await look(postgres_dsn, _END_SESSION, holder)
            await going_on
            await parts.until(4, 4)
        await bus.subscription(ID).caught_up(timeout=10)

        assert set(history.sequences) == set(range(1, 301))
        # Of what was at hand when the session went, one of each part may come twice.
        assert len(history.sequences) <= 300 + 3 * 4


@pytest.mark.timeout(120)
async def test_the_parts_of_a_killed_instance_are_taken_over(postgres_dsn: str, tmp_path: Path) -> None:
    """Within two seconds; nothing is lost, and at most the event at hand of each part comes twice."""
    history = History()
    async with make_bus(postgres_dsn, history.handler("a", 0.001)) as bus, parts_of(postgres_dsn) as parts:
        with Process(postgres_dsn, tmp_path, "killed", 8) as process:
            await parts.until(4, 4, within=20.0)
            expected = await publish(bus, 400)
            process.kill()
            taken = await parts.until(8)
            await bus.subscription(ID).caught_up(timeout=20)
            done = [*history.sequences, *(each.sequence for each in all_done(process))]

        assert taken < 4.0
        assert set(done) == set(expected)
        assert len(done) - len(expected) <= 4


@pytest.mark.timeout(120)
async def test_an_instance_that_stands_still_loses_its_parts(postgres_dsn: str, tmp_path: Path) -> None:
    """After failover_timeout; when it goes on it can write nothing, and gets its share again."""
    history = History()
    async with make_bus(postgres_dsn, history.handler("a", 0.001)) as bus, parts_of(postgres_dsn) as parts:
        with Process(postgres_dsn, tmp_path, "still", 8, 0.005, failover_timeout=2.0) as process:
            await parts.until(4, 4, within=20.0)
            expected = await publish(bus, 200)
            process.stand_still()
            taken = await parts.until(8)
            await bus.subscription(ID).caught_up(timeout=20)
            process.go_on()
            await parts.until(4, 4)
            expected += await publish(bus, 100)
            await bus.subscription(ID).caught_up(timeout=20)
            process.end()
            process.wait()
            done = [*history.handled, *all_done(process)]

        assert taken < 6.0
        assert {each.sequence for each in done} == set(expected)
        # What was at hand when it stood still may come twice: one event of each part.
        assert len(done) - len(expected) <= 4


@pytest.mark.timeout(180)
async def test_order_is_kept_while_instances_come_and_go(postgres_dsn: str, tmp_path: Path) -> None:
    """Of every stream, whoever processes it; nothing is lost, and nothing comes twice: nobody is killed."""
    processes: list[Process] = []
    async with PgEventBus(postgres_dsn) as bus, AsyncExitStack() as stack:
        async with publishing(bus) as expected:
            for at in range(6):
                process = Process(postgres_dsn, tmp_path, f"p{at}", 8, 0.001)
                processes.append(stack.enter_context(process))
                await soon(lambda process=process: bool(process.done), 20.0)  # type: ignore[misc]
                if at % 2:
                    processes[at - 1].end()
        await until_done(processes, expected)
        for process in processes:
            process.end()
        for process in processes:
            process.wait()
        done = all_done(*processes)

    check_once([each.sequence for each in done], expected)
    check_order(done)


@pytest.mark.parametrize("name", ["postbus partitions mail", "postbus subscriber mail#3/8"])
async def test_a_task_that_is_cancelled_by_mistake_starts_again(postgres_dsn: str, name: str) -> None:
    """That of the whole or that of a part; nothing is lost."""
    history = History()
    async with make_bus(postgres_dsn, history.handler("a", 0.001)) as bus, parts_of(postgres_dsn) as parts:
        await parts.until(8)
        expected = await publish(bus, 50)
        (task,) = [task for task in asyncio.all_tasks() if task.get_name() == name]
        task.cancel()
        expected += await publish(bus, 50)
        await bus.subscription(ID).caught_up(timeout=10)
        await parts.until(8)

        assert set(history.sequences) == set(expected)
        await soon(lambda: bus.subscription(ID).state == "live")


async def test_a_single_instance_by_promise_locks_nothing(postgres_dsn: str) -> None:
    """With SINGLE_INSTANCE it runs all parts, and neither has locks nor is a member of anything."""
    history = History()
    bus = make_bus(postgres_dsn, history.handler("a"), instance_mode=InstanceMode.SINGLE_INSTANCE)
    async with bus, parts_of(postgres_dsn) as parts:
        expected = await publish(bus, 100)
        await bus.subscription(ID).caught_up(timeout=10)

        assert await parts.spread() == [-8]
        assert await parts.members() == []
        check_once(history.sequences, expected)
        history.check_order()
