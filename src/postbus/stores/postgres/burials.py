"""What a durable subscriber writes about its dead letters, inside the transaction of its checkpoint."""

from collections.abc import Mapping, Sequence
from datetime import datetime

import msgspec

from postbus.events import Burial, RetryOutcome, SubscriberId, UndecodablePayload
from postbus.ids import new_event_id
from postbus.stores.postgres.pool import Connection
from postbus.stores.wishes import wish_of

_encode = msgspec.json.Encoder().encode


async def bury(
    connection: Connection,
    queries: Mapping[str, str],
    subscriber_id: SubscriberId,
    burials: Sequence[Burial],
    now: datetime,
) -> None:
    """Make events dead letters of this subscriber, as if it were the first time."""
    rows = [_burial_to_row(subscriber_id, burial, now) for burial in burials]
    await connection.executemany(queries["bury_event"], rows)


async def note_retry(
    connection: Connection,
    queries: Mapping[str, str],
    subscriber_id: SubscriberId,
    retry: RetryOutcome,
    now: datetime,
) -> bool:
    """Resolve a dead letter, or add the error of one more attempt; whether another retry is wanted.

    One that was purged is none any more.
    """
    values = (retry.dead_letter_id, subscriber_id, now)
    if retry.error is None:
        await connection.execute(queries["note_retry_success"], *values)
        return False
    answered = (as_text(retry.error), wish_of(retry.dead_letter_id))
    return bool(await connection.fetchval(queries["note_retry_failure"], *values, *answered))


def _burial_to_row(subscriber_id: SubscriberId, burial: Burial, now: datetime) -> tuple[object, ...]:
    """The values of bury_event."""
    event = burial.event
    errors = [as_text(error) for error in burial.errors]
    return (
        new_event_id(),
        subscriber_id,
        event.id,
        event.global_sequence,
        errors[-1] if errors else None,
        len(errors),
        now,
        _encode(errors).decode(),
        event.type,
        as_text(event.payload.text) if isinstance(event.payload, UndecodablePayload) else None,
        _payload_to_text(event.payload),
        event.created_at,
        None if event.metadata is None else _encode(event.metadata).decode(),
        event.stream_id,
        event.stream_version,
        event.actor_id,
        event.purger_id,
        event.purged_at,
        event.correlation_id,
        event.causation_id,
        event.schema_version,
    )


def _payload_to_text(payload: object) -> str:
    """A payload as JSON again; what a handler's type made of it at least as words."""
    try:
        return _encode(payload).decode()
    except (msgspec.MsgspecError, TypeError, ValueError, OverflowError, RecursionError):
        return _encode(as_text(repr(payload))).decode()


def as_text(words: str) -> str:
    """As this database takes it."""
    # An exception's words may hold half a character or a NUL, which this database does not take.
    return words.encode(errors="backslashreplace").decode().replace("\0", "\\x00")
