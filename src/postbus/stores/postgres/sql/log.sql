-- The first blocks are parts of the statements below, which name them in braces.

-- name: event_columns
-- An event as rows.py reads it. What most events lack is one column: reading it as seven would take longer.
-- JSON comes as text, because a pool of the user's may decode it in its own way. Moments beyond what Python
-- knows are drawn in, because the driver would fail on the whole page.
e.global_sequence, e.id, e.event_type, coalesce(e.data::text, 'null') AS data,
    least(greatest(e.created_at, '0001-01-01 00:00:00+00'), '9999-12-31 23:59:59.999999+00') AS created_at,
    e.stream_id, e.stream_version,
    CASE WHEN e.metadata IS NOT NULL OR e.actor_id IS NOT NULL OR e.purger_id IS NOT NULL
        OR e.purged_at IS NOT NULL OR e.correlation_id IS NOT NULL OR e.causation_id IS NOT NULL
        OR e.schema_version IS NOT NULL
    THEN json_build_array(e.metadata::text, e.actor_id, e.purger_id, e.purged_at, e.correlation_id,
        e.causation_id, e.schema_version)::text END AS more;

-- name: is_in_stream
(stream_id IS NOT NULL OR stream_version IS NOT NULL);

-- name: page_columns
-- Many events in one row, each column a list: of these the driver makes a few objects instead of a record of
-- every event. Moments come as JSON in UTC, because the driver takes longer for one of them than for all the
-- rest of an event; numbers come as JSON, because a new connection has to ask the server for 20 ms how to read
-- a list of them, and only if they do not just go on. Payloads are one text with a character in between that
-- no JSON has. Of streams and of what most events lack there are only those that are there; which events they
-- belong to is told where some have them and some do not.
json_agg(global_sequence) FILTER (WHERE has_gaps)::text, array_agg(id), array_agg(event_type),
    string_agg(data, E'\x1e'), json_agg(created_at AT TIME ZONE INTERVAL '0')::text,
    array_agg(stream_id) FILTER (WHERE {is_in_stream}),
    json_agg(stream_version) FILTER (WHERE {is_in_stream})::text,
    CASE WHEN count(*) FILTER (WHERE {is_in_stream}) < count(*)
        THEN array_to_json(array_agg(global_sequence) FILTER (WHERE {is_in_stream}))::text END,
    array_agg(more) FILTER (WHERE more IS NOT NULL),
    CASE WHEN count(more) < count(*)
        THEN array_to_json(array_agg(global_sequence) FILTER (WHERE more IS NOT NULL))::text END;

-- name: server
-- Names one start of one server. A server that has recovered from the crash of one of its processes counts as
-- another one, because it may have lost commits that did not wait for the disk: it is still the same process,
-- but its statistics begin anew. (Up to version 14 they are read from a file, which would take longer than all
-- the rest; there the loss of the session has to be enough.) Moments as they are sent, which no setting of the
-- session changes, and which takes half as long as to write them as text.
encode(timestamptz_send(pg_postmaster_start_time()) || CASE
    WHEN current_setting('server_version_num')::integer >= 150000
    THEN coalesce(timestamptz_send(pg_stat_get_bgwriter_stat_reset_time()), '') ELSE '' END, 'hex');

-- name: head
coalesce((SELECT max(global_sequence) FROM {schema}.events), 0);

-- name: after
-- In a SELECT the planner does not look at it: a plan for any number is as good as one for this number, and
-- need not be made anew each time.
(SELECT $1::bigint);

-- name: and_wanted
-- $6: exact types, $7: a regular expression for all others, or NULL.
AND (event_type = ANY((SELECT $6::text[])::text[]) OR event_type ~ (SELECT $7::text));

-- name: part_hash
-- As policy.partitions has it: a stream is always in the same part, and without one an event goes by its id.
('x' || left(md5(convert_to(coalesce(stream_id, id), 'UTF8')), 8))::bit(32)::bigint;

-- name: and_wanted_in_part
-- As and_wanted, or every type if $6 is NULL; and only the part $8 of $9.
AND ((SELECT $6::text[]) IS NULL OR event_type = ANY((SELECT $6::text[])::text[])
    OR event_type ~ (SELECT $7::text))
AND {part_hash} % (SELECT $9::bigint) = (SELECT $8::bigint);

-- name: and_in_slice
AND global_sequence <= (SELECT last FROM slice);

-- name: size
-- How much an event adds to a page. Only what is compressed has to be read for that.
128 + CASE WHEN pg_column_compression(data) IS NULL THEN coalesce(pg_column_size(data), 0)
    ELSE octet_length(data::text) END;

