-- name: describe_log
-- What the gap rule stands on, from the catalogs alone: no lock on the table or the sequence.
-- One row, with NULLs for what is not there. The default is compared as it is stored, not as it is shown: that
-- depends on the settings of the role. It is nextval() of one constant and nothing else, and depends on the sequence.
SELECT
    pg_catalog.pg_is_in_recovery() AS is_standby,
    events.relkind::text AS table_kind,
    events.relpersistence::text AS table_persistence,
    pg_catalog.row_security_active(events.oid) AS hides_rows,
    numbers.relpersistence::text AS sequence_persistence,
    pg_sequence.seqcache AS cache,
    pg_sequence.seqincrement AS increment,
    pg_sequence.seqcycle AS cycles,
    pg_catalog.has_sequence_privilege(numbers.oid, 'SELECT') AS may_read_sequence,
    coalesce(
        adbin::text ~ (
            '^[{]FUNCEXPR :funcid ' || 'pg_catalog.nextval(pg_catalog.regclass)'::regprocedure::oid
            || ' [^{]*[{]CONST [^{]*$'
        ),
        false
    ) AND EXISTS (
        SELECT FROM pg_catalog.pg_depend
        WHERE classid = 'pg_catalog.pg_attrdef'::regclass AND objid = pg_attrdef.oid
            AND refclassid = 'pg_catalog.pg_class'::regclass AND refobjid = numbers.oid
    ) AS draws_numbers,
    EXISTS (
        SELECT FROM pg_catalog.pg_depend
        WHERE classid = 'pg_catalog.pg_class'::regclass AND objid = numbers.oid AND deptype = 'a'
            AND refclassid = 'pg_catalog.pg_class'::regclass AND refobjid = events.oid
            AND refobjsubid = pg_attribute.attnum
    ) AS is_owned,
    pg_catalog.quote_ident(current_user) AS role,
    pg_catalog.has_table_privilege('pg_catalog.pg_subscription_rel', 'SELECT') AS may_read_subscriptions
FROM (SELECT) AS always_a_row
LEFT JOIN pg_catalog.pg_namespace ON nspname = $1
LEFT JOIN pg_catalog.pg_class AS events ON events.relnamespace = pg_namespace.oid AND events.relname = 'events'
LEFT JOIN pg_catalog.pg_class AS numbers
    ON numbers.relnamespace = pg_namespace.oid AND numbers.relname = 'events_global_sequence_seq'
LEFT JOIN pg_catalog.pg_sequence ON seqrelid = numbers.oid
LEFT JOIN pg_catalog.pg_attribute ON attrelid = events.oid AND attname = 'global_sequence' AND NOT attisdropped
LEFT JOIN pg_catalog.pg_attrdef ON adrelid = events.oid AND adnum = pg_attribute.attnum;

-- name: numbers_in_use
-- The table as of the statement's beginning, the counter as of now: the first is not the higher one.
-- The counter is read as a table, because the functions for it lock the sequence like a writer of events.
SELECT
    coalesce((SELECT max(global_sequence) FROM {schema}.events), 0) AS highest,
    last_value - CASE WHEN is_called THEN 0 ELSE 1 END AS handed_out
FROM {schema}.events_global_sequence_seq;

-- name: subscriptions_to_log
SELECT EXISTS (
    SELECT FROM pg_catalog.pg_subscription_rel
    JOIN pg_catalog.pg_class ON pg_class.oid = srrelid
    JOIN pg_catalog.pg_namespace ON pg_namespace.oid = relnamespace
    WHERE nspname = $1 AND relname = 'events'
);
