"""Two buses on one file: one runs the handlers, the other publishes into it and stands by."""

import asyncio
from pathlib import Path

import pytest

from postbus import EventStatus
from tests.delivery.steps import BlockingHandler, FlakyHandler, MakeBus, query, soon, start, statuses, until


@pytest.fixture
async def handlers(make_bus: MakeBus) -> tuple[FlakyHandler, FlakyHandler]:
    """One for each bus."""
    return FlakyHandler(), FlakyHandler()


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
    """Even where the second has no handler for it: it can't know whether the owner has."""
    owner, standby = make_bus(), make_bus()
    await owner.start()
    await standby.publish("order.placed")
    await soon(owner.idle())
    before = list(statuses(database).values())
    handler = FlakyHandler()
    owner.subscribe(handler)
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