-- name: next_sizes
-- The next events, as far as their size goes. Limits are constants wherever the planner has to know them, whatever
-- it knows of the table.
SELECT global_sequence, {size} AS size FROM (
    SELECT global_sequence, data FROM {schema}.events
    WHERE global_sequence > {after} {and_in_slice} {and_wanted}
    ORDER BY global_sequence LIMIT 1000
) AS next
LIMIT $2::bigint;

-- name: room
-- How many events after $1 go into the page: at most $2, and no more after the one that makes it $3 bytes.
-- Mostly all of them do, and one sum tells. If not, the sums are made one after the other. Besides, the last of
-- them, whether numbers are missing up to it, and in how many pieces they come.
SELECT coalesce(cut.row_count, $2::bigint) AS row_count, fitting.last,
    fitting.last - {after} > fitting.row_count AS has_gaps, piece_count,
    (fitting.last - {after}) / piece_count AS piece_width
FROM (
    SELECT count(*) AS row_count, max(global_sequence) AS last, coalesce(sum(size), 0) AS size
    FROM ({next_sizes}) AS sizes
) AS found LEFT JOIN LATERAL (
    SELECT row_count, global_sequence AS last FROM (
        SELECT count(*) OVER in_order AS row_count, sum(size) OVER in_order AS size, global_sequence
        FROM ({next_sizes}) AS sizes
        WINDOW in_order AS (ORDER BY global_sequence ROWS UNBOUNDED PRECEDING)
    ) AS sums
    WHERE found.size >= (SELECT $3::bigint) AND size >= (SELECT $3::bigint) LIMIT 1
) AS cut ON true CROSS JOIN LATERAL (
    SELECT coalesce(cut.row_count, found.row_count) AS row_count, coalesce(cut.last, found.last) AS last
) AS fitting CROSS JOIN LATERAL (
    SELECT greatest(1, least(16, 1 + found.size / 65536, fitting.row_count)) AS piece_count
) AS pieces;

-- name: rows_after
-- In several rows of about 64 KB: for texts that are much larger the server asks the operating system for memory
-- each time, which can take as long as all the rest. They are cut by numbers, not by events, so that each is
-- found by the index: where numbers are missing, some are smaller. For the upper bound see filled.
SELECT piece.* FROM room CROSS JOIN generate_series(1, 16) AS number CROSS JOIN LATERAL (
    SELECT {page_columns} FROM (
        SELECT {event_columns}, room.has_gaps FROM {schema}.events AS e
        WHERE global_sequence > {after} + piece_width * (number - 1)
            AND (global_sequence, 0) <= (
                CASE WHEN number = piece_count THEN room.last ELSE {after} + piece_width * number END, 0
            ) {and_wanted}
        ORDER BY global_sequence LIMIT 1000
    ) AS e
) AS piece
WHERE number <= piece_count;

-- name: filled
-- The events that have appeared in the gaps ($4: first numbers, $5: last numbers, in order), and which of
-- them fit into the page. A gap may be huge, and so may be what one late transaction has filled it with.
-- Gaps are looked into one after the other, so the first events that are found are those to begin with.
-- The upper bound is written in a way of which the planner expects many rows, so that it reads them in order
-- instead of sorting them all.
WITH found AS MATERIALIZED (
    SELECT e.global_sequence, e.data
    FROM unnest((SELECT $4::text::bigint[]), (SELECT $5::text::bigint[])) AS gap (first, last) CROSS JOIN LATERAL (
        SELECT global_sequence, data FROM {schema}.events
        WHERE global_sequence >= gap.first AND (global_sequence, 0) <= (gap.last, 0) {and_wanted}
        ORDER BY global_sequence LIMIT 1001
    ) AS e
    LIMIT 1001
)
SELECT global_sequence, row_number() OVER (ORDER BY global_sequence) <= least(1000, (
    SELECT row_count FROM (
        SELECT count(*) OVER in_order AS row_count, sum({size}) OVER in_order AS size
        FROM found WINDOW in_order AS (ORDER BY global_sequence ROWS UNBOUNDED PRECEDING)
    ) AS sums
    WHERE size >= (SELECT $3::bigint) LIMIT 1
)) AS fits
FROM found;

-- name: filled_rows
SELECT {page_columns} FROM (
    SELECT {event_columns}, true AS has_gaps FROM filled JOIN {schema}.events AS e USING (global_sequence)
    WHERE fits ORDER BY e.global_sequence LIMIT 1000
) AS e;

