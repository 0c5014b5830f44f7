-- Whoever writes names the epoch and the server of its claim ({server} is the block of log.sql): what was read
-- on another server may not be here, because that was lost. Only who knows no server, NULL, is not asked.

-- name: gaps
-- As JSON, and they are given as text: a new connection, as one that takes over may well have, has to ask the server
-- for 20 ms how lists of numbers are read and written.
array_to_json(open_gaps)::text AS open_gaps;

-- name: read_checkpoint
SELECT subscriber_id, last_global_sequence, last_event_id, updated_at, epoch, was_interrupted,
    attempt_sequence, attempt_count, head, {gaps}
FROM {schema}.event_bus_checkpoints WHERE subscriber_id = $1;

-- name: read_checkpoints
-- In the order that Python gives strings, whatever the database's is.
SELECT subscriber_id, last_global_sequence, last_event_id, updated_at, epoch, was_interrupted,
    attempt_sequence, attempt_count, head, {gaps}
FROM {schema}.event_bus_checkpoints ORDER BY subscriber_id COLLATE "C";

-- name: claim_checkpoint
-- An owner who is still in is_held did not let go. Who has the row locked is waited for as long as $3 says:
-- the setting ends with the transaction, which is this statement. No row: it is split into parts.
INSERT INTO {schema}.event_bus_checkpoints AS present
    (subscriber_id, last_global_sequence, head, open_gaps, updated_at, epoch, is_held)
SELECT $1::text, $4::bigint, $5::bigint, $6::text::bigint[], $2::timestamptz, 1, true
FROM (SELECT set_config('lock_timeout', $3, true) AS lock_timeout) AS setting
WHERE setting.lock_timeout IS NOT NULL
ON CONFLICT (subscriber_id) DO UPDATE
SET epoch = present.epoch + 1, was_interrupted = present.is_held, is_held = true,
    updated_at = excluded.updated_at
WHERE present.partitions = 1
RETURNING subscriber_id, last_global_sequence, last_event_id, updated_at, epoch, was_interrupted,
    attempt_sequence, attempt_count, head, {gaps}, {server} AS server;

-- name: claim_part
-- The same for a part, whose row is made and deleted with its layout. No row: there is no such part.
UPDATE {schema}.event_bus_checkpoints AS present
SET epoch = present.epoch + 1, was_interrupted = present.is_held, is_held = true, updated_at = $2
FROM (SELECT set_config('lock_timeout', $3, true) AS lock_timeout) AS setting
WHERE setting.lock_timeout IS NOT NULL AND subscriber_id = $1
RETURNING subscriber_id, last_global_sequence, last_event_id, updated_at, epoch, was_interrupted,
    attempt_sequence, attempt_count, head, {gaps}, {server} AS server;

-- name: end_batches
-- Ends the transactions that hold the key of the subscriber's batches; which processes they were. One that is
-- prepared has none. Keys are shown as if they had no sign. Only what is materialized is ended: among the
-- conditions of a query it would be for the planner to say whom to ask first.
WITH holders AS MATERIALIZED (
    SELECT DISTINCT pid FROM pg_catalog.pg_locks
    WHERE locktype = 'advisory' AND granted AND objsubid = 2
        AND classid = ($1::bigint & 4294967295)::oid AND objid = ($2::bigint & 4294967295)::oid
        AND database = (SELECT oid FROM pg_catalog.pg_database WHERE datname = current_database())
        AND pid <> pg_backend_pid()
)
SELECT pid, pg_terminate_backend(pid) FROM holders;

-- name: move_checkpoint
-- What save_checkpoint does in by far the most cases, in half the time: forwards, and its row is where the last
-- write has left it ($10). By its key the server would find it through all its versions of late, which are many
-- while any transaction is open. What has become of the place meanwhile does not matter: nothing is changed
-- that could not be found by its key. Without $5 no gap is open: to read even an empty list takes a while.
-- With $9 = 'off' the commit does not wait for the disk: the setting ends with the transaction, which is this
-- statement.
UPDATE {schema}.event_bus_checkpoints
SET last_global_sequence = $3, head = $4, open_gaps = coalesce($5::text::bigint[], ARRAY[]::bigint[]),
    last_event_id = coalesce($6, last_event_id), updated_at = $7, attempt_sequence = NULL, attempt_count = 0
