"""When is it time to write the checkpoint?"""

from typing import assert_never

from postbus.config import AnyCheckpointMode, Batched, Synchronous


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
