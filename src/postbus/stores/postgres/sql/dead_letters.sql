-- The first blocks are parts of the statements below, which name them in braces.

-- name: letter_columns
-- JSON comes as text, because a pool of the user's may decode it in its own way.
letter.id, letter.subscriber_id, letter.event_id, letter.global_sequence, letter.retry_count,
    letter.created_at, letter.last_retry_at, letter.error_history::text, letter.resolved_at,
    letter.resolved_by, letter.notes, letter.event_type, letter.payload, letter.event_created_at,
    letter.metadata::text, letter.stream_id, letter.stream_version, letter.actor_id, letter.purger_id,
    letter.purged_at, letter.correlation_id, letter.causation_id, letter.schema_version;

-- name: and_of_subscriber
AND subscriber_id = $3;

-- name: read_page
-- The total of the same moment is in every row, and there is always a row.
SELECT total, {letter_columns}
FROM (
    SELECT count(*) AS total FROM {schema}.event_bus_dlq
    WHERE resolved_at IS NULL {and_of_subscriber}
) AS counted
LEFT JOIN LATERAL (
    SELECT * FROM {schema}.event_bus_dlq
    WHERE resolved_at IS NULL {and_of_subscriber}
    ORDER BY created_at DESC, global_sequence DESC LIMIT $1 OFFSET $2
) AS letter ON true
ORDER BY letter.created_at DESC, letter.global_sequence DESC;

-- name: read_letter
-- By its own id, or the newest of an event.
SELECT {letter_columns} FROM {schema}.event_bus_dlq AS letter WHERE id = $1 OR event_id = $1
ORDER BY id = $1 DESC, created_at DESC, global_sequence DESC LIMIT 1;

-- name: letter_part_hash
-- As part_hash of log.sql.
('x' || left(md5(convert_to(coalesce(stream_id, event_id), 'UTF8')), 8))::bit(32)::bigint;

-- name: read_wanted_retries
-- Of the part $3 of $4, which are 0 and 1 where there is but one. What a competing worker has comes when that is done.
SELECT {letter_columns}, letter.retry_wanted_at FROM {schema}.event_bus_dlq AS letter
WHERE subscriber_id = $1 AND retry_wanted_at IS NOT NULL
    AND NOT EXISTS (
        SELECT FROM {schema}.event_bus_outbox AS fed
        WHERE fed.subscriber_pool = letter.subscriber_id AND fed.global_sequence = letter.global_sequence
    )
    AND ($4::bigint = 1 OR {letter_part_hash} % $4::bigint = $3::bigint)
ORDER BY created_at, global_sequence LIMIT $2;

-- name: want_retry
-- Each wish is later than the one before: an attempt that is under way for that one does not end this one.
UPDATE {schema}.event_bus_dlq
SET retry_wanted_at = greatest($2, retry_wanted_at + interval '1 microsecond')
WHERE (id = $1 OR event_id = $1) AND resolved_at IS NULL;

-- name: want_retries
UPDATE {schema}.event_bus_dlq
SET retry_wanted_at = greatest($1, retry_wanted_at + interval '1 microsecond')
WHERE resolved_at IS NULL AND ($2::text IS NULL OR event_type = $2)
    AND ($3::text IS NULL OR subscriber_id = $3);

-- name: withdraw_retries
-- Those that no worker has begun yet.
DELETE FROM {schema}.event_bus_outbox AS fed USING {schema}.event_bus_dlq AS letter
WHERE (letter.id = $1 OR letter.event_id = $1) AND letter.resolved_at IS NULL AND fed.status = 'pending'
    AND fed.subscriber_pool = letter.subscriber_id AND fed.global_sequence = letter.global_sequence
    AND fed.dead_letter_id = letter.id;

-- name: resolve_letter
UPDATE {schema}.event_bus_dlq
SET resolved_at = $2, resolved_by = $3, notes = $4, retry_wanted_at = NULL
WHERE (id = $1 OR event_id = $1) AND resolved_at IS NULL;

-- name: purge_letters
DELETE FROM {schema}.event_bus_dlq WHERE created_at <= $1;

-- name: find_status
-- Why an id stands for no unresolved dead letter: NULL if nothing has it.
SELECT CASE
    WHEN EXISTS (SELECT FROM {schema}.event_bus_dlq WHERE id = $1 OR event_id = $1) THEN 'resolved'
    WHEN EXISTS (SELECT FROM {schema}.events WHERE id = $1) THEN 'done'
END;

-- name: hold_ownership
-- Nobody else becomes the owner before the transaction ends.
SELECT epoch FROM {schema}.event_bus_checkpoints WHERE subscriber_id = $1 AND epoch = $2 FOR SHARE;

-- name: wait_briefly
-- A batch of our own may have that row for as long as its handlers take, and there is another time to look.
SET LOCAL lock_timeout = '1s';

-- name: lock_given_up
-- One at a time: who comes second sees what the first has buried.
SELECT id FROM {schema}.event_bus_gap_timeouts WHERE id = ANY($1::bigint[]) ORDER BY id FOR UPDATE;

-- name: read_late
-- Events at numbers that the subscriber had given up, those reported before left out; $2, $3: exact types
-- and a regular expression, or both NULL for all types; $4, $5: the part of how many that asks. A part that
-- gave up a number did so for its own events. Looks at the 10000 numbers or ranges that were given up last.
SELECT {event_columns}, given_up.id AS given_up_id
FROM (
    SELECT id, first_sequence, last_sequence, late_sequences, part_index, part_count
    FROM {schema}.event_bus_gap_timeouts
    WHERE subscriber_id = $1 ORDER BY id DESC LIMIT 10000
) AS given_up
CROSS JOIN LATERAL (
    SELECT * FROM {schema}.events
    WHERE global_sequence BETWEEN given_up.first_sequence AND given_up.last_sequence
        AND global_sequence <> ALL (given_up.late_sequences)
        AND ($2::text[] IS NULL OR event_type = ANY($2) OR event_type ~ $3)
        AND ($5::bigint = 1 OR {part_hash} % $5::bigint = $4::bigint)
        AND (given_up.part_count = 1 OR {part_hash} % given_up.part_count = given_up.part_index)
    ORDER BY global_sequence LIMIT 100
) AS e
ORDER BY e.global_sequence LIMIT 100;

-- name: note_late
UPDATE {schema}.event_bus_gap_timeouts AS given_up
SET late_sequences = given_up.late_sequences || late.sequences
FROM (
    SELECT id, array_agg(sequence) AS sequences
    FROM unnest($1::bigint[], $2::bigint[]) AS late (id, sequence) GROUP BY id
) AS late
WHERE given_up.id = late.id;
