-- The schema, migration by migration. The name of a block begins with the number of its migration; a further
-- migration is further blocks at the end. All run in one transaction, in this order, with the schema as the
-- search_path; so names need no schema here, and no name of a schema can break a literal.
-- Every block may run again, because `postbus migrate --sql` prints them all whatever the present version is.
-- The functions of functions.sql are replaced after every migration: a change to one needs a new migration.
--
-- What is not ours to change is refused with SQLSTATE PB002, and its HINT is what to do.

-- name: read_version
-- The only statement that runs on a schema that is up to date.
SELECT max(version) FROM {schema}.postbus_schema;

-- name: check_encoding
-- A payload is judged alike on every store; in another encoding most characters could not be stored.
DO $postbus$ BEGIN
    IF current_setting('server_encoding') <> 'UTF8' THEN
        RAISE EXCEPTION 'the database % has the encoding %, and postbus needs UTF8, which has every character',
            current_database(), current_setting('server_encoding') USING ERRCODE = 'PB002', HINT =
            'Use a database that was made with ENCODING ''UTF8'' (and TEMPLATE template0). Nothing was changed.';
    END IF;
END $postbus$;

-- name: wait_for_turn
-- Whoever comes second waits for as long as the first may need, then finds the work done.
SET LOCAL statement_timeout = 0;
SET LOCAL idle_in_transaction_session_timeout = 0;
SET LOCAL client_min_messages = warning;
SET LOCAL lock_timeout = '10min';
DO $postbus$ BEGIN
    -- Known since PostgreSQL 17; it would count from the beginning of the transaction.
    IF current_setting('transaction_timeout', true) IS NOT NULL THEN
        PERFORM set_config('transaction_timeout', '0', true);
    END IF;
    PERFORM pg_advisory_xact_lock(hashtextextended('postbus migration of ' || {schema_text}, 0));
END $postbus$;

-- name: enter_schema
-- A table lock that is waited for stops every writer behind it: better give up soon and be started again.
-- CREATE SCHEMA IF NOT EXISTS asks for the right to create schemas even where there is nothing to create.
SET LOCAL lock_timeout = '5s';
-- What the catalogs say of a column or a key is compared with our own words.
SET LOCAL quote_all_identifiers = off;
DO $postbus$ BEGIN
    IF NOT EXISTS (SELECT FROM pg_catalog.pg_namespace WHERE nspname = {schema_text}) THEN
        CREATE SCHEMA {schema};
    END IF;
END $postbus$;
SET LOCAL search_path TO {schema}, pg_temp;
CREATE TABLE IF NOT EXISTS postbus_schema (
    version integer PRIMARY KEY,
    applied_at timestamptz NOT NULL DEFAULT now()
);

-- name: why_read_only
-- Asked when the server said that nothing can be written.
SELECT pg_is_in_recovery() AS is_standby, setting = 'on' AS is_default, source
FROM pg_settings WHERE name = 'default_transaction_read_only';

-- name: refuse_newer
-- An old script would put old functions in the place of new ones.
DO $postbus$ BEGIN
    IF EXISTS (SELECT FROM postbus_schema WHERE version > {version}) THEN
        RAISE EXCEPTION 'the schema % is of a newer postbus than this script, which knows version {version}',
            current_schema() USING ERRCODE = 'PB002', HINT = 'Use the script of the postbus that you run.';
    END IF;
END $postbus$;

-- name: record_version
INSERT INTO postbus_schema (version) VALUES ({version}) ON CONFLICT DO NOTHING;

-- name: has_notify_trigger
SELECT EXISTS (
    SELECT FROM pg_catalog.pg_trigger
    JOIN pg_catalog.pg_class ON pg_class.oid = tgrelid
    JOIN pg_catalog.pg_namespace ON pg_namespace.oid = relnamespace
    WHERE nspname = {schema_text} AND relname = 'events' AND tgname = 'postbus_notify'
);

-- name: create_notify_trigger
-- For notify="trigger"; once per statement, however many events it stores.
CREATE OR REPLACE TRIGGER postbus_notify AFTER INSERT ON {schema}.events
REFERENCING NEW TABLE AS appended FOR EACH STATEMENT EXECUTE FUNCTION {schema}.notify_appended();

