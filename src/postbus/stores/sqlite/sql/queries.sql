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

-- name: create_unrouted_view
-- The status of an event whose publisher has no handlers: it waits if anybody has ever subscribed, so
-- that a process that only publishes loses nothing while the one with the handlers is down.
CREATE TEMP VIEW postbus_unrouted AS
SELECT CASE WHEN EXISTS (SELECT 1 FROM subscriptions) THEN 'pending' ELSE 'done' END AS status;

-- name: create_group_view
-- One row inserted here is one group: new events and finished ones in a single statement, so that
-- the writer's thread lets go of the GIL once for a group and not once for every statement of it.
CREATE TEMP VIEW postbus_group AS
SELECT NULL AS last_sequence, NULL AS new_events, NULL AS finished, NULL AS now;

-- name: create_group_trigger
-- The numbers are given by the writer, which has to know them; if another process has used
-- some since, nothing is written and the writer asks again.
CREATE TEMP TRIGGER postbus_write_group INSTEAD OF INSERT ON postbus_group
BEGIN
    SELECT RAISE(ABORT, 'sequence has moved')
    WHERE new.last_sequence <> coalesce((SELECT seq FROM sqlite_sequence WHERE name = 'events'), 0);
    INSERT INTO events (global_sequence, id, type, payload, status, metadata, created_at, updated_at)
    SELECT new.last_sequence + 1 + key,
        json_extract(value, '$[0]'), json_extract(value, '$[1]'), json_extract(value, '$[2]'),
        coalesce(json_extract(value, '$[3]'), (SELECT status FROM postbus_unrouted)),
        json_extract(value, '$[4]'), json_extract(value, '$[5]'), json_extract(value, '$[5]')
    FROM json_each(new.new_events);
    UPDATE events SET status = 'done', updated_at = new.now
    WHERE global_sequence IN (SELECT value FROM json_each(new.finished)) AND status = 'processing';
END;

-- name: write_group
INSERT INTO postbus_group (last_sequence, new_events, finished, now) VALUES (?, ?, ?, ?);

-- name: create_single_view
-- The same for one new event and at most one finished: what JSON costs is a fifth of such a commit.
CREATE TEMP VIEW postbus_single AS
SELECT NULL AS last_sequence, NULL AS id, NULL AS type, NULL AS payload, NULL AS status, NULL AS metadata,
    NULL AS created_at, NULL AS finished, NULL AS now;

-- name: create_single_trigger
CREATE TEMP TRIGGER postbus_write_single INSTEAD OF INSERT ON postbus_single
BEGIN
    SELECT RAISE(ABORT, 'sequence has moved')
    WHERE new.last_sequence <> coalesce((SELECT seq FROM sqlite_sequence WHERE name = 'events'), 0);
    INSERT INTO events (global_sequence, id, type, payload, status, metadata, created_at, updated_at)
    VALUES (new.last_sequence + 1, new.id, new.type, new.payload,
        coalesce(new.status, (SELECT status FROM postbus_unrouted)),
        new.metadata, new.created_at, new.created_at);
    UPDATE events SET status = 'done', updated_at = new.now
    WHERE global_sequence = new.finished AND status = 'processing';
END;

-- name: write_single
INSERT INTO postbus_single VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: last_sequence
SELECT coalesce(max(seq), 0) FROM sqlite_sequence WHERE name = 'events';

-- name: insert_event
INSERT INTO events (id, type, payload, status, metadata, created_at, updated_at)
VALUES (?, ?, ?, ?, ?, ?, ?);

-- name: insert_unrouted_event
INSERT INTO events (id, type, payload, status, metadata, created_at, updated_at)
SELECT id, type, payload, (SELECT status FROM postbus_unrouted), metadata, now, now
FROM (SELECT ? AS id, ? AS type, ? AS payload, ? AS status, ? AS metadata, ? AS now)
RETURNING global_sequence;

-- name: insert_event_once
-- A given id that is stored already is no error and stores nothing. (ON CONFLICT DO NOTHING
-- would use up a number each time.)
INSERT INTO events (id, type, payload, status, metadata, created_at, updated_at)
SELECT id, type, payload, coalesce(status, (SELECT status FROM postbus_unrouted)), metadata, now, now
FROM (SELECT ? AS id, ? AS type, ? AS payload, ? AS status, ? AS metadata, ? AS now) AS given
WHERE NOT EXISTS (SELECT 1 FROM events WHERE events.id = given.id)
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
-- which ends the process again and again does not do so for ever. (The first condition: see read_pending.)
UPDATE events
SET status = 'pending', retry_count = retry_count + 1, updated_at = ?,
    last_error = json_insert(
        CASE WHEN last_error IS NULL THEN '[]' WHEN json_valid(last_error) THEN last_error
             ELSE json_array(last_error) END, '$[#]', ?)
WHERE status IN ('pending', 'processing') AND status = 'processing';

-- name: read_pending
-- SQLite takes a partial index only where its condition is repeated word for word.
SELECT {columns} FROM events
WHERE status IN ('pending', 'processing') AND status = 'pending' AND global_sequence > ?
ORDER BY global_sequence LIMIT ?;

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
UPDATE events SET status = 'pending', retry_count = 0, last_error = NULL, dlq_at = NULL, updated_at = ?
WHERE status = 'dlq';

-- name: revive_events_of_type
UPDATE events SET status = 'pending', retry_count = 0, last_error = NULL, dlq_at = NULL, updated_at = ?
WHERE status = 'dlq' AND type = ?;

-- name: purge_dead_letters
DELETE FROM events WHERE status = 'dlq' AND created_at <= ?;

-- name: delete_subscriptions
DELETE FROM subscriptions;

-- name: insert_subscription
INSERT INTO subscriptions (id, event_type, created_at) VALUES (?, ?, ?);

-- name: read_subscriptions
SELECT id, event_type, created_at FROM subscriptions ORDER BY created_at, rowid;
