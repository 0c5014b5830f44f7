"""Several processes on one file: one runs the handlers, the others publish and stand by."""

import os
import signal
import time
from pathlib import Path

import pytest

from postbus import DLQInspector, SQLiteStore
from tests.end_to_end.children.remote_bus import BEGAN
from tests.end_to_end.database import check_integrity, check_nothing_lost, check_nothing_stuck, statuses
from tests.end_to_end.history import DELIVERED, History
from tests.end_to_end.processes import Child, RemoteBus, RemoteError, wait_until

HANDLERS = {"ok.*": "ok", "slow.*": "slow", "poison.*": "poison"}


def new_bus(path: Path, name: str, **options: object) -> RemoteBus:
    return RemoteBus(path, path.parent, name=f"-by-{name}", handlers=HANDLERS, bus=options)


def wait_for_status(path: Path, event_id: str, status: str, timeout: float = 30.0) -> None:
    wait_until(lambda: statuses(path).get(event_id) == status, f"{event_id} is {status}", timeout)


def test_the_owner_delivers_what_another_process_publishes(path: Path, history: History) -> None:
    """The publisher's events are stored as pending; the owner finds them by itself, and soon."""
    with new_bus(path, "owner") as owner, new_bus(path, "other") as other:
        owner.ask("start")
        other.ask("start")
        published_at = time.monotonic()
        event_ids = [other.ask("publish", type="ok.event", payload=number) for number in range(20)]
        for event_id in event_ids:
            wait_for_status(path, event_id, "done")
        seconds = time.monotonic() - published_at

        assert history.of(f"{DELIVERED}-by-owner") == dict.fromkeys(event_ids, 1)
        assert not history.of(f"{DELIVERED}-by-other")
        assert seconds < 5.0  # twenty commits and a look every 20 ms; a poll once a second would not do


def test_the_owner_keeps_the_order_in_which_another_process_published(path: Path, history: History) -> None:
    """The backlog is worked off in the order of its publishing."""
    with new_bus(path, "owner") as owner, new_bus(path, "other") as other:
        owner.ask("start")
        other.ask("start")
        event_ids = [
            event_id for _ in range(5) for event_id in other.ask("publish_many", types=["ok.event"] * 50)
        ]
        wait_until(lambda: len(history.of(f"{DELIVERED}-by-owner")) == 250, "all events are delivered")

        assert [
            event_id for what, event_id in history.lines() if what == f"{DELIVERED}-by-owner"
        ] == event_ids


def test_a_standby_takes_over_within_a_second_when_the_owner_is_killed(path: Path, history: History) -> None:
    """It takes up what the owner was at, and what was pending."""
    with new_bus(path, "owner") as owner, new_bus(path, "standby") as standby:
        owner.ask("start")
        owner.begin("publish", type="slow.event")
        (in_flight,) = wait_until(lambda: history.of(f"{BEGAN}-by-owner"), "the owner's handler has begun")
        # It writes no more: from here on only its death can tell the standby anything.
        owner.signal(signal.SIGSTOP)
        standby.ask("start")
        standby.ask("release")
        pending = standby.ask("publish", type="ok.event")
        standby.ask("idle")
        owner.process.kill()
        killed_at = time.monotonic()
        wait_until(
            lambda: set(history.of(f"{DELIVERED}-by-standby")) == {in_flight, pending},
            "the standby has delivered both",
        )
        seconds = time.monotonic() - killed_at

        assert seconds < 1.0
        wait_for_status(path, in_flight, "done")
        assert standby.ask("event", event_id=in_flight)["retry_count"] == 1
        wait_for_status(path, pending, "done")


def test_a_standby_takes_over_at_once_when_the_owner_shuts_down(path: Path, history: History) -> None:
    """It delivers what the owner had to put back, no attempt counted, and from then on its own events."""
    with new_bus(path, "owner", shutdown_timeout=0.1) as owner, new_bus(path, "standby") as standby:
        owner.ask("start")
        standby.ask("start")
        standby.ask("release")
        owner.begin("publish", type="slow.event")
        (in_flight,) = wait_until(lambda: history.of(f"{BEGAN}-by-owner"), "the owner's handler has begun")
        owner.ask("shutdown")
        wait_for_status(path, in_flight, "done", timeout=1.0)
        event_id = standby.ask("publish", type="ok.event")

        assert standby.ask("event", event_id=in_flight)["retry_count"] == 0
        assert standby.ask("event", event_id=event_id)["status"] == "done"
        assert history.of(f"{DELIVERED}-by-standby") == {in_flight: 1, event_id: 1}


def test_nobody_steals_an_event_in_flight(path: Path, history: History) -> None:
    """Another process that starts, publishes and shuts down leaves the owner's event alone."""
    with new_bus(path, "owner") as owner:
        owner.ask("start")
        publishing = owner.begin("publish", type="slow.event")
        (event_id,) = wait_until(lambda: history.of(f"{BEGAN}-by-owner"), "the handler has begun")
        for _ in range(3):
            with new_bus(path, "other") as other:
                other.ask("start")
                other.ask("publish", type="ok.event")
                other.ask("publish", type="slow.event")
                other.ask("shutdown")
        assert statuses(path)[event_id] == "processing"
        owner.ask("release")

        assert owner.answer(publishing) == event_id
        owner.ask("idle")
        owner.ask("shutdown")
    assert history.of(f"{BEGAN}-by-owner")[event_id] == 1
    assert not history.of(f"{BEGAN}-by-other")
    assert set(history.of(f"{DELIVERED}-by-owner").values()) == {1}
    assert set(statuses(path).values()) == {"done"}


