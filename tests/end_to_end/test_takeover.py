"""A durable subscriber is active in one process; another takes over when that one ends."""

import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.end_to_end.children.durable_bus import BEGAN
from tests.end_to_end.durable_buses import AT_WORK, DurableBus
from tests.end_to_end.durable_database import check_acknowledged_stored, check_effects_once, numbers
from tests.end_to_end.history import History
from tests.end_to_end.processes import wait_until


def test_a_subscriber_is_active_in_one_process_and_stands_by_in_the_other(
    path: Path, history: History
) -> None:
    """Both publish, and only the first delivers."""
    with DurableBus(path, "first", mail="ok") as first, DurableBus(path, "second", mail="ok") as second:
        first.ask("start")
        first.wait_for_state("mail", *AT_WORK)
        second.ask("start")
        second.wait_for_state("mail", "standby")
        event_ids = [*second.ask("publish", count=20), *first.ask("publish", count=20)]
        first.ask("caught_up", id="mail")

        assert second.ask("state", id="mail") == "standby"
    assert history.of("mail-by-first") == dict.fromkeys(event_ids, 1)
    assert not history.of("mail-by-second")


def test_a_killed_process_is_replaced_within_a_second(path: Path, history: History) -> None:
    """The standby delivers the event at which the other died, and all that follow, in order."""
    with DurableBus(path, "first", mail="slow") as first, DurableBus(path, "second", mail="slow") as second:
        first.ask("start")
        event_ids = first.ask("publish", count=3)
        wait_until(lambda: history.of(f"{BEGAN}-mail-by-first"), "the first is at its first event")
        second.ask("start")
        second.ask("release")
        second.wait_for_state("mail", "standby")
        first.process.kill()
        killed_at = time.monotonic()
        wait_until(lambda: history.of("mail-by-second"), "the second has taken over")
        seconds = time.monotonic() - killed_at
        second.ask("caught_up", id="mail")

        assert seconds < 1.0
        second.wait_for_state("mail", "live")
    assert [each for what, each in history.lines() if what == "mail-by-second"] == event_ids


def test_a_process_that_shuts_down_is_replaced_within_a_second(path: Path, history: History) -> None:
    """Nothing comes twice, because the first has written its checkpoint."""
    with DurableBus(path, "first", mail="ok") as first, DurableBus(path, "second", mail="ok") as second:
        first.ask("start")
        before = first.ask("publish", count=50)
        first.ask("caught_up", id="mail")
        second.ask("start")
        second.wait_for_state("mail", "standby")
        first.ask("shutdown")
        shut_down_at = time.monotonic()
        second.wait_for_state("mail", *AT_WORK)
        seconds = time.monotonic() - shut_down_at
        after = second.ask("publish", count=50)
        second.ask("caught_up", id="mail")

    assert seconds < 1.0
    assert history.of("mail-by-first") == dict.fromkeys(before, 1)
    assert history.of("mail-by-second") == dict.fromkeys(after, 1)


@pytest.mark.parametrize("kind", ["ok", "transactional"])
def test_a_process_that_stands_still_keeps_its_subscriber_and_loses_nothing(
    path: Path, history: History, kind: str
) -> None:
    """Its lock is the system's and has no lease: the standby waits, and all is delivered afterwards."""
    with DurableBus(path, "first", mail=kind) as first, DurableBus(path, "second", mail=kind) as second:
        first.ask("start")
        first.wait_for_state("mail", *AT_WORK)
        second.ask("start")
        second.wait_for_state("mail", "standby")
        first.signal(signal.SIGSTOP)
        event_ids = second.ask("publish", count=20)
        # Several times as long as a standby waits before it asks for the lock again.
        states = {second.ask("state", id="mail") for _ in moments_within(1.0)}
        first.signal(signal.SIGCONT)
        first.ask("caught_up", id="mail")

    assert states == {"standby"}
    assert history.of("mail-by-first") == dict.fromkeys(event_ids, 1)
    assert not history.of("mail-by-second")
    if kind == "transactional":
        check_effects_once(path, history, "mail")


def test_different_subscribers_are_active_in_different_processes_at_the_same_time(
    path: Path, history: History
) -> None:
    """Each gets every event, the transactional one's effects are there once."""
    with (
        DurableBus(path, "first", mail="ok") as first,
        DurableBus(path, "second", books="transactional") as second,
    ):
        first.ask("start")
        second.ask("start")
        first.wait_for_state("mail", *AT_WORK)
        second.wait_for_state("books", *AT_WORK)
        first.ask("publish", count=30)
        second.ask("publish", count=30)
        first.ask("caught_up", id="mail")
        second.ask("caught_up", id="books")

        assert (first.ask("state", id="mail"), second.ask("state", id="books")) == ("live", "live")
    everything = dict.fromkeys(numbers(path), 1)
    assert history.of("mail-by-first") == history.of("books-by-second") == everything
    check_acknowledged_stored(path, history)
    check_effects_once(path, history, "books")


def test_a_subscriber_goes_from_process_to_process_without_a_loss(path: Path, history: History) -> None:
    """Ten processes, one after the other killed while the next stands by and somebody publishes."""
    with ExitStack() as stack:

        def start(name: str, **subscribers: str) -> DurableBus:
            bus = stack.enter_context(DurableBus(path, name, **subscribers))
            bus.ask("start")
            return bus

        publisher = start("publisher")
        current = start("0", mail="ok", books="transactional")
        for number in range(1, 10):
            current.wait_for_state("mail", *AT_WORK)
            following = start(str(number), mail="ok", books="transactional")
            publishing = publisher.begin("publish", count=200)
            current.kill()
            publisher.answer(publishing)
            current = following
        current.ask("caught_up", id="mail")
        current.ask("caught_up", id="books")

    handled = {each for what, each in history.lines() if what.startswith("mail-by-")}
    assert handled == numbers(path).keys() == history.acknowledged()
    check_effects_once(path, history, "books")


def moments_within(seconds: float) -> Iterator[float]:
    """Now and then until so many seconds are over: that something does not happen takes its time."""
    deadline = time.monotonic() + seconds
    while (now := time.monotonic()) < deadline:
        yield now
        time.sleep(0.05)
