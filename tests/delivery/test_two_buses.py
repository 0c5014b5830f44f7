"""Two buses on one file: one runs the handlers, the other publishes into it and stands by."""

import asyncio
from pathlib import Path

import pytest

from postbus import EventBus, EventStatus, InvalidTargetError, SQLiteStore, StoreFullError
from tests.delivery.steps import BlockingHandler, FlakyHandler, MakeBus, query, soon, start, statuses, until


async def test_the_first_is_the_owner_and_the_second_publishes_for_it(make_bus: MakeBus) -> None:
    """Only the owner's handlers run; publish on the second returns when the event is durable."""
    owner, standby = make_bus(), make_bus()
    owners, standbys = FlakyHandler(), FlakyHandler()
    owner.subscribe(owners)
    standby.subscribe(standbys)
    await owner.start()
    await standby.start()
    event_id = await soon(standby.publish("order.placed", 42))
    await until(lambda: bool(owners.events))
    await soon(owner.idle())

    assert (owners.payloads, standbys.payloads) == ([42], [])
    assert (await owner.store.get(event_id)).status is EventStatus.DONE


async def test_what_the_second_publishes_stays_pending_for_the_owner(
    database: Path, make_bus: MakeBus
) -> None:
    """Even where neither has a handler for it: the second can't know what the owner has."""
    owner, standby = make_bus(), make_bus()
    for bus in (owner, standby):
        bus.subscribe("user.*", FlakyHandler())
    await owner.start()
    await standby.publish("order.placed")
    await soon(owner.idle())
    before = list(statuses(database).values())
    handler = FlakyHandler()
    owner.subscribe("order.*", handler)
    await soon(owner.idle())

    assert before == ["pending"]
    assert len(handler.events) == 1


async def test_the_second_waits_for_no_handler(make_bus: MakeBus) -> None:
    """The owner's may take as long as it likes."""
    owner, standby, handler = make_bus(), make_bus(), BlockingHandler()
    owner.subscribe(handler)
    await owner.start()
    await soon(standby.publish("order.placed"))
    await soon(handler.started.wait())
    handler.released.set()
    await soon(owner.idle())

    assert handler.finish_count == 1


async def test_the_second_takes_over_when_the_first_shuts_down(make_bus: MakeBus) -> None:
    """Without being told, with what is pending and with what comes."""
    owner, standby = make_bus(), make_bus()
    owners, standbys = FlakyHandler(), FlakyHandler()
    owner.subscribe("order.*", owners)
    standby.subscribe("user.*", standbys)
    await owner.start()
    await standby.publish("user.created", 1)
    await soon(owner.idle())
    await owner.shutdown()
    await until(lambda: bool(standbys.events))
    await soon(standby.publish("user.created", 2))

    assert (owners.payloads, standbys.payloads) == ([], [1, 2])


@pytest.mark.parametrize("had_handlers", [False, True])
async def test_a_bus_without_handlers_never_takes_over(make_bus: MakeBus, had_handlers: bool) -> None:
    """Not if it began beside an owner either, nor after its own were unsubscribed while it stood by."""
    owner, web, following = make_bus(), make_bus(), make_bus()
    owner.subscribe(FlakyHandler())
    await owner.start()
    await web.start()
    if had_handlers:
        subscription_id = web.subscribe(FlakyHandler())
        await soon(web.idle())
        web.unsubscribe(subscription_id)
        await soon(web.idle())
    await owner.shutdown()
    # The writer's thread looks now and then who owns the file.
    writer = web.store.writer  # type: ignore[attr-defined]
    count = writer._tick_count
    await until(lambda: writer._tick_count >= count + 2)
    handler = FlakyHandler()
    following.subscribe(handler)
    await following.start()
    await soon(following.publish("order.placed", 42))

    assert handler.payloads == [42]


async def test_nobody_takes_events_in_flight_from_the_owner(database: Path, make_bus: MakeBus) -> None:
    """A bus that starts while another is at work recovers nothing."""
    owner, standby, handler, others = make_bus(), make_bus(), BlockingHandler(), FlakyHandler()
    owner.subscribe(handler)
    standby.subscribe(others)
    publishing = start(owner.publish("order.placed"))
    await soon(handler.started.wait())
    await standby.start()
    await soon(standby.idle())
    row = query(database, "SELECT status, retry_count FROM events")
    handler.released.set()
    await soon(publishing)

    assert row == [("processing", 0)]
    assert (len(handler.events), others.events) == (1, [])


async def test_the_owner_shuts_down_in_the_middle_and_the_second_goes_on(make_bus: MakeBus) -> None:
    """Each event is delivered once, in order, by one of the two."""
    owner, standby = make_bus(), make_bus()
    seen: list[tuple[str, int]] = []
    reached = asyncio.Event()

    @owner.on("order.*")
    async def by_owner(event: object) -> None:
        seen.append(("owner", event.payload))  # type: ignore[attr-defined]
        if len(seen) == 5:
            reached.set()
        await asyncio.sleep(0)

    @standby.on("order.*")
    async def by_standby(event: object) -> None:
        seen.append(("standby", event.payload))  # type: ignore[attr-defined]

    await owner.start()
    await standby.publish_many([("order.placed", number) for number in range(500)])
    await soon(reached.wait())
    await soon(owner.shutdown())
    await until(lambda: len(seen) >= 500)
    await soon(standby.idle())

    assert [number for _, number in seen] == list(range(500))
    assert {name for name, _ in seen} == {"owner", "standby"}


