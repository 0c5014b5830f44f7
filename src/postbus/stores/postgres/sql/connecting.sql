-- name: find_own_process
-- A row, if the process that answers is the one that the client was told of when it connected. Its number is
-- filled in and not bound: to bind a value the driver prepares a statement, of which a pooler knows nothing.
SELECT WHERE pg_backend_pid() = {pid}

-- name: probe_codec
-- A value of a type, as the codec of the connection reads it; and what it is when the codec writes it, or NULL,
-- which none sees, if it is the same.
SELECT given, nullif(written::text, given::text)
FROM (SELECT {literal}::pg_catalog.{type} AS given, $1::pg_catalog.{type} AS written) AS probe
