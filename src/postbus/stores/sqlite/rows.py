"""Events as rows and rows as events."""

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from postbus.events import Draft, Event, EventStatus, GlobalSequence, SubscriptionRow, UndecodablePayload

# The order in which event_from_row reads them.
COLUMNS = (
    "global_sequence, id, type, payload, status, retry_count, last_error, metadata, created_at, dlq_at, "
    "stream_id, stream_version, actor_id, purger_id, purged_at, correlation_id, causation_id, schema_version"
)

_UNKNOWN_MOMENT = datetime.fromtimestamp(0, UTC)
_ONE_SECOND = timedelta(seconds=1)

_decode = msgspec.json.Decoder().decode
_decode_strings = msgspec.json.Decoder(dict[str, str]).decode
_encode = msgspec.json.Encoder().encode


class _MomentFormat:
    """Writes moments as text; formats the date only once for all moments of a second, since it is slow."""

    def __init__(self) -> None:
        start = datetime.fromtimestamp(0, UTC)
        self._second = (start, start, "")

    def write(self, moment: datetime) -> str:
        start, end, prefix = self._second
        if not start <= moment < end:
            start = moment.replace(microsecond=0)
            prefix = start.strftime("%Y-%m-%dT%H:%M:%S")
            # One assignment: two threads may be here at once.
            self._second = (start, start + _ONE_SECOND, prefix)
        return f"{prefix}.{moment.microsecond:06d}+00:00"


_format = _MomentFormat()


def moment_to_text(moment: datetime) -> str:
    """A moment in UTC, in fixed width, so that text sorts as time does."""
    return _format.write(moment)


def draft_to_row(draft: Draft) -> tuple[object, ...]:
    """The values of a new event."""
    return (
        draft.id,
        draft.type,
        draft.payload_json.decode(),
        draft.status,
        None if draft.metadata is None else _encode(draft.metadata).decode(),
        moment_to_text(draft.created_at),
    )


def drafts_to_json(drafts: Iterable[Draft]) -> str:
    """Many new events as one bound value."""
    return _encode([draft_to_row(draft) for draft in drafts]).decode()


def sequences_to_json(sequences: Iterable[GlobalSequence]) -> str:
    """Sequence numbers as one bound value, however many there are."""
    return _encode(list(sequences)).decode()


def event_from_row(row: tuple[Any, ...]) -> Event:
    """The event of a row read with COLUMNS."""
    return Event(
        global_sequence=GlobalSequence(row[0]),
        id=row[1],
        type=row[2],
        payload=_decode_payload(row[3]),
        status=EventStatus(row[4]),
        retry_count=row[5],
        last_error=row[6],
        metadata=_decode_metadata(row[7]),
        created_at=_moment(row[8]) or _UNKNOWN_MOMENT,
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


def _decode_payload(text: Any) -> Any:
    try:
        return _decode(text)
    except (msgspec.MsgspecError, TypeError, RecursionError, UnicodeError) as error:
        return UndecodablePayload(str(text), str(error))


def _decode_metadata(text: str | None) -> dict[str, str] | None:
    try:
        return None if text is None else _decode_strings(text)
    except msgspec.MsgspecError:
        # Another program wrote it: better shown as it is than hidden, and no reason to hold the event up.
        return {"undecodable": text or ""}


def _moment(text: str | None) -> datetime | None:
    try:
        moment = None if text is None else datetime.fromisoformat(text)
    except (ValueError, TypeError):
        return _UNKNOWN_MOMENT  # another program wrote it
    return moment if moment is None or moment.tzinfo else moment.replace(tzinfo=UTC)
