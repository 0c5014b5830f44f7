"""kill -9 of a process with three durable subscribers, two hundred times in all: nobody loses an event."""

import random
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.end_to_end.children.durable_subscribers import (
    BATCH_SIZE,
    BATCHED,
    SUBSCRIBERS,
    SYNCHRONOUS,
    TRANSACTIONAL,
)
from tests.end_to_end.database import check_batches_are_whole, check_integrity
from tests.end_to_end.durable_database import (
    KILLED,
    check_acknowledged_stored,
    check_all_handled,
    check_effects_once,
    check_order,
    check_repetitions,
    dead_letters,
    numbers,
)
from tests.end_to_end.history import History
from tests.end_to_end.processes import Killed

# Four tests of so many, which may run at the same time: 200 in all.
KILL_COUNT = 50


@pytest.mark.timeout(180)
@pytest.mark.parametrize("role", ["work", "subscribe"])
@pytest.mark.parametrize("synchronous", ["FULL", "NORMAL"])
def test_fifty_kills_at_any_moment_lose_nothing(
    path: Path, history: History, tmp_path: Path, rng: random.Random, role: str, synchronous: str
) -> None:
    """Every event is handled by each, or its dead letter; repeated at most by a batch; effects once.

    NORMAL is quick, so that more happens in every life; a killed process loses nothing by it.
    """
    resumed: list[float] = []
    with ExitStack() as stack:

        def new_child() -> Killed:
            arguments = (path, history.path, synchronous)
            return stack.enter_context(Killed("durable_subscribers", *arguments, folder=tmp_path))

        child, publisher = new_child(), new_child()
        publishing = None
        if role == "subscribe":
            publishing = publisher.begin("publish")
            publisher.expect("begun")
        for _ in range(KILL_COUNT):
            began_at = time.monotonic()
            process = child.begin(role)
            # Some at their start, most when something is at stake.
            if rng.random() < 0.8:
                child.expect("begun")
                resumed.append(time.monotonic() - began_at)
            time.sleep(rng.uniform(0.0, 0.2))
            child.end(process)
            history.note(KILLED, str(process))
        if publishing is not None:
            publisher.end(publishing)
        child.begin("finish")
        while (heard := child.hear()) == "begun":
            pass
        assert heard == "0", child.errors()

    check_everything(path, history)
    # Nine of ten: a loaded machine is slow and not wrong.
    assert sorted(resumed)[len(resumed) * 9 // 10] < 1.0, f"at work again after {sorted(resumed)} s"


def check_everything(path: Path, history: History) -> None:
    """What was promised, against the history."""
    assert len(history.acknowledged()) > 5 * KILL_COUNT
    check_acknowledged_stored(path, history)
    poison = numbers(path, "%.poison").keys()
    for subscriber_id in SUBSCRIBERS:
        dead = dead_letters(path, subscriber_id).keys()
        assert dead == poison, f"{subscriber_id} gave up others\n{history.story(dead ^ poison)}"
    for subscriber_id, most in ((SYNCHRONOUS, 1), (BATCHED, BATCH_SIZE)):
        handled = [event_id for what, event_id in history.lines() if what == subscriber_id]
        check_all_handled(path, history, subscriber_id, handled)
        check_order(path, history, subscriber_id, handled)
        check_repetitions(history, subscriber_id, most)
    check_effects_once(path, history, TRANSACTIONAL)
    check_batches_are_whole(path)
    check_integrity(path)
