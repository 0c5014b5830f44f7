"""The lane of events that no publisher waits for: what may not stop it, and what may not double it."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from postbus import Event, RetryPolicy, SQLiteStore
from postbus.events import GlobalSequence
from postbus.ports import Backlog
from tests.delivery.steps import FlakyHandler, MakeBus, soon, start, until


async def test_many_that_wait_for_one_handler_hold_up_no_other(make_bus: MakeBus) -> None:
    """However many there are: a mail server that is down does not stop the rest of a worker."""
    bus, fine = make_bus(retry=RetryPolicy(max_retries=1, base_delay=3600.0)), FlakyHandler()

    @bus.on("bad.*")
    async def fail(_: Event) -> None:
        raise ValueError

    bus.subscribe("good.*", fine)
    await bus.publish_many([("bad.thing", number) for number in range(2_500)], wait=False)
    await bus.publish("good.thing", 42, wait=False)

    await until(lambda: fine.payloads == [42])


async def test_those_that_had_no_place_come_later_and_in_order(make_bus: MakeBus) -> None:
    """When those before them are done, and without a word from anybody."""
    bus, is_down, seen = make_bus(), asyncio.Event(), list[int]()

    @bus.on("bad.*")
    async def handle(event: Event) -> None:
        if not is_down.is_set():
            raise ValueError
        seen.append(event.payload)

    bus.subscribe("good.*", FlakyHandler())
    await bus.publish_many([("bad.thing", number) for number in range(2_500)], wait=False)
    await bus.publish("good.thing", wait=False)
    is_down.set()
    await soon(bus.idle())

    assert sorted(seen) == list(range(2_500))


async def test_it_goes_on_after_somebody_has_cancelled_all_tasks(make_bus: MakeBus) -> None:
    """As some programs do with what is left over of a job."""
    bus, handler = make_bus(), FlakyHandler()
    bus.subscribe(handler)
    await bus.publish("order.placed", 1)
    _lanes()[0].cancel()
    await bus.publish("order.placed", 2, wait=False)
    await soon(bus.idle())

    assert handler.payloads == [1, 2]


async def test_what_it_had_claimed_by_then_is_delivered_all_the_same(make_bus: MakeBus) -> None:
    """Once each: what has not begun is put back, and the handler that runs ends in peace."""
    bus, seen, is_free = make_bus(), list[object](), asyncio.Event()

    @bus.on("*")
    async def handle(event: Event) -> None:
        seen.append(event.payload)
        if event.payload == 20:
            await is_free.wait()

    await bus.publish_many([("placed", number) for number in range(100)], wait=False)
    await until(lambda: 20 in seen)
    _lanes()[0].cancel()
    await asyncio.sleep(0)
    is_free.set()
    await soon(bus.idle())
    await soon(bus.shutdown())

    assert sorted(map(int, map(str, seen))) == list(range(100))


async def test_what_was_being_claimed_is_delivered_as_well(database: Path, make_bus: MakeBus) -> None:
    """The claim may be written although nobody hears of it."""
    store = SQLiteStore(database)
    backlog = LateBacklog(store.backlog)
    store.backlog = backlog  # type: ignore[assignment]
    bus, handler = make_bus(target=store), FlakyHandler()
    bus.subscribe(handler)
    await bus.start()
    await bus.publish_many([("placed", number) for number in range(10)], wait=False)
    await soon(backlog.has_claimed.wait())
    _lanes()[0].cancel()
    await asyncio.sleep(0)
    await soon(bus.idle())

    assert handler.payloads == list(range(10))
    assert {event.retry_count for event in handler.events} == {0}


class LateBacklog:
    """The backlog of a real store; says nothing of what it has claimed the first time."""

    def __init__(self, real: Backlog) -> None:
        self._real = real
        self.has_claimed = asyncio.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    async def claim(self, sequences: Sequence[GlobalSequence]) -> set[GlobalSequence]:
        claimed = await self._real.claim(sequences)
        if not self.has_claimed.is_set():
            self.has_claimed.set()
            await asyncio.Event().wait()
        return claimed


async def test_a_start_that_was_cancelled_leaves_no_second_one(make_bus: MakeBus) -> None:
    """The next start goes on from there; two would break the order."""
    bus, handler = make_bus(), FlakyHandler()
    bus.subscribe(handler)
    bus.subscribe("*", FlakyHandler(), id="mail", start_from="now")
    starting = start(bus.start())
    # Then it has to ask the store where the log is now.
    while not _lanes():  # noqa: ASYNC110
        await asyncio.sleep(0)
    was_started = starting.done()
    starting.cancel()
    await asyncio.wait([starting])
    await bus.start()
    await bus.publish_many([("order.placed", number) for number in range(20)], wait=False)
    await soon(bus.idle())

    assert not was_started
    assert len(_lanes()) == 1
    assert handler.payloads == list(range(20))


def _lanes() -> list["asyncio.Task[object]"]:
    return [task for task in asyncio.all_tasks() if task.get_name() == "postbus backlog"]
