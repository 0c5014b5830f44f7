"""A worker ends in good order: what it has begun is finished, and what it has not others get at once."""

import asyncio

from postbus import Event
from postbus.config import CheckpointMode
from tests.competing.steps import (
    ID,
    Holding,
    MakeBus,
    Noting,
    compete,
    publish_numbers,
    rows_of,
    until,
    until_rows,
    within,
)


async def test_handlers_at_hand_are_finished_and_the_rest_is_given_back(make_bus: MakeBus, dsn: str) -> None:
    """Without an attempt counted, and while the handlers still run."""
    bus, holding = make_bus(), Holding()
    compete(bus, holding, concurrency=3)
    await publish_numbers(bus, *range(8))
    await until(lambda: holding.running == 3)
    stopping = asyncio.ensure_future(bus.shutdown())
    rows = await until_rows(dsn, lambda rows: sum(row["status"] == "pending" for row in rows) == 5)
    holding.released.set()
    await within(10, stopping)

    assert {row["attempt_count"] for row in rows} == {0}
    assert not any(row["is_suspect"] for row in rows)
    assert len(holding.ended) == 3
    assert [row["status"] for row in await rows_of(dsn)] == ["pending"] * 5


async def test_what_was_processed_is_deleted_before_the_end(make_bus: MakeBus, dsn: str) -> None:
    """Also what waits for its batch to fill up."""
    bus, noting = make_bus(), Noting()
    compete(bus, noting, checkpoint_mode=CheckpointMode.batched(batch_size=1000, max_delay=60.0))
    await publish_numbers(bus, *range(20))
    await until(lambda: len(noting.events) == 20)
    before = len(await rows_of(dsn))
    await within(10, bus.shutdown())

    assert before == 20
    assert await rows_of(dsn) == []


async def test_a_handler_that_takes_longer_than_the_grace_is_cut_off(make_bus: MakeBus, dsn: str) -> None:
    """Its event is given back, and the next instance gets it at once, as no suspect."""
    bus, holding = make_bus(bus={"shutdown_timeout": 0.2}), Holding()
    compete(bus, holding)
    await publish_numbers(bus, 1)
    await until(lambda: holding.running == 1)
    await within(5, bus.shutdown())
    (row,) = await rows_of(dsn)
    other, noting = make_bus(), Noting()
    compete(other, noting)
    await within(10, other.idle())

    assert (row["status"], row["attempt_count"], row["is_suspect"]) == ("pending", 0, False)
    assert noting.numbers == [1]


async def test_a_handler_may_shut_the_bus_down(make_bus: MakeBus, dsn: str) -> None:
    """It is not waited for."""
    bus = make_bus(bus={"shutdown_timeout": 20.0})

    async def handle(_: Event) -> None:
        await bus.shutdown()

    compete(bus, handle)
    await publish_numbers(bus, 1)
    await until(lambda: bus.subscription(ID).state == "stopped")
    await within(10, bus.shutdown())

    assert all(row["attempt_count"] == 0 for row in await rows_of(dsn))


async def test_a_handler_that_needs_the_bus_while_it_shuts_down_is_tried_by_the_next(
    make_bus: MakeBus, dsn: str
) -> None:
    """The refusal is not the event's fault, and counts for nothing."""
    bus, begun, may_go_on = make_bus(max_retries=0), [], asyncio.Event()

    async def handle(event: Event) -> None:
        begun.append(event.payload)
        await may_go_on.wait()
        await bus.publish("order.answered", event.payload)

    bus.subscribe("order.placed", handle, id=ID, mode="competing")
    await publish_numbers(bus, 1)
    await until(lambda: begun == [1])
    stopping = asyncio.ensure_future(bus.shutdown())
    await asyncio.sleep(0)
    may_go_on.set()
    await within(10, stopping)

    (row,) = await rows_of(dsn)
    assert (row["status"], row["attempt_count"], row["is_suspect"]) == ("pending", 0, False)


async def test_an_instance_that_leaves_hands_the_feeding_over(make_bus: MakeBus) -> None:
    """Events that are published afterwards come to those who stay."""
    first, second, noting = make_bus(), make_bus(), Noting()
    compete(first, noting)
    await first.start()
    await until(lambda: first.subscription(ID).state == "live")
    compete(second, noting)
    await second.start()
    await within(10, first.shutdown())
    await publish_numbers(second, 1)

    assert await until(lambda: noting.numbers == [1]) < 5.0
