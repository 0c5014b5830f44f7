"""What a durable subscriber writes about its dead letters, inside the transaction of its checkpoint."""

import sqlite3

from postbus.events import Burial, RetryOutcome, SubscriberId, UndecodablePayload
from postbus.ids import new_event_id
from postbus.stores.named_queries import load_queries
from postbus.stores.sqlite.rows import moment_to_text, payload_to_text, to_json
from postbus.stores.wishes import wish_of

_QUERIES = load_queries("postbus.stores.sqlite", "queries.sql")


def bury(connection: sqlite3.Connection, subscriber_id: SubscriberId, burial: Burial, now: str) -> None:
    """Make an event a dead letter of this subscriber, as if it were the first time."""
    event = burial.event
    errors = [_as_text(error) for error in burial.errors]
    values = {
        "id": new_event_id(),
        "subscriber_id": subscriber_id,
        "event_id": event.id,
        "global_sequence": event.global_sequence,
        "error_message": errors[-1] if errors else None,
        "retry_count": len(errors),
        "now": now,
        "error_history": to_json(errors),
        "event_type": event.type,
        "undecodable": event.payload.text if isinstance(event.payload, UndecodablePayload) else None,
        "payload": payload_to_text(event.payload),
        "event_created_at": moment_to_text(event.created_at),
        "metadata": None if event.metadata is None else to_json(event.metadata),
        "stream_id": event.stream_id,
        "stream_version": event.stream_version,
        "actor_id": event.actor_id,
        "purger_id": event.purger_id,
        "purged_at": None if event.purged_at is None else moment_to_text(event.purged_at),
        "correlation_id": event.correlation_id,
        "causation_id": event.causation_id,
        "schema_version": event.schema_version,
    }
    connection.execute(_QUERIES["bury_for_subscriber"], values)


def note_retry(
    connection: sqlite3.Connection, subscriber_id: SubscriberId, retry: RetryOutcome, now: str
) -> None:
    """Resolve a dead letter, or add the error of one more attempt. One that was purged is none any more."""
    values = {"id": retry.dead_letter_id, "subscriber_id": subscriber_id, "now": now}
    if retry.error is None:
        connection.execute(_QUERIES["note_retry_success"], values)
    else:
        answered = {"error": _as_text(retry.error), "wish": wish_of(retry.dead_letter_id)}
        connection.execute(_QUERIES["note_retry_failure"], {**values, **answered})


def _as_text(error: str) -> str:
    # An exception's words may hold half a character, which no database takes.
    return error.encode(errors="backslashreplace").decode()
