-- name: schema_version
SELECT max(version) FROM postbus_schema;

-- name: record_schema_version
INSERT INTO postbus_schema (version, applied_at) VALUES (?, ?);

-- name: columns_of_table
SELECT name FROM pragma_table_info(?);

-- name: set_old_events_aside
ALTER TABLE events RENAME TO events_before_postbus;

-- name: take_over_old_events
-- The specification's table has no order of its own but time; ties keep the order of insertion.
INSERT INTO events (id, type, payload, status, retry_count, last_error, metadata, created_at, updated_at)
SELECT id, type, payload, status, retry_count, last_error, metadata, created_at, updated_at
FROM events_before_postbus ORDER BY created_at, rowid;

-- name: drop_old_events
DROP TABLE events_before_postbus;

-- name: insert_events
-- {rows} is one or more of the row below: one statement for a whole group lets go of the GIL once.
INSERT INTO events (id, type, payload, status, metadata, created_at, updated_at) VALUES {rows};

-- name: insert_events_row
(?, ?, ?, ?, ?, ?, ?)

-- name: insert_event_once
-- A given id that is stored already is no error and stores nothing.
INSERT INTO events (id, type, payload, status, metadata, created_at, updated_at)
VALUES (?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (id) DO NOTHING
RETURNING global_sequence;

-- name: finish_events
UPDATE events SET status = 'done', updated_at = ?
WHERE global_sequence IN (SELECT value FROM json_each(?)) AND status = 'processing';

-- name: fail_event
UPDATE events SET retry_count = ?, last_error = ?, updated_at = ?
WHERE global_sequence = ? AND status = 'processing';

-- name: bury_event
UPDATE events SET status = 'dlq', retry_count = ?, last_error = ?, dlq_at = ?, updated_at = ?
WHERE global_sequence = ? AND status = 'processing';

-- name: release_events
UPDATE events SET status = 'pending', updated_at = ?
WHERE global_sequence IN (SELECT value FROM json_each(?)) AND status = 'processing';

-- name: recover_events
-- The attempt that was under way when the process ended counts, so that an event
-- which ends the process again and again does not do so for ever.
UPDATE events
SET status = 'pending', retry_count = retry_count + 1, updated_at = ?,
    last_error = json_insert(coalesce(last_error, '[]'), '$[#]', ?)
WHERE status = 'processing';

-- name: read_pending
SELECT {columns} FROM events
WHERE status = 'pending' AND global_sequence > ? ORDER BY global_sequence LIMIT ?;

-- name: claim_events
UPDATE events SET status = 'processing', updated_at = ?
WHERE global_sequence IN (SELECT value FROM json_each(?)) AND status = 'pending'
RETURNING global_sequence;

-- name: settle_pending_events
UPDATE events SET status = 'done', updated_at = ?
WHERE global_sequence IN (SELECT value FROM json_each(?)) AND status = 'pending';

-- name: read_event
SELECT {columns} FROM events WHERE id = ?;

-- name: read_event_status
SELECT status FROM events WHERE id = ?;

-- name: read_dead_letters
SELECT {columns} FROM events WHERE status = 'dlq'
ORDER BY created_at DESC, global_sequence DESC LIMIT ? OFFSET ?;

-- name: count_dead_letters
SELECT total FROM postbus_dead_letter_count;

-- name: revive_event
UPDATE events SET status = 'pending', retry_count = 0, last_error = NULL, dlq_at = NULL, updated_at = ?
WHERE id = ? AND status = 'dlq';

-- name: revive_events
UPDATE events SET status = 'pending', retry_count = 0, last_error = NULL, dlq_at = NULL, updated_at = ?1
WHERE status = 'dlq' AND (?2 IS NULL OR type = ?2);

-- name: purge_dead_letters
DELETE FROM events WHERE status = 'dlq' AND created_at <= ?;

-- name: delete_subscriptions
DELETE FROM subscriptions;

-- name: insert_subscription
INSERT INTO subscriptions (id, event_type, created_at) VALUES (?, ?, ?);

-- name: read_subscriptions
SELECT id, event_type, created_at FROM subscriptions ORDER BY created_at, rowid;
