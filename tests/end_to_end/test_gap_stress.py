"""Writers that do whatever leaves a gap, and subscribers that are killed all the time: nobody loses an event.

The same for 100,000 transactions: python -m tests.end_to_end.gap_campaign
"""

import random
from pathlib import Path

import pytest

from tests.end_to_end.gap_campaign import stress
from tests.postgres.server import Server

# A machine that has other things to do gets fewer done.
MOST_TRANSACTIONS, MOST_SECONDS = 12_000, 25.0
LEAST_TRANSACTIONS = 300


@pytest.mark.timeout(300)
@pytest.mark.parametrize("kills_server", [False, True], ids=["server_lives", "server_dies"])
async def test_subscribers_that_are_killed_lose_no_event_and_pass_every_dead_gap(
    own_postgres: Server, tmp_path: Path, rng: random.Random, kills_server: bool
) -> None:
    """Effects once, repetitions at most a batch a kill, streams in order, the checkpoint at the end."""
    outcome = await stress(
        own_postgres,
        tmp_path,
        rng.getrandbits(32),
        MOST_TRANSACTIONS,
        kills_server=kills_server,
        seconds=MOST_SECONDS,
    )
    print(outcome.describe())

    assert len(outcome.evidence.transactions) > LEAST_TRANSACTIONS
    assert len(outcome.waits) > LEAST_TRANSACTIONS / 2, "hardly any number was dead"
    assert outcome.kill_count > 2
    assert bool(outcome.evidence.server_away) == kills_server
