"""A look into the database from outside, past the product's own code."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from tests.end_to_end.history import History

SETTLED = {"done", "dlq"}


@contextmanager
def connect(path: Path) -> Iterator[sqlite3.Connection]:
    """A connection of our own; every statement is its own transaction."""
    with closing(sqlite3.connect(path, timeout=10.0, isolation_level=None)) as connection:
        yield connection


def statuses(path: Path) -> dict[str, str]:
    """The status of every stored event by its id."""
    with connect(path) as connection:
        return dict(connection.execute("SELECT id, status FROM events"))


def count(path: Path, *, status: str) -> int:
    """How many events have this status."""
    with connect(path) as connection:
        return int(
            connection.execute("SELECT count(*) FROM events WHERE status = ?", (status,)).fetchone()[0]
        )


def check_integrity(path: Path) -> None:
    """SQLite finds nothing wrong with the file."""
    with connect(path) as connection:
        found = [row[0] for row in connection.execute("PRAGMA integrity_check")]
        (dead_letters,) = connection.execute("SELECT count(*) FROM events WHERE status = 'dlq'").fetchone()
        (counted,) = connection.execute("SELECT total FROM postbus_dead_letter_count").fetchone()
    assert found == ["ok"]
    assert counted == dead_letters


def check_nothing_lost(path: Path, history: History, acknowledged: set[str]) -> None:
    """Every acknowledged event is settled, and what is done was seen by its handler."""
    # In this order: a handler tells of an event before the event is done.
    stored = statuses(path)
    delivered = history.delivered()
    lost = {event_id for event_id in acknowledged if stored.get(event_id) not in SETTLED}
    assert not lost, f"lost: { {event_id: stored.get(event_id) for event_id in lost} }\n{history.story(lost)}"
    unseen = {event_id for event_id, status in stored.items() if status == "done"} - delivered
    assert not unseen, f"done, but no handler saw them\n{history.story(unseen)}"


def check_nothing_stuck(path: Path, history: History) -> None:
    """No event waits for ever."""
    stuck = {event_id: status for event_id, status in statuses(path).items() if status not in SETTLED}
    assert not stuck, f"stuck: {stuck}\n{history.story(stuck)}"


def check_batches_are_whole(path: Path) -> None:
    """Of every publish_many all events were stored, or none: each carries its batch and the batch's size."""
    with connect(path) as connection:
        partial = connection.execute(
            "SELECT json_extract(payload, '$.batch') AS batch, json_extract(payload, '$.size') AS size, "
            "count(*) FROM events WHERE batch IS NOT NULL GROUP BY batch, size HAVING count(*) <> size"
        ).fetchall()
    assert not partial, f"partial batches (batch, size, stored): {partial}"
