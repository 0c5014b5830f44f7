-- name: read_state
-- As text, because a pool of the user's may decode json in its own way.
SELECT state::text FROM {schema}.postbus_states WHERE store_name = $1 AND key = $2;

-- name: read_states
-- The column's own order is the one that Python gives strings.
SELECT key, state::text FROM {schema}.postbus_states
WHERE store_name = $1 AND key > $2 ORDER BY key LIMIT $3;

-- name: put_state
INSERT INTO {schema}.postbus_states (store_name, key, state, updated_at) VALUES ($1, $2, $3::text::json, $4)
ON CONFLICT (store_name, key) DO UPDATE SET state = excluded.state, updated_at = excluded.updated_at;

-- name: delete_state
DELETE FROM {schema}.postbus_states WHERE store_name = $1 AND key = $2;
