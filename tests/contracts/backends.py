"""The stores that have to keep every contract; a new one is one more entry of BACKENDS."""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

from postbus.ports import Clock, Store
from postbus.stores.memory import InMemoryStore
from postbus.stores.sqlite import SQLiteStore


@asynccontextmanager
async def _memory(_: Path, clock: Clock) -> AsyncIterator[Store]:
    yield InMemoryStore(clock=clock)


@asynccontextmanager
async def _sqlite(folder: Path, clock: Clock) -> AsyncIterator[Store]:
    yield SQLiteStore(folder / "events.db", clock=clock)


# Each makes a store that is empty and not open yet, and removes what it made.
BACKENDS: dict[str, Callable[[Path, Clock], AbstractAsyncContextManager[Store]]] = {
    "memory": _memory,
    "sqlite": _sqlite,
}


@asynccontextmanager
async def open_store(backend: str, folder: Path, clock: Clock) -> AsyncIterator[Store]:
    """An empty, open store of this kind."""
    async with BACKENDS[backend](folder, clock) as store:
        await store.open()
        try:
            yield store
        finally:
            await store.close()
