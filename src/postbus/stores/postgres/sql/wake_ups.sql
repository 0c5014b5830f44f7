-- name: notify
-- Nobody waits for the disk: what a crash loses, it loses with everybody who listens.
SELECT pg_notify($1, $2), set_config('synchronous_commit', 'off', true)

-- name: notify_on_session
-- The same with a number, and never the data: a long payload would be refused. Without parameters, so that it is
-- one message: a process that stands still between two of them keeps its session from being idle, the server
-- from ending it, and others from having its locks.
SELECT pg_notify({channel}, '{number}'), set_config('synchronous_commit', 'off', true)

-- name: visible
-- Which of these numbers are committed by now.
SELECT global_sequence FROM {schema}.events WHERE global_sequence = ANY($1::bigint[])
