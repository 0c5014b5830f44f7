-- The functions of the schema, all created anew by every migration, in this order. Each looks names up in its
-- own schema only, whatever the search_path of the caller is.

-- name: postbus_channel
-- Where wake-ups are sent; Database.channel is the same in Python.
CREATE OR REPLACE FUNCTION {schema}.postbus_channel() RETURNS text
LANGUAGE plpgsql STABLE SET search_path = {schema}, pg_temp AS $postbus$
BEGIN
    RETURN 'postbus:' || CASE
        WHEN octet_length(convert_to('postbus:' || current_schema(), 'UTF8')) <= 63 THEN current_schema()
        ELSE md5(convert_to(current_schema(), 'UTF8'))
    END;
END $postbus$;

-- name: notify_appended
-- For the statement-level trigger of notify="trigger": the highest new number, and never the data.
CREATE OR REPLACE FUNCTION {schema}.notify_appended() RETURNS trigger
LANGUAGE plpgsql SET search_path = {schema}, pg_temp AS $postbus$
BEGIN
    PERFORM pg_notify(postbus_channel(), max(global_sequence)::text) FROM appended
    HAVING max(global_sequence) IS NOT NULL;
    RETURN NULL;
END $postbus$;

-- name: append_keys
-- What has to be locked for these drafts: their streams, and the ids that their publishers chose.
CREATE OR REPLACE FUNCTION {schema}.append_keys(ids text[], are_given boolean[], streams text[]) RETURNS bigint[]
LANGUAGE plpgsql STABLE SET search_path = {schema}, pg_temp AS $postbus$
BEGIN
    RETURN ARRAY(
        SELECT hashtextextended(current_schema() || ' stream ' || stream, 0)
        FROM unnest(streams) AS stream WHERE stream IS NOT NULL
        UNION
        SELECT hashtextextended(current_schema() || ' id ' || id, 0)
        FROM unnest(ids, are_given) AS draft (id, is_given) WHERE is_given
        ORDER BY 1
    );
END $postbus$;

-- name: lock_append_key
-- Whether the key is locked for the rest of the transaction. Waits for it as long as *patience* says, such as
-- '50ms'; NULL: as long as the session's own settings say.
CREATE OR REPLACE FUNCTION {schema}.lock_append_key(key bigint, is_shared boolean, patience text) RETURNS boolean
LANGUAGE plpgsql SET search_path = {schema}, pg_temp AS $postbus$
DECLARE
    own_patience CONSTANT text := current_setting('lock_timeout');
    has_lock boolean;
BEGIN
    has_lock := CASE WHEN is_shared THEN pg_try_advisory_xact_lock_shared(key) ELSE pg_try_advisory_xact_lock(key) END;
    IF has_lock THEN
        RETURN true;
    END IF;
    BEGIN
        PERFORM set_config('lock_timeout', coalesce(patience, own_patience), true);
        IF is_shared THEN
            PERFORM pg_advisory_xact_lock_shared(key);
        ELSE
            PERFORM pg_advisory_xact_lock(key);
        END IF;
        PERFORM set_config('lock_timeout', own_patience, true);
        RETURN true;
    EXCEPTION WHEN lock_not_available THEN
        RETURN false;
    END;
END $postbus$;

-- name: lock_for_append
-- Locks the keys, which are sorted; returns those that are not to be had.
--
-- The server's table of locks is small, and so whoever has many keys locks whole buckets of keys instead, which all
-- others share. A key's bucket is its highest nine bits: sorted keys are sorted by bucket too, and since everybody
-- locks in this one order, no two calls can wait for each other.
CREATE OR REPLACE FUNCTION {schema}.lock_for_append(keys bigint[], patience text) RETURNS bigint[]
LANGUAGE plpgsql SET search_path = {schema}, pg_temp AS $postbus$
DECLARE
    most_keys CONSTANT integer := 500;
    has_few CONSTANT boolean := cardinality(keys) <= most_keys;
    buckets CONSTANT bigint := hashtextextended(current_schema() || ' buckets', 0);
    busy bigint[] := ARRAY[]::bigint[];
    bucket bigint;
    has_bucket boolean;
    key bigint;
