"""A handler that takes too long has failed; the subscriber goes on, and the others never notice."""

import asyncio
import contextlib
import threading

import pytest

from postbus import CheckpointMode, Event, Projection, RetryPolicy, StateStore
from postbus.events import SubscriberId
from postbus.testing import ManualClock
from tests.delivery.steps import BlockingHandler, FlakyHandler, soon, start, until
from tests.durable.steps import (
    ID,
    MakeBus,
    let_others_run,
    letters_of,
    pass_time,
    position_of,
    publish_numbers,
)

ONCE = RetryPolicy(max_retries=0)
LATE = "TimeoutError: handler took longer than 5 s and was cancelled"
STUBBORN = f"{LATE}, and goes on nevertheless"
IN_A_THREAD = "TimeoutError: handler took longer than 5 s and goes on: a thread can't be cancelled"


class StubbornHandler:
    """Swallows its cancellation for one payload, and goes on until it is released."""

    def __init__(self, payload: object) -> None:
        self.events: list[Event] = []
        self.released = asyncio.Event()
        self.started = asyncio.Event()
        self.finish_count = 0
        self._payload = payload

    async def __call__(self, event: Event) -> None:
        self.events.append(event)
        if event.payload == self._payload:
            self.started.set()
            await resist(self.released)
        self.finish_count += 1


async def resist(released: asyncio.Event) -> None:
    """Wait, whoever cancels it; not for ever, so that a test that fails ends."""
    loop = asyncio.get_running_loop()
    gives_up_at = loop.time() + 5
    while not released.is_set() and loop.time() < gives_up_at:
        with contextlib.suppress(asyncio.CancelledError, TimeoutError):
            await asyncio.wait_for(released.wait(), 1)


async def test_an_async_handler_is_cancelled_and_has_failed(make_bus: MakeBus, clock: ManualClock) -> None:
    bus, handler = make_bus(), BlockingHandler()
    bus.subscribe("*", handler, id=ID, timeout=5, retry=ONCE)
    await publish_numbers(bus, 1)
    await soon(handler.started.wait())
    await clock.advance(4.9)
    was_cancelled_early = handler.was_cancelled
    await clock.advance(0.1)
    await soon(bus.idle())
    (letter,) = await letters_of(bus)

    assert (was_cancelled_early, handler.was_cancelled) == (False, True)
    assert letter.errors == [LATE]


async def test_the_next_event_has_all_its_time(make_bus: MakeBus, clock: ManualClock) -> None:
    """Each event has a timeout of its own, not what the one before has left."""
    bus, handler = make_bus(), BlockingHandler()
    bus.subscribe("*", handler, id=ID, timeout=5, retry=ONCE)
    await publish_numbers(bus, 1, 2)
    await soon(handler.started.wait())
    await clock.advance(4)
    handler.started.clear()
    handler.released.set()
    await soon(handler.started.wait())
    handler.released.clear()
    await soon(bus.idle())
    await publish_numbers(bus, 3)
    await until(lambda: len(handler.events) == 3)
    await clock.advance(4.9)
    assert not handler.was_cancelled
    handler.released.set()
    await soon(bus.idle())

    assert await letters_of(bus) == []


async def test_the_buss_timeout_is_the_default(make_bus: MakeBus, clock: ManualClock) -> None:
    bus, handler = make_bus(handler_timeout=7.0), BlockingHandler()
    bus.subscribe("*", handler, id=ID, retry=ONCE)
    await publish_numbers(bus, 1)
    await soon(handler.started.wait())
    await clock.advance(7)
    await soon(bus.idle())

    assert len(await letters_of(bus)) == 1


async def test_a_timeout_is_retried_like_any_failure(make_bus: MakeBus, clock: ManualClock) -> None:
    bus, handler = make_bus(), BlockingHandler()
    bus.subscribe("*", handler, id=ID, timeout=5)
    await publish_numbers(bus, 1)
    await soon(handler.started.wait())
    await clock.advance(5)
    handler.released.set()
    await soon(pass_time(clock, 1))
    await soon(bus.subscription(ID).caught_up())

    assert len(handler.events) == 2
    assert await position_of(bus) == 1
    assert await letters_of(bus) == []


async def test_a_handler_that_ends_in_peace_after_its_cancellation_was_too_late_nevertheless(
    make_bus: MakeBus, clock: ManualClock
) -> None:
    bus, started = make_bus(), asyncio.Event()

    @bus.on("*", id=ID, timeout=5, retry=ONCE)
    async def swallow(_: Event) -> None:
        started.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return

    await publish_numbers(bus, 1)
    await soon(started.wait())
    await clock.advance(5)
    await soon(bus.idle())

    assert [letter.errors for letter in await letters_of(bus)] == [[LATE]]


