"""What tests of competing workers share: handlers, and a look into the outbox."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

import asyncpg

from postbus import Event, PgEventBus
from tests.patience import PATIENCE

ID = "mail"


class MakeBus(Protocol):
    """Makes a bus on the database of the test; what is not for the bus is for its config."""

    def __call__(
        self, *, target: Any = None, bus: dict[str, Any] | None = None, **config: Any
    ) -> PgEventBus: ...


class Noting:
    """Notes what it gets, and fails as often as it is told for each event."""

    def __init__(self, failure_count: int = 0) -> None:
        self.events: list[Event] = []
        self.failure_count = failure_count

    async def __call__(self, event: Event) -> None:
        self.events.append(event)
        if self.numbers.count(event.payload) <= self.failure_count:
            raise ValueError(f"no {self.numbers.count(event.payload)}")

    @property
    def numbers(self) -> list[Any]:
        """The payloads."""
        return [event.payload for event in self.events]


class Holding:
    """Runs until it is released, and counts how many run at once."""

    def __init__(self) -> None:
        self.begun: list[Any] = []
        self.ended: list[Any] = []
        self.most_at_once = 0
        self.released = asyncio.Event()

    @property
    def running(self) -> int:
        """How many run now."""
        return len(self.begun) - len(self.ended)

    async def __call__(self, event: Event) -> None:
        self.begun.append(event.payload)
        self.most_at_once = max(self.most_at_once, self.running)
        try:
            await self.released.wait()
        finally:
            self.ended.append(event.payload)


def compete(bus: PgEventBus, handler: Any, *, id: str = ID, **options: Any) -> None:
    """Subscribe to all orders, as one of several."""
    bus.subscribe("order.*", handler, id=id, mode="competing", **options)


async def publish_numbers(bus: PgEventBus, *numbers: int, type: str = "order.placed") -> None:
    """Events whose payloads are these numbers."""
    await bus.publish_many([(type, number) for number in numbers])


async def query(dsn: str, sql: str, *values: object) -> list[tuple[Any, ...]]:
    """The rows of a statement, past postbus."""
    connection = await asyncpg.connect(dsn)
    try:
        return [tuple(row) for row in await connection.fetch(sql, *values)]
    finally:
        await connection.close()


async def rows_of(dsn: str, id: str = ID) -> list[asyncpg.Record]:
    """What is in the outbox."""
    connection = await asyncpg.connect(dsn)
    try:
        return await connection.fetch(
            "SELECT * FROM postbus.event_bus_outbox WHERE subscriber_pool = $1 ORDER BY global_sequence", id
        )
    finally:
        await connection.close()


async def until(is_true: Callable[[], bool], within: float = PATIENCE) -> float:
    """Wait until it is true; how many seconds that took."""
    loop = asyncio.get_running_loop()
    began_at = loop.time()
    try:
        async with asyncio.timeout(within):
            while not is_true():  # noqa: ASYNC110
                await asyncio.sleep(0.002)
    except TimeoutError:
        raise AssertionError(f"not within {within} s") from None
    return loop.time() - began_at


async def until_rows(
    dsn: str, is_right: Callable[[list[asyncpg.Record]], bool], within: float = PATIENCE
) -> list[asyncpg.Record]:
    """The outbox, as soon as it is right."""
    rows: list[asyncpg.Record] = []
    try:
        async with asyncio.timeout(within):
            while not is_right(rows := await rows_of(dsn)):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
    except TimeoutError:
        raise AssertionError(f"not within {within} s: {[dict(row) for row in rows]}") from None
    return rows


async def within(seconds: float, awaitable: Awaitable[Any]) -> Any:
    """The result; what takes longer fails."""
    async with asyncio.timeout(seconds):
        return await awaitable
