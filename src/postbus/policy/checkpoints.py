"""Is it time to write the checkpoint?"""

import math
from typing import assert_never

import msgspec

from postbus.config import AnyCheckpointMode, Batched, Synchronous


class PendingCheckpoint(msgspec.Struct, frozen=True):
    """What was processed since the checkpoint was last written; moments are monotonic seconds.

    >>> PendingCheckpoint().add(3, now=7.0).add(1, now=9.0)
    PendingCheckpoint(event_count=4, first_event_at=7.0)
    """

    event_count: int = 0
    first_event_at: float = math.inf

    def add(self, event_count: int, now: float) -> "PendingCheckpoint":
        """The same with *event_count* events more, processed at *now*."""
        if event_count == 0:
            return self
        return PendingCheckpoint(self.event_count + event_count, min(self.first_event_at, now))


def is_due(pending: PendingCheckpoint, mode: AnyCheckpointMode, now: float) -> bool:
    """Whether to write now: there is something to write, and enough of it or for long enough.

    >>> from postbus.config import CheckpointMode
    >>> mode = CheckpointMode.batched(batch_size=3, max_delay=5.0)
    >>> one, three = PendingCheckpoint().add(1, now=10.0), PendingCheckpoint().add(3, now=10.0)
    >>> is_due(one, mode, now=14.9), is_due(one, mode, now=15.0), is_due(three, mode, now=10.0)
    (False, True, True)
    """
    return pending.event_count > 0 and now >= due_at(pending, mode)


def due_at(pending: PendingCheckpoint, mode: AnyCheckpointMode) -> float:
    """The moment from which it is time to write; infinite while there is nothing to write.

    >>> from postbus.config import CheckpointMode
    >>> due_at(PendingCheckpoint().add(1, now=10.0), CheckpointMode.batched(max_delay=0.25))
    10.25
    >>> due_at(PendingCheckpoint(), CheckpointMode.synchronous())
    inf
    """
    if pending.event_count >= events_until_due(mode):
        return pending.first_event_at
    return pending.first_event_at + seconds_until_due(mode)


def events_until_due(mode: AnyCheckpointMode) -> int:
    """So many events are written at once.

    >>> events_until_due(Batched(batch_size=500)), events_until_due(Synchronous())
    (500, 1)
    """
    match mode:
        case Synchronous():
            return 1
        case Batched(batch_size=batch_size):
            return batch_size
        case _:
            assert_never(mode)


def seconds_until_due(mode: AnyCheckpointMode) -> float:
    """So long after the first of them even fewer events are written.

    >>> seconds_until_due(Batched(max_delay=0.25)), seconds_until_due(Synchronous())
    (0.25, 0.0)
    """
    match mode:
        case Synchronous():
            return 0.0
        case Batched(max_delay=max_delay):
            return max_delay
        case _:
            assert_never(mode)