class TestStubbornHandlers:
    async def test_one_is_left_behind_and_its_subscriber_goes_on(
        self, make_bus: MakeBus, clock: ManualClock
    ) -> None:
        """A second after its cancellation; the event is a dead letter with the story."""
        bus, handler, other = make_bus(), StubbornHandler(2), FlakyHandler()
        bus.subscribe("*", handler, id=ID, timeout=5, retry=ONCE)
        bus.subscribe("*", other, id="other")
        await publish_numbers(bus, 1, 2, 3)
        await soon(handler.started.wait())
        await soon(bus.subscription("other").caught_up())
        await clock.advance(5)
        await clock.advance(1)
        await soon(bus.subscription(ID).caught_up())
        (letter,) = await letters_of(bus)

        assert [event.payload for event in handler.events] == [1, 2, 3]
        assert letter.errors == [STUBBORN]
        assert await position_of(bus) == 3
        await until(lambda: bus.subscription(ID).state == "live")
        handler.released.set()
        await until(lambda: handler.finish_count == 3)
        await soon(bus.shutdown())

    async def test_whoever_waits_for_a_checkpoint_is_told_by_the_one_that_goes_on(
        self, make_bus: MakeBus, clock: ManualClock
    ) -> None:
        """Also while that one is at a handler again that takes its time."""
        bus, handler, slow = make_bus(), StubbornHandler(1), asyncio.Event()

        async def handle(event: Event) -> None:
            await handler(event)
            if event.payload == 3:
                await slow.wait()

        bus.subscribe("*", handle, id=ID, timeout=5, retry=ONCE)
        await publish_numbers(bus, 1, 2, 3)
        await soon(handler.started.wait())
        waiting = start(bus.subscription(ID).wait_for(2))
        await let_others_run()
        await clock.advance(5)
        await clock.advance(1)
        await until(lambda: len(handler.events) == 3)
        await soon(waiting)

        # The handlers of the second and the third event have run, and that of the first is still at it.
        assert (handler.finish_count, slow.is_set()) == (2, False)
        slow.set()
        handler.released.set()

    async def test_every_attempt_counts(self, make_bus: MakeBus, clock: ManualClock) -> None:
        """Two retries: called three times, three errors, none of them an interruption."""
        bus, handler = make_bus(), StubbornHandler(1)
        retry = RetryPolicy(max_retries=2, base_delay=0)
        bus.subscribe("*", handler, id=ID, timeout=5, retry=retry)
        await publish_numbers(bus, 1, 2)
        for count in (1, 2, 3):
            await until(lambda count=count: len(handler.events) == count)  # type: ignore[misc]
            await clock.advance(5)
            await clock.advance(1)
        await soon(bus.idle())
        (letter,) = await letters_of(bus)

        assert [event.payload for event in handler.events] == [1, 1, 1, 2]
        assert letter.errors == [STUBBORN] * 3
        handler.released.set()

    async def test_what_was_processed_before_it_does_not_come_again(
        self, make_bus: MakeBus, clock: ManualClock
    ) -> None:
        """Not even with checkpoints in batches."""
        bus, handler = make_bus(), StubbornHandler(3)
        mode = CheckpointMode.batched(100, 3600)
        bus.subscribe("*", handler, id=ID, timeout=5, retry=ONCE, checkpoint_mode=mode)
        await publish_numbers(bus, 1, 2, 3, 4)
        await soon(handler.started.wait())
        await clock.advance(5)
        await clock.advance(1)
        await soon(bus.idle())

        assert [event.payload for event in handler.events] == [1, 2, 3, 4]
        handler.released.set()

    async def test_one_that_resists_the_retry_of_a_dead_letter_is_left_behind_once(
        self, make_bus: MakeBus, clock: ManualClock
    ) -> None:
        """The retry has failed: it is not begun again and again."""
        bus, handler = make_bus(), StubbornHandler(1)
        bus.subscribe("*", handler, id=ID, timeout=5, retry=ONCE)
        await publish_numbers(bus, 1)
        await soon(handler.started.wait())
        await clock.advance(5)
        await clock.advance(1)
        await soon(bus.idle())
        (letter,) = await letters_of(bus)
        await bus.dlq.retry(letter.dead_letter_id)
        await until(lambda: len(handler.events) == 2)
        await clock.advance(5)
        await clock.advance(1)
        await publish_numbers(bus, 2)
        await soon(bus.subscription(ID).caught_up())
        for _ in range(3):
            await clock.advance(5)
            await clock.advance(1)

        async def failed_again() -> None:
            while len((await letters_of(bus))[0].errors) < 2:  # noqa: ASYNC110
                await asyncio.sleep(0)

        await soon(failed_again())
        (letter,) = await letters_of(bus)

        assert [event.payload for event in handler.events] == [1, 1, 2]
        assert letter.errors == [STUBBORN] * 2
        handler.released.set()

    async def test_the_bus_shuts_down_without_it(self, make_bus: MakeBus, clock: ManualClock) -> None:
        bus, handler = make_bus(shutdown_timeout=3.0), StubbornHandler(1)
        bus.subscribe("*", handler, id=ID)
        await publish_numbers(bus, 1)
        await soon(handler.started.wait())
        stopping = start(bus.shutdown())
        await clock.advance(3)
        await soon(stopping)
        second, next_handler = make_bus(), FlakyHandler()
        second.subscribe("*", next_handler, id=ID)
        await second.start()
        await soon(second.idle())

        assert next_handler.payloads == [1]
        handler.released.set()

    async def test_unsubscribing_one_that_was_left_behind_ends_the_subscriber(
        self, make_bus: MakeBus, clock: ManualClock
    ) -> None:
        bus, handler = make_bus(), StubbornHandler(1)
        bus.subscribe("*", handler, id=ID, timeout=5, retry=ONCE)
        await publish_numbers(bus, 1)
        await soon(handler.started.wait())
        await clock.advance(5)
        await clock.advance(1)
        await soon(bus.idle())
        handle = bus.subscription(ID)
        bus.unsubscribe(ID)
        await until(lambda: handle.state == "stopped")

        checkpoint = await bus.store.checkpoints.load(SubscriberId(ID))
        assert checkpoint is not None
        assert checkpoint.position == 1
        handler.released.set()


