"""Cancelled at the k-th turn of the event loop, or by Ctrl-C: nothing is lost, nothing is left behind."""

import asyncio
import itertools
import random
import signal
import threading
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from postbus import Event, EventBus, RetryPolicy
from tests.end_to_end.database import (
    check_batches_are_whole,
    check_integrity,
    check_nothing_lost,
    check_nothing_stuck,
    connect,
)
from tests.end_to_end.history import History
from tests.end_to_end.processes import Child, wait_until
from tests.end_to_end.step_loop import StepLoop

Act = Callable[[EventBus], Awaitable[object]]

ACTS: dict[str, Act] = {
    "publish": lambda bus: bus.publish("async.victim"),
    "publish to a thread": lambda bus: bus.publish("plain.victim"),
    "publish to a flaky handler": lambda bus: bus.publish("flaky.victim"),
    "publish without waiting": lambda bus: bus.publish("async.victim", wait=False),
    "publish a given id": lambda bus: bus.publish("async.victim", event_id="given"),
    "publish many": lambda bus: bus.publish_many([("async.victim", {"batch": "only", "size": 3})] * 3),
    "idle": lambda bus: bus.idle(),
    "dead letters": lambda bus: bus.dlq.list(),
}
# An act that takes more turns than this has lost its way.
MOST_TURNS = 500


def make_bus(path: Path) -> EventBus:
    bus = EventBus(path, retry=RetryPolicy(base_delay=0.0), shutdown_timeout=10.0)

    @bus.on("async.*")
    async def succeed(event: Event) -> None:
        for _ in range(3):
            await asyncio.sleep(0)

    @bus.on("plain.*")
    def succeed_in_a_thread(event: Event) -> None:
        pass

    @bus.on("flaky.*")
    async def fail_once(event: Event) -> None:
        if event.retry_count == 0:
            raise ConnectionError("the first attempt always fails")

    return bus


async def cancel(act: Callable[[], Awaitable[object]], turn_count: int) -> bool:
    """Whether there was so late a turn: false means that the act was over before."""

    async def run() -> object:
        return await act()

    loop = asyncio.get_running_loop()
    assert isinstance(loop, StepLoop)
    victim: asyncio.Task[object] = asyncio.create_task(run())
    loop.cancel_after(turn_count, victim)
    await asyncio.wait([victim])
    if not victim.cancelled():
        victim.result()
    return victim.cancelled()


def check_nothing_left_behind(before: "Left") -> None:
    """Threads end a moment after their last piece of work."""
    wait_until(
        lambda: threading.active_count() <= before.thread_count, f"threads end: {threading.enumerate()}", 5.0
    )
    assert open_files() <= before.files


class Left:
    """The threads and files of this process at a moment."""

    def __init__(self) -> None:
        self.thread_count = threading.active_count()
        self.files = open_files()


def open_files() -> set[str]:
    """What this process has open, where the system can tell."""
    folder = Path("/proc/self/fd")
    links = list(folder.iterdir()) if folder.exists() else []
    names = set()
    for link in links:
        try:
            names.add(str(link.readlink()))
        except FileNotFoundError:
            continue  # the listing itself
    return {name for name in names if "events.db" in name}


def run_at_every_turn(folder: Path, scenario: Callable[[Path, int], Awaitable[bool]]) -> int:
    """Run the scenario with k = 1, 2, … until it was over before the k-th turn; that k."""
    for k in itertools.count(1):
        assert k < MOST_TURNS
        (folder / str(k)).mkdir()
        path = folder / str(k) / "events.db"
        before = Left()
        try:
            with asyncio.Runner(loop_factory=StepLoop) as runner:
                was_cancelled = runner.run(within_limits(scenario(path, k)))
            check_nothing_left_behind(before)
            check_after(path)
        except Exception as error:
            raise AssertionError(f"at turn {k}: {error!r}") from error
        if not was_cancelled:
            return k
    raise AssertionError


async def within_limits(scenario: Awaitable[bool]) -> bool:
    async with asyncio.timeout(30):
        was_cancelled = await scenario
    others = asyncio.all_tasks() - {asyncio.current_task()}
    assert not others, f"tasks left behind: {others}"
    return was_cancelled


