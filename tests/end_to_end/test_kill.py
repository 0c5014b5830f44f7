"""kill -9 at a random moment, a hundred times: nothing that was acknowledged is lost."""

import random
import time
from pathlib import Path

import pytest

from tests.end_to_end.database import (
    check_batches_are_whole,
    check_integrity,
    check_nothing_lost,
    check_nothing_stuck,
)
from tests.end_to_end.history import History
from tests.end_to_end.processes import Killed

KILL_COUNT = 100
# Further kills, while the child is still busy starting.
KILL_AT_START_COUNT = 25


@pytest.mark.timeout(240)
def test_a_hundred_kills_lose_nothing(
    path: Path, history: History, tmp_path: Path, rng: random.Random
) -> None:
    """After each restart every event whose publish returned is done or a dead letter."""
    is_at_start = [False] * KILL_COUNT + [True] * KILL_AT_START_COUNT
    rng.shuffle(is_at_start)

    with Killed("publish_until_killed", path, history.path, "forks", folder=tmp_path) as child:
        for kill_at_start in is_at_start:
            acknowledged = history.acknowledged()
            process = child.begin("publish")
            if kill_at_start:
                time.sleep(rng.uniform(0.0, 0.05))
            else:
                child.expect("recovered")
                check_nothing_lost(path, history, acknowledged)
                child.expect("acknowledged")
                time.sleep(rng.uniform(0.0, 0.15))
            child.end(process)
        child.begin("finish")
        child.expect("recovered")
        child.expect("0")

    acknowledged = history.acknowledged()
    assert len(acknowledged) > 10 * KILL_COUNT
    check_nothing_lost(path, history, acknowledged)
    check_nothing_stuck(path, history)
    check_batches_are_whole(path)
    check_integrity(path)
