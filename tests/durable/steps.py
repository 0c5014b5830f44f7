"""What the tests of durable subscribers share: databases, handlers, and ports that fail."""

import asyncio
import inspect
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Protocol, cast

import asyncpg
import pytest

from postbus import DeadLetter, Event, EventBus, InMemoryStore, SQLiteStore, StoreClosedError
from postbus.events import Checkpoint, SubscriberId
from postbus.ports import Clock, Store
from postbus.stores.postgres import PgEventStore
from postbus.testing import ManualClock
from tests.contracts.effects import Handler, as_coroutine_function, as_plain_function
from tests.contracts.shared_database import SharedDatabase
from tests.delivery.steps import begin, query, soon

ID = "mail"


class MakeBus(Protocol):
    """Makes a bus on the database of the test."""

    def __call__(self, store: Store | None = None, **options: Any) -> EventBus: ...


class Database(Protocol):
    """What outlives a bus."""

    async def empty(self) -> None:
        """Make it as good as new."""
        ...

    def new_store(self) -> Store:
        """A store for one bus at a time."""
        ...

    async def query(self, sql: str) -> list[tuple[Any, ...]]:
        """Run a statement where transactional handlers write, past postbus; its rows."""
        ...

    def transactional(self, handler: Handler) -> Callable[[Event, Any], Any]:
        """The handler as a user would write it for this kind of database."""
        ...


class MemoryDatabase:
    """Closed and opened again it has the same events, as a file would."""

    def __init__(self, _: pytest.FixtureRequest, clock: Clock) -> None:
        self._store = InMemoryStore(clock=clock)

    async def empty(self) -> None:
        """It is new."""

    def new_store(self) -> Store:
        return self._store

    async def query(self, sql: str) -> list[tuple[Any, ...]]:
        return self._store.connection.execute(sql).fetchall()

    def transactional(self, handler: Handler) -> Callable[[Event, Any], Any]:
        return as_plain_function(handler)


class SQLiteDatabase:
    """A file."""

    def __init__(self, request: pytest.FixtureRequest, clock: Clock) -> None:
        folder: Path = request.getfixturevalue("tmp_path")
        self.path, self._clock = folder / "events.db", clock

    async def empty(self) -> None:
        """It is new."""

    def new_store(self) -> Store:
        return SQLiteStore(self.path, clock=self._clock)

    async def query(self, sql: str) -> list[tuple[Any, ...]]:
        return query(self.path, sql)

    def transactional(self, handler: Handler) -> Callable[[Event, Any], Any]:
        return as_plain_function(handler)


class PostgresDatabase:
    """A database that the tests of this process share, one after the other."""

    def __init__(self, request: pytest.FixtureRequest, clock: Clock) -> None:
        self._shared: SharedDatabase = request.getfixturevalue("shared_database")
        self._clock = clock

    async def empty(self) -> None:
        await self._shared.empty()

    def new_store(self) -> Store:
        return PgEventStore(self._shared.dsn, clock=self._clock)

    async def query(self, sql: str) -> list[tuple[Any, ...]]:
        connection = await asyncpg.connect(self._shared.dsn)
        try:
            return [tuple(row) for row in await connection.fetch(sql)]
        finally:
            await connection.close()

    def transactional(self, handler: Handler) -> Callable[[Event, Any], Any]:
        return as_coroutine_function(handler)


DATABASES: dict[str, Callable[[pytest.FixtureRequest, Clock], Database]] = {
    "memory": MemoryDatabase,
    "sqlite": SQLiteDatabase,
    "postgres": PostgresDatabase,
}
# Those with handlers without an id, and with transactional handlers that are plain functions.
on_embedded = pytest.mark.parametrize("any_database", ["memory", "sqlite"], indirect=True)
on_postgres = pytest.mark.parametrize("any_database", ["postgres"], indirect=True)


