"""kill -9 of a process with three durable subscribers, two hundred times in all: nobody loses an event."""

import os
import random
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
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
from tests.end_to_end.processes import Child

# Each a test of its own, so that several run at the same time: 200 kills in all.
KILL_COUNTS = [50, 50, 50, 50]


class Killed(Child):
    """Forks one process after the other for us to kill."""

    def begin(self, role: str) -> int:
        """Have a process forked; which it is."""
        self.say(role)
        return int(self.hear())

    def end(self, process: int) -> None:
        """SIGKILL, and wait until it is gone."""
        os.kill(process, signal.SIGKILL)
        while (heard := self.hear()) != str(-signal.SIGKILL):
            assert heard == "begun", f"{heard}\n{self.errors()}"


@pytest.mark.timeout(180)
@pytest.mark.parametrize("index", range(len(KILL_COUNTS)))
def test_kills_at_any_moment_lose_nothing(
    path: Path, history: History, tmp_path: Path, rng: random.Random, index: int
) -> None:
    """Every event is handled by each, or its dead letter; repeated at most by a batch; effects once."""
    # In every other test another process publishes, which lives on.
    is_alone = index % 2 == 0
    with ExitStack() as stack:
        child = stack.enter_context(Killed("durable_subscribers", path, history.path, folder=tmp_path))
        if not is_alone:
            stack.enter_context(publishing(path, history, tmp_path))
        for _ in range(KILL_COUNTS[index]):
            process = child.begin("work" if is_alone else "subscribe")
            # Every third at its start, all others when something is at stake.
            if rng.random() < 0.67:
                child.expect("begun")
            time.sleep(rng.uniform(0.0, 0.1))
            child.end(process)
            history.note(KILLED, str(process))
    with Killed("durable_subscribers", path, history.path, folder=tmp_path) as last:
        last.begin("finish")
        while (heard := last.hear()) == "begun":
            pass
        assert heard == "0", last.errors()

    check_everything(path, history, KILL_COUNTS[index])


@contextmanager
def publishing(path: Path, history: History, folder: Path) -> Iterator[None]:
    """A process publishes meanwhile, and dies in the end."""
    with Killed("durable_subscribers", path, history.path, folder=folder) as child:
        process = child.begin("publish")
        child.expect("begun")
        yield
        child.end(process)


def check_everything(path: Path, history: History, kill_count: int) -> None:
    """What was promised, against the history."""
    assert len(history.acknowledged()) > 10 * kill_count
    check_acknowledged_stored(path, history)
    poison = numbers(path, "%.poison").keys()
    for subscriber_id in SUBSCRIBERS:
        dead = dead_letters(path, subscriber_id)
        assert poison <= dead.keys(), history.story(poison - dead.keys())
        # An event in whose attempts the process was killed again and again is a dead letter by right.
        innocent = {each for each in dead.keys() - poison if "interrupted" not in " ".join(dead[each])}
        assert not innocent, history.story(innocent)
    for subscriber_id, most in ((SYNCHRONOUS, 1), (BATCHED, BATCH_SIZE)):
        handled = [event_id for what, event_id in history.lines() if what == subscriber_id]
        check_all_handled(path, history, subscriber_id, handled)
        check_order(path, history, subscriber_id, handled)
        check_repetitions(history, subscriber_id, most)
    check_effects_once(path, history, TRANSACTIONAL)
    check_batches_are_whole(path)
    check_integrity(path)
