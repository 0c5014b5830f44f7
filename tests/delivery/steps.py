"""What the tests of the embedded bus share: a clock, handlers, and a look into the file."""

import asyncio
import sqlite3
from collections.abc import Awaitable, Callable, Sequence
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from postbus import Event, EventBus, SQLiteStore
from postbus.testing import ManualClock
from tests.patience import PATIENCE

T = TypeVar("T")
# Only for what hangs: a loaded machine is slow and not wrong.
MakeBus = Callable[..., EventBus]

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
A_DAY = 86_400.0
ALWAYS = 1_000_000


class FlakyHandler:
    """Fails at its first calls and remembers what it got, and when."""

    def __init__(
        self, failure_count: int = 0, *, clock: ManualClock | None = None, name: str = "boom"
    ) -> None:
        self.events: list[Event] = []
        self.moments: list[float] = []
        self.failure_count = failure_count
        self._clock, self._name = clock, name

    @property
    def payloads(self) -> list[object]:
        return [event.payload for event in self.events]

    async def __call__(self, event: Event) -> None:
        self.events.append(event)
        if self._clock is not None:
            self.moments.append(self._clock.monotonic())
        if len(self.events) <= self.failure_count:
            raise ValueError(f"{self._name} {len(self.events)}")


class BlockingHandler:
    """Runs until it is released."""

    def __init__(self) -> None:
        self.started, self.released = asyncio.Event(), asyncio.Event()
        self.events: list[Event] = []
        self.was_cancelled = False
        self.finish_count = 0

    async def __call__(self, event: Event) -> None:
        self.events.append(event)
        self.started.set()
        try:
            await self.released.wait()
        except asyncio.CancelledError:
            self.was_cancelled = True
            raise
        self.finish_count += 1


async def soon(awaitable: Awaitable[T]) -> T:
    """The result; a test that would hang fails here instead."""
    async with asyncio.timeout(PATIENCE):
        return await awaitable


async def until(is_true: Callable[[], bool]) -> None:
    """Return when a condition holds that a thread or another task brings about."""
    async with asyncio.timeout(PATIENCE):
        while not is_true():
            # A turn of the loop that lets threads run, too.
            await asyncio.to_thread(lambda: None)


def start(awaitable: Awaitable[T]) -> "asyncio.Future[T]":
    """Let it run beside the test."""
    return asyncio.ensure_future(awaitable)


async def begin(awaitable: Awaitable[T]) -> "asyncio.Future[T]":
    """Let it run beside the test, up to the point where it waits for something."""
    begun = start(awaitable)
    await asyncio.sleep(0)
    return begun


def query(path: Path, sql: str, *values: object) -> list[tuple[Any, ...]]:
    """Rows of the file, read past postbus."""
    with closing(sqlite3.connect(path)) as connection, connection:
        return connection.execute(sql, values).fetchall()


def statuses(path: Path) -> dict[str, str]:
    """The status of every event in the file, by id."""
    return dict(query(path, "SELECT id, status FROM events ORDER BY global_sequence"))


def files_beside(path: Path) -> list[str]:
    """The names of the database and of what SQLite and postbus keep beside it."""
    return sorted(found.name for found in path.parent.glob(f"{path.name}*"))


async def leave_behind(
    path: Path,
    event_id: str,
    status: str,
    *,
    type: str = "order.placed",
    payload: object = None,
    metadata: dict[str, str] | None = None,
    retry_count: int = 0,
    errors: Sequence[str] = (),
    created_at: datetime = NOON,
) -> None:
    """Put an event into the file as a process that has ended would have left it."""
    if not files_beside(path):
        async with SQLiteStore(path):
            pass
    moment = created_at.isoformat(timespec="microseconds")
    last_error = msgspec.json.encode(list(errors)).decode() if errors else None
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("PRAGMA synchronous = OFF")
        connection.execute(
            "INSERT INTO events (id, type, payload, retry_count, last_error, metadata, created_at,"
            " updated_at) VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            (
                event_id,
                type,
                msgspec.json.encode(payload).decode(),
                retry_count,
                last_error,
                None if metadata is None else msgspec.json.encode(metadata).decode(),
                moment,
                moment,
            ),
        )
        # Not in one step with the insert: the number of dead letters is counted on change.
        connection.execute("UPDATE events SET status = ? WHERE id = ?", (status, event_id))
