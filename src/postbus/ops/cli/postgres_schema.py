"""What the commands do with a schema on a PostgreSQL server. Importing it needs the driver."""

from postbus.errors import StoreError
from postbus.stores.postgres.connecting import connect, describe
from postbus.stores.postgres.migrations import (
    VERSION,
    create_notify_trigger,
    migrate,
    read_version,
    render_sql,
)
from postbus.stores.postgres.schema_name import quoted_schema
from postbus.stores.postgres.soundness import check_sound
from postbus.stores.postgres.translation import translated

__all__ = ["check_present", "migrate_schema", "render_sql"]


async def migrate_schema(dsn: str, schema: str, *, notify_trigger: bool) -> str:
    """Migrate, and say from which version to which; UnsoundLogError if events could be lost there."""
    quoted_schema(schema)  # A bad name is refused before anything is connected.
    with translated():
        connection = await connect(dsn)
        try:
            before = await read_version(connection, schema)
            await migrate(connection, schema)
            if notify_trigger:
                await create_notify_trigger(connection, schema)
            await check_sound(connection, schema)
        finally:
            await connection.close()
    if before == VERSION:
        return f"Schema {schema!r} is at version {VERSION} already."
    return f"Schema {schema!r} went from {'no version' if before is None else before} to version {VERSION}."


async def check_present(dsn: str, schema: str) -> None:
    """StoreError if there is no such schema, or none with our tables: a store would make them."""
    # A store does not tell before it migrates, so this is a connection of its own.
    with translated():
        connection = await connect(dsn)
        try:
            version = await read_version(connection, schema)
        finally:
            await connection.close()
    if version is None:
        raise StoreError(
            f"there is no schema {schema!r} with tables of postbus in {describe(dsn)}; "
            "check --url and --schema"
        )
