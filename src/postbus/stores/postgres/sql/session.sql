-- name: probe
-- A notification to ourselves: what comes back has passed through the listener. Also which sessions of this
-- database have given no sign of life for $3 seconds in the middle of something, be it that they take nothing of what
-- the server sends them, be it that it waits for the rest of what they began to say: a statement is prepared first,
-- and executed when the answer to that is there. As text, because a new connection has to ask the server for 20 ms
-- how to read a list of numbers, and the first lock waits for that.
SELECT pg_notify($1, $2), nullif(ARRAY(
    SELECT pid FROM pg_catalog.pg_stat_activity
    WHERE (wait_event = 'ClientWrite' OR wait_event = 'ClientRead' AND state = 'active')
        AND datname = current_database() AND pid <> pg_backend_pid()
        AND state_change < clock_timestamp() - $3::float8 * interval '1 second'
), ARRAY[]::integer[])::text

-- name: end_blocked
-- Of these processes ($1) the sessions of our bus, known by the key $2 that they have in common, are ended: the
-- server counts no silence in the middle of something.
WITH blocked AS MATERIALIZED (
    SELECT DISTINCT pid FROM pg_catalog.pg_locks
    WHERE locktype = 'advisory' AND granted AND objsubid = 1 AND pid = ANY($1::text::integer[])
        AND (classid::bigint << 32) | objid::bigint = $2::bigint
        AND database = (SELECT oid FROM pg_catalog.pg_database WHERE datname = current_database())
)
SELECT pid, pg_terminate_backend(pid) FROM blocked;

-- name: clear_queue
-- A queue of notifications that ran full stays full, however long its slowest listener is gone, until
-- somebody asks how full it is: only then the server looks what it can throw away.
SELECT pg_notification_queue_usage()

-- name: end_when_silent
-- The server ends a session whose host has vanished, and with it the locks: standbys can take over. Nothing
-- happens if the process that answers is not the one ($2) that the client was told of when it connected. The
-- other sessions of the bus know this one by the key $3.
SELECT set_config('idle_session_timeout', $1, false), pg_try_advisory_lock_shared($3::bigint)
WHERE pg_backend_pid() = $2

-- name: end_when_idle
-- The server ends a transaction whose host has vanished, and with it the locks on its rows.
SET LOCAL idle_in_transaction_session_timeout = '15s'

-- name: lock
-- Held until it is released or the session ends; on a standby nobody is the holder of anything.
SELECT CASE WHEN pg_is_in_recovery() THEN false ELSE pg_try_advisory_lock($1::int, $2::int) END

-- name: unlock
-- The notification has the standbys try at once, and does not wait for the disk.
SELECT pg_advisory_unlock($1::int, $2::int), pg_notify($3, ''),
    set_config('synchronous_commit', 'off', true)

-- name: beat
SELECT 1
