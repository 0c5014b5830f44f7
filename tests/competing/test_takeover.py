"""What a worker has is taken over when it gives no sign of life; what it does late counts for nothing."""

import signal
import time
from pathlib import Path

import pytest

from tests.competing.processes import Instance, publish
from tests.competing.steps import ID
from tests.end_to_end.children.competing_instance import BEGAN
from tests.end_to_end.history import History
from tests.end_to_end.processes import wait_until
from tests.instances.steps import look

EFFECTS = "CREATE TABLE effects (event_id text, instance text)"


def rows(dsn: str) -> list[tuple[object, ...]]:
    return look(dsn, "SELECT status, is_suspect, attempt_count FROM postbus.event_bus_outbox")


def processed(history: History, name: str) -> set[str]:
    return set(history.of(f"{ID}-by-{name}"))


@pytest.mark.parametrize("is_feeder", [True, False])
def test_the_events_of_a_killed_worker_are_taken_over_in_about_a_second(
    dsn: str, history: History, tmp_path: Path, is_feeder: bool
) -> None:
    """Its session is gone, and everybody can see that."""
    with (
        Instance(dsn, tmp_path, "first", kind="slow" if is_feeder else "ok") as first,
        Instance(dsn, tmp_path, "second", kind="ok" if is_feeder else "slow") as second,
    ):
        killed, stays = (first, second) if is_feeder else (second, first)
        first.ask("start")
        first.wait_for_state("live")
        second.ask("start")
        second.wait_for_state("live")
        # The other may be faster.
        wait_until(
            lambda: first.ask("publish", count=20) and history.of(f"{BEGAN}-{ID}-by-{killed.name}"),
            "the slow one is at work",
        )
        killed.kill()
        killed_at = time.monotonic()
        wait_until(lambda: processed(history, stays.name) == history.acknowledged(), "all are processed")
        seconds = time.monotonic() - killed_at
        stays.ask("caught_up", id=ID)

    assert seconds < 4.0
    assert rows(dsn) == []


@pytest.mark.parametrize("kind", ["slow", "held"])
def test_a_worker_that_stands_still_is_replaced_and_changes_nothing_when_it_goes_on(
    dsn: str, history: History, tmp_path: Path, kind: str
) -> None:
    """Within failover_timeout; then its finished rows are another's, and its transactions undone."""
    look(dsn, EFFECTS)
    config = {"failover_timeout": 2.0}
    other = "ok" if kind == "slow" else "transactional"
    with (
        Instance(dsn, tmp_path, "first", kind=kind, config=config, concurrency=2) as first,
        Instance(dsn, tmp_path, "second", kind=other, config=config) as second,
    ):
        first.ask("start")
        (event_id,) = first.ask("publish")
        wait_until(lambda: history.of(f"{BEGAN}-{ID}-by-first"), "the first is at work")
        second.ask("start")
        second.wait_for_state("live")
        first.signal(signal.SIGSTOP)
        stopped_at = time.monotonic()
        second.ask("caught_up", id=ID)
        seconds = time.monotonic() - stopped_at
        first.signal(signal.SIGCONT)
        first.ask("release")
        second.ask("publish", count=5)
        second.ask("caught_up", id=ID)
        first.ask("shutdown")

    assert seconds < 4.0
    assert rows(dsn) == []
    if kind == "held":
        effects = look(dsn, "SELECT event_id, count(*) FROM effects GROUP BY event_id")
        assert dict(effects) == dict.fromkeys(history.acknowledged(), 1)
        assert look(dsn, "SELECT instance FROM effects WHERE event_id = $1", event_id) == [("second",)]


def test_slow_handlers_keep_their_rows(dsn: str, history: History, tmp_path: Path) -> None:
    """However long they take: the lease is renewed as long as the worker lives."""
    config = {"failover_timeout": 1.0}
    with (
        Instance(dsn, tmp_path, "first", kind="slow", config=config) as first,
        Instance(dsn, tmp_path, "second", kind="ok", config=config) as second,
    ):
        first.ask("start")
        first.ask("publish", count=3)
        wait_until(lambda: len(history.of(f"{BEGAN}-{ID}-by-first")) == 3, "the first has all")
        second.ask("start")
        deadline = time.monotonic() + 3.0
        wait_until(lambda: time.monotonic() > deadline, "three leases are over")
        first.ask("release")
        first.ask("caught_up", id=ID)

    assert processed(history, "first") == history.acknowledged()
    assert processed(history, "second") == set()


def test_an_event_that_ends_the_process_becomes_a_dead_letter_and_no_other_does(
    dsn: str, history: History, tmp_path: Path
) -> None:
    """After max_retries + 1 attempts that were counted; those that were in hand with it are processed."""
    config, death_count = {"max_retries": 2}, 0
    published = publish(dsn, *range(20), "poison", *range(20))
    while True:
        with Instance(dsn, tmp_path, "worker", kind="poison", config=config, pause=0.01) as worker:
            worker.ask("start")
            wait_until(lambda worker=worker: _is_dead(worker) or _is_all_done(dsn), "it dies or is done")  # type: ignore[misc]
            if not _is_dead(worker):
                break
            death_count += 1

    ((payload, story),) = look(dsn, "SELECT payload, error_history::text FROM postbus.event_bus_dlq")
    assert (payload, str(story).count("interrupted")) == ('"poison"', 3)
    # The first attempt was not counted: it could have been any of those in hand.
    assert death_count == 4
    assert len(published - processed(history, "worker")) == 1


def test_a_retry_that_ends_the_process_is_told_in_its_letter(dsn: str, tmp_path: Path) -> None:
    """And does not come again and again."""
    config = {"max_retries": 0}
    publish(dsn, "poison")

    def run() -> int:
        """How many workers die until nothing is left to be done."""
        for death_count in range(5):
            with Instance(dsn, tmp_path, "worker", kind="poison", config=config) as worker:
                worker.ask("start")
                wait_until(lambda worker=worker: _is_dead(worker) or _is_all_done(dsn), "it dies or is done")  # type: ignore[misc]
                if not _is_dead(worker):
                    return death_count
        raise AssertionError("it dies again and again")

    deaths_before = run()
    look(dsn, "UPDATE postbus.event_bus_dlq SET retry_wanted_at = now()")
    deaths = run()

    ((story, wanted_at),) = look(
        dsn, "SELECT error_history::text, retry_wanted_at FROM postbus.event_bus_dlq"
    )
    assert (deaths_before, deaths) == (2, 2)
    assert str(story).count("interrupted") == 2
    assert wanted_at is None


def _is_dead(worker: Instance) -> bool:
    return worker.process.poll() is not None


def _is_all_done(dsn: str) -> bool:
    fed = look(
        dsn,
        "SELECT 1 FROM postbus.event_bus_checkpoints WHERE subscriber_id = $1 AND last_global_sequence >= "
        "(SELECT max(global_sequence) FROM postbus.events)",
        ID,
    )
    wanted = look(dsn, "SELECT 1 FROM postbus.event_bus_dlq WHERE retry_wanted_at IS NOT NULL")
    return bool(fed) and not wanted and not rows(dsn)
