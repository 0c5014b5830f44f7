"""What is in a schema, told so completely that two schemas with one description behave alike."""

from postbus.stores.postgres.pool import Connection

# The order of columns is left out: an upgrade can only add them at the end.
_QUERIES = {
    "tables": """
        SELECT relname, relkind::text, relpersistence::text, reloptions, relrowsecurity
        FROM pg_class WHERE relnamespace = $1""",
    "columns": """
        SELECT attrelid::regclass::text, attname, format_type(atttypid, atttypmod), attnotnull,
            attidentity::text, attgenerated::text, attcollation, pg_get_expr(adbin, adrelid)
        FROM pg_attribute JOIN pg_class ON pg_class.oid = attrelid
        LEFT JOIN pg_attrdef ON adrelid = attrelid AND adnum = attnum
        WHERE relnamespace = $1 AND relkind IN ('r', 'v', 'p') AND attnum > 0 AND NOT attisdropped""",
    "indexes": """
        SELECT pg_get_indexdef(indexrelid), indisvalid
        FROM pg_index JOIN pg_class ON pg_class.oid = indexrelid WHERE relnamespace = $1""",
    "constraints": """
        SELECT conrelid::regclass::text, conname, pg_get_constraintdef(oid), convalidated
        FROM pg_constraint WHERE connamespace = $1""",
    "sequences": """
        SELECT relname, seqtypid::regtype::text, seqstart, seqincrement, seqmin, seqmax, seqcache, seqcycle,
            deptype::text, refobjid::regclass::text, refobjsubid > 0
        FROM pg_sequence JOIN pg_class ON pg_class.oid = seqrelid
        LEFT JOIN pg_depend ON objid = seqrelid AND deptype IN ('a', 'i') WHERE relnamespace = $1""",
    "functions": "SELECT pg_get_functiondef(oid) FROM pg_proc WHERE pronamespace = $1",
    "triggers": """
        SELECT pg_get_triggerdef(pg_trigger.oid), tgenabled::text
        FROM pg_trigger JOIN pg_class ON pg_class.oid = tgrelid WHERE relnamespace = $1""",
    "types": "SELECT typname FROM pg_type WHERE typnamespace = $1",
    "versions": "SELECT version FROM {schema}.postbus_schema",
}


async def describe(connection: Connection, schema: str) -> dict[str, list[str]]:
    """All that the catalogs say about the schema."""
    oid = await connection.fetchval("SELECT oid FROM pg_namespace WHERE nspname = $1", schema)
    quoted = await connection.fetchval("SELECT quote_ident($1)", schema)
    described = {}
    for kind, query in _QUERIES.items():
        rows = await connection.fetch(query.format(schema=quoted), *([oid] if "$1" in query else []))
        described[kind] = sorted(repr(tuple(row)) for row in rows)
    return described


async def describe_tables(connection: Connection) -> list[str]:
    """The columns and indexes of whatever is in the schema "postbus", ours or not."""
    oid = await connection.fetchval("SELECT 'postbus'::regnamespace::oid")
    columns = await connection.fetch(_QUERIES["columns"], oid)
    indexes = await connection.fetch(_QUERIES["indexes"], oid)
    return sorted(repr(tuple(row)) for row in [*columns, *indexes])
