"""Whoever waits for all that is in the log waits for what has come in below its head, too."""

import asyncio
from typing import Any

import pytest

from postbus import PgEventBus, ReliableDeliveryConfig
from tests.gaps.steps import ID, Seen, soon, writer
from tests.patience import PATIENCE

# So rarely that a subscriber does not find by itself what nobody tells it of.
_RARELY = 3600.0
_WAYS: dict[str, dict[str, Any]] = {
    "alone": {},
    "competing": {"mode": "competing"},
    "partitions": {"partitions": 2},
}


async def _wait_for_all(bus: PgEventBus, wait: str) -> None:
    async with asyncio.timeout(PATIENCE):
        await (bus.idle() if wait == "idle" else bus.subscription(ID).caught_up())


@pytest.mark.parametrize("wait", ["caught_up", "idle"])
@pytest.mark.parametrize("way", list(_WAYS))
async def test_what_has_filled_a_gap_is_waited_for(postgres_dsn: str, way: str, wait: str) -> None:
    """It was committed before we asked, by a program that notifies nobody, and below the head."""
    bus, seen = PgEventBus(postgres_dsn, config=ReliableDeliveryConfig(poll_interval=_RARELY)), Seen()
    bus.subscribe("test.*", seen, id=ID, **_WAYS[way])
    async with bus, writer(postgres_dsn) as a:
        await bus.idle()
        for _ in range(3):
            await a.run("BEGIN")
            gap = await a.insert()
            await bus.publish("test.done")
            await soon(lambda: gap + 1 in seen.numbers)  # noqa: B023
            await a.run("COMMIT")
            await _wait_for_all(bus, wait)

            assert sorted(seen.numbers)[-2:] == [gap, gap + 1]


@pytest.mark.parametrize("wait", ["caught_up", "idle"])
async def test_what_is_not_committed_is_not_waited_for(postgres_dsn: str, wait: str) -> None:
    """Nor what has filled another gap and is not wanted."""
    bus, seen = PgEventBus(postgres_dsn, config=ReliableDeliveryConfig(poll_interval=_RARELY)), Seen()
    bus.subscribe("test.wanted", seen, id=ID)
    async with bus, writer(postgres_dsn) as a, writer(postgres_dsn) as b:
        await a.run("BEGIN")
        await a.insert()
        await b.run("BEGIN")
        await b.insert()
        await bus.publish("test.wanted")
        await soon(lambda: len(seen.numbers) == 1)
        await b.run("COMMIT")
        await _wait_for_all(bus, wait)

        assert len(seen.numbers) == 1
