-- The schema, migration by migration. The name of a block begins with the number of its migration; a further
-- migration is further blocks at the end. All run in one transaction, in this order, with the schema as the
-- search_path; so names need no schema here, and no name of a schema can break a literal.
-- Every block may run again, because `postbus migrate --sql` prints them all whatever the present version is.
-- The functions of functions.sql are replaced after every migration: a change to one needs a new migration.

-- name: read_version
-- The only statement that runs on a schema that is up to date.
SELECT max(version) FROM {schema}.postbus_schema;

-- name: wait_for_turn
-- Whoever comes second waits for as long as the first may need, then finds the work done.
SET LOCAL statement_timeout = 0;
SET LOCAL idle_in_transaction_session_timeout = 0;
SET LOCAL client_min_messages = warning;
SET LOCAL lock_timeout = '10min';
DO $postbus$ BEGIN
    PERFORM pg_advisory_xact_lock(hashtextextended('postbus migration of ' || {schema_text}, 0));
END $postbus$;

-- name: enter_schema
-- A table lock that is waited for stops every writer behind it: better give up soon and be started again.
-- CREATE SCHEMA IF NOT EXISTS asks for the right to create schemas even where there is nothing to create.
SET LOCAL lock_timeout = '5s';
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

-- name: refuse_newer
-- An old script would put old functions in the place of new ones.
DO $postbus$ BEGIN
    IF EXISTS (SELECT FROM postbus_schema WHERE version > {version}) THEN
        RAISE EXCEPTION 'the schema % is of a newer postbus than this script, which knows version {version}',
            current_schema() USING HINT = 'Use the script of the postbus that you run.';
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
        ALTER last_global_sequence SET DEFAULT 0,
        ALTER last_event_id TYPE text USING last_event_id::text,
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
            USING HINT = 'Give postbus a schema of its own. Nothing was changed.';
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

-- name: 1_old_events
-- One statement, so that the table is written anew once and not once per column.
DO $postbus$ BEGIN
    IF EXISTS (SELECT FROM postbus_schema) THEN
        RETURN;
    END IF;
    ALTER TABLE events
        ALTER global_sequence DROP DEFAULT,
        ALTER global_sequence TYPE bigint,
        ALTER global_sequence SET DEFAULT nextval('events_global_sequence_seq'),
        ALTER global_sequence SET NOT NULL,
        ADD CONSTRAINT events_pkey PRIMARY KEY (global_sequence),
        ALTER id DROP DEFAULT,
        ALTER id TYPE text USING id::text,
        ADD CONSTRAINT events_id_key UNIQUE (id),
        ALTER event_type TYPE text,
        ALTER event_type SET NOT NULL,
        ALTER data TYPE json USING data::json,
        ALTER data DROP NOT NULL,
        ALTER created_at TYPE timestamptz,
        ALTER created_at SET DEFAULT now(),
        ALTER created_at SET NOT NULL,
        ALTER stream_id TYPE text USING stream_id::text,
        ALTER stream_id DROP NOT NULL,
        ALTER stream_version TYPE bigint,
        ALTER stream_version DROP NOT NULL,
        ALTER actor_id TYPE text USING actor_id::text,
        ALTER purger_id TYPE text USING purger_id::text,
        ALTER purged_at TYPE timestamptz;
END $postbus$;

-- name: 1_index_streams
-- Partial: events without a stream cost nothing. Unique: no version is ever given twice.
CREATE UNIQUE INDEX IF NOT EXISTS idx_events_stream ON events (stream_id, stream_version)
WHERE stream_id IS NOT NULL;

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
-- Its index of one name is not ours of that name.
DO $postbus$ BEGIN
    IF EXISTS (SELECT FROM postbus_schema) THEN
        RETURN;
    END IF;
    DROP INDEX IF EXISTS idx_dlq_subscriber;
    ALTER TABLE event_bus_dlq
        ALTER id DROP DEFAULT,
        ALTER id TYPE text USING id::text,
        ALTER event_id TYPE text USING event_id::text,
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