WHERE ctid = $10 AND subscriber_id = $1 AND epoch = $2 AND coalesce($8 = {server}, true)
    AND ($3, $4) > (last_global_sequence, coalesce(head, last_global_sequence))
    AND ($9::text IS NULL OR set_config('synchronous_commit', $9, true) IS NOT NULL)
RETURNING ctid;

-- name: move_checkpoints
-- As move_checkpoint, by their keys, for several who have the same gaps open ($5), most often none: in two thirds
-- of the time of save_checkpoints. For the SELECTs see there.
UPDATE {schema}.event_bus_checkpoints AS present
SET last_global_sequence = given.position, head = given.head,
    open_gaps = coalesce($5::text::bigint[], ARRAY[]::bigint[]),
    last_event_id = coalesce(given.event_id, last_event_id), updated_at = $7,
    attempt_sequence = NULL, attempt_count = 0
FROM unnest(
    (SELECT $1::text[]), (SELECT $2::text::bigint[]), (SELECT $3::text::bigint[]), (SELECT $4::text::bigint[]),
    (SELECT $6::text[])
) AS given (subscriber_id, epoch, position, head, event_id)
WHERE present.subscriber_id = given.subscriber_id AND present.epoch = given.epoch
    AND coalesce($8 = {server}, true)
    AND (given.position, given.head) > (last_global_sequence, coalesce(present.head, last_global_sequence))
    AND ($9::text IS NULL OR set_config('synchronous_commit', $9, true) IS NOT NULL);

-- name: save_checkpoint
-- Changes nothing unless the epoch is the present one and the server ($10) too, nor if this very write has
-- happened already ($11). $14 is as $9 of move_checkpoint. Where the row is now is what that needs.
-- Of position and head, compared in this order, the further one stays, with the gaps that belong to it.
UPDATE {schema}.event_bus_checkpoints AS present
SET last_global_sequence = greatest(present.last_global_sequence, $3),
    last_event_id = CASE
        WHEN ($3, $4) > (present.last_global_sequence, coalesce(present.head, present.last_global_sequence))
        THEN coalesce($6, present.last_event_id) ELSE present.last_event_id END,
    head = CASE
        WHEN ($3, $4) >= (present.last_global_sequence, coalesce(present.head, present.last_global_sequence))
        THEN $4 ELSE present.head END,
    open_gaps = CASE
        WHEN ($3, $4) >= (present.last_global_sequence, coalesce(present.head, present.last_global_sequence))
        THEN $5::text::bigint[] ELSE present.open_gaps END,
    updated_at = $7, attempt_sequence = $8, attempt_count = $9, write_id = coalesce($11, present.write_id)
WHERE subscriber_id = $1 AND epoch = $2 AND coalesce($10 = {server}, true)
    AND ($11::text IS NULL OR write_id IS DISTINCT FROM $11)
    AND ($14::text IS NULL OR set_config('synchronous_commit', $14, true) IS NOT NULL)
-- What comes after it in the same transaction is known by this key to whoever takes over. NULL: nothing does.
RETURNING ctid, pg_try_advisory_xact_lock_shared($12::integer, $13::integer);

-- name: feed_outbox
-- An event that has a row already, such as that of a dead letter's retry, gets no second one.
INSERT INTO {schema}.event_bus_outbox (subscriber_pool, global_sequence, event_id, dead_letter_id)
SELECT $1::text, sequence, event_id, dead_letter_id
FROM unnest($15::bigint[], $16::text[], $17::text[]) AS entry (sequence, event_id, dead_letter_id)
WHERE EXISTS (SELECT FROM saved)
ON CONFLICT (subscriber_pool, global_sequence) DO NOTHING RETURNING dead_letter_id;

-- name: end_wish_for_retry
-- Of the letters that got a row now: the row of another means an attempt that began before the wish.
UPDATE {schema}.event_bus_dlq SET retry_wanted_at = NULL
WHERE id = ANY($17::text[]) AND id IN (SELECT dead_letter_id FROM fed);

-- name: save_and_feed
-- Moves the checkpoint as save_checkpoint does, and gives the events to the workers; whether it was moved.
WITH saved AS ({save_checkpoint}), fed AS ({feed_outbox}), retried AS ({end_wish_for_retry})
SELECT EXISTS (SELECT FROM saved);