async def test_dead_letters_are_seen_and_retried_from_another_process(path: Path) -> None:
    """The running bus takes up the retried letter by itself, and soon."""
    with new_bus(path, "owner") as owner:
        owner.ask("start")
        event_id = owner.ask("publish", type="poison.event", payload={"order": 42})
        owner.ask("release")
        async with SQLiteStore(path) as store:
            inspector = DLQInspector(store)
            page = await inspector.list()
            letter = await inspector.get(event_id)
            await inspector.retry(event_id)
            retried_at = time.monotonic()
            wait_for_status(path, event_id, "done")
            seconds = time.monotonic() - retried_at
            left = await inspector.list()

    assert ([event.id for event in page.events], page.total) == ([event_id], 1)
    assert letter.payload == {"order": 42}
    assert letter.errors == ["ValueError: nobody can process this"] * 2
    assert seconds < 1.0
    assert left.total == 0


async def test_dead_letters_are_retried_while_no_bus_is_running(path: Path, history: History) -> None:
    """The letter is pending, and the next start delivers it."""
    with new_bus(path, "first") as first:
        first.ask("start")
        event_id = first.ask("publish", type="poison.event")
        first.ask("shutdown")
    async with SQLiteStore(path) as store:
        page = await DLQInspector(store).list()
        await DLQInspector(store).retry(event_id)
        retried = await store.get(event_id)
    with new_bus(path, "second") as second:
        second.ask("release")
        second.ask("start")
        second.ask("idle")

    assert page.total == 1
    assert (retried.status, retried.retry_count, retried.last_error) == ("pending", 0, None)
    assert history.of(f"{DELIVERED}-by-second") == {event_id: 1}


async def test_an_inspector_does_not_take_the_dispatch_from_a_bus(path: Path) -> None:
    """A process that only looks at dead letters runs no handlers, so it must not be the owner."""
    async with SQLiteStore(path) as store:
        await DLQInspector(store).list()
        with new_bus(path, "only") as bus:
            bus.ask("start")
            event_id = bus.ask("publish", type="ok.event")

            assert bus.ask("event", event_id=event_id)["status"] == "done"


@pytest.mark.parametrize("is_killed", [True, False])
def test_a_forked_child_can_neither_use_nor_keep_what_it_inherited(
    path: Path, history: History, tmp_path: Path, is_killed: bool
) -> None:
    """It is told so, its parent goes on, and when the parent is gone the dispatch is free though it lives."""
    end = tmp_path / "end"
    with Child("fork_after_start", path, history.path, end, folder=tmp_path) as parent:
        child = int(parent.hear().removeprefix("child "))
        try:
            heard = []
            while (line := parent.hear()) != "used":
                heard.append(line)
            parent.say("publish")
            parent.expect("published")
            if is_killed:
                parent.kill()
            else:
                assert parent.process.stdin is not None
                parent.process.stdin.close()
                assert parent.wait() == 0, parent.errors()
            os.kill(child, 0)
            with new_bus(path, "next") as next_owner:
                next_owner.ask("start")
                event_id = next_owner.ask("publish", type="ok.event")

                assert next_owner.ask("event", event_id=event_id)["status"] == "done"
                next_owner.ask("idle")
                next_owner.ask("shutdown")
        finally:
            end.touch()
            wait_until(lambda: is_gone(child), "the forked child is gone")
    uses = ("publish", "publish_many", "idle", "get", "list", "retry")
    assert heard == [*(f"{use}: BusLoopError" for use in uses), "close: None"]
    check_nothing_lost(path, history, history.acknowledged())
    check_integrity(path)


def test_a_forked_child_that_ends_takes_nothing_from_its_parent(
    path: Path, history: History, tmp_path: Path
) -> None:
    """Whatever runs at its exit leaves the parent's threads, files and locks alone."""
    end = tmp_path / "end"
    with Child("fork_after_start", path, history.path, end, folder=tmp_path) as parent:
        child = int(parent.hear().removeprefix("child "))
        while parent.hear() != "used":
            pass
        end.touch()
        wait_until(lambda: is_gone(child), "the forked child is gone")
        with new_bus(path, "standby") as standby:
            standby.ask("start")
            left_to_parent = standby.ask("publish", type="ok.event")
            for _ in range(5):
                parent.say("publish")
                parent.expect("published")
            wait_for_status(path, left_to_parent, "done")

            assert history.of(DELIVERED)[left_to_parent] == 1
        assert parent.process.stdin is not None
        parent.process.stdin.close()
        assert parent.wait() == 0, parent.errors()
    check_nothing_lost(path, history, history.acknowledged())
    check_nothing_stuck(path, history)
    check_integrity(path)


def test_publishing_after_shutdown_is_refused_and_stores_nothing(path: Path) -> None:
    """The error says what to do."""
    with new_bus(path, "only") as bus:
        bus.ask("start")
        bus.ask("shutdown")
        with pytest.raises(RemoteError, match="make a new EventBus") as refused:
            bus.ask("publish", type="ok.event")

    assert refused.value.name == "EventBusShutdownError"
    assert statuses(path) == {}


def is_gone(process: int) -> bool:
    """Whether it has ended; a zombie that nobody has waited for has ended too."""
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return True
    stat = Path(f"/proc/{process}/stat")
    return stat.exists() and stat.read_text().rpartition(")")[2].split()[0] == "Z"
