"""Processions: the events of one publish_many, one after another, whatever a handler does."""

import asyncio
import contextvars

import pytest

from postbus import Event, EventBus, EventStatus, RetryPolicy
from postbus.testing import ManualClock
from tests.delivery.steps import MakeBus, soon, start, until

request_id = contextvars.ContextVar("request_id", default="none")


class Incomparable:
    """Refuses to be compared."""

    def __eq__(self, other: object) -> bool:
        raise ValueError("neither equal nor not")

    __hash__ = None  # type: ignore[assignment]


@pytest.fixture(params=["with context", "without context"])
def context(request: pytest.FixtureRequest) -> contextvars.Context:
    """The context of the publisher; where it is empty, couriers carry."""
    context = contextvars.Context()
    if request.param == "with context":
        context.run(request_id.set, "request 42")
    return context


async def _publish(bus: EventBus, count: int, context: contextvars.Context) -> list[str]:
    events = [("order.placed", number) for number in range(count)]
    return await asyncio.create_task(bus.publish_many(events), context=context)


async def test_what_a_handler_changes_in_its_context_is_not_for_the_next_event(
    make_bus: MakeBus, context: contextvars.Context
) -> None:
    """Neither for the next of the same call nor for the next call."""
    bus = make_bus()
    seen: list[str] = []

    @bus.on("order.*")
    async def change(event: Event) -> None:
        seen.append(request_id.get())
        request_id.set(f"changed by {event.payload}")

    expected = context.run(request_id.get)
    await soon(_publish(bus, 3, context.copy()))
    await soon(_publish(bus, 2, context.copy()))

    assert seen == [expected] * 5


async def test_values_that_can_not_be_compared_hold_up_nothing(make_bus: MakeBus) -> None:
    """As an array, of which nobody can say in one word whether it is equal to another."""
    bus = make_bus()
    context = contextvars.Context()
    matrix: contextvars.ContextVar[Incomparable] = contextvars.ContextVar("matrix")
    given = Incomparable()
    context.run(matrix.set, given)
    seen: list[bool] = []

    @bus.on("order.*")
    async def change(_: Event) -> None:
        seen.append(matrix.get() is given)
        matrix.set(Incomparable())

    await soon(_publish(bus, 3, context))

    assert seen == [True] * 3


async def test_a_single_event_does_not_see_the_changes_of_the_one_before(
    make_bus: MakeBus, context: contextvars.Context
) -> None:
    """Although one courier carries both."""
    bus = make_bus()
    seen: list[str] = []

    @bus.on("order.*")
    async def change(_: Event) -> None:
        seen.append(request_id.get())
        request_id.set("changed")

    async def publish_twice() -> None:
        await bus.publish("order.placed")
        await bus.publish("order.placed")

    expected = context.run(request_id.get)
    await soon(asyncio.create_task(publish_twice(), context=context))

    assert seen == [expected] * 2


async def test_a_handler_that_will_not_end_does_not_hold_up_the_next_event(
    make_bus: MakeBus, context: contextvars.Context
) -> None:
    """Each event gets its one attempt, in order."""
    clock = ManualClock()
    bus = make_bus(clock=clock, handler_timeout=5.0, retry=RetryPolicy(max_retries=0))
    seen: list[int] = []
    released = asyncio.Event()

    @bus.on("order.*")
    async def stay(event: Event) -> None:
        seen.append(event.payload)
        while event.payload == 1 and not released.is_set():
            try:
                await released.wait()
            except asyncio.CancelledError:
                continue

    publishing = start(_publish(bus, 4, context))
    await until(lambda: 1 in seen)
    before = list(seen)
    await clock.advance(5)
    await clock.advance(2)
    ids = await soon(publishing)
    statuses = [(await bus.store.get(event_id)).status for event_id in ids]
    released.set()

    assert before == [0, 1]
    assert seen == [0, 1, 2, 3]
    assert statuses == [EventStatus.DONE, EventStatus.DLQ, EventStatus.DONE, EventStatus.DONE]


async def test_the_loop_has_its_turn_in_a_long_procession(
    make_bus: MakeBus, context: contextvars.Context
) -> None:
    """A handler that never waits does not keep everything else from running."""
    bus = make_bus()
    turn_count = 0
    turns_at: list[int] = []

    @bus.on("order.*")
    async def note(_: Event) -> None:
        turns_at.append(turn_count)

    async def count_turns() -> None:
        nonlocal turn_count
        while True:
            await asyncio.sleep(0)
            turn_count += 1

    counting = start(count_turns())
    await soon(_publish(bus, 1000, context))
    counting.cancel()

    assert len(set(turns_at)) >= 5
