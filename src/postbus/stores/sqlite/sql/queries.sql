-- name: schema_version
SELECT max(version) FROM postbus_schema;

-- name: record_schema_version
INSERT INTO postbus_schema (version, applied_at) VALUES (?, ?);

-- name: columns_of_table
SELECT name FROM pragma_table_info(?);

-- name: set_old_events_aside
ALTER TABLE events RENAME TO events_before_postbus;

-- name: take_over_old_events
-- The specification's table has no order of its own but time; ties keep the order of insertion. Moments are
-- written as ours are, since purging and paging compare them as texts. What is no moment becomes that of taking
-- over: its event comes last, and no purge takes it too early. As bytes: not every text there is UTF-8.
INSERT INTO events (id, type, payload, status, retry_count, last_error, metadata, created_at, updated_at)
SELECT id, type, payload, status, retry_count, last_error, metadata,
    postbus_moment(CAST(created_at AS BLOB), :now) AS our_created_at,
    postbus_moment(CAST(updated_at AS BLOB), :now)
FROM events_before_postbus ORDER BY our_created_at, rowid;

-- name: drop_old_events
DROP TABLE events_before_postbus;

-- name: add_resolved_at
ALTER TABLE events ADD COLUMN resolved_at TEXT;

-- name: add_resolved_by
ALTER TABLE events ADD COLUMN resolved_by TEXT;

-- name: add_notes
ALTER TABLE events ADD COLUMN notes TEXT;

-- name: drop_old_count_buried
DROP TRIGGER IF EXISTS postbus_count_buried;

-- name: drop_old_count_deleted
DROP TRIGGER IF EXISTS postbus_count_deleted;

-- name: begin
-- With a comment, as all that follow: a handler's own words never meet a prepared statement of ours (guard.py).
BEGIN IMMEDIATE /* postbus */;

-- name: commit
COMMIT /* postbus */;

-- name: rollback
ROLLBACK /* postbus */;

-- name: begin_call
SAVEPOINT postbus_call /* postbus */;

-- name: undo_call
ROLLBACK TO postbus_call /* postbus */;

-- name: end_call
RELEASE postbus_call /* postbus */;

-- name: begin_event
SAVEPOINT postbus_event /* postbus */;

-- name: undo_event
ROLLBACK TO postbus_event /* postbus */;

-- name: end_event
RELEASE postbus_event /* postbus */;

-- name: create_unrouted_view
-- The status of an event whose publisher has no handlers: it waits if anybody has ever subscribed, so
-- that a process that only publishes loses nothing while the one with the handlers is down.
CREATE TEMP VIEW postbus_unrouted AS
SELECT CASE WHEN EXISTS (SELECT 1 FROM subscriptions) THEN 'pending' ELSE 'done' END AS status;

-- name: write_group
-- New events as one statement that is its own transaction, so that the writer's thread lets go of the GIL
-- once for all of them. The numbers are given by the writer, which has to know them; if another process has
-- used some since, nothing is stored and the writer asks again.
-- {rows}: placeholders for each event; what it lacks is given as the number 0. One without an id is room that
-- this group does not need. {finished}: nothing, or finish_beside.
INSERT INTO events (global_sequence, id, type, payload, status, metadata, created_at, updated_at)
SELECT column1, column2, column3, column4, coalesce(nullif(column5, 0), (SELECT status FROM postbus_unrouted)),
    nullif(column6, 0), column7, column7
FROM (VALUES {rows})
WHERE column2 <> 0
    AND ? = (SELECT coalesce(max(seq), 0) FROM sqlite_sequence WHERE name = 'events')
{finished};

-- name: finish_beside
-- Goes with write_group: events that are finished, from one number to another, look like new ones that are there
-- already. Not if somebody else has a trigger, which would be called for them. (The last line: a new event whose
-- number is taken after all is an error, as it is without them. Their payload is JSON for whoever has added a
-- column that is made from it.)
UNION ALL
SELECT global_sequence, '', '', 'null', 'done', NULL, '', ? FROM events
WHERE global_sequence BETWEEN ? AND ? AND status = 'processing'
    AND ? = (SELECT coalesce(max(seq), 0) FROM sqlite_sequence WHERE name = 'events')
    AND NOT EXISTS (
        SELECT 1 FROM (SELECT * FROM sqlite_master UNION ALL SELECT * FROM sqlite_temp_master)
        WHERE type = 'trigger' AND tbl_name = 'events' COLLATE NOCASE
            AND name NOT IN ('postbus_count_buried', 'postbus_count_deleted')
    )
