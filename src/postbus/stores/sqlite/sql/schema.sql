-- name: create_schema_versions
-- A table of our own and not PRAGMA user_version: the file may belong to an application that uses that.
CREATE TABLE IF NOT EXISTS postbus_schema (
    version INTEGER NOT NULL PRIMARY KEY,
    applied_at TEXT NOT NULL
);

-- name: create_events
-- AUTOINCREMENT: a sequence number is never used twice, not even after its event was purged.
-- A time-ordered id keeps inserts at the end of its index, however large the file is.
-- The last line is as ALTER TABLE leaves it, so that an upgraded file has the schema of a new one.
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
, resolved_at TEXT, resolved_by TEXT, notes TEXT);

-- name: index_events_by_status
-- Partial: only unfinished events are looked up by status, and a full index costs every publish.
CREATE INDEX idx_events_status ON events (status, global_sequence) WHERE status IN ('pending', 'processing');

-- name: index_events_by_type
-- Only dead letters are looked up by their type.
CREATE INDEX idx_events_type ON events (type, global_sequence) WHERE status = 'dlq';

-- name: index_dead_letters
CREATE INDEX idx_events_dlq ON events (created_at, global_sequence) WHERE status = 'dlq';

-- name: index_unresolved_dead_letters
-- The page of the newest must not read through all that were resolved.
CREATE INDEX idx_events_unresolved ON events (created_at, global_sequence)
WHERE status = 'dlq' AND resolved_at IS NULL;

-- name: index_streams
-- Partial: events without a stream cost nothing. Unique: no version is ever given twice.
CREATE UNIQUE INDEX idx_events_stream ON events (stream_id, stream_version) WHERE stream_id IS NOT NULL;

-- name: create_dead_letter_count
-- Counting a million dead letters takes longer than reading a page of them, so triggers keep the count
-- of the unresolved ones.
CREATE TABLE postbus_dead_letter_count (total INTEGER NOT NULL);

-- name: count_dead_letters_present
INSERT INTO postbus_dead_letter_count (total) SELECT count(*) FROM events WHERE status = 'dlq';

-- name: count_buried_events
CREATE TRIGGER postbus_count_buried AFTER UPDATE OF status, resolved_at ON events
WHEN (new.status = 'dlq' AND new.resolved_at IS NULL) <> (old.status = 'dlq' AND old.resolved_at IS NULL)
BEGIN
    UPDATE postbus_dead_letter_count
    SET total = total + CASE WHEN new.status = 'dlq' AND new.resolved_at IS NULL THEN 1 ELSE -1 END;
END;

-- name: count_deleted_dead_letters
CREATE TRIGGER postbus_count_deleted AFTER DELETE ON events
WHEN old.status = 'dlq' AND old.resolved_at IS NULL
BEGIN
    UPDATE postbus_dead_letter_count SET total = total - 1;
END;

-- name: create_subscriptions
CREATE TABLE IF NOT EXISTS subscriptions (
    id TEXT PRIMARY KEY,
    event_type TEXT NOT NULL,
    created_at TEXT NOT NULL
);

-- name: create_checkpoints
-- is_held: the owner of this epoch has not let go; was_interrupted: nor had the one before it.
CREATE TABLE event_bus_checkpoints (
    subscriber_id TEXT NOT NULL PRIMARY KEY,
    last_global_sequence INTEGER NOT NULL DEFAULT 0,
    last_event_id TEXT,
    updated_at TEXT NOT NULL,
    epoch INTEGER NOT NULL DEFAULT 0,
    is_held INTEGER NOT NULL DEFAULT 0,
    was_interrupted INTEGER NOT NULL DEFAULT 0,
    attempt_sequence INTEGER,
    attempt_count INTEGER NOT NULL DEFAULT 0
);

