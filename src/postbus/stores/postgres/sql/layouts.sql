-- The row of a subscriber tells how many parts it has. Those of more than one have rows of their own, which
-- are made and deleted here and nowhere else, together with that number.

-- name: part_rows
-- The rows of the present layout of $1; of one part it is the subscriber's own.
{schema}.event_bus_checkpoints AS whole
CROSS JOIN LATERAL generate_series(0, whole.partitions - 1) AS place (index)
JOIN {schema}.event_bus_checkpoints AS part
    ON part.subscriber_id = CASE WHEN whole.partitions = 1 THEN whole.subscriber_id
        ELSE concat(whole.subscriber_id, '#', place.index, '/', whole.partitions) END
WHERE whole.subscriber_id = $1;

-- name: read_layout
SELECT whole.partitions, part.subscriber_id, part.last_global_sequence, part.last_event_id, part.updated_at,
    part.epoch, part.was_interrupted, part.attempt_sequence, part.attempt_count, part.head,
    array_to_json(part.open_gaps)::text AS open_gaps
FROM {part_rows} ORDER BY place.index;

-- name: lock_layout
SELECT partitions FROM {schema}.event_bus_checkpoints WHERE subscriber_id = $1 FOR UPDATE;

-- name: lock_parts
-- Who owns one of them can't write it any more until the transaction ends.
SELECT part.last_global_sequence, coalesce(part.head, part.last_global_sequence), part.open_gaps
FROM {part_rows} ORDER BY place.index FOR UPDATE OF part;

-- name: make_parts
-- As far as the parts before, who are all at one position. Their epochs are higher than all before, also
-- those of parts of the same name that there were once. If an owner did not let go, or had taken over from
-- one who did not, the next ones are as careful, and know of an attempt that had begun.
INSERT INTO {schema}.event_bus_checkpoints (subscriber_id, last_global_sequence, last_event_id, head,
    open_gaps, updated_at, epoch, is_held, attempt_sequence, attempt_count)
SELECT concat($1::text, '#', place.index, '/', $2::integer), past.*
FROM ({past}) AS past CROSS JOIN generate_series(0, $2::integer - 1) AS place (index)
ON CONFLICT (subscriber_id) DO UPDATE
SET last_global_sequence = excluded.last_global_sequence, last_event_id = excluded.last_event_id,
    head = excluded.head, open_gaps = excluded.open_gaps, updated_at = excluded.updated_at,
    epoch = greatest(excluded.epoch, event_bus_checkpoints.epoch + 1), is_held = excluded.is_held,
    attempt_sequence = excluded.attempt_sequence, attempt_count = excluded.attempt_count;

-- name: past
-- $3: the moment.
SELECT part.last_global_sequence, part.last_event_id, part.head, part.open_gaps, $3::timestamptz,
    (SELECT max(greatest(whole.epoch, part.epoch)) + 1 FROM {part_rows}),
    (SELECT bool_or(part.is_held OR part.was_interrupted) FROM {part_rows}),
    part.attempt_sequence, part.attempt_count
FROM {part_rows} ORDER BY part.attempt_count DESC, place.index LIMIT 1;

-- name: set_layout
UPDATE {schema}.event_bus_checkpoints AS base
SET partitions = $2, last_global_sequence = past.last_global_sequence, last_event_id = past.last_event_id,
    head = past.head, open_gaps = past.open_gaps, updated_at = past.updated_at, epoch = past.epoch,
    is_held = past.is_held, attempt_sequence = past.attempt_sequence, attempt_count = past.attempt_count
FROM ({past}) AS past (last_global_sequence, last_event_id, head, open_gaps, updated_at, epoch, is_held,
    attempt_sequence, attempt_count)
WHERE base.subscriber_id = $1;

-- name: delete_parts
DELETE FROM {schema}.event_bus_checkpoints
WHERE subscriber_id IN (SELECT concat($1::text, '#', index, '/', $2::integer)
    FROM generate_series(0, $2::integer - 1) AS place (index));
