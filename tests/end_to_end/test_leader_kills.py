"""Leaders that are killed, stopped and cut off at random: nothing is lost, and two never count at once.

The same for 200 kills: python -m tests.end_to_end.leader_campaign
"""

import random
import statistics
from pathlib import Path

import pytest

from tests.end_to_end.leader_campaign import CUT_OFF, FAILOVER_TIMEOUT, KILLED, STOPPED, harass
from tests.postgres.server import Server

KILLS = 60


@pytest.mark.timeout(180)
async def test_leaders_that_are_killed_at_random_lose_nothing_and_never_count_twice(
    own_postgres: Server, tmp_path: Path, rng: random.Random
) -> None:
    """Zero lost, at most one repetition a kill, effects once, one owner an epoch; followed in a second."""
    outcome = await harass(own_postgres.dsn(), tmp_path, rng.getrandbits(32), KILLS)
    print(outcome.describe())

    assert len(outcome.takeovers[KILLED]) == KILLS
    assert statistics.median(outcome.takeovers[KILLED]) < 1.0
    assert statistics.median(outcome.takeovers[CUT_OFF]) < 1.0
    assert statistics.median(outcome.takeovers[STOPPED]) < FAILOVER_TIMEOUT
    assert len(outcome.evidence.acknowledged) > KILLS, "hardly anything was published"
