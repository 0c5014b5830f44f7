"""A file as the first version of postbus made it: its statements, word for word, and some data."""

import sqlite3
from contextlib import closing
from pathlib import Path

STATEMENTS = [
    """CREATE TABLE IF NOT EXISTS postbus_schema (
    version INTEGER NOT NULL PRIMARY KEY,
    applied_at TEXT NOT NULL
)""",
    """CREATE TABLE events (
    global_sequence INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL UNIQUE,
    type TEXT NOT NULL,
    payload TEXT NOT NULL,
    status TEXT NOT NULL DEFAULT 'pending',
    retry_count INTEGER NOT NULL DEFAULT 0,
    last_error TEXT,
    metadata TEXT,
    created_at TEXT NOT NULL,
    updated_at TEXT NOT NULL,
    dlq_at TEXT,
    stream_id TEXT,
    stream_version INTEGER,
    actor_id TEXT,
    purger_id TEXT,
    purged_at TEXT,
    correlation_id TEXT,
    causation_id TEXT,
    schema_version INTEGER
)""",
    "CREATE INDEX idx_events_status ON events (status, global_sequence)"
    " WHERE status IN ('pending', 'processing')",
    "CREATE INDEX idx_events_type ON events (type, global_sequence) WHERE status = 'dlq'",
    "CREATE INDEX idx_events_dlq ON events (created_at, global_sequence) WHERE status = 'dlq'",
    "CREATE TABLE postbus_dead_letter_count (total INTEGER NOT NULL)",
    "INSERT INTO postbus_dead_letter_count (total) SELECT count(*) FROM events WHERE status = 'dlq'",
    """CREATE TRIGGER postbus_count_buried AFTER UPDATE OF status ON events
WHEN (new.status = 'dlq') <> (old.status = 'dlq')
BEGIN
    UPDATE postbus_dead_letter_count SET total = total + CASE new.status WHEN 'dlq' THEN 1 ELSE -1 END;
END""",
    """CREATE TRIGGER postbus_count_deleted AFTER DELETE ON events WHEN old.status = 'dlq'
BEGIN
    UPDATE postbus_dead_letter_count SET total = total - 1;
END""",
    """CREATE TABLE IF NOT EXISTS subscriptions (
    id TEXT PRIMARY KEY,
    event_type TEXT NOT NULL,
    created_at TEXT NOT NULL
)""",
    "INSERT INTO postbus_schema (version, applied_at) VALUES (1, '2026-01-01T00:00:00+00:00')",
]
_MOMENT = "2026-01-01T12:00:00.000000+00:00"
_INSERT = (
    "INSERT INTO events (id, type, payload, status, metadata, created_at, updated_at)"
    " VALUES (?, ?, ?, ?, ?, ?, ?)"
)
STATUSES = ["pending", "processing", "done", "dlq", "dlq"]


def make_file(path: Path) -> None:
    """One event in each status and two dead letters, one subscription, and one number that is used up."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        for statement in STATEMENTS:
            connection.execute(statement)
        for number, status in enumerate(STATUSES, 1):
            values = (f"event-{number}", "order.placed", f'{{"n":{number}}}', "processing", '{"k":"v"}')
            connection.execute(_INSERT, (*values, _MOMENT, _MOMENT))
            connection.execute("UPDATE events SET status = ? WHERE global_sequence = ?", (status, number))
        connection.execute(_INSERT, ("gone", "order.placed", "null", "done", None, _MOMENT, _MOMENT))
        connection.execute("DELETE FROM events WHERE id = 'gone'")
        connection.execute("INSERT INTO subscriptions VALUES ('one', 'order.*', ?)", (_MOMENT,))