async def test_the_table_of_subscriptions_is_the_owners(database: Path, make_bus: MakeBus) -> None:
    """The second writes its own when it takes over."""
    owner, standby = make_bus(), make_bus()
    owners_id = owner.subscribe("order.*", FlakyHandler())
    standbys_id = standby.subscribe("user.*", FlakyHandler())
    await owner.start()
    await standby.start()
    await soon(asyncio.gather(owner.idle(), standby.idle()))
    before = query(database, "SELECT id FROM subscriptions")
    await owner.shutdown()
    await until(lambda: query(database, "SELECT id FROM subscriptions") == [(standbys_id,)])

    assert before == [(owners_id,)]


async def test_one_that_never_was_the_owner_gives_nothing_back(database: Path, make_bus: MakeBus) -> None:
    """Its shutdown touches nothing of what the owner has in flight."""
    owner, standby, handler = make_bus(), make_bus(), BlockingHandler()
    owner.subscribe(handler)
    publishing = start(owner.publish("order.placed"))
    await soon(handler.started.wait())
    await standby.start()
    await soon(standby.shutdown())
    row = query(database, "SELECT status, retry_count FROM events")
    handler.released.set()
    await soon(publishing)

    assert row == [("processing", 0)]


class TestPublisherWithoutHandlers:
    """The usual split: one process takes requests and publishes, another one has the handlers."""

    async def test_it_leaves_the_handlers_to_the_one_that_has_some(self, make_bus: MakeBus) -> None:
        """Also when it was there first."""
        publisher, worker, handler = make_bus(), make_bus(), FlakyHandler()
        await publisher.start()
        worker.subscribe(handler)
        await worker.start()
        await soon(worker.idle())
        await worker.publish("order.placed", 1)
        await until(lambda: len(handler.events) == 1)

        assert handler.payloads == [1]

    async def test_what_it_publishes_is_delivered_by_the_worker(self, make_bus: MakeBus) -> None:
        """From the moment on in which the worker's start has returned."""
        publisher, worker, handler = make_bus(), make_bus(), FlakyHandler()
        await publisher.start()
        worker.subscribe(handler)
        await worker.start()
        for number in range(20):
            await soon(publisher.publish("order.placed", number))
        await until(lambda: len(handler.events) == 20)

        assert handler.payloads == list(range(20))

    async def test_it_waits_in_the_file_while_the_worker_is_down(
        self, database: Path, make_bus: MakeBus
    ) -> None:
        """A worker that was there before will be there again."""
        worker = make_bus()
        worker.subscribe("order.*", FlakyHandler())
        await worker.start()
        await soon(worker.idle())
        await worker.shutdown()
        await make_bus().publish("order.placed", 42)
        before = list(statuses(database).values())
        successor, handler = make_bus(), FlakyHandler()
        successor.subscribe("order.*", handler)
        await successor.start()
        await soon(successor.idle())

        assert (before, handler.payloads) == (["pending"], [42])

    async def test_where_nobody_ever_had_a_handler_it_is_done_at_once(
        self, database: Path, make_bus: MakeBus
    ) -> None:
        """As specified: an event log needs no handlers."""
        await make_bus().publish("order.placed")

        assert list(statuses(database).values()) == ["done"]


async def test_an_owner_whose_handlers_are_gone_leaves_the_dispatch_to_another(make_bus: MakeBus) -> None:
    """Without shutting down."""
    owner, standby, handler = make_bus(), make_bus(), FlakyHandler()
    subscription_id = owner.subscribe(FlakyHandler())
    standby.subscribe(handler)
    await owner.start()
    await standby.start()
    owner.unsubscribe(subscription_id)
    await until(lambda: not owner.store.dispatch_lock.is_held)  # type: ignore[attr-defined]
    await standby.publish("order.placed", wait=False)
    await until(lambda: bool(handler.events))

    assert len(handler.events) == 1


async def test_one_store_is_for_one_bus_at_a_time(database: Path) -> None:
    """A second one would recover what the first has in flight."""
    store = SQLiteStore(database)
    async with EventBus(store):
        with pytest.raises(InvalidTargetError, match="in use by another bus"):
            await EventBus(store).start()
    async with EventBus(store) as successor:
        await successor.publish("order.placed")

    assert list(statuses(database).values()) == ["done"]


async def test_a_start_that_failed_leaves_nothing_locked(
    database: Path, make_bus: MakeBus, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With async with, which does not come to its end: another bus becomes the owner."""
    failing, handler = EventBus(database), FlakyHandler()
    failing.subscribe(FlakyHandler())

    async def fail(*_errors: str) -> int:
        raise StoreFullError("no room")

    monkeypatch.setattr(failing.store.backlog, "recover", fail)
    with pytest.raises(StoreFullError):
        async with failing:
            pass
    bus = make_bus()
    bus.subscribe(handler)
    await bus.publish("order.placed")

    assert len(handler.events) == 1
