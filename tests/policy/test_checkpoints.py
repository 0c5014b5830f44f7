"""When a checkpoint is written, and when it waits for more."""

import math

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from postbus.config import AnyCheckpointMode, CheckpointMode
from postbus.policy.checkpoints import (
    PendingCheckpoint,
    due_at,
    events_until_due,
    is_due,
    seconds_until_due,
)

moments = st.floats(0, 1e6)
delays = st.floats(0, 1e4) | st.sampled_from([0.0, 0.001])
batched_modes = st.builds(CheckpointMode.batched, batch_size=st.integers(1, 1000), max_delay=delays)
modes = batched_modes | st.just(CheckpointMode.synchronous())
counts = st.integers(1, 2000)


@given(modes, moments)
def test_nothing_processed_is_never_due(mode: AnyCheckpointMode, now: float) -> None:
    """There is nothing to write, however long one waits."""
    assert not is_due(PendingCheckpoint(), mode, now)
    assert not is_due(PendingCheckpoint(), mode, math.inf)
    assert due_at(PendingCheckpoint(), mode) == math.inf


@given(counts, moments)
def test_a_synchronous_checkpoint_is_due_after_every_event(count: int, now: float) -> None:
    """At once, at the moment of the event itself."""
    pending = PendingCheckpoint().add(count, now)

    assert is_due(pending, CheckpointMode.synchronous(), now)


@given(st.integers(1, 1000), counts, delays, moments, delays)
@example(5, 4, 0.0, 10.0, 0.0)
@example(5, 4, 0.001, 10.0, 0.0)
@example(5, 4, 0.001, 10.0, 0.001)
@example(5, 5, 60.0, 10.0, 0.0)
def test_a_batch_is_due_when_it_is_full_or_old_and_not_before(
    batch_size: int, count: int, max_delay: float, began: float, age: float
) -> None:
    """Any batch size and any delay, none included."""
    mode = CheckpointMode.batched(batch_size, max_delay)
    now = began + age
    is_old = now >= began + max_delay

    assert is_due(PendingCheckpoint().add(count, began), mode, now) == (count >= batch_size or is_old)


@given(modes, counts, moments)
def test_a_checkpoint_is_due_at_the_moment_that_was_told(
    mode: AnyCheckpointMode, count: int, began: float
) -> None:
    """Who sleeps until then finds it due, and not a moment earlier."""
    pending = PendingCheckpoint().add(count, began)
    moment = due_at(pending, mode)

    assert is_due(pending, mode, moment)
    if moment > began:
        assert not is_due(pending, mode, math.nextafter(moment, -math.inf))


@given(modes, st.lists(st.tuples(counts, st.floats(0, 10)), min_size=1, max_size=8))
def test_age_counts_from_the_first_event(mode: AnyCheckpointMode, arrivals: list[tuple[int, float]]) -> None:
    """Later events fill the batch and never put its moment off."""
    pending, now, moments_told = PendingCheckpoint(), 100.0, []
    for count, pause in arrivals:
        pending = pending.add(count, now)
        moments_told.append(due_at(pending, mode))
        now += pause

    assert pending.event_count == sum(count for count, _ in arrivals)
    assert pending.first_event_at == 100.0
    assert moments_told == sorted(moments_told, reverse=True)


def test_adding_nothing_changes_nothing() -> None:
    """A page without a wanted event does not start the clock."""
    assert PendingCheckpoint().add(0, now=5.0) == PendingCheckpoint()


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
