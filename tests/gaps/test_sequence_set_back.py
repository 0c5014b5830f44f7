"""A sequence that is set back under a running bus gives numbers again that subscribers have passed."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from postbus import PgEventBus
from postbus.errors import UnsoundLogError
from tests.gaps.steps import Writer, running, writer

SET_BACK = "SELECT setval('postbus.events_global_sequence_seq', 3)"


@pytest.fixture
async def bus(postgres_dsn: str) -> AsyncIterator[PgEventBus]:
    """A log with the events 1 to 3 and 7 to 9, of which a subscriber has had all."""
    async with running(postgres_dsn) as (bus, [seen]), writer(postgres_dsn) as a:
        await bus.publish_many([("test.done", number) for number in (1, 2, 3)])
        await a.run("SELECT nextval('postbus.events_global_sequence_seq') FROM generate_series(4, 6)")
        await bus.publish_many([("test.done", number) for number in (7, 8, 9)])
        await bus.idle()
        assert seen.numbers == [1, 2, 3, 7, 8, 9]
        yield bus


@pytest.fixture
async def meddler(bus: PgEventBus, postgres_dsn: str) -> AsyncIterator[Writer]:
    """Somebody with a session of its own."""
    async with writer(postgres_dsn) as meddler:
        yield meddler


async def test_a_lone_publisher_is_told_that_its_event_may_be_passed_over(
    bus: PgEventBus, meddler: Writer
) -> None:
    """The event is stored where nobody looks any more: that must not be taken for a success."""
    await meddler.run(SET_BACK)
    with pytest.raises(UnsoundLogError, match=r"numbers 4 to 4.*number 9.*up to 4.*setval.*checkpoints to 3"):
        await bus.publish("test.done")


async def test_of_those_who_share_a_commit_everybody_is_told(bus: PgEventBus, meddler: Writer) -> None:
    """Whatever is published at the same moment."""
    await meddler.run(SET_BACK)
    publishing = [bus.publish("test.done", stream_id=f"order-{number}") for number in range(3)]
    outcomes = await asyncio.gather(*publishing, return_exceptions=True)

    assert [type(outcome) for outcome in outcomes] == [UnsoundLogError] * 3


async def test_a_number_that_is_in_use_is_refused_with_the_cause(bus: PgEventBus, meddler: Writer) -> None:
    """Not with what the server says of its index."""
    await meddler.run(SET_BACK.replace("3", "6"))
    for event in [{}, {"stream_id": "order-1"}]:
        with pytest.raises(UnsoundLogError, match=r"second time.*nothing was stored; it was set back"):
            await bus.publish("test.done", **event)  # type: ignore[arg-type]


async def test_a_number_below_one_that_was_committed_before_is_no_fault(
    bus: PgEventBus, meddler: Writer
) -> None:
    """Transactions commit out of order, and nothing was set back."""
    await meddler.run("BEGIN")
    drawn = await meddler.insert()
    await bus.publish("test.done")
    await meddler.run("COMMIT")
    await bus.publish("test.done")

    assert drawn == 10


async def test_numbers_that_were_lost_may_be_given_again(postgres_dsn: str) -> None:
    """As after a failover to a standby that was behind: the log ends where the sequence does."""
    async with PgEventBus(postgres_dsn) as bus, writer(postgres_dsn) as meddler:
        await bus.publish_many([("test.done", number) for number in range(5)])
        await meddler.run("DELETE FROM postbus.events WHERE global_sequence > 2")
        await meddler.run(SET_BACK.replace("3", "2"))
        await bus.publish("test.done")
        await bus.publish("test.done", stream_id="order-1")

        assert [event.global_sequence for event in await bus.store.read_all()] == [1, 2, 3, 4]
