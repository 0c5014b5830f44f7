-- name: notify
-- The number and never the data: a long payload would be refused. Nobody waits for the disk: what a crash
-- loses, it loses with everybody who listens.
SELECT pg_notify($1, $2), set_config('synchronous_commit', 'off', true)

-- name: visible
-- Which of these numbers are committed by now.
SELECT global_sequence FROM {schema}.events WHERE global_sequence = ANY($1::bigint[])
