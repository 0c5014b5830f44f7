"""kill -9 of workers at random moments while events flow: zero lost, transactional effects exactly once."""

import random
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.competing.processes import Instance
from tests.competing.steps import ID
from tests.end_to_end.history import History
from tests.end_to_end.processes import wait_until
from tests.instances.steps import look

EFFECTS = "CREATE TABLE effects (event_id text, instance text)"
BOOKS = "books"
KILL_COUNT = 40
# An attempt that its process did not survive counts, once it is a suspect's.
CONFIG = {"max_retries": 20, "failover_timeout": 3.0}
PUBLISHED_AT_ONCE = 40


def check_everything(dsn: str, history: History) -> None:
    """What was published was processed by each pool, nothing is left, and nothing is a dead letter."""
    published = {event_id for (event_id,) in look(dsn, "SELECT id FROM postbus.events")}
    assert history.acknowledged() <= published
    processed = {event_id for what, event_id in history.lines() if what.startswith(f"{ID}-by-")}
    assert not published - processed, f"lost: {history.story(published - processed)}"
    effects = dict(look(dsn, "SELECT event_id, count(*) FROM effects GROUP BY event_id"))
    assert effects == dict.fromkeys(published, 1)
    assert look(dsn, "SELECT id FROM postbus.event_bus_dlq") == []
    assert look(dsn, "SELECT id FROM postbus.event_bus_outbox") == []


def run_and_kill(
    dsn: str,
    folder: Path,
    rng: random.Random,
    kill_count: int,
    subscribers: Callable[[int], dict[str, dict[str, Any]]],
) -> None:
    """Three instances, of which one after the other is killed and replaced, and a publisher."""
    with ExitStack() as stack:

        def begin(number: int) -> Instance:
            found = subscribers(number)
            instance = Instance(dsn, folder, f"{number}", config=CONFIG, subscribers=found)
            stack.enter_context(instance)
            instance.ask("start")
            return instance

        publisher = stack.enter_context(
            Instance(dsn, folder, "publisher", subscribers={"none": {"kind": "ok"}})
        )
        running = [begin(number) for number in range(3)]
        for number in range(3, 3 + kill_count):
            publishing = publisher.begin("publish", count=PUBLISHED_AT_ONCE)
            time.sleep(rng.uniform(0.0, 0.2))
            running.pop(rng.randrange(len(running))).kill()
            publisher.answer(publishing)
            running.append(begin(number))
        for each in (ID, BOOKS):
            running[-1].ask("caught_up", id=each, timeout=40)
        wait_until(lambda: not look(dsn, "SELECT 1 FROM postbus.event_bus_outbox"), "nothing is left")


@pytest.mark.timeout(180)
def test_forty_kills_lose_nothing(dsn: str, history: History, tmp_path: Path, rng: random.Random) -> None:
    """A pool that notes events and one that writes in transactions, in three instances at a time."""
    look(dsn, EFFECTS)

    def subscribers(number: int) -> dict[str, dict[str, Any]]:
        return {
            ID: {"kind": "ok", "mode": "competing", "pause": 0.002},
            BOOKS: {"kind": "transactional", "mode": "competing", "pause": 0.001, "concurrency": 3},
        }

    run_and_kill(dsn, tmp_path, rng, KILL_COUNT, subscribers)

    check_everything(dsn, history)


@pytest.mark.timeout(180)
def test_kills_in_the_middle_of_changes_of_mode_lose_nothing(
    dsn: str, history: History, tmp_path: Path, rng: random.Random
) -> None:
    """Every instance that comes has another mode than the one before."""
    look(dsn, EFFECTS)

    def subscribers(number: int) -> dict[str, dict[str, Any]]:
        mode = ("ordered", "competing")[number % 2]
        return {
            ID: {"kind": "ok", "mode": mode, "pause": 0.002},
            BOOKS: {"kind": "transactional", "mode": mode, "pause": 0.001},
        }

    run_and_kill(dsn, tmp_path, rng, KILL_COUNT // 2, subscribers)

    check_everything(dsn, history)
