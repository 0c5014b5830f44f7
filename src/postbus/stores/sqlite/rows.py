"""Events as rows and rows as events."""

from datetime import datetime
from typing import Any

import msgspec

from postbus.events import Draft, Event, EventStatus, GlobalSequence, SubscriptionRow

# The order in which event_from_row reads them.
COLUMNS = (
    "global_sequence, id, type, payload, status, retry_count, last_error, metadata, created_at, dlq_at, "
    "stream_id, stream_version, actor_id, purger_id, purged_at, correlation_id, causation_id, schema_version"
)

_decode = msgspec.json.Decoder().decode
_decode_metadata = msgspec.json.Decoder(dict[str, str]).decode
_encode = msgspec.json.Encoder().encode


def moment_to_text(moment: datetime) -> str:
    """Fixed width, so that text sorts as time does."""
    return moment.isoformat(timespec="microseconds")


def draft_to_row(draft: Draft) -> tuple[object, ...]:
    """The values of an insert_events row."""
    created_at = moment_to_text(draft.created_at)
    metadata = None if draft.metadata is None else _encode(draft.metadata).decode()
    return (
        draft.id,
        draft.type,
        draft.payload_json.decode(),
        draft.status.value,
        metadata,
        created_at,
        created_at,
    )


def event_from_row(row: tuple[Any, ...]) -> Event:
    """The event of a row read with COLUMNS."""
    return Event(
        global_sequence=GlobalSequence(row[0]),
        id=row[1],
        type=row[2],
        payload=_decode(row[3]),
        status=EventStatus(row[4]),
        retry_count=row[5],
        last_error=row[6],
        metadata=None if row[7] is None else _decode_metadata(row[7]),
        created_at=datetime.fromisoformat(row[8]),
        dlq_at=_moment(row[9]),
        stream_id=row[10],
        stream_version=row[11],
        actor_id=row[12],
        purger_id=row[13],
        purged_at=_moment(row[14]),
        correlation_id=row[15],
        causation_id=row[16],
        schema_version=row[17],
    )


def subscription_from_row(row: tuple[Any, ...]) -> SubscriptionRow:
    """The subscription of a read_subscriptions row."""
    return SubscriptionRow(id=row[0], event_type=row[1], created_at=datetime.fromisoformat(row[2]))


def _moment(text: str | None) -> datetime | None:
    return None if text is None else datetime.fromisoformat(text)
