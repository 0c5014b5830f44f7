"""The stores that have to keep every contract; a new one is one more entry of BACKENDS."""

from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Protocol

from postbus.events import Event, GlobalSequence
from postbus.ports import Clock, Store
from postbus.stores.memory import InMemoryStore
from postbus.stores.sqlite import SQLiteStore


class EventStore(Store, Protocol):
    """A store with the methods that users call on bus.store."""

    async def append(
        self, stream_id: str, events: Iterable[object], *, expected_version: int | None = None
    ) -> list[Event]: ...

    async def read_stream(
        self, stream_id: str, from_version: int = 1, to_version: int | None = None
    ) -> list[Event]: ...

    async def read_all(self, after: int = 0, limit: int = 100) -> list[Event]: ...

    async def head(self) -> GlobalSequence: ...

    async def purge(self, event_id: str, purger_id: str) -> None: ...


@asynccontextmanager
async def _memory(_: Path, clock: Clock) -> AsyncIterator[EventStore]:
    yield InMemoryStore(clock=clock)


@asynccontextmanager
async def _sqlite(folder: Path, clock: Clock) -> AsyncIterator[EventStore]:
    yield SQLiteStore(folder / "events.db", clock=clock)


# Each makes a store that is empty and not open yet, and removes what it made.
BACKENDS: dict[str, Callable[[Path, Clock], AbstractAsyncContextManager[EventStore]]] = {
    "memory": _memory,
    "sqlite": _sqlite,
}


@asynccontextmanager
async def open_store(backend: str, folder: Path, clock: Clock) -> AsyncIterator[EventStore]:
    """An empty, open store of this kind."""
    async with BACKENDS[backend](folder, clock) as store:
        await store.open()
        try:
            yield store
        finally:
            await store.close()
