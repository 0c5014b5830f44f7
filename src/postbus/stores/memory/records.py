"""What the tables of an InMemoryStore hold, and how it is shown: always as fresh copies."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any

import msgspec

from postbus.events import (
    DeadLetter,
    Draft,
    Event,
    EventStatus,
    GlobalSequence,
    SubscriberId,
    UndecodablePayload,
)

_NO_PAYLOAD = b"null"


@dataclass(slots=True)
class Record:
    """One stored event: its draft as it was given, and what became of it."""

    sequence: GlobalSequence
    draft: Draft
    status: EventStatus
    stream_version: int | None = None
    retry_count: int = 0
    last_error: str | None = None
    dlq_at: datetime | None = None
    purger_id: str | None = None
    purged_at: datetime | None = None
    resolved_at: datetime | None = None
    resolved_by: str | None = None
    notes: str | None = None

    def strip(self, purger_id: str, purged_at: datetime) -> None:
        """Take the payload away."""
        self.draft = msgspec.structs.replace(self.draft, payload_json=_NO_PAYLOAD)
        self.purger_id, self.purged_at = purger_id, purged_at


@dataclass(slots=True)
class Grave:
    """One dead letter of a durable subscriber. It outlives its event, so it has a copy of it."""

    id: str
    subscriber_id: SubscriberId
    event: Event
    payload_json: bytes | UndecodablePayload
    errors: list[str]
    dlq_at: datetime
    # One of its own for every time that a retry is asked for; None: it is not wanted.
    wish: object = None
    last_retry_at: datetime | None = None
    resolved_at: datetime | None = None
    resolved_by: str | None = None
    notes: str | None = None

    def strip(self, purger_id: str, purged_at: datetime) -> None:
        """Take the payload away."""
        self.payload_json = _NO_PAYLOAD
        self.event = msgspec.structs.replace(self.event, purger_id=purger_id, purged_at=purged_at)


def to_event(record: Record) -> Event:
    """A fresh Event: whoever changes its payload or metadata changes only a copy."""
    draft = record.draft
    return Event(
        id=draft.id,
        type=draft.type,
        payload=msgspec.json.decode(draft.payload_json),
        created_at=draft.created_at,
        status=record.status,
        retry_count=record.retry_count,
        last_error=record.last_error,
        metadata=None if draft.metadata is None else dict(draft.metadata),
        stream_id=draft.stream_id,
        stream_version=record.stream_version,
        global_sequence=record.sequence,
        actor_id=draft.actor_id,
        purger_id=record.purger_id,
        purged_at=record.purged_at,
        dlq_at=record.dlq_at,
        correlation_id=draft.correlation_id,
        causation_id=draft.causation_id,
        schema_version=draft.schema_version,
    )


def to_dead_letter(dead: Record | Grave) -> DeadLetter:
    """A fresh DeadLetter."""
    if isinstance(dead, Record):
        return DeadLetter(
            **_fields(to_event(dead)),
            dead_letter_id=dead.draft.id,
            resolved_at=dead.resolved_at,
            resolved_by=dead.resolved_by,
            notes=dead.notes,
        )
    return DeadLetter(
        **{
            **_fields(dead.event),
            "payload": _decode_payload(dead.payload_json),
            "metadata": None if dead.event.metadata is None else dict(dead.event.metadata),
            "status": EventStatus.DLQ,
            "retry_count": len(dead.errors),
            "last_error": msgspec.json.encode(dead.errors).decode(),
            "dlq_at": dead.dlq_at,
        },
        dead_letter_id=dead.id,
        subscriber_id=dead.subscriber_id,
        last_retry_at=dead.last_retry_at,
        resolved_at=dead.resolved_at,
        resolved_by=dead.resolved_by,
        notes=dead.notes,
    )


def encode_payload(payload: object) -> bytes | UndecodablePayload:
    """A payload as a dead letter keeps it: as JSON, or as what could not be read as JSON."""
    return payload if isinstance(payload, UndecodablePayload) else msgspec.json.encode(payload)


def _decode_payload(payload_json: bytes | UndecodablePayload) -> Any:
    return payload_json if isinstance(payload_json, UndecodablePayload) else msgspec.json.decode(payload_json)


def _fields(event: Event) -> dict[str, Any]:
    return {name: getattr(event, name) for name in Event.__struct_fields__}