-- name: has_retries
-- Whether a dead letter is to be retried. Ordered as its small index is: otherwise the planner may read all.
(SELECT subscriber_id FROM {schema}.event_bus_dlq WHERE retry_wanted_at IS NOT NULL
    ORDER BY subscriber_id, created_at, global_sequence LIMIT 1) IS NOT NULL;

-- name: is_cut
EXISTS (SELECT FROM filled WHERE NOT fits);

-- Here the statements begin.

-- name: read_page
-- At most $2 events after the number $1, in order. In every row come before them the highest number of the log,
-- which server answers, whether there are retries, whether the page is cut and how many events there is room for.
WITH room AS MATERIALIZED ({room})
SELECT {head}, (SELECT {server}), {has_retries}, false, (SELECT row_count FROM room), NULL, NULL, NULL, page.*
FROM ({rows_after}) AS page;

-- name: read_next
-- The first event after the number $1, in a row of event_columns, and the second, which tells that there are more.
-- Who is at the head mostly reads one event at a time, and for that all that a page tells besides takes too long.
-- But who was woken for the event may have been woken for a retry as well.
SELECT {event_columns}, {has_retries} FROM {schema}.events AS e
WHERE global_sequence > {after} ORDER BY global_sequence LIMIT 2;

-- name: read_page_and_gaps
-- The same with the events in the open gaps before it, as of the same moment because it is one statement. If
-- there are more than fit, the page is cut and nothing comes after them.
WITH filled AS MATERIALIZED ({filled}), room AS MATERIALIZED ({room})
SELECT {head}, (SELECT {server}), {has_retries}, {is_cut}, (SELECT row_count FROM room), NULL, NULL, NULL, page.*
FROM (({filled_rows}) UNION ALL (SELECT * FROM ({rows_after}) AS after WHERE NOT {is_cut})) AS page;

-- name: read_page_beside_gaps
-- As read_page_and_gaps where nothing has appeared in the gaps: to be ready to read that as well takes a
-- fifteenth of the time of a large page. If something has, the page counts as cut.
WITH room AS MATERIALIZED ({room})
SELECT {head}, (SELECT {server}), {has_retries}, EXISTS (
    SELECT FROM unnest((SELECT $4::text::bigint[]), (SELECT $5::text::bigint[])) AS gap (first, last)
    CROSS JOIN LATERAL (
        SELECT FROM {schema}.events WHERE global_sequence >= gap.first AND (global_sequence, 0) <= (gap.last, 0)
        ORDER BY global_sequence LIMIT 1
    ) AS e
), (SELECT row_count FROM room), NULL, NULL, NULL, page.*
FROM ({rows_after}) AS page;

-- name: read_wanted_page
-- The same with only the events that are wanted, out of the next 2000; and with the last number looked at and
-- the numbers that are missing, from firsts to lasts.
WITH slice AS MATERIALIZED (
    SELECT count(*) AS row_count, max(global_sequence) AS last FROM (
        SELECT global_sequence FROM {schema}.events WHERE global_sequence > {after}
        ORDER BY global_sequence LIMIT 2000
    ) AS numbers
), missing AS MATERIALIZED (
    SELECT json_agg(previous + 1)::text AS firsts, json_agg(global_sequence - 1)::text AS lasts FROM (
        SELECT global_sequence, lag(global_sequence, 1, {after}) OVER (ORDER BY global_sequence) AS previous
        FROM (
            SELECT global_sequence FROM {schema}.events WHERE global_sequence > {after}
            ORDER BY global_sequence LIMIT 2000
        ) AS numbers
        ORDER BY global_sequence
    ) AS numbers
    WHERE (SELECT last - {after} > row_count FROM slice) AND global_sequence > previous + 1
), filled AS MATERIALIZED ({filled}), room AS MATERIALIZED ({room})
SELECT {head}, (SELECT {server}), {has_retries}, {is_cut}, (SELECT row_count FROM room), (SELECT last FROM slice),
    (SELECT firsts FROM missing), (SELECT lasts FROM missing), page.*
FROM (({filled_rows}) UNION ALL (SELECT * FROM ({rows_after}) AS after WHERE NOT {is_cut})) AS page;

-- name: read_last_drawn
-- The last number that the sequence has handed out, whether its event is still there or not.
SELECT CASE WHEN is_called THEN last_value ELSE last_value - 1 END FROM {schema}.events_global_sequence_seq;

