"""Rows and drafts as events, and rows as dead letters."""

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from itertools import chain, repeat
from typing import Any, NamedTuple

import asyncpg
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

_UNKNOWN_MOMENT = datetime.fromtimestamp(0, UTC)
# No handler of this process waits for an event on PostgreSQL.
_STATUS = EventStatus.DONE
# What an event lacks that has nothing more than its type, payload and stream.
_NOTHING_MORE = [None] * 7

_decode = msgspec.json.Decoder().decode
_decode_list = msgspec.json.Decoder(list[Any]).decode
_decode_strings = msgspec.json.Decoder(dict[str, str]).decode


class Columns(NamedTuple):
    """Events read with event_columns, each column for itself."""

    numbers: Sequence[GlobalSequence]
    ids: Sequence[str]
    types: Sequence[str]
    payloads: Sequence[str]
    moments: Sequence[datetime]
    streams: Sequence[str | None]
    versions: Sequence[int | None]
    more: Sequence[str | None]

    def decode(self) -> list[Event]:
        """The events."""
        payloads = decode_payloads(",".join(self.payloads))
        if payloads is None:
            return [event_from_row(row) for row in zip(*self, strict=True)]
        return make_events(self, payloads)

    def between(self, start: int, end: int) -> "Columns":
        """Some of them."""
        return Columns(*(column[start:end] for column in self))  # type: ignore[arg-type]


NO_EVENTS = Columns(*repeat((), len(Columns._fields)))


def decode_payloads(texts: str) -> list[Any] | None:
    """What the JSON texts stand for, with a comma between them; None if one is JSON for PostgreSQL alone."""
    try:
        return _decode_list(f"[{texts}]")
    except (ValueError, RecursionError):  # Msgspec's errors are ValueErrors.
        return None


def make_events(columns: Columns, payloads: Sequence[Any]) -> list[Event]:
    """The events, whose payloads are decoded already."""
    # Catching up lives on this function: most events are plain.
    numbers, ids, types, _, moments, streams, versions, mores = columns
    return [
        Event(
            global_sequence=number,
            id=event_id,
            type=event_type,
            payload=payload,
            created_at=created_at,
            status=_STATUS,
            stream_id=stream_id,
            stream_version=version,
        )
        if more is None
        else _event((number, event_id, event_type, None, created_at, stream_id, version, more), payload)
        for number, event_id, event_type, payload, created_at, stream_id, version, more in zip(
            numbers, ids, types, payloads, moments, streams, versions, mores, strict=True
        )
    ]


def columns_from_rows(rows: Sequence[asyncpg.Record | tuple[Any, ...]]) -> Columns:
    """What event_columns has read."""
    return Columns(*zip(*rows, strict=True)) if rows else NO_EVENTS


def join_columns(pieces: Iterable[Columns]) -> Columns:
    """One after the other."""
    return Columns(*(list(chain.from_iterable(column)) for column in zip(*pieces, strict=True)))


def event_from_row(row: asyncpg.Record | tuple[Any, ...]) -> Event:
    """The event of a row read with event_columns."""
    return _event(row, _decode_payload(row[3]))


def _event(row: asyncpg.Record | tuple[Any, ...], payload: Any) -> Event:
    more = row[7]
    metadata, actor_id, purger_id, purged_at, correlation_id, causation_id, schema_version = (
        _NOTHING_MORE if more is None else _decode_list(more)
    )
    return Event(
        global_sequence=row[0],
        id=row[1],
        type=row[2],
        payload=payload,
        created_at=row[4],
        status=_STATUS,
        metadata=_decode_metadata(metadata),
        stream_id=row[5],
        stream_version=row[6],
        actor_id=actor_id,
        purger_id=purger_id,
        purged_at=_moment(purged_at),
        correlation_id=correlation_id,
        causation_id=causation_id,
        schema_version=schema_version,
    )


def event_from_draft(draft: Draft, sequence: int, version: int | None) -> Event:
    """The event as which a draft was stored."""
    return Event(
        global_sequence=GlobalSequence(sequence),
        id=draft.id,
        type=draft.type,
        payload=_decode(draft.payload_json),
        created_at=draft.created_at,
        status=_STATUS,
        metadata=None if draft.metadata is None else dict(draft.metadata),
        stream_id=draft.stream_id,
        stream_version=version,
        actor_id=draft.actor_id,
        correlation_id=draft.correlation_id,
        causation_id=draft.causation_id,
        schema_version=draft.schema_version,
    )


def dead_letter_from_row(row: asyncpg.Record) -> DeadLetter:
    """The dead letter of a row read with letter_columns."""
    return DeadLetter(
        global_sequence=GlobalSequence(row["global_sequence"]),
        id=row["event_id"],
        type=row["event_type"],
        payload=_decode_payload(row["payload"]),
        created_at=row["event_created_at"],
        status=EventStatus.DLQ,
        retry_count=row["retry_count"],
        last_error=row["error_history"],
        metadata=_decode_metadata(row["metadata"]),
        stream_id=row["stream_id"],
        stream_version=row["stream_version"],
        actor_id=row["actor_id"],
        purger_id=row["purger_id"],
        purged_at=row["purged_at"],
        dlq_at=row["created_at"],
        correlation_id=row["correlation_id"],
        causation_id=row["causation_id"],
        schema_version=row["schema_version"],
        dead_letter_id=row["id"],
        subscriber_id=SubscriberId(row["subscriber_id"]),
        last_retry_at=row["last_retry_at"],
        resolved_at=row["resolved_at"],
        resolved_by=row["resolved_by"],
        notes=row["notes"],
    )


def _decode_payload(text: str | None) -> Any:
    try:
        return None if text is None else _decode(text)
    except (msgspec.MsgspecError, RecursionError, UnicodeError) as error:
        return UndecodablePayload(text or "", str(error))


def _decode_metadata(text: str | None) -> dict[str, str] | None:
    try:
        return None if text is None else _decode_strings(text)
    except (msgspec.MsgspecError, RecursionError):
        # Another program wrote it: better shown as it is than hidden, and no reason to hold the event up.
        return {"undecodable": text or ""}


def _moment(text: str | None) -> datetime | None:
    try:
        return None if text is None else datetime.fromisoformat(text).astimezone(UTC)
    except (ValueError, OverflowError):
        return _UNKNOWN_MOMENT  # infinite, or before the calendar of Python begins
