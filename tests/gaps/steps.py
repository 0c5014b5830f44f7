"""Writers that a test holds in its hand, and a bus on the same database."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import asyncpg

from postbus import Event, PgEventBus, ReliableDeliveryConfig
from tests.patience import PATIENCE

ID = "mail"
NEXT = "nextval('postbus.events_global_sequence_seq')"
INSERT = "INSERT INTO postbus.events (global_sequence, id, event_type, data) VALUES ($1, $2, 'test.done', $3)"


class Writer:
    """A session of another program, which writes events as it likes."""

    def __init__(self, connection: "asyncpg.Connection[asyncpg.Record]") -> None:
        self.connection = connection
        self.pid = connection.get_server_pid()

    async def run(self, sql: str, *args: object) -> None:
        """One statement."""
        await self.connection.execute(sql, *args)

    async def draw(self) -> int:
        """A number of the sequence, and nothing else."""
        number: int = await self.connection.fetchval(f"SELECT {NEXT}")
        return number

    async def insert(self, number: int | None = None) -> int:
        """An event, at a number of the sequence or at a given one."""
        if number is None:
            number = await self.draw()
        await self.run(INSERT, number, f"event-{number}", str(number))
        return number


@asynccontextmanager
async def writer(dsn: str, application_name: str = "a writer") -> AsyncIterator[Writer]:
    """Another session for the length of the block."""
    connection = await asyncpg.connect(dsn, server_settings={"application_name": application_name})
    try:
        yield Writer(connection)
    finally:
        connection.terminate()


class Seen:
    """What a subscriber got, in order."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    async def __call__(self, event: Event) -> None:
        self.events.append(event)

    @property
    def numbers(self) -> list[int]:
        """The numbers of the events."""
        return [event.global_sequence or 0 for event in self.events]


@asynccontextmanager
async def running(dsn: str, *ids: str, **settings: Any) -> AsyncIterator[tuple[PgEventBus, list[Seen]]]:
    """A bus with a subscriber for each id, at the end of the log, and what each of them gets."""
    options = {name: settings.pop(name) for name in ("notify", "pool_size") if name in settings}
    settings.setdefault("poll_interval", 0.05)
    bus = PgEventBus(dsn, config=ReliableDeliveryConfig(**settings), **options)
    seen = [Seen() for _ in ids or (ID,)]
    for subscriber_id, each in zip(ids or (ID,), seen, strict=True):
        bus.subscribe("*", each, id=subscriber_id)
    async with bus:
        for subscriber_id in ids or (ID,):
            await soon(lambda id=subscriber_id: bus.subscription(id).state == "live")  # type: ignore[misc]
        yield bus, seen


async def soon(is_true: Callable[[], bool], within: float = PATIENCE) -> float:
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


async def checkpoint_row(dsn: str, subscriber_id: str = ID) -> asyncpg.Record:
    """What is written of a subscriber."""
    row = await _find_checkpoint_row(dsn, subscriber_id)
    assert row is not None
    return row


async def _find_checkpoint_row(dsn: str, subscriber_id: str) -> asyncpg.Record | None:
    connection = await asyncpg.connect(dsn)
    try:
        return await connection.fetchrow(
            "SELECT * FROM postbus.event_bus_checkpoints WHERE subscriber_id = $1", subscriber_id
        )
    finally:
        await connection.close()


async def written(dsn: str, number: int, subscriber_id: str = ID, within: float = PATIENCE) -> None:
    """Wait until the checkpoint in the database has reached a number."""
    async with asyncio.timeout(within):
        while True:
            # A subscriber that has only just begun has no row yet.
            row = await _find_checkpoint_row(dsn, subscriber_id)
            if row is not None and row["last_global_sequence"] >= number:
                return
            await asyncio.sleep(0.01)