-- name: sample_writers
-- One statement: its snapshot (high) is older than its look at the locks (holders). The gap rule is sound
-- only in this order. nextval() locks the sequence until its transaction has ended, prepared or not.
SELECT {server} AS server, {head} AS high,
    coalesce((
        SELECT array_agg(DISTINCT virtualtransaction) FROM pg_catalog.pg_locks
        WHERE locktype = 'relation' AND relation = (SELECT to_regclass($1::text))
            AND mode = 'RowExclusiveLock' AND granted
            AND database = (SELECT oid FROM pg_catalog.pg_database WHERE datname = current_database())
    ), ARRAY[]::text[]) AS holders,
    pg_is_in_recovery() AS is_standby, numbers.seqcache, numbers.seqincrement, numbers.seqcycle,
    row_security_active((
        SELECT refobjid FROM pg_catalog.pg_depend
        WHERE classid = 'pg_catalog.pg_class'::regclass AND objid = numbers.seqrelid
            AND refclassid = 'pg_catalog.pg_class'::regclass AND deptype = 'a'
    )) AS hides_rows
FROM (SELECT) AS always LEFT JOIN pg_catalog.pg_sequence AS numbers ON numbers.seqrelid = to_regclass($1::text);

-- name: read_open_writers
-- All but this session. A prepared transaction belongs to no session; it is known by the lock on its own id.
-- What the role may not see of another's transaction is NULL.
WITH locks AS MATERIALIZED (SELECT * FROM pg_catalog.pg_locks)
SELECT writer.pid, activity.application_name, prepared.gid,
    extract(epoch FROM clock_timestamp() - coalesce(prepared.prepared, activity.xact_start))::float8
        AS age_seconds
FROM locks AS writer
LEFT JOIN pg_catalog.pg_stat_activity AS activity ON activity.pid = writer.pid
LEFT JOIN locks AS own ON writer.pid IS NULL AND own.pid IS NULL AND own.locktype = 'transactionid'
    AND own.mode = 'ExclusiveLock' AND own.virtualtransaction = writer.virtualtransaction
LEFT JOIN pg_catalog.pg_prepared_xacts AS prepared ON prepared.transaction = own.transactionid
WHERE writer.locktype = 'relation' AND writer.relation = (SELECT to_regclass($1::text))
    AND writer.mode = 'RowExclusiveLock' AND writer.granted
    AND writer.database = (SELECT oid FROM pg_catalog.pg_database WHERE datname = current_database())
    AND writer.virtualtransaction NOT LIKE '%/0' AND writer.pid IS DISTINCT FROM pg_backend_pid()
ORDER BY age_seconds DESC NULLS LAST, writer.pid;

-- name: read_missing
-- The numbers up to $1 that are not visible, from first to last, the newest first; looks at 100000 rows. The
-- first row tells down to which number.
WITH numbers AS MATERIALIZED (
    SELECT global_sequence FROM {schema}.events WHERE global_sequence <= $1
    ORDER BY global_sequence DESC LIMIT 100000
), bottom AS MATERIALIZED (
    SELECT CASE WHEN count(*) = 100000 THEN min(global_sequence) ELSE 0 END AS number FROM numbers
)
SELECT number, NULL::bigint FROM bottom
UNION ALL (
    SELECT number + 1, above - 1 FROM (
        SELECT number, lag(number, 1, $1::bigint + 1) OVER (ORDER BY number DESC) AS above
        FROM (SELECT global_sequence AS number FROM numbers UNION SELECT number FROM bottom) AS numbers
    ) AS numbers
    WHERE above > number + 1 ORDER BY number DESC
);

-- name: read_head
SELECT {head};

-- name: read_position_at
-- No index: it would cost every publish, and this is asked once in the life of a subscriber.
SELECT coalesce((
    SELECT global_sequence - 1 FROM {schema}.events WHERE created_at >= $1 ORDER BY global_sequence LIMIT 1
), {head});

-- name: read_event
SELECT {event_columns} FROM {schema}.events AS e WHERE id = $1;

-- name: read_stream
SELECT {event_columns} FROM {schema}.events AS e
WHERE stream_id = $1 AND stream_version BETWEEN $2 AND $3 ORDER BY stream_version;

-- name: has_event
SELECT EXISTS (SELECT FROM {schema}.events WHERE id = $1);

-- name: purge_event
-- Waits for whoever buries the event at this moment, and has locked it for that.
UPDATE {schema}.events SET data = NULL, purger_id = $2, purged_at = $3 WHERE id = $1 AND purged_at IS NULL;

-- name: purge_event_from_dead_letters
UPDATE {schema}.event_bus_dlq SET payload = NULL, purger_id = $2, purged_at = $3
WHERE event_id = $1 AND purged_at IS NULL;