ON CONFLICT (global_sequence) DO UPDATE SET status = excluded.status, updated_at = excluded.updated_at,
    retry_count = CASE WHEN excluded.id = '' THEN retry_count END;

-- name: take_back_events
-- Not what was stored before under the same id: somebody's trigger may be there to ignore just that.
DELETE FROM events WHERE global_sequence > ? AND id IN (SELECT value FROM json_each(?));

-- name: last_sequence
SELECT coalesce(max(seq), 0) FROM sqlite_sequence WHERE name = 'events';

-- name: read_before_insert
-- All that has to be known before events are numbered, in one question: the last number, the status of
-- an event that nobody routes, the versions of the given streams, and which of the given ids are stored.
SELECT
    (SELECT coalesce(max(seq), 0) FROM sqlite_sequence WHERE name = 'events'),
    (SELECT status FROM postbus_unrouted),
    (SELECT json_group_object(value,
        coalesce((SELECT max(stream_version) FROM events WHERE stream_id = value), 0))
     FROM json_each(?)),
    (SELECT json_group_array(value) FROM json_each(?)
     WHERE EXISTS (SELECT 1 FROM events WHERE id = value));

-- name: insert_events
-- {rows}: one row of placeholders for each event.
INSERT INTO events (global_sequence, id, type, payload, status, metadata, created_at, updated_at)
VALUES {rows};

-- name: insert_full_events
INSERT INTO events (global_sequence, id, type, payload, status, metadata, created_at, updated_at,
    stream_id, stream_version, actor_id, correlation_id, causation_id, schema_version)
VALUES {rows};

-- name: insert_events_as_json
INSERT INTO events (global_sequence, id, type, payload, status, metadata, created_at, updated_at)
SELECT json_extract(value, '$[0]'), json_extract(value, '$[1]'), json_extract(value, '$[2]'),
    json_extract(value, '$[3]'), json_extract(value, '$[4]'), json_extract(value, '$[5]'),
    json_extract(value, '$[6]'), json_extract(value, '$[7]')
FROM json_each(?);

-- name: insert_full_events_as_json
INSERT INTO events (global_sequence, id, type, payload, status, metadata, created_at, updated_at,
    stream_id, stream_version, actor_id, correlation_id, causation_id, schema_version)
SELECT json_extract(value, '$[0]'), json_extract(value, '$[1]'), json_extract(value, '$[2]'),
    json_extract(value, '$[3]'), json_extract(value, '$[4]'), json_extract(value, '$[5]'),
    json_extract(value, '$[6]'), json_extract(value, '$[7]'), json_extract(value, '$[8]'),
    json_extract(value, '$[9]'), json_extract(value, '$[10]'), json_extract(value, '$[11]'),
    json_extract(value, '$[12]'), json_extract(value, '$[13]')
FROM json_each(?);

-- name: finish_range
-- As finish_events, for all events from one number to another, in two thirds of the time.
UPDATE events SET status = 'done', updated_at = ?
WHERE global_sequence BETWEEN ? AND ? AND status = 'processing';

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

-- name: is_one_of_several
-- Whether there is a second event in processing. (The first condition: see read_pending.)
SELECT EXISTS (
    SELECT 1 FROM events WHERE status IN ('pending', 'processing') AND status = 'processing' LIMIT 1 OFFSET 1
);

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
-- {types}: placeholders for those that nobody wants. SQLite passes them in a thirtieth of the time that Python takes.
SELECT {columns} FROM events
WHERE status IN ('pending', 'processing') AND status = 'pending' AND global_sequence > ?
    AND type NOT IN ({types})
ORDER BY global_sequence LIMIT ?;

-- name: count_pending
-- From the index alone. (The first condition: see read_pending.)
SELECT count(*) FROM events
WHERE status IN ('pending', 'processing') AND status = 'pending' AND global_sequence <= ?;

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

-- name: next_sequence
-- Where the log goes on: there may be a hole, where somebody has deleted events.
SELECT min(global_sequence) FROM events WHERE global_sequence > ?;

-- name: read_types
-- Which types there are in a part of the log, so that only wanted events are read.
SELECT json_group_array(DISTINCT type) FROM events WHERE global_sequence BETWEEN ? AND ?;