-- name: columns
-- What each column of a table that may be older than postbus is in the end; stands for {columns} in other blocks.
-- Names and defaults are written as the catalogs show them. No default is NULL; any will do where it is 'any'.
VALUES
    ('events', 'global_sequence', 'bigint', true, 'nextval(''events_global_sequence_seq''::regclass)'),
    ('events', 'id', 'text', true, NULL),
    ('events', 'event_type', 'text', true, NULL),
    ('events', 'data', 'json', false, NULL),
    ('events', 'metadata', 'json', false, NULL),
    ('events', 'created_at', 'timestamp with time zone', true, 'now()'),
    ('events', 'stream_id', 'text', false, NULL),
    ('events', 'stream_version', 'bigint', false, NULL),
    ('events', 'actor_id', 'text', false, NULL),
    ('events', 'purger_id', 'text', false, NULL),
    ('events', 'purged_at', 'timestamp with time zone', false, NULL),
    ('events', 'correlation_id', 'text', false, NULL),
    ('events', 'causation_id', 'text', false, NULL),
    ('events', 'schema_version', 'bigint', false, NULL),
    ('event_bus_checkpoints', 'subscriber_id', 'character varying(255)', true, NULL),
    ('event_bus_checkpoints', 'last_global_sequence', 'bigint', true, '0'),
    ('event_bus_checkpoints', 'last_event_id', 'text', false, NULL),
    ('event_bus_checkpoints', 'updated_at', 'timestamp with time zone', true, 'now()'),
    ('event_bus_checkpoints', 'epoch', 'bigint', true, '0'),
    ('event_bus_checkpoints', 'is_held', 'boolean', true, 'false'),
    ('event_bus_checkpoints', 'was_interrupted', 'boolean', true, 'false'),
    ('event_bus_checkpoints', 'attempt_sequence', 'bigint', false, NULL),
    ('event_bus_checkpoints', 'attempt_count', 'integer', true, '0'),
    ('event_bus_checkpoints', 'head', 'bigint', false, NULL),
    ('event_bus_checkpoints', 'open_gaps', 'bigint[]', true, 'ARRAY[]::bigint[]'),
    ('event_bus_checkpoints', 'write_id', 'text', false, NULL),
    ('event_bus_checkpoints', 'partitions', 'integer', true, '1'),
    ('event_bus_dlq', 'id', 'text', true, NULL),
    ('event_bus_dlq', 'subscriber_id', 'character varying(255)', true, NULL),
    ('event_bus_dlq', 'event_id', 'text', true, NULL),
    ('event_bus_dlq', 'global_sequence', 'bigint', true, NULL),
    ('event_bus_dlq', 'error_message', 'text', false, NULL),
    ('event_bus_dlq', 'retry_count', 'integer', true, '0'),
    ('event_bus_dlq', 'created_at', 'timestamp with time zone', true, 'now()'),
    ('event_bus_dlq', 'last_retry_at', 'timestamp with time zone', false, NULL),
    ('event_bus_dlq', 'error_history', 'json', true, NULL),
    ('event_bus_dlq', 'retry_wanted_at', 'timestamp with time zone', false, NULL),
    ('event_bus_dlq', 'resolved_at', 'timestamp with time zone', false, NULL),
    ('event_bus_dlq', 'resolved_by', 'text', false, NULL),
    ('event_bus_dlq', 'notes', 'text', false, NULL),
    ('event_bus_dlq', 'event_type', 'text', true, NULL),
    ('event_bus_dlq', 'payload', 'text', false, NULL),
    ('event_bus_dlq', 'event_created_at', 'timestamp with time zone', true, NULL),
    ('event_bus_dlq', 'metadata', 'json', false, NULL),
    ('event_bus_dlq', 'stream_id', 'text', false, NULL),
    ('event_bus_dlq', 'stream_version', 'bigint', false, NULL),
    ('event_bus_dlq', 'actor_id', 'text', false, NULL),
    ('event_bus_dlq', 'purger_id', 'text', false, NULL),
    ('event_bus_dlq', 'purged_at', 'timestamp with time zone', false, NULL),
    ('event_bus_dlq', 'correlation_id', 'text', false, NULL),
    ('event_bus_dlq', 'causation_id', 'text', false, NULL),
    ('event_bus_dlq', 'schema_version', 'bigint', false, NULL),
    ('event_bus_outbox', 'id', 'bigint', true, 'any'),
    ('event_bus_outbox', 'subscriber_pool', 'character varying(255)', true, NULL),
    ('event_bus_outbox', 'global_sequence', 'bigint', true, NULL),
    ('event_bus_outbox', 'event_id', 'text', true, NULL),
    ('event_bus_outbox', 'status', 'character varying(20)', true, '''pending''::character varying'),
    ('event_bus_outbox', 'locked_by', 'character varying(255)', false, NULL),
    ('event_bus_outbox', 'locked_at', 'timestamp with time zone', false, NULL),
    ('event_bus_outbox', 'created_at', 'timestamp with time zone', true, 'now()'),
    ('event_bus_outbox', 'available_at', 'timestamp with time zone', true, 'now()'),
    ('event_bus_outbox', 'claim', 'bigint', true,
        '((random() * (''4611686018427387904''::bigint)::double precision))::bigint'),
    ('event_bus_outbox', 'worker', 'integer', false, NULL),
    ('event_bus_outbox', 'attempt_count', 'integer', true, '0'),
    ('event_bus_outbox', 'errors', 'json', true, '''[]''::json'),
    ('event_bus_outbox', 'is_suspect', 'boolean', true, 'false'),
    ('event_bus_outbox', 'dead_letter_id', 'text', false, NULL);

-- name: 1_checkpoints
-- Half of every page is left free, so that the updates, which change no indexed column, stay in their page.
CREATE TABLE IF NOT EXISTS event_bus_checkpoints (
    subscriber_id varchar(255) PRIMARY KEY,
    last_global_sequence bigint NOT NULL DEFAULT 0,
    last_event_id text,
    updated_at timestamptz NOT NULL DEFAULT now(),
    epoch bigint NOT NULL DEFAULT 0,
    is_held boolean NOT NULL DEFAULT false,
    was_interrupted boolean NOT NULL DEFAULT false,
    attempt_sequence bigint,
    attempt_count integer NOT NULL DEFAULT 0,
    head bigint,
    open_gaps bigint[] NOT NULL DEFAULT ARRAY[]::bigint[],
    write_id text
) WITH (fillfactor = 50);

-- name: 1_old_checkpoints
-- The checkpoints of specification 0002 keep their positions.
DO $postbus$ BEGIN
    IF EXISTS (SELECT FROM postbus_schema) THEN
        RETURN;
    END IF;
    ALTER TABLE event_bus_checkpoints
        ADD COLUMN IF NOT EXISTS epoch bigint NOT NULL DEFAULT 0,
        ADD COLUMN IF NOT EXISTS is_held boolean NOT NULL DEFAULT false,
        ADD COLUMN IF NOT EXISTS was_interrupted boolean NOT NULL DEFAULT false,
        ADD COLUMN IF NOT EXISTS attempt_sequence bigint,
        ADD COLUMN IF NOT EXISTS attempt_count integer NOT NULL DEFAULT 0,
        ADD COLUMN IF NOT EXISTS head bigint,
        ADD COLUMN IF NOT EXISTS open_gaps bigint[] NOT NULL DEFAULT ARRAY[]::bigint[],
        ADD COLUMN IF NOT EXISTS write_id text,
        SET (fillfactor = 50);
END $postbus$;

-- name: 1_event_numbers
-- CACHE 1: a session with numbers in stock would use them later without the lock that shows it at work.
CREATE SEQUENCE IF NOT EXISTS events_global_sequence_seq AS bigint INCREMENT 1 NO CYCLE CACHE 1;

-- name: 1_events
-- data is NULL when the event was purged; a published None is the JSON null.
CREATE TABLE IF NOT EXISTS events (
    global_sequence bigint NOT NULL DEFAULT nextval('events_global_sequence_seq') PRIMARY KEY,
    id text NOT NULL UNIQUE,
    event_type text NOT NULL,
    data json,
    metadata json,
    created_at timestamptz NOT NULL DEFAULT now(),
    stream_id text,
    stream_version bigint,
    actor_id text,
    purger_id text,
    purged_at timestamptz,
    correlation_id text,
    causation_id text,
    schema_version bigint
);

-- name: 1_refuse_foreign_events
-- A schema that is shared with an application may have a table of this name that is none of ours.
DO $postbus$
DECLARE
    missing text;
BEGIN
    SELECT string_agg(name, ', ') INTO missing
    FROM unnest(ARRAY['id', 'stream_id', 'stream_version', 'event_type', 'data', 'created_at']) AS name
    WHERE NOT EXISTS (
        SELECT FROM pg_attribute WHERE attrelid = 'events'::regclass AND attname = name AND NOT attisdropped
    );
    IF missing IS NOT NULL THEN
        RAISE EXCEPTION 'schema % has a table events that is not ours: it lacks %', current_schema(), missing
            USING ERRCODE = 'PB002', HINT = 'Give postbus a schema of its own. Nothing was changed.';
    END IF;
END $postbus$;

-- name: 1_refuse_foreign_columns
-- Nobody would fill them.
DO $postbus$
DECLARE
    foreigner text;
BEGIN
    IF EXISTS (SELECT FROM postbus_schema) THEN
        RETURN;
    END IF;
    SELECT string_agg(format('%I.%I', relname, attname), ', ' ORDER BY relname, attnum) INTO foreigner
    FROM pg_attribute
    JOIN pg_class ON pg_class.oid = attrelid
    JOIN pg_namespace ON pg_namespace.oid = relnamespace AND nspname = current_schema()
    JOIN pg_type ON pg_type.oid = atttypid
    WHERE attnum > 0 AND NOT attisdropped AND (attnotnull OR typnotnull)
        AND NOT atthasdef AND attidentity = '' AND typdefault IS NULL
        AND relname IN (SELECT table_name FROM ({columns}) AS ours (table_name))
        AND (relname, attname) NOT IN (SELECT table_name, name FROM ({columns}) AS ours (table_name, name));
    IF foreigner IS NOT NULL THEN
        RAISE EXCEPTION 'schema % has a column that is not ours, is NOT NULL and has no default: %',
            current_schema(), foreigner
            USING ERRCODE = 'PB002', HINT = 'postbus would not fill it: give it a DEFAULT, drop its NOT NULL, '
                'or give postbus a schema of its own. Nothing was changed.';
    END IF;
END $postbus$;

-- name: 1_old_event_columns
DO $postbus$ BEGIN
    IF EXISTS (SELECT FROM postbus_schema) THEN
        RETURN;
    END IF;
    ALTER TABLE events
        ADD COLUMN IF NOT EXISTS global_sequence bigint,
        ADD COLUMN IF NOT EXISTS metadata json,
        ADD COLUMN IF NOT EXISTS actor_id text,
        ADD COLUMN IF NOT EXISTS purger_id text,
        ADD COLUMN IF NOT EXISTS purged_at timestamptz,
        ADD COLUMN IF NOT EXISTS correlation_id text,
        ADD COLUMN IF NOT EXISTS causation_id text,
        ADD COLUMN IF NOT EXISTS schema_version bigint;
END $postbus$;

-- name: 1_drop_old_indexes
-- Those on the columns of ours: other names and other rules for the same thing. All others are the user's.
-- First, because without them the events are numbered in half the time.
DO $postbus$
DECLARE
    old record;
BEGIN
    IF EXISTS (SELECT FROM postbus_schema) THEN
        RETURN;
    END IF;
    FOR old IN
        SELECT index_class.relname, conname
        FROM pg_index
        JOIN pg_class AS index_class ON index_class.oid = indexrelid
        LEFT JOIN pg_constraint ON conindid = indexrelid AND conrelid = indrelid
        WHERE indrelid = 'events'::regclass AND (
            SELECT array_agg(attname::text ORDER BY attname) FROM pg_attribute
            WHERE attrelid = indrelid AND attnum = ANY (indkey)
        ) IN (ARRAY['global_sequence'], ARRAY['id'], ARRAY['stream_id', 'stream_version'])
    LOOP
        IF old.conname IS NULL THEN
            EXECUTE format('DROP INDEX %I', old.relname);
        ELSE
            EXECUTE format('ALTER TABLE events DROP CONSTRAINT %I', old.conname);
        END IF;
    END LOOP;
END $postbus$;

-- name: 1_number_old_events
-- Events without a number get theirs in the order in which they happened. Numbers that were handed out
-- stay as they are, and no new one is below a checkpoint: its subscriber would never see the event.
DO $postbus$
DECLARE
    highest bigint;
    new_count bigint;
    table_owner regrole;
BEGIN
    IF EXISTS (SELECT FROM postbus_schema) THEN
        RETURN;
    END IF;
    SELECT greatest(
        (SELECT max(global_sequence) FROM events),
        (SELECT last_value - CASE WHEN is_called THEN 0 ELSE 1 END FROM events_global_sequence_seq),
        (SELECT max(last_global_sequence) FROM event_bus_checkpoints)
    ) INTO highest;
    ALTER TABLE events ALTER global_sequence DROP IDENTITY IF EXISTS;
    UPDATE events SET global_sequence = highest + numbered.ordinal
    FROM (
        SELECT id, row_number() OVER (ORDER BY created_at, id) AS ordinal
        FROM events WHERE global_sequence IS NULL
    ) AS numbered
    WHERE events.id = numbered.id;
    GET DIAGNOSTICS new_count = ROW_COUNT;
    -- It went with the identity, if the column was one. RESTART, since setval would outlive a rollback.
    CREATE SEQUENCE IF NOT EXISTS events_global_sequence_seq;
    -- A sequence belongs to the owner of its table, who need not be the one who migrates.
    SELECT events.relowner INTO table_owner FROM pg_class AS events JOIN pg_class AS numbers
        ON events.oid = 'events'::regclass AND numbers.oid = to_regclass('events_global_sequence_seq')
    WHERE events.relowner <> numbers.relowner;
    IF FOUND THEN
        EXECUTE format('ALTER SEQUENCE events_global_sequence_seq OWNER TO %s', table_owner);
    END IF;
    EXECUTE format(
        'ALTER SEQUENCE events_global_sequence_seq AS bigint INCREMENT 1 NO MINVALUE NO MAXVALUE START 1 '
        'RESTART %s CACHE 1 NO CYCLE OWNED BY events.global_sequence', highest + new_count + 1
    );
END $postbus$;

-- name: 1_drop_old_notifications
-- The trigger of specification 0002 sends the event's data along, and so refuses an event above 8000 bytes.
DO $postbus$
DECLARE
    old name;
BEGIN
    IF EXISTS (SELECT FROM postbus_schema) THEN
        RETURN;
    END IF;
    FOR old IN
        SELECT tgname FROM pg_trigger JOIN pg_proc ON pg_proc.oid = tgfoid
        WHERE tgrelid = 'events'::regclass AND proname = 'epoch_pg_notify_event'
    LOOP
        EXECUTE format('DROP TRIGGER %I ON events', old);
    END LOOP;
    IF NOT EXISTS (SELECT FROM pg_trigger WHERE tgfoid = to_regprocedure('epoch_pg_notify_event()')) THEN
        DROP FUNCTION IF EXISTS epoch_pg_notify_event();
    END IF;
END $postbus$;

-- name: 1_dead_letters
-- A copy of the event and no reference to it: a dead letter outlives its event.
-- payload is text, because one that is no JSON is a reason to be here.
CREATE TABLE IF NOT EXISTS event_bus_dlq (
    id text PRIMARY KEY,
    subscriber_id varchar(255) NOT NULL,
    event_id text NOT NULL,
    global_sequence bigint NOT NULL,
    error_message text,
    retry_count integer NOT NULL DEFAULT 0,
    created_at timestamptz NOT NULL DEFAULT now(),
    last_retry_at timestamptz,
    error_history json NOT NULL,
    retry_wanted_at timestamptz,
    resolved_at timestamptz,
    resolved_by text,
    notes text,
    event_type text NOT NULL,
    payload text,
    event_created_at timestamptz NOT NULL,
    metadata json,
    stream_id text,
    stream_version bigint,
    actor_id text,
    purger_id text,
    purged_at timestamptz,
    correlation_id text,
    causation_id text,
    schema_version bigint,
    CONSTRAINT unique_subscriber_event UNIQUE (subscriber_id, event_id)
);

-- name: 1_old_dead_letter_columns
-- Its index of one name is not ours of that name, and ours does what it was for.
DO $postbus$ BEGIN
    IF EXISTS (SELECT FROM postbus_schema) THEN
        RETURN;
    END IF;
    IF EXISTS (
        SELECT FROM pg_indexes WHERE schemaname = current_schema() AND tablename = 'event_bus_dlq'
            AND indexname = 'idx_dlq_subscriber' AND indexdef LIKE '% USING btree (subscriber_id)'
    ) THEN
        DROP INDEX idx_dlq_subscriber;
    END IF;
    ALTER TABLE event_bus_dlq
        ADD COLUMN IF NOT EXISTS error_history json,
        ADD COLUMN IF NOT EXISTS retry_wanted_at timestamptz,
        ADD COLUMN IF NOT EXISTS resolved_at timestamptz,
        ADD COLUMN IF NOT EXISTS resolved_by text,
        ADD COLUMN IF NOT EXISTS notes text,
        ADD COLUMN IF NOT EXISTS event_type text,
        ADD COLUMN IF NOT EXISTS payload text,
        ADD COLUMN IF NOT EXISTS event_created_at timestamptz,
        ADD COLUMN IF NOT EXISTS metadata json,
        ADD COLUMN IF NOT EXISTS stream_id text,
        ADD COLUMN IF NOT EXISTS stream_version bigint,
        ADD COLUMN IF NOT EXISTS actor_id text,
        ADD COLUMN IF NOT EXISTS purger_id text,
        ADD COLUMN IF NOT EXISTS purged_at timestamptz,
        ADD COLUMN IF NOT EXISTS correlation_id text,
        ADD COLUMN IF NOT EXISTS causation_id text,
        ADD COLUMN IF NOT EXISTS schema_version bigint;
END $postbus$;

-- name: 1_gap_timeouts
-- Every number that was given up by the clock, for gap_policy="timeout"; late_sequences are those whose
-- events came after all.
CREATE TABLE IF NOT EXISTS event_bus_gap_timeouts (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    subscriber_id varchar(255) NOT NULL,
    first_sequence bigint NOT NULL,
    last_sequence bigint NOT NULL,
    given_up_at timestamptz NOT NULL DEFAULT now(),
    late_sequences bigint[] NOT NULL DEFAULT ARRAY[]::bigint[]
);

-- name: 1_states
-- Keys are read in the order that Python gives them, whatever the database's collation.
CREATE TABLE IF NOT EXISTS postbus_states (
    store_name text NOT NULL,
    key text COLLATE "C" NOT NULL,
    state json NOT NULL,
    updated_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (store_name, key)
);

-- name: 2_partitions
-- How many parts a subscriber has; those of more than one have rows of their own.
ALTER TABLE event_bus_checkpoints ADD COLUMN IF NOT EXISTS partitions integer NOT NULL DEFAULT 1;
-- Which part of how many has given up a number.
ALTER TABLE event_bus_gap_timeouts
    ADD COLUMN IF NOT EXISTS part_index integer NOT NULL DEFAULT 0,
    ADD COLUMN IF NOT EXISTS part_count integer NOT NULL DEFAULT 1;

-- name: 2_outbox
-- One row for each event that a pool of competing workers has not processed yet. Times are the database's.
-- claim goes up with every claim; worker is the member of the pool that has the row; errors is a JSON array.
--
-- claim begins anywhere, because the commits of feeders and workers need not wait for the disk: a server that goes
-- down may forget a row and give its id to another, and whoever still has a claim of the first must not have one
-- of the second.
--
-- A row is inserted, updated once and deleted. Half of every page is left free and no index has a column that
-- a claim changes, so that the update stays in its page. The rows do not stay for long, so that a share of them
-- says nothing about when to clean up; and to give pages back to the system would lock out all workers.
CREATE TABLE IF NOT EXISTS event_bus_outbox (
    id bigserial PRIMARY KEY,
    subscriber_pool varchar(255) NOT NULL,
    global_sequence bigint NOT NULL,
    event_id text NOT NULL,
    status varchar(20) NOT NULL DEFAULT 'pending',
    locked_by varchar(255),
    locked_at timestamptz,
    created_at timestamptz NOT NULL DEFAULT now(),
    available_at timestamptz NOT NULL DEFAULT now(),
    claim bigint NOT NULL DEFAULT (random() * 4611686018427387904)::bigint,
    worker integer,
    attempt_count integer NOT NULL DEFAULT 0,
    errors json NOT NULL DEFAULT '[]',
    is_suspect boolean NOT NULL DEFAULT false,
    dead_letter_id text,
    UNIQUE (subscriber_pool, global_sequence)
) WITH (fillfactor = 45, vacuum_truncate = off, autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_threshold = 10000, autovacuum_vacuum_cost_delay = 0);

-- name: 2_old_outbox
-- The table of specification 0002 keeps its rows.
ALTER TABLE event_bus_outbox
    ADD COLUMN IF NOT EXISTS available_at timestamptz NOT NULL DEFAULT now(),
    ADD COLUMN IF NOT EXISTS claim bigint NOT NULL DEFAULT (random() * 4611686018427387904)::bigint,
    ADD COLUMN IF NOT EXISTS worker integer,
    ADD COLUMN IF NOT EXISTS attempt_count integer NOT NULL DEFAULT 0,
    ADD COLUMN IF NOT EXISTS errors json NOT NULL DEFAULT '[]',
    ADD COLUMN IF NOT EXISTS is_suspect boolean NOT NULL DEFAULT false,
    ADD COLUMN IF NOT EXISTS dead_letter_id text,
    SET (fillfactor = 45, vacuum_truncate = off, autovacuum_vacuum_scale_factor = 0,
        autovacuum_vacuum_threshold = 10000, autovacuum_vacuum_cost_delay = 0);

-- name: 3_functions
-- No table is changed: insert_and_notify is new.
DO $postbus$ BEGIN END $postbus$;

-- name: 4_columns
-- Whatever an old table has under one of our names becomes what ours is: a publisher fills no column that it does
-- not know, and reads none of another type. In one statement for each table, so that it is written anew once.
-- A column that is right already is not touched, and a table of such columns is not locked.
DO $postbus$
DECLARE
    change text;
BEGIN
    FOR change IN
        WITH found AS (
            SELECT ours.*, attidentity <> '' AND value IS DISTINCT FROM 'any' AS has_identity,
                attnotnull AND NOT is_required AS is_too_strict,
                format_type(atttypid, atttypmod) <> type
                    OR attcollation <> (SELECT typcollation FROM pg_type WHERE oid = type::regtype) AS has_other_type,
                adbin IS NOT NULL AND value IS DISTINCT FROM 'any' AS has_default,
                value <> 'any' AS needs_default,
                value IS DISTINCT FROM 'any'
                    AND pg_get_expr(adbin, adrelid) IS DISTINCT FROM value AS has_other_default
            FROM ({columns}) AS ours (table_name, name, type, is_required, value)
            JOIN pg_attribute ON attrelid = to_regclass(quote_ident(table_name)) AND attname = name
            LEFT JOIN pg_attrdef ON adrelid = attrelid AND adnum = attnum
            WHERE attgenerated = '' AND NOT attisdropped
        ), actions AS (
            -- An identity can't go in the statement that changes the type.
            SELECT table_name, 1 AS turn, format('ALTER %I DROP IDENTITY', name) AS action
            FROM found WHERE has_identity
            UNION ALL
            SELECT table_name, 2, format('ALTER %I DROP DEFAULT', name)
            FROM found WHERE has_default AND (has_other_default OR has_other_type)
            UNION ALL
            -- To a character type without a cast, which would cut off what is too long.
            SELECT table_name, 2, format(
                CASE WHEN type LIKE 'character%' OR type = 'text' THEN 'ALTER %1$I TYPE %2$s'
                    ELSE 'ALTER %1$I TYPE %2$s USING %1$I::%2$s' END, name, type)
            FROM found WHERE has_other_type
            UNION ALL
            SELECT table_name, 2, format('ALTER %I SET DEFAULT %s', name, value)
            FROM found WHERE needs_default AND (has_other_default OR has_other_type)
            UNION ALL
            SELECT table_name, 2, format('ALTER %I DROP NOT NULL', name) FROM found WHERE is_too_strict
        )
        SELECT format('ALTER TABLE %I %s', table_name, string_agg(action, ', '))
        FROM actions GROUP BY table_name, turn ORDER BY turn
    LOOP
        EXECUTE change;
    END LOOP;
END $postbus$;

-- name: 4_old_dead_letters
-- An old dead letter has no copy of its event. Of an event that was deleted only the letter is left.
DO $postbus$ BEGIN
    IF EXISTS (SELECT FROM postbus_schema) THEN
        RETURN;
    END IF;
    UPDATE event_bus_dlq AS letter
    SET error_history = coalesce(
            letter.error_history, to_json(array_remove(ARRAY[letter.error_message], NULL))
        ),
        event_type = coalesce(letter.event_type, events.event_type, 'unknown'),
        payload = coalesce(letter.payload, events.data::text),
        event_created_at = coalesce(letter.event_created_at, events.created_at, letter.created_at),
        metadata = coalesce(letter.metadata, events.metadata),
        stream_id = coalesce(letter.stream_id, events.stream_id),
        stream_version = coalesce(letter.stream_version, events.stream_version),
        actor_id = coalesce(letter.actor_id, events.actor_id),
        purger_id = coalesce(letter.purger_id, events.purger_id),
        purged_at = coalesce(letter.purged_at, events.purged_at),
        correlation_id = coalesce(letter.correlation_id, events.correlation_id),
        causation_id = coalesce(letter.causation_id, events.causation_id),
        schema_version = coalesce(letter.schema_version, events.schema_version)
    FROM event_bus_dlq AS old LEFT JOIN events ON events.id = old.event_id
    WHERE letter.id = old.id;
END $postbus$;

-- name: 4_required_columns
DO $postbus$
DECLARE
    change text;
BEGIN
    FOR change IN
        SELECT format('ALTER TABLE %I %s', table_name, string_agg(format('ALTER %I SET NOT NULL', name), ', '))
        FROM ({columns}) AS ours (table_name, name, type, is_required, value)
        JOIN pg_attribute ON attrelid = to_regclass(quote_ident(table_name)) AND attname = name
        WHERE is_required AND NOT attnotnull
        GROUP BY table_name
    LOOP
        EXECUTE change;
    END LOOP;
END $postbus$;

-- name: 4_keys
-- By their names, which errors are told apart by. A table's own key of another name gets ours.
DO $postbus$
DECLARE
    ours record;
    taken oid;
    owner oid;
    same name;
    detail text;
BEGIN
    FOR ours IN
        SELECT * FROM (VALUES
            ('events', 'events_pkey', 'PRIMARY KEY (global_sequence)'),
            ('events', 'events_id_key', 'UNIQUE (id)'),
            ('event_bus_checkpoints', 'event_bus_checkpoints_pkey', 'PRIMARY KEY (subscriber_id)'),
            ('event_bus_dlq', 'event_bus_dlq_pkey', 'PRIMARY KEY (id)'),
            ('event_bus_dlq', 'unique_subscriber_event', 'UNIQUE (subscriber_id, event_id)'),
            ('event_bus_outbox', 'event_bus_outbox_pkey', 'PRIMARY KEY (id)'),
            ('event_bus_outbox', 'event_bus_outbox_subscriber_pool_global_sequence_key',
                'UNIQUE (subscriber_pool, global_sequence)')
        ) AS ours (table_name, name, definition)
        WHERE NOT EXISTS (
            SELECT FROM pg_constraint JOIN pg_index ON indexrelid = conindid
            WHERE conrelid = to_regclass(quote_ident(table_name)) AND conname = name
                AND pg_get_constraintdef(pg_constraint.oid) = definition AND indisvalid
        )
    LOOP
        SELECT pg_class.oid, coalesce(indrelid, 0) INTO taken, owner
        FROM pg_class LEFT JOIN pg_index ON indexrelid = pg_class.oid
        WHERE pg_class.oid = to_regclass(format('%I.%I', current_schema(), ours.name));
        IF FOUND AND owner <> to_regclass(quote_ident(ours.table_name)) THEN
            RAISE EXCEPTION 'schema % has something called %, which has to be the key of table %',
                current_schema(), ours.name, ours.table_name USING ERRCODE = 'PB002',
                HINT = 'Give it another name, or give postbus a schema of its own. Nothing was changed.';
        ELSIF FOUND THEN
            EXECUTE format('ALTER INDEX %I RENAME TO %I', ours.name, left(ours.name, 45) || '_old_' || taken);
        END IF;
        SELECT conname INTO same FROM pg_constraint JOIN pg_index ON indexrelid = conindid
        WHERE conrelid = to_regclass(quote_ident(ours.table_name)) AND indisvalid
            AND pg_get_constraintdef(pg_constraint.oid) = ours.definition;
        IF FOUND THEN
            EXECUTE format('ALTER TABLE %I RENAME CONSTRAINT %I TO %I', ours.table_name, same, ours.name);
        ELSE
            EXECUTE format('ALTER TABLE %I ADD CONSTRAINT %I %s', ours.table_name, ours.name, ours.definition);
        END IF;
    END LOOP;
EXCEPTION WHEN unique_violation THEN
    GET STACKED DIAGNOSTICS detail = PG_EXCEPTION_DETAIL;
    RAISE EXCEPTION 'table % has rows that % forbids: %', ours.table_name, ours.definition, rtrim(detail, '.')
        USING ERRCODE = 'PB002', HINT = 'Change or delete all of these rows but one. Nothing was changed.';
END $postbus$;

-- name: 4_indexes
-- IF NOT EXISTS would take whatever has the name for ours, also one that lets a version be given twice, or one
-- that was never finished. An index of the user's on a table of ours goes on under another name.
--
-- That on streams is partial: events without a stream cost nothing. By age for purging, which takes the resolved
-- dead letters too. Suspects of the outbox apart, since they are claimed one by one; retries of dead letters
-- apart, since there are few.
DO $postbus$
DECLARE
    ours record;
    found record;
    detail text;
BEGIN
    FOR ours IN
        SELECT table_name, name, format('CREATE %s %I ON %I.%I USING btree %s',
            kind, name, current_schema(), table_name, rest) AS definition
        FROM (VALUES
            ('events', 'idx_events_stream', 'UNIQUE INDEX',
                '(stream_id, stream_version) WHERE (stream_id IS NOT NULL)'),
            ('event_bus_dlq', 'idx_dlq_created_at', 'INDEX', '(created_at)'),
            ('event_bus_dlq', 'idx_dlq_event', 'INDEX', '(event_id)'),
            ('event_bus_dlq', 'idx_dlq_type', 'INDEX', '(event_type) WHERE (resolved_at IS NULL)'),
            ('event_bus_dlq', 'idx_dlq_unresolved', 'INDEX',
                '(created_at, global_sequence) WHERE (resolved_at IS NULL)'),
            ('event_bus_dlq', 'idx_dlq_subscriber', 'INDEX',
                '(subscriber_id, created_at, global_sequence) WHERE (resolved_at IS NULL)'),
            ('event_bus_dlq', 'idx_dlq_retry', 'INDEX',
                '(subscriber_id, created_at, global_sequence) WHERE (retry_wanted_at IS NOT NULL)'),
            ('event_bus_gap_timeouts', 'idx_gap_timeouts', 'INDEX', '(subscriber_id, id)'),
            ('event_bus_outbox', 'idx_outbox_due', 'INDEX',
                '(subscriber_pool, available_at, global_sequence) WHERE (NOT is_suspect)'),
            ('event_bus_outbox', 'idx_outbox_suspects', 'INDEX',
                '(subscriber_pool, available_at, global_sequence) WHERE is_suspect'),
            ('event_bus_outbox', 'idx_outbox_retries', 'INDEX',
                '(subscriber_pool, global_sequence) WHERE (dead_letter_id IS NOT NULL)')
        ) AS ours (table_name, name, kind, rest)
    LOOP
        SELECT pg_class.oid, indrelid, indisvalid AND indisready AS is_usable,
            -- How full its pages are is the user's to choose.
            regexp_replace(pg_get_indexdef(indexrelid), ' WITH [(][^)]*[)]', '')
                = regexp_replace(ours.definition, ' WITH [(][^)]*[)]', '') AS is_ours
        INTO found FROM pg_class LEFT JOIN pg_index ON indexrelid = pg_class.oid
        WHERE pg_class.oid = to_regclass(format('%I.%I', current_schema(), ours.name));
        IF found.is_ours AND found.is_usable THEN
            CONTINUE;
        ELSIF found.is_ours THEN
            EXECUTE format('DROP INDEX %I', ours.name);
        ELSIF found.indrelid = to_regclass(quote_ident(ours.table_name)) THEN
            EXECUTE format('ALTER INDEX %I RENAME TO %I', ours.name, ours.name || '_old_' || found.oid);
        ELSIF found.oid IS NOT NULL THEN
            RAISE EXCEPTION 'schema % has something called %, which has to be an index of table %',
                current_schema(), ours.name, ours.table_name USING ERRCODE = 'PB002',
                HINT = 'Give it another name, or give postbus a schema of its own. Nothing was changed.';
        END IF;
        EXECUTE ours.definition;
    END LOOP;
EXCEPTION WHEN unique_violation THEN
    GET STACKED DIAGNOSTICS detail = PG_EXCEPTION_DETAIL;
    RAISE EXCEPTION 'table % has rows that % forbids: %', ours.table_name, ours.name, rtrim(detail, '.')
        USING ERRCODE = 'PB002', HINT = 'Change or delete all of these rows but one. Nothing was changed.';
END $postbus$;
