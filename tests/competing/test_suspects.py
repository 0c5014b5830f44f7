"""Rows of workers that have ended: tried one after the other, and counted when they are tried."""

import asyncio
from collections.abc import Callable, Iterable

import asyncpg

from tests.competing.steps import Holding, MakeBus, compete, publish_numbers, query, rows_of, until, within

_MAKE_SUSPECTS = "UPDATE postbus.event_bus_outbox SET is_suspect = true"


async def until_all(dsn: str, ids: Iterable[str], is_right: Callable[[asyncpg.Record], bool]) -> None:
    """Return when each pool has one row, which is right."""
    async with asyncio.timeout(10):
        for id in ids:
            while [is_right(row) for row in await rows_of(dsn, id)] != [True]:  # noqa: ASYNC110
                await asyncio.sleep(0.01)


async def test_a_suspect_that_waits_for_another_has_no_attempt_counted(make_bus: MakeBus, dsn: str) -> None:
    """If the other one ends the process again and again, it must not become a dead letter unseen."""
    bus, handlers = make_bus(), {"mail": Holding(), "sms": Holding()}
    for id in handlers:
        compete(bus, handlers[id], id=id)
    await bus.start()
    for id in handlers:
        await bus.subscription(id).pause()
    await publish_numbers(bus, 1)
    await until_all(dsn, handlers, lambda row: True)
    await query(dsn, _MAKE_SUSPECTS)
    for id in handlers:
        await bus.subscription(id).resume()
    await until(lambda: any(handler.running for handler in handlers.values()))
    await until_all(dsn, handlers, lambda row: row["status"] == "processing")
    counts = {id: (await rows_of(dsn, id))[0]["attempt_count"] for id in handlers}
    running = {id: handler.running for id, handler in handlers.items()}
    for handler in handlers.values():
        handler.released.set()
    for id in handlers:
        await within(10, bus.subscription(id).caught_up())

    assert counts == running
    assert sorted(running.values()) == [0, 1]