-- name: read_page
-- Each column of the page as one text: a thread that fetches row by row has to get hold of the interpreter for
-- each of them, while the event loop has it. What most events lack is one column, which is mostly null.
SELECT
    count(*),
    min(json_valid(payload)),
    group_concat(global_sequence),
    group_concat(id, char(31)),
    group_concat(type, char(31)),
    '[' || group_concat(payload) || ']',
    group_concat(created_at),
    group_concat(status),
    '[' || group_concat(
        CASE WHEN retry_count = 0 AND coalesce(last_error, metadata, dlq_at, stream_id, actor_id, purger_id,
            purged_at, correlation_id, causation_id, schema_version) IS NULL THEN 'null'
        ELSE json_array(retry_count, last_error, metadata, dlq_at, stream_id, stream_version, actor_id,
            purger_id, purged_at, correlation_id, causation_id, schema_version) END
    ) || ']'
FROM events
WHERE global_sequence BETWEEN ? AND ? AND (? IS NULL OR type IN (SELECT value FROM json_each(?)));

-- name: read_whole_rows
SELECT {columns} FROM events
WHERE global_sequence BETWEEN ? AND ? AND (? IS NULL OR type IN (SELECT value FROM json_each(?)))
ORDER BY global_sequence;

-- name: read_stream
SELECT {columns} FROM events WHERE stream_id = ? AND stream_version BETWEEN ? AND ?
ORDER BY stream_version;

-- name: read_position_at
-- No index: it would cost every publish, and this is asked once in the life of a subscriber.
SELECT global_sequence - 1 FROM events WHERE created_at >= ? ORDER BY global_sequence LIMIT 1;

-- name: purge_event
UPDATE events SET payload = 'null', purger_id = ?, purged_at = ? WHERE id = ? AND purged_at IS NULL;

-- name: purge_event_from_dead_letters
UPDATE event_bus_dlq SET payload = 'null', purger_id = ?, purged_at = ?
WHERE event_id = ? AND purged_at IS NULL;

-- name: read_dead_letters
-- Both kinds, newest first: first where they are, from two indexes, and then only the rows of the page.
WITH newest AS (
    SELECT * FROM (
        SELECT 0 AS kind, global_sequence AS place, created_at AS newest_at, global_sequence AS number
        FROM events WHERE status = 'dlq' AND resolved_at IS NULL
        ORDER BY created_at DESC, global_sequence DESC LIMIT :most
    )
    UNION ALL
    SELECT * FROM (
        SELECT 1, rowid, created_at, global_sequence FROM event_bus_dlq WHERE resolved_at IS NULL
        ORDER BY created_at DESC, global_sequence DESC LIMIT :most
    )
    ORDER BY newest_at DESC, number DESC LIMIT :limit OFFSET :offset
)
SELECT {handler_columns}, newest_at, number FROM newest CROSS JOIN events
ON kind = 0 AND events.global_sequence = place
UNION ALL
SELECT {subscriber_columns}, newest_at, number FROM newest CROSS JOIN event_bus_dlq
ON kind = 1 AND event_bus_dlq.rowid = place
ORDER BY newest_at DESC, number DESC;

-- name: read_dead_letters_of_subscriber
SELECT {subscriber_columns} FROM event_bus_dlq WHERE resolved_at IS NULL AND subscriber_id = ?
ORDER BY created_at DESC, global_sequence DESC LIMIT ? OFFSET ?;

-- name: count_dead_letters
SELECT (SELECT total FROM postbus_dead_letter_count)
    + (SELECT coalesce(sum(total), 0) FROM postbus_subscriber_dead_letter_count);

-- name: count_dead_letters_of_subscriber
SELECT coalesce(max(total), 0) FROM postbus_subscriber_dead_letter_count WHERE subscriber_id = ?;

-- name: read_subscriber_dead_letter
SELECT {subscriber_columns} FROM event_bus_dlq WHERE id = ?;

-- name: read_handler_dead_letter
SELECT {handler_columns} FROM events WHERE id = ? AND status = 'dlq';

-- name: read_dead_letter_of_event
SELECT {subscriber_columns} FROM event_bus_dlq WHERE event_id = ?
ORDER BY created_at DESC, global_sequence DESC LIMIT 1;

-- name: read_wanted_retries
SELECT {subscriber_columns}, retry_wanted_at FROM event_bus_dlq WHERE subscriber_id = ? AND retry_wanted_at IS NOT NULL
ORDER BY created_at, global_sequence LIMIT ?;

-- name: find_dead_letters
-- What an id stands for: 1 if there is an unresolved one, 0 if all are resolved, NULL if there is none.
SELECT max(is_unresolved) FROM (
    SELECT resolved_at IS NULL AS is_unresolved FROM events WHERE id = :id AND status = 'dlq'
    UNION ALL SELECT resolved_at IS NULL FROM event_bus_dlq WHERE event_id = :id
    UNION ALL SELECT resolved_at IS NULL FROM event_bus_dlq WHERE id = :id
);

