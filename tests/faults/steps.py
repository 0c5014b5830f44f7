"""What tests of failures share: events that flow, connections that end, and what must hold afterwards."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import asyncpg
import pytest

from postbus import EventBus, StoreBusyError, StoreUnavailableError
from postbus.stores.postgres import lent
from tests.gaps.steps import ID, Seen, soon
from tests.patience import PATIENCE

T = TypeVar("T")

# After so many events the subscribers get to the end of the log: else a publisher that is faster than they
# are would keep them from being live.
_BURST = 20

# Of the bus whose DSN has no name of its own.
_BACKENDS = """
    FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'postbus'
"""


async def query(dsn: str, sql: str, *values: object) -> list[tuple[Any, ...]]:
    """The rows of a statement, past postbus."""
    connection = await asyncpg.connect(dsn)
    try:
        return [tuple(row) for row in await connection.fetch(sql, *values)]
    finally:
        await connection.close()


async def end_backends(dsn: str) -> int:
    """End every connection of the buses on this database, as an administrator would; how many."""
    return len(await query(dsn, f"SELECT pg_terminate_backend(pid) {_BACKENDS}"))


async def backend_count(dsn: str) -> int:
    """How many connections the buses on this database have."""
    return len(await query(dsn, f"SELECT pid {_BACKENDS}"))


def limit_statements(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """Have a statement of ours take no longer, so that a test need not wait for ten seconds."""
    monkeypatch.setattr(lent, "COMMAND_SECONDS", seconds)


async def payloads(dsn: str) -> list[Any]:
    """The payloads of all events, numbers, in order."""
    rows = await query(dsn, "SELECT data::text FROM postbus.events ORDER BY global_sequence")
    return [int(text) for (text,) in rows]


async def until(
    asked: Callable[[], Awaitable[T]], is_right: Callable[[T], bool], within: float = PATIENCE
) -> T:
    """The first right answer."""
    async with asyncio.timeout(within):
        while True:
            if is_right(answer := await asked()):
                return answer
            await asyncio.sleep(0.01)


class Flow:
    """Publishes one number after the other, never far ahead of the subscribers; a refusal is noted."""

    def __init__(self, bus: EventBus, ids: tuple[str, ...]) -> None:
        self._bus, self._ids = bus, ids
        self.acknowledged: list[int] = []
        self.refused: list[int] = []
        self._is_over = False

    async def more(self, count: int = 20, within: float = 20.0) -> None:
        """Return when so many more were acknowledged."""
        target = len(self.acknowledged) + count
        await soon(lambda: len(self.acknowledged) >= target, within)

    async def run(self) -> None:
        """Until it is over."""
        number = 0
        while not self._is_over:
            if number % _BURST == 0 and any(self._bus.subscription(id).lag for id in self._ids):
                await asyncio.sleep(0.005)
                continue
            number += 1
            try:
                await self._bus.publish("test.done", number)
            except (StoreUnavailableError, StoreBusyError):
                self.refused.append(number)
                await asyncio.sleep(0.01)
            else:
                self.acknowledged.append(number)

    def end(self) -> None:
        """Publish no more."""
        self._is_over = True


@asynccontextmanager
async def flowing(bus: EventBus, *ids: str) -> AsyncIterator[Flow]:
    """Events are published for the length of the block, to these subscribers."""
    flow = Flow(bus, ids or (ID,))
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(flow.run())
        try:
            yield flow
        finally:
            flow.end()


async def check_nothing_lost(dsn: str, flow: Flow, *all_seen: Seen) -> None:
    """Acknowledged: stored once; refused: at most once; and whatever is stored gets to everybody."""
    stored = await payloads(dsn)
    counts = Counter(stored)
    assert max(counts.values()) == 1, f"stored twice: {[each for each, count in counts.items() if count > 1]}"
    assert set(flow.acknowledged) <= set(stored)
    assert set(stored) <= {*flow.acknowledged, *flow.refused}
    for seen in all_seen:
        await soon(lambda seen=seen: {event.payload for event in seen.events} >= set(stored))  # type: ignore[misc]
        assert {event.payload for event in seen.events} == set(stored)


async def until_live(bus: EventBus, *ids: str, within: float = 20.0) -> float:
    """Wait until the subscribers deliver again; how many seconds that took."""
    return await soon(lambda: all(bus.subscription(id).state == "live" for id in ids or (ID,)), within)
