"""With a million dead letters nothing that people or subscribers ask for reads through all of them."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from postbus.stores.named_queries import load_queries
from postbus.stores.sqlite import SQLiteStore
from postbus.stores.sqlite.rows import HANDLER_COLUMNS, SUBSCRIBER_COLUMNS

_PLACES = {
    "read_dead_letters": ["idx_events_unresolved", "idx_dlq_unresolved"],
    "read_dead_letters_of_subscriber": ["idx_dlq_subscriber (subscriber_id=?)"],
    "read_wanted_retries": ["idx_dlq_retry (subscriber_id=?)"],
    "read_dead_letter_of_event": ["idx_dlq_event (event_id=?)"],
    "want_retry": ["idx_dlq_event (event_id=?)", "sqlite_autoindex_event_bus_dlq_1 (id=?)"],
    "want_retries_of_type": ["idx_dlq_type (event_type=?)"],
    "want_retries_of_subscriber": ["idx_dlq_subscriber (subscriber_id=?)"],
    "purge_subscriber_dead_letters": ["idx_dlq_created_at (created_at<?)"],
    "purge_dead_letters": ["idx_events_dlq (created_at<?)"],
    "purge_event_from_dead_letters": ["idx_dlq_event (event_id=?)"],
    "read_stream": ["idx_events_stream (stream_id=? AND stream_version>? AND stream_version<?)"],
    "read_before_insert": ["idx_events_stream (stream_id=?)"],
}


@pytest.mark.parametrize("name", _PLACES)
async def test_a_question_about_few_reads_few(tmp_path: Path, name: str) -> None:
    """Every table is entered through the index that was made for it."""
    path = tmp_path / "events.db"
    async with SQLiteStore(path):
        pass
    statement = load_queries("postbus.stores.sqlite", "queries.sql")[name].format(
        columns="id", handler_columns=HANDLER_COLUMNS, subscriber_columns=SUBSCRIBER_COLUMNS
    )
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TEMP VIEW postbus_unrouted AS SELECT 'done' AS status")
        names = ["most", "limit", "offset", "id", "now", "event_type", "subscriber_id"]
        values: object = dict.fromkeys(names, 1) if ":" in statement else (1,) * statement.count("?")
        if name == "read_before_insert":
            values = ("[]", "[]")
        rows = connection.execute(f"EXPLAIN QUERY PLAN {statement}", values).fetchall()  # type: ignore[arg-type]
    plan = [row[3] for row in rows]

    for place in _PLACES[name]:
        assert any(place in step for step in plan), plan
    assert not [step for step in plan if step in ("SCAN events", "SCAN event_bus_dlq")], plan