-- name: 1_old_dead_letters
-- An old dead letter has no copy of its event. Of an event that was deleted only the letter is left.
DO $postbus$ BEGIN
    IF EXISTS (SELECT FROM postbus_schema) THEN
        RETURN;
    END IF;
    UPDATE event_bus_dlq AS letter
    SET error_history = to_json(array_remove(ARRAY[letter.error_message], NULL)),
        event_type = coalesce(events.event_type, 'unknown'),
        payload = events.data::text,
        event_created_at = coalesce(events.created_at, letter.created_at),
        stream_id = events.stream_id,
        stream_version = events.stream_version,
        actor_id = events.actor_id,
        purger_id = events.purger_id,
        purged_at = events.purged_at
    FROM event_bus_dlq AS old LEFT JOIN events ON events.id = old.event_id
    WHERE letter.id = old.id;
    ALTER TABLE event_bus_dlq
        ALTER error_history SET NOT NULL,
        ALTER event_type SET NOT NULL,
        ALTER event_created_at SET NOT NULL;
END $postbus$;

-- name: 1_index_dead_letters
-- By age for purging, which takes the resolved ones too.
CREATE INDEX IF NOT EXISTS idx_dlq_created_at ON event_bus_dlq (created_at);
CREATE INDEX IF NOT EXISTS idx_dlq_event ON event_bus_dlq (event_id);
CREATE INDEX IF NOT EXISTS idx_dlq_type ON event_bus_dlq (event_type) WHERE resolved_at IS NULL;
CREATE INDEX IF NOT EXISTS idx_dlq_unresolved ON event_bus_dlq (created_at, global_sequence)
WHERE resolved_at IS NULL;
CREATE INDEX IF NOT EXISTS idx_dlq_subscriber ON event_bus_dlq (subscriber_id, created_at, global_sequence)
WHERE resolved_at IS NULL;
CREATE INDEX IF NOT EXISTS idx_dlq_retry ON event_bus_dlq (subscriber_id, created_at, global_sequence)
WHERE retry_wanted_at IS NOT NULL;

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
CREATE INDEX IF NOT EXISTS idx_gap_timeouts ON event_bus_gap_timeouts (subscriber_id, id);

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
    ALTER event_id TYPE text USING event_id::text,
    ADD COLUMN IF NOT EXISTS available_at timestamptz NOT NULL DEFAULT now(),
    ADD COLUMN IF NOT EXISTS claim bigint NOT NULL DEFAULT (random() * 4611686018427387904)::bigint,
    ADD COLUMN IF NOT EXISTS worker integer,
    ADD COLUMN IF NOT EXISTS attempt_count integer NOT NULL DEFAULT 0,
    ADD COLUMN IF NOT EXISTS errors json NOT NULL DEFAULT '[]',
    ADD COLUMN IF NOT EXISTS is_suspect boolean NOT NULL DEFAULT false,
    ADD COLUMN IF NOT EXISTS dead_letter_id text,
    SET (fillfactor = 45, vacuum_truncate = off, autovacuum_vacuum_scale_factor = 0,
        autovacuum_vacuum_threshold = 10000, autovacuum_vacuum_cost_delay = 0);

-- name: 2_index_outbox
-- Suspects apart, since they are claimed one by one; retries of dead letters apart, since there are few.
CREATE INDEX IF NOT EXISTS idx_outbox_due ON event_bus_outbox (subscriber_pool, available_at, global_sequence)
WHERE NOT is_suspect;
CREATE INDEX IF NOT EXISTS idx_outbox_suspects
ON event_bus_outbox (subscriber_pool, available_at, global_sequence) WHERE is_suspect;
CREATE INDEX IF NOT EXISTS idx_outbox_retries ON event_bus_outbox (subscriber_pool, global_sequence)
WHERE dead_letter_id IS NOT NULL;

-- name: 3_functions
-- No table is changed: insert_and_notify is new.
DO $postbus$ BEGIN END $postbus$;
