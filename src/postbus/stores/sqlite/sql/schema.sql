-- name: create_schema_versions
-- A table of our own and not PRAGMA user_version: the file may belong to an application that uses that.
CREATE TABLE IF NOT EXISTS postbus_schema (
    version INTEGER NOT NULL PRIMARY KEY,
    applied_at TEXT NOT NULL
);

-- name: create_events
-- AUTOINCREMENT: a sequence number is never used twice, not even after its event was purged.
-- A time-ordered id keeps inserts at the end of its index, however large the file is.
CREATE TABLE events (
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
);

-- name: index_events_by_status
-- Partial: only unfinished events are looked up by status, and a full index costs every publish.
CREATE INDEX idx_events_status ON events (status, global_sequence) WHERE status IN ('pending', 'processing');

-- name: index_events_by_type
-- Only dead letters are looked up by their type.
CREATE INDEX idx_events_type ON events (type, global_sequence) WHERE status = 'dlq';

-- name: index_dead_letters
CREATE INDEX idx_events_dlq ON events (created_at, global_sequence) WHERE status = 'dlq';

-- name: create_dead_letter_count
-- Counting a million dead letters takes longer than reading a page of them, so triggers keep the count.
CREATE TABLE postbus_dead_letter_count (total INTEGER NOT NULL);

-- name: count_dead_letters_present
INSERT INTO postbus_dead_letter_count (total) SELECT count(*) FROM events WHERE status = 'dlq';

-- name: count_buried_events
CREATE TRIGGER postbus_count_buried AFTER UPDATE OF status ON events
WHEN (new.status = 'dlq') <> (old.status = 'dlq')
BEGIN
    UPDATE postbus_dead_letter_count SET total = total + CASE new.status WHEN 'dlq' THEN 1 ELSE -1 END;
END;

-- name: count_deleted_dead_letters
CREATE TRIGGER postbus_count_deleted AFTER DELETE ON events WHEN old.status = 'dlq'
BEGIN
    UPDATE postbus_dead_letter_count SET total = total - 1;
END;

-- name: create_subscriptions
CREATE TABLE IF NOT EXISTS subscriptions (
    id TEXT PRIMARY KEY,
    event_type TEXT NOT NULL,
    created_at TEXT NOT NULL
);