-- name: save_checkpoints
-- As save_checkpoint for many at once; returns whose epoch and server were the present ones. Gaps come as
-- text, because an array of arrays must be rectangular. $11 is as $9 of move_checkpoint. In a SELECT the planner
-- does not see how few there are: it would make a new plan each time, which takes as long as the rest.
UPDATE {schema}.event_bus_checkpoints AS present
SET last_global_sequence = greatest(present.last_global_sequence, given.position),
    last_event_id = CASE
        WHEN (given.position, given.head)
            > (present.last_global_sequence, coalesce(present.head, present.last_global_sequence))
        THEN coalesce(given.event_id, present.last_event_id) ELSE present.last_event_id END,
    head = CASE
        WHEN (given.position, given.head)
            >= (present.last_global_sequence, coalesce(present.head, present.last_global_sequence))
        THEN given.head ELSE present.head END,
    open_gaps = CASE
        WHEN (given.position, given.head)
            >= (present.last_global_sequence, coalesce(present.head, present.last_global_sequence))
        THEN given.open_gaps::bigint[] ELSE present.open_gaps END,
    updated_at = $7::timestamptz, attempt_sequence = nullif(given.attempt_sequence, 0),
    attempt_count = given.attempt_count
FROM (
    SELECT set_config(
        'synchronous_commit', coalesce($11::text, current_setting('synchronous_commit')), true
    ) AS synchronous_commit, {server} AS server
) AS setting, unnest(
    (SELECT $1::text[]), (SELECT $2::text::bigint[]), (SELECT $3::text::bigint[]),
    (SELECT $4::text::bigint[]), (SELECT $5::text[]), (SELECT $6::text[]), (SELECT $8::text::bigint[]),
    (SELECT $9::text::integer[]), (SELECT $10::text[])
) AS given (
    subscriber_id, epoch, position, head, open_gaps, event_id, attempt_sequence, attempt_count, server
)
WHERE present.subscriber_id = given.subscriber_id AND present.epoch = given.epoch
    AND coalesce(given.server = setting.server, true)
    AND setting.synchronous_commit IS NOT NULL
RETURNING present.subscriber_id, present.epoch;

-- name: is_written
SELECT EXISTS (
    SELECT 1 FROM {schema}.event_bus_checkpoints
    WHERE subscriber_id = $1 AND epoch = $2 AND write_id = $3 AND coalesce($4 = {server}, true)
);

-- name: release_checkpoint
UPDATE {schema}.event_bus_checkpoints SET is_held = false
WHERE subscriber_id = $1 AND epoch = $2 AND coalesce($3 = {server}, true);

-- name: lock_checkpoint
-- Whoever claims the subscriber waits for the end of the transaction, or ends it, which is known by the key
-- ($5, $6). If nobody does, it ends by itself when we vanish.
SELECT last_global_sequence, head, open_gaps, set_config('idle_in_transaction_session_timeout', $3, true),
    pg_try_advisory_xact_lock_shared($5::integer, $6::integer)
FROM {schema}.event_bus_checkpoints
WHERE subscriber_id = $1 AND epoch = $2 AND coalesce($4 = {server}, true) FOR NO KEY UPDATE;

-- name: guard_transaction
-- A commit has to read this cursor to its end, which fails: until the cursor is closed nobody can commit
-- the transaction that handlers are lent. left(random()…) keeps the planner from failing first.
-- Handlers have a time limit of their own: one of the role's or the database's on transactions, which only
-- PostgreSQL 17 and later know, is not for them.
SELECT CASE WHEN current_setting('transaction_timeout', true) IS NOT NULL
    THEN set_config('transaction_timeout', '0', true) END;
DECLARE postbus_batch NO SCROLL CURSOR WITH HOLD FOR
SELECT ('leave COMMIT to postbus' || left(random()::text, 0))::integer;

-- name: end_guard
-- Constraints that are checked last are checked now: a commit should fail for no reason of a handler's.
SET CONSTRAINTS ALL IMMEDIATE;
CLOSE postbus_batch;

-- name: probe_transaction
-- Fails in a transaction that has failed.
SELECT;