BEGIN
    FOREACH key IN ARRAY keys LOOP
        IF bucket IS DISTINCT FROM key >> 55 THEN
            bucket := key >> 55;
            has_bucket := lock_append_key(buckets # bucket, has_few, patience);
        END IF;
        IF NOT has_bucket OR has_few AND NOT lock_append_key(key, false, patience) THEN
            busy := busy || key;
            -- Without patience of ours it is the caller who is told, and at once.
            EXIT WHEN patience IS NULL;
            -- Others of the group wait meanwhile: patience is for one key only.
            patience := '1ms';
        END IF;
    END LOOP;
    RETURN busy;
END $postbus$;

-- name: find_held
-- The first of the drafts that needs one of the busy keys, and whether it is for its stream or for its id.
CREATE OR REPLACE FUNCTION {schema}.find_held(
    ids text[], are_given boolean[], streams text[], busy bigint[], OUT place bigint, OUT kind text
)
LANGUAGE plpgsql STABLE SET search_path = {schema}, pg_temp AS $postbus$
BEGIN
    FOR n IN 1 .. cardinality(ids) LOOP
        IF append_keys(ids[n:n], are_given[n:n], streams[n:n]) && busy THEN
            place := n;
            kind := CASE WHEN append_keys('{}', '{}', streams[n:n]) && busy THEN 'stream' ELSE 'event id' END;
            RETURN;
        END IF;
    END LOOP;
END $postbus$;

-- name: append_job
-- Stores all drafts or none, under the locks of lock_for_append; a number and a version for each, both NULL for a
-- given id that was there already. A refusal says at which place, counted from 1.
--
-- is_repeated: the answer to an earlier call got lost; a made id may be there because of that call.
-- No scans: a plan that was made while the table was small would be kept when it is large.
CREATE OR REPLACE FUNCTION {schema}.append_job(
    ids text[], types text[], payloads text[], metadata text[], moments timestamptz[], are_given boolean[],
    streams text[], expected_versions bigint[], actors text[], correlations text[], causations text[],
    schema_versions bigint[], is_repeated boolean,
    OUT numbers bigint[], OUT versions bigint[], OUT refusal text, OUT refused_place bigint, OUT actual_version bigint
)
LANGUAGE plpgsql
SET search_path = {schema}, pg_temp SET enable_seqscan = off SET enable_bitmapscan = off AS $postbus$
#variable_conflict use_column
DECLARE
    are_new boolean[];
    new_numbers bigint[];
    wrong_place bigint;
    duplicate_place bigint;
BEGIN
    SELECT array_agg(is_new ORDER BY place),
        array_agg(old_number ORDER BY place),
        array_agg(CASE WHEN is_new THEN version ELSE old_version END ORDER BY place),
        min(place) FILTER (WHERE is_new AND version - 1 <> expected_version),
        (array_agg(version - 1 ORDER BY place) FILTER (WHERE is_new AND version - 1 <> expected_version))[1],
        min(place) FILTER (WHERE is_duplicate)
    INTO are_new, numbers, versions, wrong_place, actual_version, duplicate_place
    FROM (
        SELECT place, is_new, expected_version, old_number, old_version,
            NOT is_new AND NOT is_given AND NOT coalesce(is_repeated AND is_same, false) AS is_duplicate,
            CASE WHEN stream IS NOT NULL THEN
                coalesce((SELECT max(stream_version) FROM events WHERE stream_id = stream), 0)
                + count(*) FILTER (WHERE is_new) OVER (PARTITION BY stream ORDER BY place)
            END AS version
        FROM (
            SELECT place, stream, expected_version, is_given, is_same,
                CASE WHEN NOT is_given THEN stored.number END AS old_number,
                CASE WHEN NOT is_given THEN stored.version END AS old_version,
                stored.number IS NULL AND row_number() OVER (PARTITION BY id ORDER BY place) = 1 AS is_new
            FROM unnest(ids, types, moments, are_given, streams, expected_versions) WITH ORDINALITY
                AS draft (id, type, moment, is_given, stream, expected_version, place)
            LEFT JOIN LATERAL (
                SELECT global_sequence AS number, stream_version AS version,
                    (event_type, created_at, stream_id) IS NOT DISTINCT FROM (type, moment, stream) AS is_same
                FROM events WHERE events.id = draft.id LIMIT 1
            ) AS stored ON true
        ) AS found
    ) AS judged;
    refused_place := coalesce(wrong_place, duplicate_place);
    IF refused_place IS NOT NULL THEN
        refusal := CASE WHEN wrong_place IS NULL THEN 'duplicate' ELSE 'version' END;
        RETURN;
    END IF;

    WITH inserted AS (
        INSERT INTO events (id, event_type, data, metadata, created_at, stream_id, stream_version, actor_id,
            correlation_id, causation_id, schema_version)
        SELECT id, type, payload::json, note::json, moment, stream, version, actor, correlation, causation, form
        FROM unnest(ids, types, payloads, metadata, moments, streams, versions, actors, correlations, causations,
            schema_versions, are_new) WITH ORDINALITY AS draft (id, type, payload, note, moment, stream, version,
            actor, correlation, causation, form, is_new, place)
        WHERE is_new ORDER BY place
        RETURNING global_sequence
    )
    SELECT array_agg(global_sequence ORDER BY global_sequence) INTO new_numbers FROM inserted;
    IF cardinality(new_numbers) = cardinality(ids) THEN
        numbers := new_numbers;
    ELSE
        SELECT array_agg(CASE WHEN is_new THEN new_numbers[nth] ELSE old_number END ORDER BY place) INTO numbers
        FROM (
            SELECT place, is_new, old_number, count(*) FILTER (WHERE is_new) OVER (ORDER BY place) AS nth
            FROM unnest(are_new, numbers) WITH ORDINALITY AS draft (is_new, old_number, place)
        ) AS counted;
    END IF;
END $postbus$;

-- name: append_events
-- Stores the drafts of several jobs, each job whole or not at all; job_ends has the place of the last draft of
-- each. One row if all are stored, else one row for each job: the place of its first draft, and then what
-- append_job tells, or 'busy stream' or 'busy event id' if others hold that of a draft for longer than *patience*. Without
-- *patience* that is an error.
CREATE OR REPLACE FUNCTION {schema}.append_events(
    job_ends integer[], ids text[], types text[], payloads text[], metadata text[], moments timestamptz[],
    are_given boolean[], streams text[], expected_versions bigint[], actors text[], correlations text[],
    causations text[], schema_versions bigint[], is_repeated boolean, patience text
) RETURNS TABLE (
    first_place integer, numbers bigint[], versions bigint[], refusal text, refused_place bigint, actual_version bigint
)
LANGUAGE plpgsql SET search_path = {schema}, pg_temp AS $postbus$
DECLARE
    keys CONSTANT bigint[] := append_keys(ids, are_given, streams);
    busy bigint[] := ARRAY[]::bigint[];
    held record;
    f integer := 1;
    l integer;
BEGIN
    -- First: a stream's writers come one after the other before they draw their numbers.
    IF cardinality(keys) > 0 THEN
        busy := lock_for_append(keys, patience);
    END IF;
    IF cardinality(busy) = 0 THEN
        -- All at one go, which is nearly always possible.
        SELECT 1, job.* INTO first_place, numbers, versions, refusal, refused_place, actual_version
        FROM append_job(ids, types, payloads, metadata, moments, are_given, streams, expected_versions, actors,
            correlations, causations, schema_versions, is_repeated) AS job;
        IF refusal IS NULL OR cardinality(job_ends) = 1 THEN
            RETURN NEXT;
            RETURN;
        END IF;
    END IF;
    IF cardinality(busy) > 0 AND patience IS NULL THEN
        held := find_held(ids, are_given, streams, busy);
        RAISE EXCEPTION 'another transaction holds % %, or one that shares its lock',
            held.kind, quote_literal(CASE held.kind WHEN 'stream' THEN streams[held.place] ELSE ids[held.place] END)
            USING ERRCODE = 'lock_not_available', HINT = 'A call with very many streams or ids locks others as well.';
    END IF;
    FOREACH l IN ARRAY job_ends LOOP
        IF append_keys(ids[f:l], are_given[f:l], streams[f:l]) && busy THEN
            held := find_held(ids[f:l], are_given[f:l], streams[f:l], busy);
            RETURN QUERY SELECT f, NULL::bigint[], NULL::bigint[], 'busy ' || held.kind, held.place, NULL::bigint;
        ELSE
            RETURN QUERY SELECT f, job.* FROM append_job(
                ids[f:l], types[f:l], payloads[f:l], metadata[f:l], moments[f:l], are_given[f:l], streams[f:l],
                expected_versions[f:l], actors[f:l], correlations[f:l], causations[f:l], schema_versions[f:l],
                is_repeated
            ) AS job;
        END IF;
        f := l + 1;
    END LOOP;
END $postbus$;

-- name: insert_and_notify
-- Stores one event, new for certain, commits, and then notifies: one statement of a client that is in no transaction.
-- No commit waits for the lock that notifications take, and no notification for a client to send it. The second
-- transaction writes nothing that would have to be on disk. If it fails, the event is stored nevertheless.
-- A procedure with settings of its own may not commit: so it has no search_path, and names are complete.
CREATE OR REPLACE PROCEDURE {schema}.insert_and_notify(
    new_id text, new_type text, payload text, moment timestamptz, channel text, INOUT number bigint
)
LANGUAGE plpgsql AS $postbus$
BEGIN
    INSERT INTO {schema}.events (id, event_type, data, created_at)
    VALUES (new_id, new_type, payload::pg_catalog.json, moment) RETURNING global_sequence INTO number;
    COMMIT;
    PERFORM pg_catalog.pg_notify(channel, number::pg_catalog.text);
END $postbus$;

-- name: new_event_id
-- A time-ordered UUID (version 7): random ones are spread all over the index and make it slow.
CREATE OR REPLACE FUNCTION {schema}.new_event_id() RETURNS text
LANGUAGE plpgsql VOLATILE SET search_path = {schema}, pg_temp AS $postbus$
DECLARE
    milliseconds CONSTANT bigint := floor(extract(epoch FROM clock_timestamp()) * 1000);
    random CONSTANT bytea := uuid_send(gen_random_uuid());
    bytes CONSTANT bytea := overlay(random PLACING substring(int8send(milliseconds) FROM 3) FROM 1);
BEGIN
    -- Of a random UUID only the version differs: 0100 becomes 0111.
    RETURN encode(set_bit(set_bit(bytes, 52, 1), 53, 1), 'hex')::uuid::text;
END $postbus$;

-- name: find_number_flaw
-- What bus.publish refuses of the numbers in this JSON: one that a double can't hold, unless it is an integer of at
-- most 4300 digits, the longest that Python reads. NULL: nothing. What is inside of strings is no number.
CREATE OR REPLACE FUNCTION {schema}.find_number_flaw(payload text) RETURNS text
LANGUAGE plpgsql STABLE SET search_path = {schema}, pg_temp AS $postbus$
DECLARE
    most_digits CONSTANT integer := 4300;
    -- Half a step above the largest double, from where on it is rounded to infinity.
    too_large CONSTANT numeric := 1.797693134862315807937e308;
    digits text[];
    number text;
BEGIN
    FOR digits IN
        SELECT regexp_matches(
            regexp_replace(payload, E'"([^"\\\\]|\\\\.)*"', '""', 'g'),
            '([0-9]+)([.][0-9]+)?([eE]([-+]?)0*([0-9]+))?', 'g')
    LOOP
        IF digits[2] IS NULL AND digits[3] IS NULL THEN
            IF length(digits[1]) > most_digits THEN
                RETURN format('an integer of %s digits, more than %s', length(digits[1]), most_digits);
            END IF;
            CONTINUE;
        END IF;
        number := digits[1] || coalesce(digits[2], '') || coalesce(digits[3], '');
        IF ltrim(digits[1] || coalesce(digits[2], ''), '0.') <> '' AND (
            -- The server itself can't count with an exponent of more digits.
            length(digits[5]) > 5 AND digits[4] <> '-'
            OR length(digits[1]) + coalesce(digits[4] || left(digits[5], 6), '0')::integer > 300
            AND number::numeric >= too_large
        ) THEN
            RETURN format('a number of more than 1.797e308, %s', left(number, 40));
        END IF;
    END LOOP;
    RETURN NULL;
END $postbus$;

-- name: check_event
-- What bus.publish checks, as far as the server can.
CREATE OR REPLACE FUNCTION {schema}.check_event(event_type text, payload text, metadata text, fields text[])
RETURNS void LANGUAGE plpgsql STABLE SET search_path = {schema}, pg_temp AS $postbus$
DECLARE
    most_levels CONSTANT integer := 100;
    is_short CONSTANT boolean := octet_length(payload) < 200;
    -- To look at every level and every number costs more than to see that there can be no flaw.
    may_be_deep CONSTANT boolean := NOT is_short
        AND octet_length(payload) - octet_length(replace(replace(payload, '[', ''), '{', '')) > most_levels;
    -- An exponent of three digits, or so many digits that one of two is enough.
    large_number CONSTANT text := '[0-9][eE][+]?[0-9]{3}' || CASE WHEN is_short THEN '' ELSE '|[0-9]{200}' END;
    flaw text;
BEGIN
    IF coalesce(event_type !~ '^[^.*[:space:][:cntrl:]]+([.][^.*[:space:][:cntrl:]]+)*$', true) THEN
        flaw := format('event type %L is no dotted name such as order.placed', event_type);
    ELSIF char_length(event_type) > 255 THEN
        flaw := format('event type %L... is longer than 255 characters', left(event_type, 40));
    ELSIF octet_length(payload) > 16 * 1024 * 1024 THEN
        flaw := format('the payload has %s bytes, more than 16 MiB', octet_length(payload));
    ELSIF octet_length(metadata) > 64 * 1024 THEN
        flaw := format('the metadata have %s bytes, more than 64 KiB', octet_length(metadata));
    ELSIF json_typeof(metadata::json) <> 'object' THEN
        flaw := 'the metadata are no JSON object';
    ELSIF EXISTS (SELECT FROM json_each(metadata::json) WHERE json_typeof(value) <> 'string') THEN
        flaw := 'the metadata have a value that is no string';
    ELSIF EXISTS (SELECT FROM unnest(fields) AS field WHERE field !~ '^[^[:cntrl:]]+$' OR char_length(field) > 255) THEN
        flaw := 'an id is not a text of 1 to 255 printable characters';
    ELSIF payload ~ large_number THEN
        flaw := 'the payload has ' || find_number_flaw(payload);
    END IF;
    -- The type jsonb refuses what no reader could make sense of: NUL characters and half a surrogate pair.
    IF flaw IS NULL AND may_be_deep THEN
        BEGIN
            -- The outermost container is at level 0.
            IF jsonb_path_exists(
                payload::jsonb, 'strict $.**{100} ? (@.type() == "array" || @.type() == "object")'
            ) THEN
                flaw := format('the payload is nested deeper than %s levels', most_levels);
            END IF;
        EXCEPTION WHEN statement_too_complex THEN
            flaw := format('the payload is nested deeper than %s levels, and than the server can read', most_levels);
        END;
    ELSIF flaw IS NULL THEN
        PERFORM payload::jsonb;
    END IF;
    IF flaw IS NOT NULL THEN
        RAISE EXCEPTION '%; nothing was stored', flaw USING ERRCODE = 'invalid_parameter_value';
    END IF;
    PERFORM metadata::jsonb;
END $postbus$;

-- name: publish
-- Publishes one event in the transaction of the caller, from any client in any language; returns its global
-- sequence. A given event_id is stored once: for one that is there, the number that it has. A stream that is not at
-- expected_version raises SQLSTATE PB001. Notifies at the commit; NOTIFY makes PREPARE TRANSACTION fail, so a
-- transaction that is to be prepared says notify => false, and readers find the event when they poll.
CREATE OR REPLACE FUNCTION {schema}.publish(
    event_type text, payload text DEFAULT 'null', metadata text DEFAULT NULL, stream_id text DEFAULT NULL,
    expected_version bigint DEFAULT NULL, event_id text DEFAULT NULL, actor_id text DEFAULT NULL,
    correlation_id text DEFAULT NULL, causation_id text DEFAULT NULL, schema_version bigint DEFAULT NULL,
    notify boolean DEFAULT true
) RETURNS bigint
LANGUAGE plpgsql VOLATILE SET search_path = {schema}, pg_temp SET enable_seqscan = off AS $postbus$
#variable_conflict use_variable
DECLARE
    number bigint;
    stored record;
BEGIN
    payload := coalesce(payload, 'null');
    PERFORM check_event(
        event_type, payload, metadata, ARRAY[stream_id, event_id, actor_id, correlation_id, causation_id]
    );
    IF expected_version IS NOT NULL AND stream_id IS NULL OR expected_version < 0 OR schema_version < 1 THEN
        RAISE EXCEPTION
            'expected_version needs a stream_id and is 0 or more; schema_version is 1 or more; nothing was stored'
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    SELECT * INTO stored FROM append_events(
        ARRAY[1], ARRAY[coalesce(event_id, new_event_id())], ARRAY[event_type], ARRAY[payload], ARRAY[metadata],
        ARRAY[clock_timestamp()], ARRAY[event_id IS NOT NULL], ARRAY[stream_id], ARRAY[expected_version],
        ARRAY[actor_id], ARRAY[correlation_id], ARRAY[causation_id], ARRAY[schema_version], false, NULL
    );
    IF stored.refusal IS NOT NULL THEN
        RAISE EXCEPTION 'stream % is at version %, expected %; nothing was stored',
            quote_literal(stream_id), stored.actual_version, expected_version
            USING ERRCODE = 'PB001', HINT = 'Read the stream again and decide anew.';
    END IF;
    number := stored.numbers[1];
    IF number IS NULL THEN
        SELECT global_sequence INTO number FROM events WHERE id = event_id;
    ELSIF notify THEN
        PERFORM pg_notify(postbus_channel(), number::text);
    END IF;
    RETURN number;
END $postbus$;

-- name: publish_text_with_jsonb
-- The payload as text, the metadata as jsonb.
CREATE OR REPLACE FUNCTION {schema}.publish(
    event_type text, payload text, metadata jsonb, stream_id text DEFAULT NULL,
    expected_version bigint DEFAULT NULL, event_id text DEFAULT NULL, actor_id text DEFAULT NULL,
    correlation_id text DEFAULT NULL, causation_id text DEFAULT NULL, schema_version bigint DEFAULT NULL,
    notify boolean DEFAULT true
) RETURNS bigint
LANGUAGE plpgsql VOLATILE SET search_path = {schema}, pg_temp AS $postbus$
BEGIN
    RETURN publish(event_type, payload, metadata::text, stream_id, expected_version, event_id, actor_id,
        correlation_id, causation_id, schema_version, notify);
END $postbus$;

-- name: publish_json
-- The payload as json.
CREATE OR REPLACE FUNCTION {schema}.publish(
    event_type text, payload json, metadata json DEFAULT NULL, stream_id text DEFAULT NULL,
    expected_version bigint DEFAULT NULL, event_id text DEFAULT NULL, actor_id text DEFAULT NULL,
    correlation_id text DEFAULT NULL, causation_id text DEFAULT NULL, schema_version bigint DEFAULT NULL,
    notify boolean DEFAULT true
) RETURNS bigint
LANGUAGE plpgsql VOLATILE SET search_path = {schema}, pg_temp AS $postbus$
BEGIN
    RETURN publish(event_type, payload::text, metadata::text, stream_id, expected_version, event_id, actor_id,
        correlation_id, causation_id, schema_version, notify);
END $postbus$;

-- name: publish_jsonb
-- The payload as jsonb.
CREATE OR REPLACE FUNCTION {schema}.publish(
    event_type text, payload jsonb, metadata jsonb DEFAULT NULL, stream_id text DEFAULT NULL,
    expected_version bigint DEFAULT NULL, event_id text DEFAULT NULL, actor_id text DEFAULT NULL,
    correlation_id text DEFAULT NULL, causation_id text DEFAULT NULL, schema_version bigint DEFAULT NULL,
    notify boolean DEFAULT true
) RETURNS bigint
LANGUAGE plpgsql VOLATILE SET search_path = {schema}, pg_temp AS $postbus$
BEGIN
    RETURN publish(event_type, payload::text, metadata::text, stream_id, expected_version, event_id, actor_id,
        correlation_id, causation_id, schema_version, notify);
END $postbus$;

-- name: claim_outbox
-- Workers compete: each takes rows that are due and that no other worker has, oldest first, *most* at most and as
-- many suspects as it says; of those that are no suspects only what comes after the given place, and no more after
-- the one whose event makes it *most_bytes*.
--
-- A function for its settings: plans are kept, and one that was made when the table was all but empty would read and
-- sort all of it.
CREATE OR REPLACE FUNCTION {schema}.claim_outbox(
    pool text, member integer, holder text, most integer, most_bytes bigint, most_suspects integer,
    after timestamptz, after_sequence bigint
) RETURNS TABLE (
    row_id bigint, row_claim bigint, number bigint, attempts integer, row_errors text, was_suspect boolean,
    letter text, due_at timestamptz, is_cut boolean
)
LANGUAGE plpgsql VOLATILE ROWS 100
SET search_path = {schema}, pg_temp SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off
SET enable_mergejoin = off
AS $postbus$
BEGIN
    RETURN QUERY
    WITH due AS MATERIALIZED (
        SELECT ctid AS place, available_at, global_sequence FROM event_bus_outbox
        WHERE subscriber_pool = pool AND NOT is_suspect AND status = 'pending' AND available_at <= now()
            AND (available_at, global_sequence) > (after, after_sequence)
        ORDER BY available_at, global_sequence LIMIT most FOR UPDATE SKIP LOCKED
    ), suspects AS MATERIALIZED (
        SELECT ctid AS place FROM event_bus_outbox
        WHERE subscriber_pool = pool AND is_suspect AND status = 'pending' AND available_at <= now()
        ORDER BY available_at, global_sequence LIMIT most_suspects FOR UPDATE SKIP LOCKED
    ), sized AS MATERIALIZED (
        -- As pages of the log: only what is compressed has to be read for its size.
        SELECT due.place, sum(128 + CASE WHEN pg_column_compression(events.data) IS NULL
                THEN coalesce(pg_column_size(events.data), 0) ELSE octet_length(events.data::text) END)
            OVER (ORDER BY due.available_at, due.global_sequence
                ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS bytes_before
        FROM due LEFT JOIN events ON events.global_sequence = due.global_sequence
    )
    UPDATE event_bus_outbox AS mine
    SET status = 'processing', locked_by = holder, locked_at = now(), worker = member, claim = mine.claim + 1
    WHERE mine.ctid = ANY (ARRAY(
        SELECT place FROM sized WHERE bytes_before IS NULL OR bytes_before < most_bytes
        UNION ALL SELECT place FROM suspects
    ))
    RETURNING mine.id, mine.claim, mine.global_sequence, mine.attempt_count, mine.errors::text, mine.is_suspect,
        mine.dead_letter_id, mine.available_at,
        EXISTS (SELECT FROM sized WHERE bytes_before >= most_bytes);
END $postbus$;

-- name: finish_outbox
-- Deletes rows that were processed, unless another claim has them by now; how many. A function as claim_outbox is.
CREATE OR REPLACE FUNCTION {schema}.finish_outbox(row_ids bigint[], row_claims bigint[]) RETURNS integer
LANGUAGE plpgsql VOLATILE
SET search_path = {schema}, pg_temp SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off
AS $postbus$
DECLARE
    deleted integer;
BEGIN
    DELETE FROM event_bus_outbox AS mine USING unnest(row_ids, row_claims) AS done (id, claim)
    WHERE mine.id = done.id AND mine.claim = done.claim;
    GET DIAGNOSTICS deleted = ROW_COUNT;
    RETURN deleted;
END $postbus$;
