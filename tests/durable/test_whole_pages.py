"""A page of the log is delivered to its end, whatever comes in between."""

import asyncio
import time

from postbus import CheckpointMode, Event, EventBus, InMemoryStore, StoreBusyError
from postbus.events import Progress
from postbus.ports import CheckpointStore
from tests.delivery.steps import soon


class BusyCheckpoints:
    """The CheckpointStore port of a store that is busy while somebody says so."""

    def __init__(self, inner: CheckpointStore) -> None:
        self._inner = inner
        self.is_busy = False

    def __getattr__(self, name: str) -> object:
        return getattr(self._inner, name)

    async def save(self, progress: Progress) -> None:
        if self.is_busy:
            raise StoreBusyError("busy")
        await self._inner.save(progress)


async def test_a_page_that_is_broken_off_by_a_pause_is_gone_on_with_after_the_resume() -> None:
    """Also if the resume comes while the checkpoint of the pause is being written."""
    store = InMemoryStore()
    checkpoints = BusyCheckpoints(store.checkpoints)
    store.checkpoints = checkpoints  # type: ignore[assignment]
    bus, got = EventBus(store), list[int | None]()
    is_at_third, may_go_on = asyncio.Event(), asyncio.Event()

    async def handle(event: Event) -> None:
        got.append(event.global_sequence)
        if event.global_sequence == 3:
            is_at_third.set()
            await may_go_on.wait()

    async with bus:
        await bus.publish_many([("order.placed", number) for number in range(300)])
        bus.subscribe(handle, id="mail", checkpoint_mode=CheckpointMode.batched(1000, 1000.0))
        handle_of_mail = bus.subscription("mail")
        await soon(is_at_third.wait())
        waiting = asyncio.ensure_future(handle_of_mail.wait_for(2))
        await asyncio.sleep(0)
        checkpoints.is_busy = True
        pausing = asyncio.ensure_future(handle_of_mail.pause())
        await asyncio.sleep(0)
        may_go_on.set()
        await soon(pausing)
        await handle_of_mail.resume()
        checkpoints.is_busy = False
        await soon(handle_of_mail.caught_up())
        await soon(waiting)

    assert got == list(range(1, 301))


async def test_who_waits_for_an_event_does_not_wait_for_its_whole_page() -> None:
    """The checkpoint is written as soon as that event is processed, batched or not."""
    bus, is_held = EventBus("memory:"), asyncio.Event()

    async def handle(event: Event) -> None:
        if event.global_sequence == 2:
            await is_held.wait()

    async with bus:
        await bus.publish_many([("order.placed", number) for number in range(10)])
        bus.subscribe(handle, id="mail", checkpoint_mode=CheckpointMode.batched(1000, 1000.0))
        await soon(bus.subscription("mail").wait_for(1))
        checkpoint = bus.subscription("mail").checkpoint
        is_held.set()

    assert checkpoint == 1


async def test_handlers_that_never_wait_let_others_run() -> None:
    """A long catch-up does not keep the event loop to itself."""
    bus, got, seen = EventBus("memory:"), list[int](), set[int]()

    async def handle(event: Event) -> None:
        got.append(1)
        end = time.thread_time() + 0.000_5
        while time.thread_time() < end:
            pass

    async def look() -> None:
        while len(got) < 500:
            seen.add(len(got))
            await asyncio.sleep(0)

    async with bus:
        await bus.publish_many([("order.placed", number) for number in range(500)])
        bus.subscribe(handle, id="mail", checkpoint_mode=CheckpointMode.batched(10_000, 1000.0))
        await soon(look())

    # A quarter of a second of work, at most some milliseconds of it at a stretch.
    assert len(seen) > 20
