"""Brings a file's schema up to date, in one transaction, whoever else starts at the same moment."""

import sqlite3
from datetime import datetime
from pathlib import Path

from postbus.errors import NotADatabaseError, SchemaTooNewError
from postbus.stores.named_queries import load_queries
from postbus.stores.sqlite.rows import moment_as_ours, moment_to_text

VERSION = 2

_SCHEMA = load_queries("postbus.stores.sqlite", "schema.sql")
_QUERIES = load_queries("postbus.stores.sqlite", "queries.sql")
# What a file of version 1 lacks, in this order. The events themselves are not written anew.
_ADDED_IN_2 = [
    *(_QUERIES[name] for name in ("add_resolved_at", "add_resolved_by", "add_notes")),
    *(_QUERIES[name] for name in ("drop_old_count_buried", "drop_old_count_deleted")),
    *(
        _SCHEMA[name]
        for name in (
            "index_unresolved_dead_letters",
            "index_streams",
            "count_buried_events",
            "count_deleted_dead_letters",
            "create_checkpoints",
            "create_subscriber_dead_letters",
            "index_subscriber_dead_letters_by_age",
            "index_subscriber_dead_letters_by_event",
            "index_subscriber_dead_letters_by_type",
            "index_unresolved_subscriber_dead_letters",
            "index_dead_letters_of_subscriber",
            "index_wanted_retries",
            "create_subscriber_dead_letter_count",
            "count_new_subscriber_dead_letters",
            "count_resolved_subscriber_dead_letters",
            "count_deleted_subscriber_dead_letters",
            "create_states",
        )
    ),
]
_SPECIFIED_COLUMNS = {
    "id", "type", "payload", "status", "retry_count", "last_error", "metadata", "created_at", "updated_at",
}  # fmt: skip


def check_ours(connection: sqlite3.Connection, path: Path) -> None:
    """Refuse a file of another program, or of a newer one of ours, before anything is changed in it."""
    if not _is_up_to_date(connection, path):
        _check_events(_columns(connection, "events"), path)


def migrate(connection: sqlite3.Connection, path: Path, now: datetime) -> None:
    """Create or upgrade the tables; refuse a file that is newer than this program. Idempotent."""
    if _is_up_to_date(connection, path):
        return
    connection.execute("BEGIN IMMEDIATE")
    try:
        connection.execute(_SCHEMA["create_schema_versions"])
        # Asked again under the lock: another process may have migrated meanwhile.
        if not _is_up_to_date(connection, path):
            if _version(connection) is None:
                _create_tables(connection, path, now)
            else:
                for statement in _ADDED_IN_2:
                    connection.execute(statement)
            connection.execute(_QUERIES["record_schema_version"], (VERSION, now.isoformat()))
        connection.execute("COMMIT")
    except BaseException:
        # SQLite has rolled back by itself after some errors.
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def _is_up_to_date(connection: sqlite3.Connection, path: Path) -> bool:
    found = _version(connection)
    if found is not None and found > VERSION:
        raise SchemaTooNewError(str(path), found, VERSION)
    return found == VERSION


def _version(connection: sqlite3.Connection) -> int | None:
    if not _columns(connection, "postbus_schema"):
        return None
    (found,) = connection.execute(_QUERIES["schema_version"]).fetchone()
    return None if found is None else int(found)


def _create_tables(connection: sqlite3.Connection, path: Path, now: datetime) -> None:
    present = _columns(connection, "events")
    _check_events(present, path)
    if present:
        connection.execute(_QUERIES["set_old_events_aside"])
        for name in ("idx_events_status", "idx_events_type"):
            connection.execute(f"DROP INDEX IF EXISTS {name}")
    for statement in _SCHEMA.values():
        if present and statement == _SCHEMA["count_dead_letters_present"]:
            connection.create_function("postbus_moment", 2, moment_as_ours, deterministic=True)
            connection.execute(_QUERIES["take_over_old_events"], {"now": moment_to_text(now)})
            connection.execute(_QUERIES["drop_old_events"])
        if statement != _SCHEMA["create_schema_versions"]:
            connection.execute(statement)


def _check_events(columns: set[str], path: Path) -> None:
    if columns and not columns >= _SPECIFIED_COLUMNS:
        raise NotADatabaseError(
            f"{path} has a table named events that is not ours (columns {', '.join(sorted(columns))}); "
            "give postbus a file of its own; the file was left as it is"
        )


def _columns(connection: sqlite3.Connection, table: str) -> set[str]:
    return {name for (name,) in connection.execute(_QUERIES["columns_of_table"], (table,))}
