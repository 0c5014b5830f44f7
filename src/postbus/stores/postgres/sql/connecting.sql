-- name: find_own_process
-- A row, if the process that answers is the one that the client was told of when it connected. Its number is
-- filled in and not bound: to bind a value the driver prepares a statement, of which a pooler knows nothing.
SELECT WHERE pg_backend_pid() = {pid}
