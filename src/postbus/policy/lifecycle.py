"""The allowed moves of an event's status, as one table."""

from collections.abc import Mapping
from types import MappingProxyType

from postbus.events import EventStatus

ALLOWED_MOVES: Mapping[EventStatus, frozenset[EventStatus]] = MappingProxyType(
    {
        # Its handlers begin, or the user says that nobody needs to see it.
        EventStatus.PENDING: frozenset({EventStatus.PROCESSING, EventStatus.DONE}),
        # Its handlers finished, or used up their attempts, or it was released or recovered.
        EventStatus.PROCESSING: frozenset({EventStatus.DONE, EventStatus.DLQ, EventStatus.PENDING}),
        EventStatus.DONE: frozenset(),
        # A dead letter is retried from the start.
        EventStatus.DLQ: frozenset({EventStatus.PENDING}),
    }
)


def can_move(before: EventStatus, after: EventStatus) -> bool:
    """Whether an event may go from one status to the other.

    >>> can_move(EventStatus.DLQ, EventStatus.PENDING), can_move(EventStatus.DONE, EventStatus.PENDING)
    (True, False)
    """
    return after in ALLOWED_MOVES[before]