-- name: revive_event
UPDATE events SET status = 'pending', retry_count = 0, last_error = NULL, dlq_at = NULL, updated_at = ?
WHERE id = ? AND status = 'dlq' AND resolved_at IS NULL;

-- name: revive_events
UPDATE events SET status = 'pending', retry_count = 0, last_error = NULL, dlq_at = NULL, updated_at = ?
WHERE status = 'dlq' AND resolved_at IS NULL;

-- name: revive_events_of_type
UPDATE events SET status = 'pending', retry_count = 0, last_error = NULL, dlq_at = NULL, updated_at = ?
WHERE status = 'dlq' AND resolved_at IS NULL AND type = ?;

-- name: want_retry
-- Each wish is later than the one before: an attempt that is under way for that one does not end this one.
UPDATE event_bus_dlq SET retry_wanted_at =
    max(:now, coalesce(strftime('%Y-%m-%dT%H:%M:%f000+00:00', retry_wanted_at, '+0.001 seconds'), :now))
WHERE (id = :id OR event_id = :id) AND resolved_at IS NULL;

-- name: want_retries
UPDATE event_bus_dlq SET retry_wanted_at =
    max(:now, coalesce(strftime('%Y-%m-%dT%H:%M:%f000+00:00', retry_wanted_at, '+0.001 seconds'), :now))
WHERE resolved_at IS NULL;

-- name: want_retries_of_type
UPDATE event_bus_dlq SET retry_wanted_at =
    max(:now, coalesce(strftime('%Y-%m-%dT%H:%M:%f000+00:00', retry_wanted_at, '+0.001 seconds'), :now))
WHERE resolved_at IS NULL AND event_type = :event_type;

-- name: want_retries_of_subscriber
UPDATE event_bus_dlq SET retry_wanted_at =
    max(:now, coalesce(strftime('%Y-%m-%dT%H:%M:%f000+00:00', retry_wanted_at, '+0.001 seconds'), :now))
WHERE resolved_at IS NULL AND subscriber_id = :subscriber_id;

-- name: want_retries_of_type_of_subscriber
UPDATE event_bus_dlq SET retry_wanted_at =
    max(:now, coalesce(strftime('%Y-%m-%dT%H:%M:%f000+00:00', retry_wanted_at, '+0.001 seconds'), :now))
WHERE resolved_at IS NULL AND event_type = :event_type AND subscriber_id = :subscriber_id;

-- name: resolve_event
UPDATE events SET resolved_at = :now, resolved_by = :by, notes = :notes
WHERE id = :id AND status = 'dlq' AND resolved_at IS NULL;

-- name: resolve_subscriber_dead_letter
UPDATE event_bus_dlq SET resolved_at = :now, resolved_by = :by, notes = :notes, retry_wanted_at = NULL
WHERE (id = :id OR event_id = :id) AND resolved_at IS NULL;

-- name: keep_purged_events
-- They are no dead letters any more, but a stream would have a hole without them, or a durable subscriber
-- has not come to them yet.
UPDATE events SET status = 'done', dlq_at = NULL, updated_at = ?
WHERE status = 'dlq' AND created_at <= ? AND (stream_id IS NOT NULL
    OR global_sequence > (SELECT min(last_global_sequence) FROM event_bus_checkpoints));

-- name: purge_dead_letters
DELETE FROM events WHERE status = 'dlq' AND created_at <= ?;

-- name: purge_subscriber_dead_letters
DELETE FROM event_bus_dlq WHERE created_at <= ?;

-- name: read_checkpoint
SELECT subscriber_id, last_global_sequence, last_event_id, updated_at, epoch, was_interrupted,
    attempt_sequence, attempt_count
FROM event_bus_checkpoints WHERE subscriber_id = ?;

-- name: read_checkpoints
SELECT subscriber_id, last_global_sequence, last_event_id, updated_at, epoch, was_interrupted,
    attempt_sequence, attempt_count
FROM event_bus_checkpoints ORDER BY subscriber_id;

-- name: read_epoch
SELECT epoch FROM event_bus_checkpoints WHERE subscriber_id = ?;

-- name: claim_checkpoint
-- An owner who is still in is_held did not let go.
INSERT INTO event_bus_checkpoints (subscriber_id, last_global_sequence, updated_at, epoch, is_held)
VALUES (?, ?, ?, 1, 1)
ON CONFLICT (subscriber_id) DO UPDATE
SET epoch = epoch + 1, was_interrupted = is_held, is_held = 1, updated_at = excluded.updated_at;

