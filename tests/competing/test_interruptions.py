"""Somebody cancels the tasks of a worker or closes its store: it says so, and goes on or ends."""

import asyncio
import logging

import pytest

from postbus import Event
from postbus.config import CheckpointMode
from tests.competing.steps import (
    ID,
    Holding,
    MakeBus,
    Noting,
    compete,
    publish_numbers,
    query,
    rows_of,
    until,
    until_rows,
    within,
)


def tasks_of_worker() -> set["asyncio.Task[object]"]:
    return {task for task in asyncio.all_tasks() if task.get_name() == f"postbus worker of {ID}"}


async def test_tasks_that_a_stranger_cancels_start_again(
    make_bus: MakeBus, caplog: pytest.LogCaptureFixture
) -> None:
    """All of them, also the one whose handler runs: its event comes again."""
    bus, holding = make_bus(), Holding()
    compete(bus, holding, concurrency=2)
    await publish_numbers(bus, 1, 2, 3)
    await until(lambda: holding.running == 2)
    with caplog.at_level(logging.WARNING, "postbus"):
        for task in tasks_of_worker():
            task.cancel()
        await until(lambda: holding.running == 2 and len(holding.begun) >= 4)
    holding.released.set()
    await publish_numbers(bus, 4)
    await within(10, bus.idle())

    assert {1, 2, 3, 4} == set(holding.begun)
    assert any("cancelled from outside" in record.getMessage() for record in caplog.records)


async def test_a_handler_may_cancel_itself(make_bus: MakeBus) -> None:
    """A CancelledError of something that it waited for is a failed attempt, and nothing else."""
    bus = make_bus(max_retries=0)

    async def handle(_: Event) -> None:
        raise asyncio.CancelledError

    compete(bus, handle)
    await publish_numbers(bus, 1)
    await within(10, bus.idle())

    (letter,) = (await bus.dlq.list()).events
    assert letter.errors == ["CancelledError"]


async def test_a_store_that_is_closed_under_a_bus_stops_its_worker(make_bus: MakeBus) -> None:
    """The state says so, and the shutdown does not wait for it."""
    bus, noting = make_bus(), Noting()
    compete(bus, noting)
    await publish_numbers(bus, 1)
    await within(10, bus.idle())
    await bus.store.close()
    await until(lambda: bus.subscription(ID).state == "stopped")
    await within(5, bus.shutdown())


async def test_a_batch_is_written_after_its_delay_also_after_a_pause(make_bus: MakeBus, dsn: str) -> None:
    """A pause writes what there is, and what comes later has its own delay."""
    bus, noting = make_bus(), Noting()
    compete(bus, noting, checkpoint_mode=CheckpointMode.batched(batch_size=1000, max_delay=0.3))
    await publish_numbers(bus, 1)
    await until(lambda: noting.numbers == [1])
    await within(5, bus.subscription(ID).pause())
    paused = await rows_of(dsn)
    await bus.subscription(ID).resume()
    await publish_numbers(bus, 2)
    await until(lambda: noting.numbers == [1, 2])
    await until_rows(dsn, lambda rows: rows == [], within=3)

    assert paused == []


async def test_the_outbox_is_not_filled_further_than_workers_need(make_bus: MakeBus, dsn: str) -> None:
    """A long log stays in the log until there is room; then all of it is processed."""
    bus, count = make_bus(), 0

    async def handle(_: Event) -> None:
        nonlocal count
        count += 1

    compete(bus, handle, checkpoint_mode=CheckpointMode.batched())
    await bus.start()
    await bus.subscription(ID).pause()
    await query(
        dsn,
        "INSERT INTO postbus.events (id, event_type, data) "
        "SELECT 'e' || i, 'order.placed', 'null' FROM generate_series(1, 40000) AS i",
    )
    size = "SELECT count(*) FROM postbus.event_bus_outbox"
    while (await query(dsn, size))[0][0] < 20_000:  # noqa: ASYNC110
        await asyncio.sleep(0.05)
    await asyncio.wait([asyncio.ensure_future(bus.subscription(ID).wait_for(40_000))], timeout=0.5)
    ((waiting,),) = await query(dsn, size)
    await bus.subscription(ID).resume()
    await within(30, bus.subscription(ID).wait_for(40_000))

    assert waiting < 30_000
    assert count == 40_000
