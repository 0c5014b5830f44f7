"""The table of subscriptions: for people who look into the file."""

from pathlib import Path

from tests.delivery.steps import FlakyHandler, MakeBus, query, soon


async def test_it_has_a_row_for_each_subscription(database: Path, make_bus: MakeBus) -> None:
    """With its pattern, in the order of subscribing; a lone star for those of every event."""
    bus, handler = make_bus(), FlakyHandler()
    ids = [bus.subscribe("order.*", handler), bus.subscribe(handler), bus.subscribe("user.created", handler)]
    await bus.start()
    await soon(bus.idle())
    rows = query(database, "SELECT id, event_type FROM subscriptions ORDER BY rowid")

    assert rows == [(ids[0], "order.*"), (ids[1], "*"), (ids[2], "user.created")]


async def test_it_follows_subscribing_and_unsubscribing(database: Path, make_bus: MakeBus) -> None:
    """While the bus runs."""
    bus = make_bus()
    await bus.start()
    first = bus.subscribe("order.*", FlakyHandler())
    await soon(bus.idle())
    seen = [query(database, "SELECT id FROM subscriptions")]
    second = bus.subscribe("user.*", FlakyHandler())
    bus.unsubscribe(first)
    await soon(bus.idle())
    seen.append(query(database, "SELECT id FROM subscriptions"))

    assert seen == [[(first,)], [(second,)]]


async def test_rows_of_an_earlier_process_are_gone_after_the_start(database: Path, make_bus: MakeBus) -> None:
    """Its handlers are."""
    for pattern in ("order.*", "user.*"):
        bus = make_bus()
        bus.subscribe(pattern, FlakyHandler())
        await bus.start()
        await soon(bus.idle())
        await bus.shutdown()

    assert query(database, "SELECT event_type FROM subscriptions") == [("user.*",)]


async def test_a_bus_without_handlers_leaves_it_alone(database: Path, make_bus: MakeBus) -> None:
    """It tells that there is somebody with handlers, who may be down at the moment."""
    first = make_bus()
    first.subscribe("order.*", FlakyHandler())
    await first.start()
    await soon(first.idle())
    await first.shutdown()
    second = make_bus()
    await second.start()
    await soon(second.idle())

    assert query(database, "SELECT event_type FROM subscriptions") == [("order.*",)]


async def test_a_bus_whose_last_handler_has_gone_clears_it(database: Path, make_bus: MakeBus) -> None:
    """It was the owner, and says that it has none any more."""
    bus = make_bus()
    subscription_id = bus.subscribe(FlakyHandler())
    await bus.start()
    await soon(bus.idle())
    bus.unsubscribe(subscription_id)
    await soon(bus.idle())

    assert query(database, "SELECT * FROM subscriptions") == []
