"""Events as rows and rows as events."""

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from postbus.events import (
    Checkpoint,
    DeadLetter,
    Draft,
    Event,
    EventStatus,
    GlobalSequence,
    SubscriberId,
    SubscriptionRow,
    UndecodablePayload,
)

# The order in which event_from_row reads them: what most events lack comes last.
COLUMNS = (
    "global_sequence, id, type, payload, created_at, status, retry_count, last_error, metadata, dlq_at, "
    "stream_id, stream_version, actor_id, purger_id, purged_at, correlation_id, causation_id, schema_version"
)
# Both kinds of dead letter in one shape: the columns of the event, then those of the dead letter.
HANDLER_COLUMNS = f"{COLUMNS}, id, NULL, NULL, resolved_at, resolved_by, notes"
SUBSCRIBER_COLUMNS = (
    "global_sequence, event_id, event_type, payload, event_created_at, 'dlq', retry_count, error_history, "
    "metadata, created_at, stream_id, stream_version, actor_id, purger_id, purged_at, correlation_id, "
    "causation_id, schema_version, id, subscriber_id, last_retry_at, resolved_at, resolved_by, notes"
)
_COLUMN_COUNT = 18
# Fewer events at a time where they are large, so that a backlog of any kind fits into memory.
MOST_CHARACTERS = 8 * 1024 * 1024

_UNKNOWN_MOMENT = datetime.fromtimestamp(0, UTC)
_ONE_SECOND = timedelta(seconds=1)
_LAST_SECOND = datetime.max.replace(microsecond=0, tzinfo=UTC)
# Between the values of a column in one text; how our moments end.
_SEPARATOR = "\x1f"
_UTC_OFFSET = "+00:00"
# Of a moment without its offset, and of one in a list of JSON: with "Z", two quotation marks and a comma.
_TEXT_LENGTH = len("2026-01-10T23:00:00.000005")
_ENCODED_LENGTH = _TEXT_LENGTH + 4
_STATUSES = {status.value: status for status in EventStatus}

_decode = msgspec.json.Decoder().decode
_decode_strings = msgspec.json.Decoder(dict[str, str]).decode
_encode = msgspec.json.Encoder().encode
_parse_moment = datetime.fromisoformat


class _MomentFormat:
    """Writes moments as text; formats the date only once for all moments of a second, since it is slow."""

    def __init__(self) -> None:
        start = datetime.fromtimestamp(0, UTC)
        self._second = (start, start, "")

    def write(self, moment: datetime) -> str:
        """A moment in UTC, in fixed width, so that text sorts as time does."""
        start, end, prefix = self._second
        if not start <= moment < end:
            start = moment.replace(microsecond=0)
            # Not strftime, which leaves the zeros out before the year 1000.
            prefix = start.isoformat()[: len("0001-01-01T00:00:00")]
            if start < _LAST_SECOND:
                # One assignment: two threads may be here at once.
                self._second = (start, start + _ONE_SECOND, prefix)
        return "%s.%06d+00:00" % (prefix, moment.microsecond)  # noqa: UP031 - a third quicker


# Not wrapped in a function: it is called for every event.
moment_to_text = _MomentFormat().write


def moments_to_text(moments: Sequence[datetime]) -> list[str]:
    """As moment_to_text, at half the price for many.

    >>> moments_to_text([datetime(2026, 1, 10, 23, 0, 0, 5, UTC)])
    ['2026-01-10T23:00:00.000005+00:00']
    """
    try:
        texts = _encode(moments).decode()
    except TypeError:
        texts = ""  # a subclass of datetime, of which msgspec knows nothing
    # It leaves out what is zero; and somebody's clock may give moments with another offset than that of UTC.
    if len(texts) != len(moments) * _ENCODED_LENGTH + 1 or texts.count("Z") != len(moments):
        return list(map(moment_to_text, moments))
    return [
        texts[start : start + _TEXT_LENGTH] + _UTC_OFFSET for start in range(2, len(texts), _ENCODED_LENGTH)
    ]


def moment_as_ours(found: bytes | None, otherwise: str) -> str:
    """What another program wrote for a moment, as we write it; *otherwise* if it is none that we know.

    >>> moment_as_ours(b"2026-01-10 23:00:00", ""), moment_as_ours(b"yesterday", "unknown")
    ('2026-01-10T23:00:00.000000+00:00', 'unknown')
    """
    try:
        moment = _parse_moment((found or b"").decode())
        # Whoever says nothing of a zone means UTC, as SQLite itself does.
        return moment_to_text(moment.astimezone(UTC) if moment.tzinfo else moment.replace(tzinfo=UTC))
    except (ValueError, OverflowError):
        return otherwise


def draft_to_row(draft: Draft) -> tuple[object, ...]:
    """The values of a new event."""
    return (
        draft.id,
        draft.type,
        draft.payload_json.decode(),
        # A plain text: the driver asks around how to store anything else.
        draft.status and draft.status._value_,
        None if draft.metadata is None else _encode(draft.metadata).decode(),
        moment_to_text(draft.created_at),
    )


