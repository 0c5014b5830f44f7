"""After a process that ended, suspects are tried one after the other: no innocent event loses attempts."""

import asyncio

from postbus import Event, EventBus, InMemoryStore, RetryPolicy
from postbus.delivery.patience import Patience
from postbus.delivery.suspects import Suspects
from postbus.events import GlobalSequence, Progress, SubscriberId
from postbus.testing import ManualClock
from tests.contracts.steps import BEGINNING
from tests.patience import PATIENCE


def make_patience() -> Patience:
    return Patience("mail", ManualClock(), lambda: 0.0, lambda: None)


async def test_one_is_inside_at_a_time() -> None:
    """Whoever comes later waits, in any number, and none is forgotten."""
    suspects, patience = Suspects(), make_patience()
    await suspects.enter("first", patience)
    others = [asyncio.ensure_future(suspects.enter(name, patience)) for name in ("second", "third")]
    await asyncio.wait(others, timeout=0.01)
    waited = [other.done() for other in others]
    inside = []
    suspects.leave("first")
    for name, other in zip(("second", "third"), others, strict=True):
        await asyncio.wait_for(other, PATIENCE)
        inside.append(name)
        suspects.leave(name)

    assert waited == [False, False]
    assert inside == ["second", "third"]


async def test_two_suspects_of_one_bus_are_never_in_their_handlers_at_once() -> None:
    """Should the process end again, it is known which of them did it."""
    store, running, together = InMemoryStore(), set[str](), list[set[str]]()
    bus = EventBus(store)
    (event,) = await store.append("s", [("order.placed", None)])
    for name in ("mail", "books"):
        await _interrupt(store, SubscriberId(name), event, attempt_count=1)

    def make_handler(name: str) -> None:
        @bus.on("order.placed", id=name, retry=RetryPolicy(max_retries=2))
        async def handle(event: Event) -> None:
            running.add(name)
            together.append(set(running))
            await asyncio.sleep(0.01)
            running.discard(name)

    make_handler("mail")
    make_handler("books")
    async with bus:
        await bus.subscription("mail").caught_up(30)
        await bus.subscription("books").caught_up(30)

    assert sorted(map(sorted, together)) == [["books"], ["mail"]]


async def _interrupt(store: InMemoryStore, name: SubscriberId, event: Event, attempt_count: int) -> None:
    """As if the process had ended in that attempt of the event."""
    owner = await store.checkpoints.claim(name, BEGINNING)
    await store.checkpoints.save(
        Progress(
            subscriber_id=name,
            epoch=owner.epoch,
            position=GlobalSequence(0),
            attempt_sequence=event.global_sequence,
            attempt_count=attempt_count,
        )
    )
