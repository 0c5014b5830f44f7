"""The two limits of a checkpoint mode; that they are kept is tested on buses, in tests/durable."""

import pytest

from postbus.config import AnyCheckpointMode, CheckpointMode
from postbus.policy.checkpoints import events_until_due, seconds_until_due


@pytest.mark.parametrize(
    ("mode", "count", "seconds"),
    [
        (CheckpointMode.synchronous(), 1, 0.0),
        (CheckpointMode.batched(), 100, 5.0),
        (CheckpointMode.batched(7, 0.001), 7, 0.001),
    ],
)
def test_a_mode_tells_its_two_limits(mode: AnyCheckpointMode, count: int, seconds: float) -> None:
    """For those who count and time by themselves."""
    assert (events_until_due(mode), seconds_until_due(mode)) == (count, seconds)