-- name: create_subscriber_dead_letters
-- A copy of the event and no reference to it: a dead letter outlives its event.
CREATE TABLE event_bus_dlq (
    id TEXT NOT NULL PRIMARY KEY,
    subscriber_id TEXT NOT NULL,
    event_id TEXT NOT NULL,
    global_sequence INTEGER NOT NULL,
    error_message TEXT,
    retry_count INTEGER NOT NULL DEFAULT 0,
    created_at TEXT NOT NULL,
    last_retry_at TEXT,
    error_history TEXT NOT NULL,
    retry_wanted_at TEXT,
    resolved_at TEXT,
    resolved_by TEXT,
    notes TEXT,
    event_type TEXT NOT NULL,
    payload TEXT NOT NULL,
    event_created_at TEXT NOT NULL,
    metadata TEXT,
    stream_id TEXT,
    stream_version INTEGER,
    actor_id TEXT,
    purger_id TEXT,
    purged_at TEXT,
    correlation_id TEXT,
    causation_id TEXT,
    schema_version INTEGER,
    UNIQUE (subscriber_id, event_id)
);

-- name: index_subscriber_dead_letters_by_age
-- For purging, which takes the resolved ones too.
CREATE INDEX idx_dlq_created_at ON event_bus_dlq (created_at);

-- name: index_subscriber_dead_letters_by_event
CREATE INDEX idx_dlq_event ON event_bus_dlq (event_id);

-- name: index_subscriber_dead_letters_by_type
CREATE INDEX idx_dlq_type ON event_bus_dlq (event_type) WHERE resolved_at IS NULL;

-- name: index_unresolved_subscriber_dead_letters
CREATE INDEX idx_dlq_unresolved ON event_bus_dlq (created_at, global_sequence) WHERE resolved_at IS NULL;

-- name: index_dead_letters_of_subscriber
CREATE INDEX idx_dlq_subscriber ON event_bus_dlq (subscriber_id, created_at, global_sequence)
WHERE resolved_at IS NULL;

-- name: index_wanted_retries
CREATE INDEX idx_dlq_retry ON event_bus_dlq (subscriber_id, created_at, global_sequence)
WHERE retry_wanted_at IS NOT NULL;

-- name: create_subscriber_dead_letter_count
CREATE TABLE postbus_subscriber_dead_letter_count (
    subscriber_id TEXT NOT NULL PRIMARY KEY,
    total INTEGER NOT NULL
) WITHOUT ROWID;

-- name: count_new_subscriber_dead_letters
CREATE TRIGGER postbus_count_subscriber_buried AFTER INSERT ON event_bus_dlq WHEN new.resolved_at IS NULL
BEGIN
    INSERT INTO postbus_subscriber_dead_letter_count (subscriber_id, total) VALUES (new.subscriber_id, 1)
    ON CONFLICT (subscriber_id) DO UPDATE SET total = total + 1;
END;

-- name: count_resolved_subscriber_dead_letters
CREATE TRIGGER postbus_count_subscriber_resolved AFTER UPDATE OF resolved_at ON event_bus_dlq
WHEN (new.resolved_at IS NULL) <> (old.resolved_at IS NULL)
BEGIN
    UPDATE postbus_subscriber_dead_letter_count
    SET total = total + CASE WHEN new.resolved_at IS NULL THEN 1 ELSE -1 END
    WHERE subscriber_id = new.subscriber_id;
END;

-- name: count_deleted_subscriber_dead_letters
CREATE TRIGGER postbus_count_subscriber_deleted AFTER DELETE ON event_bus_dlq WHEN old.resolved_at IS NULL
BEGIN
    UPDATE postbus_subscriber_dead_letter_count SET total = total - 1
    WHERE subscriber_id = old.subscriber_id;
END;

-- name: create_states
CREATE TABLE postbus_states (
    store_name TEXT NOT NULL,
    key TEXT NOT NULL,
    state TEXT NOT NULL,
    updated_at TEXT NOT NULL,
    PRIMARY KEY (store_name, key)
) WITHOUT ROWID;
