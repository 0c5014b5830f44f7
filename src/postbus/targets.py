"""What a bus is opened on: a path, a URL or a store."""

import os
import re

from postbus.errors import InvalidTargetError, MissingExtraError
from postbus.ports import Clock, Store
from postbus.stores.memory import InMemoryStore
from postbus.stores.sqlite import SQLiteStore

_SQLITE = "sqlite://"
_POSTGRES = ("postgresql://", "postgres://")
_MEMORY = "memory:"
# Taken for a path it would be a new file beside the one that was meant.
_MISTYPED_URL = re.compile(r"(sqlite|postgres|postgresql|memory|file)(\+\w+)?:", re.IGNORECASE)


def store_for(target: "str | os.PathLike[str] | Store", clock: Clock) -> Store:
    """The store that a target names.

    "events.db" and "sqlite:///events.db" are files in the current folder,
    "sqlite:////var/lib/events.db" is an absolute path, "postgresql://host/database" is a server,
    "memory:" lives with the bus.
    """
    if isinstance(target, str):
        return _store_for_text(target, clock)
    if isinstance(target, os.PathLike):
        return SQLiteStore(target, clock=clock)
    if hasattr(target, "queue") and hasattr(target, "backlog"):
        return target
    raise InvalidTargetError(target, f"is of type {type(target).__qualname__}")


def _store_for_text(target: str, clock: Clock) -> Store:
    if target == _MEMORY:
        return InMemoryStore(clock=clock)
    if "\0" in target:
        raise InvalidTargetError(target, "contains a NUL character")
    if target.startswith(_SQLITE):
        host, slash, path = target.removeprefix(_SQLITE).partition("/")
        if host or not slash or not path:
            raise InvalidTargetError(target, "names no file: three slashes and a path are needed")
        if "?" in path:
            raise InvalidTargetError(target, "has a query, which is not known; give a SQLiteStore instead")
        return SQLiteStore(path, clock=clock)
    if target.startswith(_POSTGRES):
        return _postgres_store(target, clock)
    if "://" in target:
        raise InvalidTargetError(target, f"has the scheme {target.partition(':')[0]!r}, which is not known")
    if _MISTYPED_URL.match(target):
        raise InvalidTargetError(target, 'begins like a URL and is none; "./" before it would make it a path')
    if not target:
        raise InvalidTargetError(target, "is empty")
    return SQLiteStore(target, clock=clock)


def _postgres_store(dsn: str, clock: Clock) -> Store:
    # Embedded use needs no driver for PostgreSQL: it is an extra.
    try:
        from postbus.stores.postgres import PgEventStore
    except ModuleNotFoundError as error:
        raise MissingExtraError("PostgreSQL", "postgres") from error
    return PgEventStore(dsn, clock=clock)