-- name: save_checkpoint
-- Every expression sees the row as it was before.
UPDATE event_bus_checkpoints
SET last_global_sequence = max(last_global_sequence, :position),
    last_event_id = CASE WHEN :position > last_global_sequence
        THEN coalesce(:event_id, last_event_id) ELSE last_event_id END,
    updated_at = :now, attempt_sequence = :attempt_sequence, attempt_count = :attempt_count
WHERE subscriber_id = :subscriber_id AND epoch = :epoch;

-- name: advance_checkpoint
-- For the owner, whose epoch was checked in the same transaction.
UPDATE event_bus_checkpoints
SET last_event_id = CASE WHEN :position > last_global_sequence THEN :event_id ELSE last_event_id END,
    last_global_sequence = max(last_global_sequence, :position), updated_at = :now
WHERE subscriber_id = :subscriber_id;

-- name: release_checkpoint
UPDATE event_bus_checkpoints SET is_held = 0 WHERE subscriber_id = ? AND epoch = ?;

-- name: bury_for_subscriber
-- The payload comes from the log where it still is, word for word, unless the reader could not read it;
-- and what was purged meanwhile stays away.
INSERT INTO event_bus_dlq (id, subscriber_id, event_id, global_sequence, error_message, retry_count,
    created_at, error_history, event_type, payload, event_created_at, metadata, stream_id, stream_version,
    actor_id, purger_id, purged_at, correlation_id, causation_id, schema_version)
VALUES (:id, :subscriber_id, :event_id, :global_sequence, :error_message, :retry_count,
    :now, :error_history, :event_type,
    CASE WHEN EXISTS (SELECT 1 FROM events WHERE id = :event_id AND purged_at IS NOT NULL) THEN 'null'
        ELSE coalesce(:undecodable, (SELECT payload FROM events WHERE id = :event_id), :payload) END,
    :event_created_at, :metadata, :stream_id, :stream_version, :actor_id,
    coalesce((SELECT purger_id FROM events WHERE id = :event_id), :purger_id),
    coalesce((SELECT purged_at FROM events WHERE id = :event_id), :purged_at),
    :correlation_id, :causation_id, :schema_version)
ON CONFLICT (subscriber_id, event_id) DO UPDATE
SET error_message = excluded.error_message, retry_count = excluded.retry_count,
    created_at = excluded.created_at, error_history = excluded.error_history, payload = excluded.payload,
    last_retry_at = NULL, retry_wanted_at = NULL, resolved_at = NULL, resolved_by = NULL, notes = NULL;

-- name: note_retry_success
-- What somebody has resolved meanwhile is as they have left it.
UPDATE event_bus_dlq SET resolved_at = :now, resolved_by = :subscriber_id, last_retry_at = :now,
    retry_wanted_at = NULL
WHERE id = :id AND subscriber_id = :subscriber_id AND resolved_at IS NULL;

-- name: note_retry_failure
-- Ends the wish that it answers, or any if that is not known (NULL). A newer one stays.
UPDATE event_bus_dlq SET retry_count = retry_count + 1, error_message = :error, last_retry_at = :now,
    error_history = json_insert(error_history, '$[#]', :error),
    retry_wanted_at = CASE WHEN retry_wanted_at <> :wish THEN retry_wanted_at END
WHERE id = :id AND subscriber_id = :subscriber_id AND resolved_at IS NULL;

-- name: read_state
-- As bytes, which is what a decoder wants.
SELECT CAST(state AS BLOB) FROM postbus_states WHERE store_name = ? AND key = ?;

-- name: read_states
SELECT key, CAST(state AS BLOB) FROM postbus_states WHERE store_name = ? AND key > ? ORDER BY key LIMIT ?;

-- name: put_state
INSERT INTO postbus_states (store_name, key, state, updated_at) VALUES (?, ?, ?, ?)
ON CONFLICT (store_name, key) DO UPDATE SET state = excluded.state, updated_at = excluded.updated_at;

-- name: delete_state
DELETE FROM postbus_states WHERE store_name = ? AND key = ?;

-- name: delete_subscriptions
DELETE FROM subscriptions;

-- name: insert_subscription
INSERT INTO subscriptions (id, event_type, created_at) VALUES (?, ?, ?);

-- name: read_subscriptions
SELECT id, event_type, created_at FROM subscriptions ORDER BY created_at, rowid;
