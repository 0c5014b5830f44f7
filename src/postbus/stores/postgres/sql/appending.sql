-- Storing drafts. Payloads and metadata are bound as text: a pool of the user's may have its own way with JSON.

-- name: insert_event
-- One event, new for certain: the commonest and quickest of all.
INSERT INTO {schema}.events (id, event_type, data, created_at) VALUES ($1, $2, $3::text::json, $4)
RETURNING global_sequence;

-- name: insert_and_notify
-- The same, and tells the other processes as soon as it is committed. After an error it may be stored.
CALL {schema}.insert_and_notify($1, $2, $3, $4, $5, NULL);

-- name: insert_events
-- The numbers rise in the order of the arrays, since they are drawn after the sort; RETURNING promises no order.
INSERT INTO {schema}.events (id, event_type, data, created_at)
SELECT id, type, payload::json, moment
FROM unnest($1::text[], $2::text[], $3::text[], $4::timestamptz[])
    WITH ORDINALITY AS draft (id, type, payload, moment, place)
ORDER BY place
RETURNING global_sequence;

-- name: insert_full_events
-- The columns that not all events use cost a tenth of all the rest.
INSERT INTO {schema}.events
    (id, event_type, data, created_at, metadata, actor_id, correlation_id, causation_id, schema_version)
SELECT id, type, payload::json, moment, metadata::json, actor, correlation, causation, version
FROM unnest($1::text[], $2::text[], $3::text[], $4::timestamptz[], $5::text[], $6::text[], $7::text[], $8::text[],
    $9::bigint[]) WITH ORDINALITY
    AS draft (id, type, payload, moment, metadata, actor, correlation, causation, version, place)
ORDER BY place
RETURNING global_sequence;

-- name: append_events
-- Drafts in streams or with given ids, and whatever has to be looked at before it is stored.
SELECT first_place, numbers, versions, refusal, refused_place, actual_version
FROM {schema}.append_events(
    job_ends => $1, ids => $2, types => $3, payloads => $4, moments => $5, metadata => $6, actors => $7,
    correlations => $8, causations => $9, schema_versions => $10, are_given => $11, streams => $12,
    expected_versions => $13, is_repeated => $14, patience => $15
);

-- name: begin_parts
-- A call that takes several statements in somebody's transaction goes whole or not at all.
SAVEPOINT postbus_parts;

-- name: undo_parts
ROLLBACK TO SAVEPOINT postbus_parts; RELEASE SAVEPOINT postbus_parts;

-- name: end_parts
RELEASE SAVEPOINT postbus_parts;