def check_after(path: Path) -> None:
    """The victim was not stored, or is done; what was published after it is done."""
    check_integrity(path)
    check_batches_are_whole(path)
    with connect(path) as connection:
        found = connection.execute("SELECT type, status, retry_count FROM events").fetchall()
    assert {status for _, status, _ in found} <= {"done"}, found
    assert [type for type, _, _ in found].count("async.after") == 1


@pytest.mark.parametrize("name", ACTS)
@pytest.mark.parametrize("is_started", [True, False], ids=["started", "starting"])
def test_a_cancelled_call_harms_nobody(tmp_path: Path, name: str, is_started: bool) -> None:
    """The event was not stored, or ends done; the bus goes on, and leaves no task, thread or file behind."""

    async def scenario(path: Path, k: int) -> bool:
        bus = make_bus(path)
        if is_started:
            await bus.start()
        was_cancelled = await cancel(lambda: ACTS[name](bus), k)
        await bus.publish("async.after")
        await bus.idle()
        await bus.shutdown()
        return was_cancelled

    assert run_at_every_turn(tmp_path, scenario) > 1


def test_a_cancelled_start_can_be_repeated(tmp_path: Path) -> None:
    """Whatever it had opened is used or closed."""

    async def scenario(path: Path, k: int) -> bool:
        bus = make_bus(path)
        was_cancelled = await cancel(bus.start, k)
        await bus.start()
        await bus.publish("async.after")
        await bus.shutdown()
        return was_cancelled

    assert run_at_every_turn(tmp_path, scenario) > 1


def test_a_bus_whose_start_was_cancelled_can_be_shut_down(tmp_path: Path) -> None:
    """It lets go of the dispatch: another bus on the same file is the owner."""

    async def scenario(path: Path, k: int) -> bool:
        abandoned = make_bus(path)
        was_cancelled = await cancel(abandoned.start, k)
        await abandoned.shutdown()
        async with make_bus(path) as bus:
            await bus.publish("async.after")
        return was_cancelled

    assert run_at_every_turn(tmp_path, scenario) > 1


def test_a_cancelled_shutdown_can_be_repeated(tmp_path: Path) -> None:
    """What was in flight is delivered by the next bus, if not by this one."""

    async def scenario(path: Path, k: int) -> bool:
        bus = make_bus(path)
        await bus.publish("async.after")
        for _ in range(3):
            await bus.publish("async.victim", wait=False)
        was_cancelled = await cancel(bus.shutdown, k)
        await bus.shutdown()
        async with make_bus(path) as following:
            await following.idle()
        return was_cancelled

    assert run_at_every_turn(tmp_path, scenario) > 1


def test_ctrl_c_ends_a_program_cleanly(
    path: Path, history: History, tmp_path: Path, rng: random.Random
) -> None:
    """`async with bus` drains; the exit code is the program's own; nothing acknowledged is lost."""
    for _ in range(8):
        with Child("publish_until_killed", path, history.path, folder=tmp_path) as child:
            child.say("publish")
            child.expect("recovered")
            child.expect("acknowledged")
            time.sleep(rng.uniform(0.0, 0.1))
            child.signal(signal.SIGINT)
            child.expect("interrupted")

            assert child.wait() == 0
            assert child.errors() == ""
        check_nothing_lost(path, history, history.acknowledged() - pending_events(path))
    with Child("publish_until_killed", path, history.path, folder=tmp_path) as child:
        child.say("finish")
        child.expect("recovered")
        assert child.wait() == 0, child.errors()

    check_nothing_lost(path, history, history.acknowledged())
    check_nothing_stuck(path, history)
    check_batches_are_whole(path)
    check_integrity(path)


def pending_events(path: Path) -> set[str]:
    """A shutdown leaves what nobody has begun to the next start; nothing is in processing any more."""
    with connect(path) as connection:
        return {row[0] for row in connection.execute("SELECT id FROM events WHERE status = 'pending'")}
