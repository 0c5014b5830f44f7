"""State stores by the name of their database: joins a typed state store to the store it needs."""

from typing import ClassVar

from postbus.observers.states import S, StateStore
from postbus.stores.memory import InMemoryStore
from postbus.stores.sqlite import SQLiteStore


class SQLiteStateStore(StateStore[S]):
    """States in a SQLite file, such as that of a bus: SQLiteStateStore(bus.store, "orders", OrderView)."""

    _store_type: ClassVar[type] = SQLiteStore


class InMemoryStateStore(StateStore[S]):
    """States in memory, for tests: InMemoryStateStore(bus.store, "orders", OrderView)."""

    _store_type: ClassVar[type] = InMemoryStore