-- name: advance_checkpoint
-- As save_checkpoint, for the owner who has locked the row; what is known of attempts stays.
UPDATE {schema}.event_bus_checkpoints AS present
SET last_global_sequence = greatest(present.last_global_sequence, $2),
    last_event_id = CASE
        WHEN ($2, $3) > (present.last_global_sequence, coalesce(present.head, present.last_global_sequence))
        THEN $5 ELSE present.last_event_id END,
    head = CASE
        WHEN ($2, $3) >= (present.last_global_sequence, coalesce(present.head, present.last_global_sequence))
        THEN $3 ELSE present.head END,
    open_gaps = CASE
        WHEN ($2, $3) >= (present.last_global_sequence, coalesce(present.head, present.last_global_sequence))
        THEN $4::bigint[] ELSE present.open_gaps END,
    updated_at = $6
WHERE subscriber_id = $1;

-- name: is_resolved_by_subscriber
SELECT EXISTS (
    SELECT 1 FROM {schema}.event_bus_dlq
    WHERE id = $1 AND subscriber_id = $2 AND resolved_by = $2 AND resolved_at IS NOT NULL
);

-- name: bury_event
-- The payload comes from the log where it still is, word for word, unless the reader could not read it; and
-- what was purged stays away. The share lock makes whoever purges the event at this moment come before or
-- after, never in between.
WITH event AS MATERIALIZED (
    SELECT data::text AS payload, purger_id, purged_at FROM {schema}.events WHERE id = $3 FOR SHARE
)
INSERT INTO {schema}.event_bus_dlq (id, subscriber_id, event_id, global_sequence, error_message, retry_count,
    created_at, error_history, event_type, payload, event_created_at, metadata, stream_id, stream_version,
    actor_id, purger_id, purged_at, correlation_id, causation_id, schema_version)
SELECT $1, $2, $3, $4, $5, $6, $7, $8::text::json, $9,
    CASE WHEN coalesce(event.purged_at, $18) IS NULL THEN coalesce($10, event.payload, $11) END,
    $12, $13::text::json, $14, $15, $16, coalesce(event.purger_id, $17), coalesce(event.purged_at, $18),
    $19, $20, $21
FROM (SELECT) AS always LEFT JOIN event ON true
ON CONFLICT (subscriber_id, event_id) DO UPDATE
SET error_message = excluded.error_message, retry_count = excluded.retry_count,
    created_at = excluded.created_at, error_history = excluded.error_history, payload = excluded.payload,
    last_retry_at = NULL, retry_wanted_at = NULL, resolved_at = NULL, resolved_by = NULL, notes = NULL;

-- name: note_retry_success
-- What somebody has resolved meanwhile is as they have left it.
UPDATE {schema}.event_bus_dlq
SET resolved_at = $3, resolved_by = $2, last_retry_at = $3, retry_wanted_at = NULL
WHERE id = $1 AND subscriber_id = $2 AND resolved_at IS NULL;

-- name: note_retry_failure
-- Ends the wish $5 that it answers, or any if that is not known (NULL). A newer one stays.
-- The history is lengthened as text: jsonb would refuse some of what another program may have written there.
UPDATE {schema}.event_bus_dlq
SET retry_count = retry_count + 1, error_message = $4, last_retry_at = $3,
    retry_wanted_at = CASE WHEN retry_wanted_at <> $5 THEN retry_wanted_at END,
    error_history = CASE
        WHEN json_typeof(error_history) <> 'array' THEN json_build_array(error_history, $4::text)
        WHEN json_array_length(error_history) = 0 THEN json_build_array($4::text)
        ELSE (left(rtrim(error_history::text, E' \t\r\n'), -1) || ',' || to_json($4::text) || ']')::json END
WHERE id = $1 AND subscriber_id = $2 AND resolved_at IS NULL RETURNING retry_wanted_at IS NOT NULL;

-- name: put_states
INSERT INTO {schema}.postbus_states (store_name, key, state, updated_at)
SELECT store_name, key, state::json, $4
FROM unnest($1::text[], $2::text[], $3::text[]) AS given (store_name, key, state)
ON CONFLICT (store_name, key) DO UPDATE SET state = excluded.state, updated_at = excluded.updated_at;

-- name: delete_states
DELETE FROM {schema}.postbus_states AS present
USING unnest($1::text[], $2::text[]) AS given (store_name, key)
WHERE present.store_name = given.store_name AND present.key = given.key;

-- name: record_given_up
INSERT INTO {schema}.event_bus_gap_timeouts
    (subscriber_id, first_sequence, last_sequence, given_up_at, part_index, part_count)
SELECT $1, first_sequence, last_sequence, $4, $5, $6
FROM unnest($2::bigint[], $3::bigint[]) AS given (first_sequence, last_sequence);
