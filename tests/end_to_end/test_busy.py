"""Many writers on one file, and a stranger who holds it: everybody waits, nobody fails."""

import asyncio
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from postbus import Event, EventBus
from tests.end_to_end.children.write_for import make_bus
from tests.end_to_end.database import check_integrity, check_nothing_lost, check_nothing_stuck, statuses
from tests.end_to_end.history import DELIVERED, History
from tests.end_to_end.processes import Child, RemoteBus
from tests.end_to_end.ticker import Ticker

WRITER_COUNT = 8
HOLD_SECONDS = 2.0


def run_writers(path: Path, history: History, how: str, seconds: float) -> list[int]:
    """Let all of them begin at the same moment; how often each one did it."""
    with ExitStack() as stack:
        writers = [
            stack.enter_context(Child("write_for", path, history.path, how, seconds, folder=path.parent))
            for _ in range(WRITER_COUNT)
        ]
        for writer in writers:
            writer.say("begin")
        counts = [int(writer.hear(timeout=seconds + 30)) for writer in writers]
        for writer in writers:
            assert writer.wait() == 0, writer.errors()
            assert writer.errors() == ""
    return counts


def test_eight_processes_write_one_file(path: Path, history: History, tmp_path: Path) -> None:
    """No "database is locked" reaches a user, and the one owner delivers everything, each event once."""
    with RemoteBus(path, tmp_path, name="-by-owner", handlers={"ok.*": "ok"}) as owner:
        owner.ask("start")
        counts = run_writers(path, history, "publish", seconds=6.0)
        owner.ask("idle")
        owner.ask("shutdown")

    acknowledged = history.acknowledged()
    print(f"published by each: {counts}")
    assert len(acknowledged) == sum(counts)
    assert min(counts) > 0
    assert statuses(path) == dict.fromkeys(acknowledged, "done")
    assert history.of(f"{DELIVERED}-by-owner") == dict.fromkeys(acknowledged, 1)
    check_integrity(path)


def test_eight_processes_start_and_end_on_one_file(path: Path, history: History) -> None:
    """Opening and closing take locks of their own: to make the file, its log, and to tidy up at last."""
    counts = run_writers(path, history, "restart", seconds=5.0)

    asyncio.run(work_off(path, history))
    acknowledged = history.acknowledged()
    print(f"starts of each: {counts}")
    assert len(acknowledged) == sum(counts)
    assert min(counts) > 0
    check_nothing_lost(path, history, acknowledged)
    check_nothing_stuck(path, history)
    check_integrity(path)


async def work_off(path: Path, history: History) -> None:
    async with make_bus(str(path), history) as bus:
        await bus.idle()


async def test_publishers_wait_for_a_stranger_who_holds_the_file(path: Path, tmp_path: Path) -> None:
    """Longer than SQLite's own busy timeout; the event loop goes on all the while."""
    bus = EventBus(path)
    delivered: list[str] = []

    @bus.on("*")
    async def note(event: Event) -> None:
        delivered.append(event.id)

    async with bus:
        with Child("hold_database", path, folder=tmp_path) as stranger:
            await asyncio.to_thread(stranger.expect, "held")
            async with Ticker() as ticker:
                publishing = [
                    asyncio.create_task(bus.publish("order.placed", number)) for number in range(20)
                ]
                await asyncio.sleep(HOLD_SECONDS)
                done_while_held = [task for task in publishing if task.done()]
                stranger.say("release")
                event_ids = await asyncio.wait_for(asyncio.gather(*publishing), 10)

    assert not done_while_held
    assert sorted(delivered) == sorted(event_ids)
    assert statuses(path) == dict.fromkeys(event_ids, "done")
    assert ticker.percentile(0.99) < 0.5, ticker.report()


@pytest.mark.parametrize("is_new", [True, False], ids=["new file", "old file"])
async def test_a_bus_that_starts_waits_for_a_stranger_who_holds_the_file(
    path: Path, tmp_path: Path, is_new: bool
) -> None:
    """The stranger may be another process that is just making the tables."""
    if not is_new:
        async with EventBus(path) as first:
            await first.publish("order.placed")
    with Child("hold_database", path, folder=tmp_path) as stranger:
        await asyncio.to_thread(stranger.expect, "held")
        async with Ticker() as ticker:
            bus = EventBus(path)
            starting = asyncio.create_task(bus.start())
            await asyncio.sleep(HOLD_SECONDS)
            stranger.say("release")
            await asyncio.wait_for(starting, 10)
    event_id = await bus.publish("order.placed")
    await bus.shutdown()

    assert statuses(path)[event_id] == "done"
    assert ticker.percentile(0.99) < 0.5, ticker.report()


async def test_a_bus_is_started_and_shut_down_quickly(path: Path) -> None:
    """Nothing waits for a timeout where nobody is in the way."""
    durations = []
    for _ in range(5):
        began_at = time.monotonic()
        async with EventBus(path) as bus:
            await bus.publish("order.placed")
        durations.append(time.monotonic() - began_at)

    assert min(durations) < 0.5
