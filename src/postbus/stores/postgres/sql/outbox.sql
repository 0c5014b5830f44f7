-- Rows are named by id and claim: whoever has lost one to another claim changes nothing. Several are locked in the
-- order of their ids, or not waited for: what a worker does about them at the same time must not wait in a ring.
-- {event_columns} is the block of log.sql, {letter_columns} and the others are those of their files.

-- name: claim_rows
-- With their events, or with NULLs for one that is not in the log any more. What is fed while this is under way is
-- not due yet: its event would be missing here, where the log is seen as it was at the beginning. The commit need
-- not wait for the disk: a claim that is lost with the server is none.
SELECT {event_columns}, taken.row_id, taken.row_claim, taken.number, taken.attempts, taken.row_errors,
    taken.was_suspect, taken.letter, taken.due_at, taken.is_cut, set_config('synchronous_commit', 'off', true)
FROM {schema}.claim_outbox($1, $2, $3, $4, $5, $6, $7, $8) AS taken
LEFT JOIN LATERAL (
    SELECT * FROM {schema}.events WHERE global_sequence = taken.number OFFSET 0
) AS e ON true
ORDER BY taken.due_at, taken.number;

-- name: read_letters
SELECT {letter_columns} FROM {schema}.event_bus_dlq AS letter WHERE id = ANY($1::text[]);

-- name: finish_rows
-- With $3 = 'off' the commit does not wait for the disk.
SELECT {schema}.finish_outbox($1, $2),
    set_config('synchronous_commit', coalesce($3, current_setting('synchronous_commit')), true);

-- name: delete_row
DELETE FROM {schema}.event_bus_outbox WHERE id = $1 AND claim = $2 RETURNING id;

-- name: put_off_row
UPDATE {schema}.event_bus_outbox
SET status = 'pending', locked_by = NULL, locked_at = NULL, worker = NULL, is_suspect = false,
    attempt_count = $3, errors = $4::text::json, available_at = now() + make_interval(secs => $5)
WHERE id = $1 AND claim = $2;

-- name: begin_attempt
-- Of a suspect: nobody may be left to count it afterwards.
UPDATE {schema}.event_bus_outbox SET attempt_count = $3
WHERE id = $1 AND claim = $2 AND status = 'processing' RETURNING id;

-- name: give_back_rows
-- A suspect is one still, but this attempt does not count if it has begun.
WITH held AS MATERIALIZED (
    SELECT mine.id, given.attempt_count
    FROM {schema}.event_bus_outbox AS mine
    JOIN unnest($1::bigint[], $2::bigint[], $3::integer[]) AS given (id, claim, attempt_count)
        ON mine.id = given.id AND mine.claim = given.claim AND mine.status = 'processing'
    ORDER BY mine.id FOR UPDATE OF mine
)
UPDATE {schema}.event_bus_outbox AS mine
SET status = 'pending', locked_by = NULL, locked_at = NULL, worker = NULL, attempt_count = held.attempt_count
FROM held WHERE mine.id = held.id;

-- name: renew_rows
-- The worker may be listed under another number by now. What is locked is about to be written anyway.
WITH held AS MATERIALIZED (
    SELECT mine.id
    FROM {schema}.event_bus_outbox AS mine JOIN unnest($1::bigint[], $2::bigint[]) AS given (id, claim)
        ON mine.id = given.id AND mine.claim = given.claim AND mine.status = 'processing'
    FOR UPDATE OF mine SKIP LOCKED
)
UPDATE {schema}.event_bus_outbox AS mine SET locked_at = now(), worker = $3
FROM held WHERE mine.id = held.id;

-- name: reap_rows
-- What those have who are not members of the pool ($2) any more, or who gave no sign of life for $3 seconds. A row
-- that was claimed after we looked who is a member is not looked at.
WITH gone AS MATERIALIZED (
    SELECT id FROM {schema}.event_bus_outbox
    WHERE subscriber_pool = $1 AND status = 'processing' AND coalesce(locked_at, '-infinity') < now() AND (
        locked_at < now() - make_interval(secs => $3) OR worker IS NULL OR worker <> ALL (ARRAY({members}))
    )
    FOR UPDATE SKIP LOCKED
)
UPDATE {schema}.event_bus_outbox AS mine
SET status = 'pending', locked_by = NULL, locked_at = NULL, worker = NULL, is_suspect = true,
    claim = mine.claim + 1
FROM gone WHERE mine.id = gone.id
RETURNING mine.id;

-- name: members
-- As list_members of members.sql.
SELECT objid::bigint FROM pg_catalog.pg_locks
WHERE locktype = 'advisory' AND granted AND objsubid = 1
    AND classid = ($2::bigint & 4294967295)::oid
    AND database = (SELECT oid FROM pg_catalog.pg_database WHERE datname = current_database());

-- name: end_transactions
-- Ends the transactions that handlers of workers who are not members any more have open. $1 is their key. First
-- they are found: conditions are asked in any order, and a backend that is asked to end does so.
WITH left_open AS MATERIALIZED (
    SELECT pid FROM pg_catalog.pg_locks
    WHERE locktype = 'advisory' AND granted AND objsubid = 2
        AND classid = ($1::bigint & 4294967295)::oid AND objid::bigint <> ALL (ARRAY({members}))
        AND database = (SELECT oid FROM pg_catalog.pg_database WHERE datname = current_database())
        AND pid <> pg_backend_pid()
)
SELECT pid FROM left_open WHERE pg_terminate_backend(pid);

-- name: read_oldest
-- The lowest number after $2 that has a row, retries of dead letters left out.
SELECT global_sequence FROM {schema}.event_bus_outbox
WHERE subscriber_pool = $1 AND global_sequence > $2 AND dead_letter_id IS NULL
ORDER BY global_sequence LIMIT 1;

-- name: has_retries
SELECT EXISTS (
    SELECT FROM {schema}.event_bus_outbox WHERE subscriber_pool = $1 AND dead_letter_id IS NOT NULL
);

-- name: count_due
-- How many rows are due after a place, $4 at most.
SELECT count(*) FROM (
    SELECT FROM {schema}.event_bus_outbox
    WHERE subscriber_pool = $1 AND NOT is_suspect AND available_at <= now()
        AND (available_at, global_sequence) > ($2, $3)
    LIMIT $4
) AS due;

-- name: has_rows
SELECT EXISTS (SELECT FROM {schema}.event_bus_outbox WHERE subscriber_pool = $1);

-- name: begin_handling
-- Whether the claim is still ours. The transaction is known by its key ($4, $5) to whoever takes our rows over, who
-- ends it; if nobody does, it ends by itself when we vanish.
SELECT set_config('idle_in_transaction_session_timeout', $3, true), pg_try_advisory_xact_lock_shared($4, $5)
FROM {schema}.event_bus_outbox WHERE id = $1 AND claim = $2 AND status = 'processing';
