"""0005, unit tests: the batched mode exists, and decides when to write as specified."""

import pytest

from postbus.config import Batched, CheckpointMode, ReliableDeliveryConfig, Synchronous
from postbus.errors import InvalidConfigError
from postbus.policy.checkpoints import PendingCheckpoint, is_due


def test_checkpoint_mode_batched_exists() -> None:
    """It differs from the synchronous mode, which stays the default."""
    modes: set[object] = {CheckpointMode.batched(), CheckpointMode.synchronous()}

    assert len(modes) == 2
    assert ReliableDeliveryConfig().checkpoint_mode == CheckpointMode.synchronous()


def test_checkpoint_mode_batched_helper_methods() -> None:
    """With settings, and with the defaults: 100 events, 5 seconds."""
    assert CheckpointMode.batched(50, 2.5) == Batched(batch_size=50, max_delay=2.5)
    assert CheckpointMode.batched() == Batched(batch_size=100, max_delay=5.0)
    assert CheckpointMode.synchronous() == Synchronous()
    with pytest.raises(InvalidConfigError):
        CheckpointMode.batched(batch_size=0)


def test_should_flush_on_batch_size() -> None:
    """The event that fills the batch has it written, however young it is."""
    mode = CheckpointMode.batched(batch_size=5, max_delay=60.0)

    assert is_due(PendingCheckpoint().add(5, now=0.0), mode, now=0.0)
    assert is_due(PendingCheckpoint().add(6, now=0.0), mode, now=0.0)


def test_should_flush_on_max_delay() -> None:
    """Half a second after its first event it is written, however small it is."""
    mode = CheckpointMode.batched(batch_size=100, max_delay=0.5)

    assert is_due(PendingCheckpoint().add(3, now=10.0), mode, now=10.5)


def test_should_not_flush_prematurely() -> None:
    """Neither full nor old: it waits."""
    mode = CheckpointMode.batched(batch_size=5, max_delay=60.0)

    assert not is_due(PendingCheckpoint().add(4, now=10.0), mode, now=69.9)
    assert not is_due(PendingCheckpoint(), mode, now=1000.0)