def to_json(value: object) -> str:
    """Anything as one bound value, however long it is."""
    return _encode(value).decode()


def sequences_to_json(sequences: Iterable[GlobalSequence]) -> str:
    """Sequence numbers as one bound value, however many there are."""
    return _encode(list(sequences)).decode()


def events_from_columns(columns: tuple[Any, ...]) -> list[Event]:
    """The events of a page as read_page reads it; ValueError or the like if others wrote some of them."""
    # Catching up lives on this function, and most events are plain.
    count, is_valid, sequences, ids, types, payloads, moments, statuses, more = columns
    if not count:
        return []
    if not is_valid or moments.count(_UTC_OFFSET) != count:
        raise ValueError("not written by us")
    numbers = list(map(int, sequences.split(",")))
    if numbers != sorted(numbers):
        raise ValueError("not in the order of the log")
    values = zip(
        numbers,
        ids.split(_SEPARATOR),
        types.split(_SEPARATOR),
        _decode(payloads),
        map(_parse_moment, moments.split(",")),
        map(_STATUSES.__getitem__, statuses.split(",")),
        _decode(more),
        strict=True,
    )
    return [
        Event(
            global_sequence=sequence,
            id=event_id,
            type=event_type,
            payload=payload,
            created_at=created_at,
            status=status,
        )
        if rest is None
        else _event((sequence, event_id, event_type), payload, created_at, status, rest)
        for sequence, event_id, event_type, payload, created_at, status, rest in values
    ]


def event_from_row(row: tuple[Any, ...]) -> Event:
    """The event of a row read with COLUMNS."""
    created_at = _moment(row[4]) or _UNKNOWN_MOMENT
    status = _STATUSES.get(row[5], EventStatus.DONE)
    return _event(row[:3], _decode_payload(row[3]), created_at, status, row[6:_COLUMN_COUNT])


def _event(
    names: tuple[Any, ...], payload: Any, created_at: datetime, status: EventStatus, rest: Sequence[Any]
) -> Event:
    return Event(
        global_sequence=GlobalSequence(names[0]),
        id=names[1],
        type=names[2],
        payload=payload,
        created_at=created_at,
        status=status,
        retry_count=rest[0],
        last_error=rest[1],
        metadata=_decode_metadata(rest[2]),
        dlq_at=_moment(rest[3]),
        stream_id=rest[4],
        stream_version=rest[5],
        actor_id=rest[6],
        purger_id=rest[7],
        purged_at=_moment(rest[8]),
        correlation_id=rest[9],
        causation_id=rest[10],
        schema_version=rest[11],
    )


def event_from_draft(
    draft: Draft, sequence: int, version: int | None, unrouted_status: EventStatus | None
) -> Event:
    """The event as which a draft was stored."""
    return Event(
        global_sequence=GlobalSequence(sequence),
        id=draft.id,
        type=draft.type,
        payload=_decode(draft.payload_json),
        created_at=draft.created_at,
        status=draft.status or unrouted_status or EventStatus.PENDING,
        metadata=None if draft.metadata is None else dict(draft.metadata),
        stream_id=draft.stream_id,
        stream_version=version,
        actor_id=draft.actor_id,
        correlation_id=draft.correlation_id,
        causation_id=draft.causation_id,
        schema_version=draft.schema_version,
    )


def dead_letter_from_row(row: tuple[Any, ...]) -> DeadLetter:
    """The dead letter of a row read with HANDLER_COLUMNS or SUBSCRIBER_COLUMNS."""
    event = event_from_row(row[:_COLUMN_COUNT])
    return DeadLetter(
        **{name: getattr(event, name) for name in event.__struct_fields__},
        dead_letter_id=row[18],
        subscriber_id=row[19],
        last_retry_at=_moment(row[20]),
        resolved_at=_moment(row[21]),
        resolved_by=row[22],
        notes=row[23],
    )


def checkpoint_from_row(row: tuple[Any, ...]) -> Checkpoint:
    """The checkpoint of a read_checkpoint row."""
    return Checkpoint(
        subscriber_id=SubscriberId(row[0]),
        position=GlobalSequence(row[1]),
        event_id=row[2],
        updated_at=_moment(row[3]) or _UNKNOWN_MOMENT,
        epoch=row[4],
        was_interrupted=bool(row[5]),
        attempt_sequence=row[6],
        attempt_count=row[7],
    )


def payload_to_text(payload: object) -> str:
    """A payload as JSON again; what a handler's type made of it at least as words."""
    try:
        return to_json(payload)
    except (msgspec.MsgspecError, TypeError, ValueError, OverflowError, RecursionError):
        return to_json(repr(payload))


def subscription_from_row(row: tuple[Any, ...]) -> SubscriptionRow:
    """The subscription of a read_subscriptions row."""
    return SubscriptionRow(id=row[0], event_type=row[1], created_at=_moment(row[2]) or _UNKNOWN_MOMENT)


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
