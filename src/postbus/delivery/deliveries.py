"""What a durable subscriber's events come to, and what both ways of delivering them share."""

from collections.abc import Sequence
from typing import Protocol

from postbus.delivery.error_stories import describe_error, timeout_error
from postbus.events import DeadLetter, Event, GlobalSequence, UndecodablePayload
from postbus.late_events import LateEvents


class LeftBehindError(Exception):
    """The handler ended after all, but the subscriber has long gone on without it."""


class PutOffError(Exception):
    """The subscriber is to pause while the store fails its handler: the event comes when it goes on."""


class Deliveries(Protocol):
    """Takes events to their receiver."""

    @property
    def is_handling(self) -> bool:
        """Whether a handler runs at this moment."""
        ...

    async def deliver(self, events: Sequence[Event]) -> int:
        """Process or bury the first of the events, in order; how many, which may be none. StoppedError."""
        ...

    async def retry(self, letter: DeadLetter) -> None:
        """One more attempt for a dead letter. StoppedError, PutOffError."""
        ...


def sequence_of(event: Event) -> GlobalSequence:
    """The number of an event that is in the log."""
    assert event.global_sequence is not None, "only stored events are delivered"
    return event.global_sequence


def numbers_of(events: Sequence[Event]) -> Sequence[GlobalSequence]:
    """The numbers of events that are in the log."""
    return events.numbers if isinstance(events, LateEvents) else [sequence_of(event) for event in events]


def describe_timeout(timeout: float, ended_with: BaseException | None = None) -> str:
    """The error of an attempt that was cut off."""
    return describe_error(timeout_error(timeout, ended_with))


def describe_undecodable(payload: UndecodablePayload) -> str:
    """The error of an event that no handler can get."""
    return f"the stored payload is not JSON and no handler can get it: {payload.reason}"