class FaultyPort:
    """A port of a store, some of whose calls fail."""

    def __init__(self, port: object) -> None:
        self._port = port
        self._errors: dict[str, Iterator[Exception]] = {}
        self._on_call: dict[str, Callable[[], Awaitable[object]]] = {}

    def fail(self, method: str, error: Exception, times: int = 1_000_000) -> None:
        """Let the next calls raise this error and do nothing."""
        self._errors[method] = itertools.repeat(error, times)

    def mend(self, method: str) -> None:
        """Let it work again."""
        self._errors.pop(method, None)

    def before(self, method: str, step: Callable[[], Awaitable[object]]) -> None:
        """Take this step before each call."""
        self._on_call[method] = step

    def __getattr__(self, name: str) -> Any:
        real = getattr(self._port, name)
        if not inspect.iscoroutinefunction(real):
            return real

        async def call(*values: Any, **named: Any) -> Any:
            if name in self._on_call:
                await self._on_call[name]()
            if (error := next(self._errors.get(name, iter(())), None)) is not None:
                raise error
            return await real(*values, **named)

        return call


class FaultyStore:
    """A store whose log, checkpoints and dead letters may be made to fail."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.log = FaultyPort(store.log)
        self.checkpoints = FaultyPort(store.checkpoints)
        self.dead_letters = FaultyPort(store.dead_letters)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


def faulty(database: Database) -> Any:
    """A store of this database that may be made to fail; Any: a Store and a FaultyStore."""
    return FaultyStore(database.new_store())


@asynccontextmanager
async def opened(database: Database) -> AsyncIterator[Store]:
    """The database while no bus runs on it."""
    store = database.new_store()
    await store.open()
    try:
        yield store
    finally:
        await store.close()


async def checkpoint_of(bus: EventBus, subscriber_id: str = ID) -> Checkpoint:
    """What is written in the database."""
    checkpoint = await bus.store.checkpoints.load(SubscriberId(subscriber_id))
    assert checkpoint is not None, f"{subscriber_id} has no checkpoint"
    return checkpoint


async def position_of(bus: EventBus, subscriber_id: str = ID) -> int:
    """The position that is written in the database; 0 if there is none."""
    checkpoint = await bus.store.checkpoints.load(SubscriberId(subscriber_id))
    return 0 if checkpoint is None else checkpoint.position


async def letters_of(bus: EventBus, subscriber_id: str = ID) -> Sequence[DeadLetter]:
    """The unresolved dead letters of a subscriber, newest first."""
    page = await bus.store.dead_letters.page(100, 0, SubscriberId(subscriber_id))
    return page.events


async def publish_numbers(bus: EventBus, *numbers: int, type: str = "order.placed") -> None:
    """Events whose payloads are these numbers, in one transaction."""
    await bus.publish_many([(type, number) for number in numbers])


async def let_others_run() -> None:
    """Let every task and thread that has something to do get on with it."""
    for _ in range(20):
        await asyncio.to_thread(lambda: None)


async def until_resolved(bus: EventBus, subscriber_id: str = ID) -> None:
    """Return when the subscriber has no unresolved dead letter."""
    while await letters_of(bus, subscriber_id):
        await let_others_run()


async def pass_time(clock: ManualClock, seconds: float) -> None:
    """Move the time as soon as somebody sleeps."""
    await clock.wait_for_sleepers(1)
    await clock.advance(seconds)


async def try_again(clock: ManualClock, times: int = 1) -> None:
    """Let the one who sleeps sleep it out, and again."""
    for _ in range(times):
        await clock.wait_for_sleepers(1)
        await clock.advance(clock.sleeps[-1])


async def crash(bus: EventBus) -> None:
    """End a bus on a FaultyStore as SIGKILL would: from here on nothing of it gets into the database."""
    store = cast(FaultyStore, bus.store)
    for method in ("save", "process", "release", "claim"):
        store.checkpoints.fail(method, StoreClosedError("the process has ended"))
    # Cancelled, it does not wait for handlers.
    stopping = await begin(bus.shutdown())
    stopping.cancel()
    await asyncio.wait([stopping])
    await soon(bus.shutdown())
