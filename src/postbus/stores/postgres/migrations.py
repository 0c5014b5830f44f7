"""Brings a schema up to date, in one transaction, whoever else starts at the same moment."""

import re
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager

import asyncpg

from postbus.errors import MigrationNeededError, SchemaTooNewError, StoreBusyError, StoreError
from postbus.stores.named_queries import load_queries
from postbus.stores.postgres.pool import Connection
from postbus.stores.postgres.schema_name import quoted_schema, schema_literal

_PACKAGE = "postbus.stores.postgres"
_QUERIES = load_queries(_PACKAGE, "migrations.sql")
_FUNCTIONS = load_queries(_PACKAGE, "functions.sql")
_MIGRATIONS = [(int(name.partition("_")[0]), name) for name in _QUERIES if name[0].isdigit()]
VERSION = max(version for version, _ in _MIGRATIONS)

_COMMAND = "postbus migrate"
# Numbering the events of a large table takes longer than a pool lets a statement take. In seconds.
_PATIENCE = 24 * 3600.0
_BEGINNING = ("check_encoding", "wait_for_turn", "enter_schema")
# How our own blocks say what they do not change.
_REFUSED = "PB002"
# Classes of errors that say nothing of what is in the schema: connection, serialization, resources, operator,
# system and the server itself.
_OTHER_FAULTS = ("08", "40", "53", "57", "58", "XX")
_LONGEST_STATEMENT = 200


async def migrate(connection: Connection, schema: str) -> None:
    """Create or upgrade the tables; refuse a schema that is newer than this program. Idempotent.

    Where everything is up to date, nothing is asked of the role but to read the version.
    """
    if await read_version(connection, schema) == VERSION:
        return
    async with _migration(connection, schema, f"is not at version {VERSION}", _COMMAND):
        # Asked again under the lock: another instance may have migrated meanwhile.
        present = await read_version(connection, schema) or 0
        if present < VERSION:
            for statement in _steps(schema, above=present):
                await connection.execute(statement, timeout=_PATIENCE)


async def create_notify_trigger(connection: Connection, schema: str) -> None:
    """Have every insert send a notification, whoever inserts. Idempotent."""
    if not await connection.fetchval(_fill(_QUERIES["has_notify_trigger"], schema)):
        async with _migration(connection, schema, "has no trigger to notify", f"{_COMMAND} --notify-trigger"):
            await connection.execute(_fill(_QUERIES["create_notify_trigger"], schema), timeout=_PATIENCE)


async def read_version(connection: Connection, schema: str) -> int | None:
    """The version that the schema has, None if it has no tables of ours; SchemaTooNewError if it is newer."""
    try:
        found: int | None = await connection.fetchval(_fill(_QUERIES["read_version"], schema))
    except (asyncpg.UndefinedTableError, asyncpg.InvalidSchemaNameError):
        return None
    except asyncpg.InsufficientPrivilegeError as error:
        raise StoreError(
            f"this role may not use schema {schema!r} ({error}); grant it USAGE on the schema, SELECT, "
            "INSERT, UPDATE and DELETE on its tables, and SELECT and USAGE on its sequences"
        ) from error
    if found is not None and found > VERSION:
        raise SchemaTooNewError(f"schema {schema!r}", found, VERSION)
    return found


def render_sql(schema: str, *, notify_trigger: bool = False) -> str:
    """The whole migration as a script for psql and the like; running it again changes nothing."""
    names = (*_BEGINNING, "refuse_newer")
    statements = [*(_fill(_QUERIES[name], schema) for name in names), *_steps(schema, above=0)]
    if notify_trigger:
        statements.append(_fill(_QUERIES["create_notify_trigger"], schema))
    body = "".join(f"{statement};\n\n" for statement in statements)
    return f"BEGIN ISOLATION LEVEL READ COMMITTED;\n\n{body}COMMIT;\n"


@asynccontextmanager
async def _migration(connection: Connection, schema: str, lack: str, command: str) -> AsyncIterator[None]:
    """A transaction inside the schema, one at a time; an error that says what to do if we are not let."""
    try:
        async with connection.transaction(isolation="read_committed"):
            for name in _BEGINNING:
                await connection.execute(_fill(_QUERIES[name], schema), timeout=_PATIENCE)
            yield
    except asyncpg.ReadOnlySQLTransactionError as error:
        reason = await _why_read_only(connection, command)
        raise MigrationNeededError(f"schema {schema!r} {lack}, and {reason} ({error})") from error
    except asyncpg.InsufficientPrivilegeError as error:
        raise MigrationNeededError(
            f"schema {schema!r} {lack}, and this role may not change it ({error}); "
            f"run `{command}` as a role that may, or have its output with --sql run by somebody"
        ) from error
    except asyncpg.LockNotAvailableError as error:
        raise StoreBusyError(
            f"schema {schema!r} {lack}, and another session holds one of its tables ({error}); nothing was "
            "changed; end the long transactions on these tables and try again"
        ) from error
    except asyncpg.PostgresError as error:
        if error.sqlstate == _REFUSED:
            raise StoreError(f"schema {schema!r} {lack}: {error.message}. {error.hint}") from error
        if (error.sqlstate or "").startswith(_OTHER_FAULTS):
            raise
        raise StoreError(
            f"schema {schema!r} {lack}, and the server refused to change that: {_words(error)}; nothing was "
            "changed; drop or change what it names and try again, or give postbus a schema of its own"
        ) from error


def _words(error: asyncpg.PostgresError) -> str:
    """What the server said, in one line. Not its hint: that may be to drop all that depends on a table."""
    said = ": ".join(part for part in (error.message, error.detail) if part)
    # Some errors name only types; the statement has the table and its columns.
    statement = " ".join((error.internal_query or error.context or "").split())[:_LONGEST_STATEMENT]
    return f"{' '.join(said.split())} (SQLSTATE {error.sqlstate}{statement and ': '}{statement})"


async def _why_read_only(connection: Connection, command: str) -> str:
    """Why nothing can be written here, and what to do about it."""
    found = await connection.fetchrow(_QUERIES["why_read_only"])
    assert found is not None
    if found["is_standby"]:
        return "this server is a standby, which can't be written: connect to the primary"
    if found["is_default"]:
        return (
            f"default_transaction_read_only is on (source: {found['source']}), so that nothing can be "
            f"written: turn it off where it was set, or run `{command}` as a role for which it is off"
        )
    return "the transaction is read-only: connect to a server that can be written"


def _steps(schema: str, *, above: int) -> Iterator[str]:
    """What brings a schema of version *above* to ours, in order."""
    blocks = (_QUERIES[name] for version, name in _MIGRATIONS if version > above)
    for block in (*blocks, *_FUNCTIONS.values(), _QUERIES["record_version"]):
        yield _fill(block, schema)


def _fill(block: str, schema: str) -> str:
    # In one pass: a name may contain what looks like a gap to fill.
    values: Mapping[str, str] = {
        "{schema}": quoted_schema(schema),
        "{schema_text}": schema_literal(schema),
        "{version}": str(VERSION),
        "{columns}": _QUERIES["columns"],
    }
    return re.sub(r"\{(?:schema|schema_text|version|columns)\}", lambda gap: values[gap[0]], block)
