"""A handler's own GeneratorExit is a failure like any other; a coroutine is closed from outside."""

import asyncio
import gc
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from postbus import Event, EventBus, EventStatus, RetryPolicy
from tests.delivery.exits import EXITS
from tests.delivery.steps import FlakyHandler, MakeBus, query, soon
from tests.patience import PATIENCE


@pytest.mark.parametrize("wait", [True, False])
@pytest.mark.parametrize("has_company", [True, False])
@pytest.mark.parametrize(("handler", "error"), EXITS.values(), ids=EXITS)
async def test_it_is_a_failed_attempt(
    make_bus: MakeBus,
    handler: Callable[[Event], object],
    error: str,
    has_company: bool,
    wait: bool,
) -> None:
    """Each of the attempts; publish returns, and what follows is delivered."""
    bus, following = make_bus(retry=RetryPolicy(max_retries=2)), FlakyHandler()
    bus.subscribe("order.cancelled", handler)
    if has_company:
        bus.subscribe("order.*", FlakyHandler())
    bus.subscribe("order.placed", following)
    event_id = await soon(bus.publish("order.cancelled", wait=wait))
    await soon(bus.publish("order.placed", wait=wait))
    await soon(bus.idle())
    event = await bus.store.get(event_id)

    assert (event.status, event.errors) == (EventStatus.DLQ, [error] * 3)
    assert len(following.events) == 1


@pytest.mark.parametrize("handler", [handler for handler, _ in EXITS.values()], ids=EXITS)
async def test_those_behind_it_in_a_list_are_delivered(
    make_bus: MakeBus, handler: Callable[[Event], object]
) -> None:
    """In their order."""
    bus, others = make_bus(retry=RetryPolicy(max_retries=0)), FlakyHandler()
    bus.subscribe("order.cancelled", handler)
    bus.subscribe("order.placed", others)
    placed: list[tuple[str, object]] = [("order.placed", number) for number in range(4)]
    await soon(bus.publish_many([*placed[:2], ("order.cancelled", None), *placed[2:]]))

    assert others.payloads == [0, 1, 2, 3]
    assert (await bus.dlq.list()).total == 1


def test_it_is_none_when_the_loop_is_gone(database: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever closes what is left of the handlers has no attempt to count: the next start delivers."""
    unseen: list[str] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda unraisable: unseen.append(str(unraisable.exc_value)))
    started, closed = asyncio.Event(), list[str]()

    async def hang(event: Event) -> None:
        started.set()
        try:
            await asyncio.Event().wait()
        except GeneratorExit:
            closed.append(event.type)
            raise

    async def collect() -> int:
        gc.collect()
        return len(asyncio.all_tasks())

    _leave_with_the_loop(EventBus(database), hang, started)

    # In another loop, where it would be easy to go on with them.
    assert asyncio.run(collect()) == 1
    assert sorted(closed) == ["order.cancelled", "order.placed"]
    assert "coroutine ignored GeneratorExit" not in unseen
    assert query(database, "SELECT type, status, retry_count, last_error FROM events ORDER BY type") == [
        ("order.cancelled", "done", 0, None),
        ("order.placed", "processing", 0, None),
    ]
    assert query(database, "SELECT last_global_sequence FROM event_bus_checkpoints") == [(0,)]


def _leave_with_the_loop(bus: EventBus, handler: Callable[[Event], object], started: asyncio.Event) -> None:
    """Without a word to its tasks, as a program does that just ends."""
    bus.subscribe("order.cancelled", handler, id="audit")
    bus.subscribe("order.placed", handler)
    loop = asyncio.new_event_loop()
    loop.run_until_complete(bus.publish("order.cancelled"))
    loop.run_until_complete(asyncio.wait_for(started.wait(), PATIENCE))
    started.clear()
    publishing = loop.create_task(bus.publish("order.placed"))
    loop.run_until_complete(asyncio.wait_for(started.wait(), PATIENCE))
    loop.close()
    asyncio.run(bus.shutdown())
    assert not publishing.done()
