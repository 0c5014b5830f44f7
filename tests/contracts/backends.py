"""The stores that have to keep every contract; a new one is one more entry of BACKENDS."""

import math
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Protocol

import pytest

from postbus.ports import Clock, Store
from postbus.stores.memory import InMemoryStore
from postbus.stores.postgres import PgEventStore
from postbus.stores.sqlite import SQLiteStore
from tests.contracts.effects import Effects, MemoryEffects, PgEffects, SQLiteEffects
from tests.contracts.shared_database import SharedDatabase


class Backend(Protocol):
    """One kind of store, for one test."""

    def new_store(self, clock: Clock) -> AbstractAsyncContextManager[Store]:
        """A store that is empty and not open yet, one at a time; what it made is removed."""
        ...

    def examples_of(self, count: int) -> int:
        """How many of so many generated examples it is fast enough for."""
        ...

    def effects(self, store: Store) -> Effects:
        """The table where transactional handlers on this store leave their traces."""
        ...


class MemoryBackend:
    """In memory."""

    def __init__(self, request: pytest.FixtureRequest) -> None:
        pass

    @asynccontextmanager
    async def new_store(self, clock: Clock) -> AsyncIterator[Store]:
        yield InMemoryStore(clock=clock)

    def examples_of(self, count: int) -> int:
        return count

    def effects(self, store: Store) -> Effects:
        assert isinstance(store, InMemoryStore)
        return MemoryEffects(store)


class SQLiteBackend:
    """A file."""

    def __init__(self, request: pytest.FixtureRequest) -> None:
        self._folder: Path = request.getfixturevalue("tmp_path")
        self._count = 0

    @asynccontextmanager
    async def new_store(self, clock: Clock) -> AsyncIterator[Store]:
        self._count += 1
        yield SQLiteStore(self._folder / f"events-{self._count}.db", clock=clock)

    def examples_of(self, count: int) -> int:
        return count

    def effects(self, store: Store) -> Effects:
        assert isinstance(store, SQLiteStore)
        return SQLiteEffects(store.path)


class PostgresBackend:
    """A database that all tests of this process share, one after the other."""

    def __init__(self, request: pytest.FixtureRequest) -> None:
        self._database: SharedDatabase = request.getfixturevalue("shared_database")

    @asynccontextmanager
    async def new_store(self, clock: Clock) -> AsyncIterator[Store]:
        await self._database.empty()
        yield PgEventStore(self._database.dsn, clock=clock)

    def examples_of(self, count: int) -> int:
        return math.ceil(count / 5)

    def effects(self, store: Store) -> Effects:
        assert isinstance(store, PgEventStore)
        return PgEffects(self._database.dsn)


BACKENDS: dict[str, Callable[[pytest.FixtureRequest], Backend]] = {
    "memory": MemoryBackend,
    "sqlite": SQLiteBackend,
    "postgres": PostgresBackend,
}

# Those that run handlers without an id, in this process: events have a status there.
EMBEDDED = ("memory", "sqlite")
on_embedded = pytest.mark.parametrize("backend", EMBEDDED, indirect=True)


@asynccontextmanager
async def open_store(backend: Backend, clock: Clock) -> AsyncIterator[Store]:
    """An empty, open store of this kind."""
    async with backend.new_store(clock) as store:
        await store.open()
        try:
            yield store
        finally:
            await store.close()