class SlowSum(Projection[int]):
    """Takes no notice of its cancellation while it adds one number."""

    subscriber_id = ID

    def __init__(self, states: StateStore[int], slow: int) -> None:
        super().__init__(states)
        self.released, self.started, self._slow = asyncio.Event(), asyncio.Event(), slow
        self.calls: list[int] = []

    def state_key(self, event: Event) -> str:
        return "sum"

    async def apply(self, state: int | None, event: Event) -> int:
        self.calls.append(event.payload)
        if event.payload == self._slow and not self.released.is_set():
            self.started.set()
            await resist(self.released)
        return (state or 0) + int(event.payload)


class TestStateOfLateHandlers:
    async def test_a_late_reaction_leaves_no_trace_in_the_state(
        self, make_bus: MakeBus, clock: ManualClock
    ) -> None:
        """It ends within its second of grace: the attempt has failed, and the next one adds it once."""
        bus = make_bus()
        total = SlowSum(StateStore(bus.store, "sums", int), slow=2)
        bus.subscribe(total, timeout=5)
        await publish_numbers(bus, 1, 2, 4)
        await soon(total.started.wait())
        await clock.advance(5)
        total.released.set()
        await soon(pass_time(clock, 1))
        await soon(bus.subscription(ID).caught_up())

        assert total.calls == [1, 2, 2, 4]
        assert await total.states.get("sum") == 7

    @pytest.mark.parametrize("mode", [CheckpointMode.synchronous(), CheckpointMode.batched(100, 3600)])
    async def test_nor_does_one_that_ends_long_after_it_was_left_behind(
        self, make_bus: MakeBus, clock: ManualClock, mode: object
    ) -> None:
        """What it was about to write is what others have written over since."""
        bus = make_bus()
        total = SlowSum(StateStore(bus.store, "sums", int), slow=2)
        bus.subscribe(total, timeout=5, retry=ONCE, checkpoint_mode=mode)  # type: ignore[arg-type]
        await publish_numbers(bus, 1, 2, 4)
        await soon(total.started.wait())
        await clock.advance(5)
        await clock.advance(1)
        await soon(bus.idle())
        total.released.set()
        for _ in range(20):
            await asyncio.sleep(0)
        await publish_numbers(bus, 8)
        await soon(bus.subscription(ID).caught_up())

        assert await total.states.get("sum") == 1 + 4 + 8


class TestThreads:
    async def test_a_plain_function_that_hangs_is_given_up(
        self, make_bus: MakeBus, clock: ManualClock
    ) -> None:
        """Its thread can't be ended; its event is a dead letter and the next one comes."""
        bus, other = make_bus(), FlakyHandler()
        released, started = threading.Event(), threading.Event()
        seen: list[int] = []

        def hang(event: Event) -> None:
            seen.append(event.payload)
            if event.payload == 1:
                started.set()
                released.wait(30)

        bus.subscribe("*", hang, id=ID, timeout=5, retry=ONCE)
        bus.subscribe("*", other, id="other")
        await publish_numbers(bus, 1, 2)
        await until(started.is_set)
        await clock.advance(5)
        await soon(bus.idle())

        assert seen == [1, 2]
        assert other.payloads == [1, 2]
        assert [letter.errors for letter in await letters_of(bus)] == [[IN_A_THREAD]]
        released.set()

    async def test_forty_that_hang_leave_threads_for_the_others(
        self, make_bus: MakeBus, clock: ManualClock
    ) -> None:
        """More than there are threads at once."""
        bus, released = make_bus(), threading.Event()
        for number in range(40):
            bus.subscribe("*", lambda _: released.wait(30), id=f"hangs-{number}", timeout=5, retry=ONCE)
        seen: list[int] = []
        bus.subscribe("*", lambda event: seen.append(event.payload), id=ID)
        await publish_numbers(bus, 1)
        async with asyncio.timeout(10):
            while not seen:
                await let_others_run()
                await clock.advance(1)
        await soon(bus.subscription(ID).caught_up())

        assert seen == [1]
        released.set()
        await soon(bus.idle())
