-- name: notify
-- The number and never the data: a long payload would be refused.
SELECT pg_notify($1, $2)

-- name: visible
-- Which of these numbers are committed by now.
SELECT global_sequence FROM {schema}.events WHERE global_sequence = ANY($1::bigint[])
