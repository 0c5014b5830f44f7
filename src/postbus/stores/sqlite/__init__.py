"""The SQLite store: everything in one file, nothing to install."""

from postbus.stores.sqlite.store import SQLiteStore

__all__ = ["SQLiteStore"]
