"""Frozen values: the event as handlers see it, and as publishers give it."""

import enum
from datetime import datetime
from typing import Any, NewType

import msgspec

GlobalSequence = NewType("GlobalSequence", int)


class EventStatus(enum.StrEnum):
    """Where an event stands with the in-process handlers."""

    PENDING = "pending"
    PROCESSING = "processing"
    DONE = "done"
    DLQ = "dlq"


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that happened. *last_error* is a JSON array, one string per failed attempt."""

    id: str
    type: str
    payload: Any = None
    created_at: datetime
    status: EventStatus = EventStatus.PENDING
    retry_count: int = 0
    last_error: str | None = None
    metadata: dict[str, str] | None = None
    stream_id: str | None = None
    stream_version: int | None = None
    global_sequence: GlobalSequence | None = None
    actor_id: str | None = None
    purger_id: str | None = None
    purged_at: datetime | None = None
    dlq_at: datetime | None = None
    correlation_id: str | None = None
    causation_id: str | None = None
    schema_version: int | None = None

    @property
    def errors(self) -> list[str]:
        """The message of every failed attempt, oldest first."""
        if self.last_error is None:
            return []
        try:
            return msgspec.json.decode(self.last_error, type=list[str])
        except msgspec.MsgspecError:
            return [self.last_error]  # another program wrote it


class UndecodablePayload(msgspec.Struct, frozen=True):
    """Stands for a stored payload that is not JSON, such as one that another program wrote."""

    text: str
    reason: str


class NewEvent(msgspec.Struct, frozen=True):
    """One item of publish_many, with all of publish's options.

    >>> NewEvent("order.placed", {"order": 42}, event_id="order-42-placed").type
    'order.placed'
    """

    type: str
    payload: Any = None
    metadata: dict[str, str] | None = None
    event_id: str | None = None


class Draft(msgspec.Struct, frozen=True):
    """An event that was checked and encoded and is about to be stored."""

    id: str
    type: str
    payload_json: bytes
    metadata: dict[str, str] | None
    created_at: datetime
    # None: pending if the store has subscriptions, even of a process that is down; done if it has none.
    status: EventStatus | None
    # The publisher chose the id: storing it a second time is a success that stores nothing.
    is_idempotent: bool


class SubscriptionRow(msgspec.Struct, frozen=True):
    """What a store keeps of a subscription; its handler lives with the process."""

    id: str
    event_type: str
    created_at: datetime


class DeadLetterPage(msgspec.Struct, frozen=True):
    """One page of dead letters, newest first, and how many there are in all."""

    events: list[Event]
    total: int
