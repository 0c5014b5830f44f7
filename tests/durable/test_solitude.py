"""An event on its last attempt is alone, so that a crash buries the guilty one only."""

import asyncio

from postbus import Event, EventBus, InMemoryStore, RetryPolicy
from postbus.delivery.patience import Patience
from postbus.delivery.solitude import Solitude
from postbus.events import GlobalSequence, Progress, SubscriberId
from postbus.testing import ManualClock


def make_patience() -> Patience:
    return Patience("mail", ManualClock(), lambda: 0.0, lambda: None)


async def turn() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_who_wants_to_be_alone_waits_for_the_others() -> None:
    """And they begin nothing new until it is over."""
    solitude, patience = Solitude(), make_patience()
    await solitude.begin_work("other", patience)
    await solitude.begin_work("me", patience)
    alone = asyncio.ensure_future(solitude.begin_alone("me", patience))
    await turn()
    was_wanted, was_alone = solitude.is_wanted_by_other("other"), alone.done()
    solitude.end_work("other")
    await asyncio.wait_for(alone, 5)
    again = asyncio.ensure_future(solitude.begin_work("other", patience))
    await turn()
    was_let_in = again.done()
    solitude.end_alone("me")
    await asyncio.wait_for(again, 5)

    assert (was_wanted, was_alone, was_let_in) == (True, False, False)


async def test_two_who_want_to_be_alone_are_so_one_after_the_other() -> None:
    """Neither waits for the other for ever."""
    solitude, patience = Solitude(), make_patience()
    for me in ("first", "second"):
        await solitude.begin_work(me, patience)
    first = asyncio.ensure_future(solitude.begin_alone("first", patience))
    second = asyncio.ensure_future(solitude.begin_alone("second", patience))
    await asyncio.wait_for(first, 5)
    was_second_in = second.done()
    solitude.end_work("first")
    await asyncio.wait_for(second, 5)

    assert not was_second_in


async def test_a_last_attempt_after_interrupted_ones_runs_while_nobody_else_does() -> None:
    """The other subscriber is in no handler meanwhile, and goes on afterwards."""
    store = InMemoryStore()
    store_id, running, together = SubscriberId("guilty"), set[str](), list[set[str]]()
    bus = EventBus(store)

    async def note(name: str) -> None:
        running.add(name)
        if name == "guilty":
            together.append(set(running))
        await asyncio.sleep(0.001)
        running.discard(name)

    async def guilty(event: Event) -> None:
        await note("guilty")

    async def innocent(event: Event) -> None:
        await note("innocent")

    event = (await store.append("s", [("order.placed", None)]))[0]
    for _ in range(200):
        await store.append("s", [("order.listed", None)])
    owner = await store.checkpoints.claim(store_id, GlobalSequence(0))
    # As if the process had ended in each of the first two attempts.
    await store.checkpoints.save(
        Progress(
            subscriber_id=store_id,
            epoch=owner.epoch,
            position=GlobalSequence(0),
            attempt_sequence=event.global_sequence,
            attempt_count=2,
        )
    )
    bus.subscribe("order.placed", guilty, id="guilty", retry=RetryPolicy(max_retries=2))
    bus.subscribe("order.listed", innocent, id="innocent")
    async with bus:
        await bus.subscription("guilty").caught_up(30)
        await bus.subscription("innocent").caught_up(30)

    assert together == [{"guilty"}]
