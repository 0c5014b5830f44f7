"""Programs that cancel all tasks of their loop, the bus's among them: nobody hangs and nothing is lost."""

import asyncio
import contextlib
import contextvars
import logging
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest

from postbus import Event, EventBus, EventStatus, RetryPolicy
from postbus.delivery import couriers as couriers_module
from postbus.delivery.couriers import Couriers
from postbus.testing import ManualClock
from tests.delivery.steps import BlockingHandler, FlakyHandler, MakeBus, soon, start, until

request_id = contextvars.ContextVar("request_id", default="none")


class Errand:
    """A delivery that waits until it is released, or for nothing if it was before it began."""

    def __init__(self) -> None:
        self.begin_count = self.end_count = 0
        self.released = asyncio.Event()
        self.request_ids: list[str] = []

    def run(self) -> Coroutine[Any, Any, None] | None:
        """Carried by a courier."""
        self.begin_count += 1
        self.request_ids.append(request_id.get())
        if self.released.is_set():
            self.end_count += 1
            return None
        return self._wait()

    async def _wait(self) -> None:
        request_id.set("changed")
        await self.released.wait()
        self.end_count += 1


@pytest.fixture(params=["with context", "without context"])
def context(request: pytest.FixtureRequest) -> contextvars.Context:
    """The context of the publisher; where it is empty, deliveries share a task."""
    context = contextvars.Context()
    if request.param == "with context":
        context.run(request_id.set, "request 42")
    return context


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was cut off goes again in one of the next turns of the loop."""
    monkeypatch.setattr(couriers_module, "_SECONDS_BEFORE_ANOTHER_GO", 0.0)


async def test_a_courier_that_is_cancelled_before_its_first_step_is_replaced() -> None:
    """By one that carries what it was to carry, and whatever comes later."""
    couriers, first, second = Couriers(), _quick_errand(), _quick_errand()
    couriers.carry(first, contextvars.Context())
    _cancel_couriers()
    couriers.carry(second, contextvars.Context())

    await until(lambda: first.end_count == second.end_count == 1)
    await couriers.cancel_all()


async def test_a_courier_that_is_cancelled_when_it_was_called_is_replaced() -> None:
    """It has waited for work, and does not hear of it any more."""
    couriers, first, second, third = Couriers(), _quick_errand(), _quick_errand(), _quick_errand()
    couriers.carry(first, contextvars.Context())
    await until(lambda: first.end_count == 1)
    couriers.carry(second, contextvars.Context())
    _cancel_couriers()
    await until(lambda: second.end_count == 1)
    couriers.carry(third, contextvars.Context())

    await until(lambda: third.end_count == 1)
    await couriers.cancel_all()


async def test_a_courier_that_is_cancelled_while_nobody_calls_is_missed_by_nobody() -> None:
    """The next delivery gets another one."""
    couriers, first, second = Couriers(), _quick_errand(), _quick_errand()
    couriers.carry(first, contextvars.Context())
    await until(lambda: first.end_count == 1)
    _cancel_couriers()
    await _turns()
    couriers.carry(second, contextvars.Context())

    await until(lambda: second.end_count == 1)
    await couriers.cancel_all()


@pytest.mark.usefixtures("hasty")
@pytest.mark.parametrize("turn_count", [0, 1])
async def test_a_delivery_that_is_cut_off_goes_again(context: contextvars.Context, turn_count: int) -> None:
    """Once, whether it had begun or not, and with the variables that it had at first."""
    couriers, errand = Couriers(), Errand()
    expected = context.run(request_id.get)
    couriers.carry(errand, context)
    for _ in range(turn_count):
        await asyncio.sleep(0)
    assert errand.begin_count == turn_count
    _cancel_couriers()
    await until(lambda: errand.begin_count == turn_count + 1)
    errand.released.set()
    await until(lambda: errand.end_count == 1)
    await _turns()

    assert errand.request_ids == [expected] * (turn_count + 1)
    assert errand.end_count == 1
    await couriers.cancel_all()


@pytest.mark.usefixtures("hasty")
async def test_a_delivery_that_has_ended_does_not_go_again(context: contextvars.Context) -> None:
    """Although its task is cancelled at its very end."""

    class LastWords(Errand):
        async def _wait(self) -> None:
            await super()._wait()
            _cancel_couriers()

    couriers, errand = Couriers(), LastWords()
    couriers.carry(errand, context)
    await until(lambda: errand.begin_count == 1)
    errand.released.set()
    await until(lambda: not _couriers())
    await _turns()

    assert (errand.begin_count, errand.end_count) == (1, 1)


@pytest.mark.usefixtures("hasty")
async def test_what_we_cut_off_ourselves_does_not_go_again(
    context: contextvars.Context, caplog: pytest.LogCaptureFixture
) -> None:
    """A shutdown gives it back; nobody is told of anything strange."""
    couriers, begun, not_begun = Couriers(), Errand(), Errand()
    couriers.carry(begun, context)
    await until(lambda: begun.begin_count == 1)
    couriers.carry(not_begun, context.copy())
    await couriers.cancel_all()
    await _turns()

    assert (begun.begin_count, not_begun.begin_count) == (1, 0)
    assert "cancelled from outside" not in caplog.text


@pytest.mark.usefixtures("hasty")
async def test_what_was_cut_off_does_not_go_again_after_the_end(context: contextvars.Context) -> None:
    """The shutdown that comes before it can go again gives it back."""
    couriers, errand = Couriers(), Errand()
    couriers.carry(errand, context)
    await until(lambda: errand.begin_count == 1)
    _cancel_couriers()
    await asyncio.sleep(0)
    await couriers.cancel_all()
    await _turns()

    assert errand.begin_count == 1


@pytest.mark.usefixtures("hasty")
async def test_one_warning_tells_of_all_that_were_cut_off(caplog: pytest.LogCaptureFixture) -> None:
    """And another one when it happens once more."""
    couriers, errands = Couriers(), [Errand() for _ in range(10)]
    with caplog.at_level(logging.WARNING, "postbus"):
        for errand in errands:
            couriers.carry(errand, contextvars.Context())
        await until(lambda: all(each.begin_count == 1 for each in errands))
        _cancel_couriers()
        await until(lambda: all(each.begin_count == 2 for each in errands))
        _cancel_couriers()
        await until(lambda: all(each.begin_count == 3 for each in errands))

    assert caplog.text.count("cancelled from outside") == 2
    await couriers.cancel_all()


async def test_a_list_goes_on_with_the_event_that_was_cut_off(make_bus: MakeBus, hasty: None) -> None:
    """In its order, and whoever published it hears of its end."""
    bus, seen, has_begun = make_bus(), list[object](), asyncio.Event()

    @bus.on("*")
    async def handle(event: Event) -> None:
        seen.append(event.payload)
        if seen == [0, 1]:
            has_begun.set()
            await asyncio.Event().wait()

    publishing = start(bus.publish_many([("order.placed", number) for number in range(4)]))
    await soon(has_begun.wait())
    _cancel_couriers()
    await soon(publishing)
    await soon(bus.idle())

    assert seen == [0, 1, 1, 2, 3]


async def test_an_event_of_a_list_that_was_passed_goes_again_alone(make_bus: MakeBus, hasty: None) -> None:
    """It waited for its circuit breaker, and the others did not wait for it."""
    clock = ManualClock()
    bus, seen = make_bus(clock=clock, retry=RetryPolicy(max_retries=9, base_delay=0)), list[object]()

    @bus.on("bad.*")
    async def fail(event: Event) -> None:
        seen.append(event.payload)
        if len(seen) <= 4:
            raise ValueError

    fine = FlakyHandler()
    bus.subscribe("good.*", fine)
    opening = start(bus.publish("bad.thing", "opens"))
    await until(lambda: len(seen) == 4)
    publishing = start(bus.publish_many([("bad.thing", "waits"), ("good.thing", 1), ("good.thing", 2)]))
    await until(lambda: len(fine.events) == 2)
    _cancel_couriers()
    await _turns()
    await clock.advance(30.0)
    await soon(publishing)
    await soon(opening)

    assert sorted(map(str, seen[4:])) == ["opens", "waits"]
    assert fine.payloads == [1, 2]


async def test_a_handler_that_was_given_up_does_not_go_again(make_bus: MakeBus, hasty: None) -> None:
    """Its event has gone on without it."""
    clock, seen, released = ManualClock(), list[object](), asyncio.Event()
    bus = make_bus(clock=clock, handler_timeout=5.0, retry=RetryPolicy(max_retries=0))

    @bus.on("*")
    async def ignore_it(event: Event) -> None:
        seen.append(event.payload)
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        await released.wait()

    publishing = start(bus.publish("order.placed", 1))
    await until(lambda: seen == [1])
    for _ in range(2):
        await clock.advance(5.0)
    await soon(publishing)
    _cancel_couriers()
    await _turns()
    await soon(bus.idle())

    assert seen == [1]
    assert bus.counters["order.placed"].event_count == 1
    assert (await bus.dlq.list()).total == 1


@pytest.mark.usefixtures("hasty")
@pytest.mark.parametrize("wait", [True, False])
async def test_an_event_whose_handler_was_cut_off_is_delivered_again(
    make_bus: MakeBus, context: contextvars.Context, wait: bool
) -> None:
    """At least once; it counts as one event and no failure, and whoever waits for it goes on."""
    bus, handler = make_bus(), BlockingHandler()
    bus.subscribe(handler)
    publishing = asyncio.create_task(bus.publish("order.placed", wait=wait), context=context)
    await soon(handler.started.wait())
    handler.started.clear()
    _cancel_couriers()
    await soon(handler.started.wait())
    handler.released.set()
    event_id = await soon(publishing)
    await soon(bus.idle())
    event = await bus.store.get(event_id)

    assert (len(handler.events), handler.finish_count) == (2, 1)
    assert (event.status, event.retry_count, event.errors) == (EventStatus.DONE, 0, [])
    assert bus.counters["order.placed"].event_count == 1


@pytest.mark.usefixtures("hasty")
async def test_an_event_that_is_cut_off_in_its_back_off_keeps_its_attempts(
    make_bus: MakeBus, context: contextvars.Context
) -> None:
    """It waits once more, and is a dead letter after as many attempts as ever."""
    clock = ManualClock()
    bus = make_bus(clock=clock, retry=RetryPolicy(max_retries=1, base_delay=10.0))
    handler = FlakyHandler(failure_count=9)
    bus.subscribe(handler)
    publishing = asyncio.create_task(bus.publish("order.placed"), context=context)
    await soon(clock.wait_for_sleepers(1))
    _cancel_couriers()
    await until(lambda: clock.sleeps.count(10.0) == 2)
    await clock.advance(10)
    event = await bus.store.get(await soon(publishing))

    assert (event.status, event.retry_count) == (EventStatus.DLQ, 2)
    assert event.errors == ["ValueError: boom 1", "ValueError: boom 2"]


@pytest.mark.usefixtures("hasty")
async def test_an_event_with_a_given_id_that_is_cut_off_in_its_back_off_does_not_wait_for_itself(
    make_bus: MakeBus,
) -> None:
    """Its handler may publish it again: it would be waiting for the delivery of which it is a part."""
    clock = ManualClock()
    bus, published = make_bus(clock=clock, retry=RetryPolicy(base_delay=10.0)), list[str]()

    @bus.on("order.placed")
    async def publish_again(event: Event) -> None:
        if not event.retry_count:
            raise ValueError
        published.append(await bus.publish("order.placed", event_id="mine"))

    publishing = start(bus.publish("order.placed", event_id="mine"))
    await soon(clock.wait_for_sleepers(1))
    _cancel_couriers()
    await until(lambda: clock.sleeps.count(10.0) == 2)
    await clock.advance(10)
    await soon(publishing)

    assert published == ["mine"]


@pytest.mark.usefixtures("hasty")
async def test_publishers_go_on_at_whatever_moment_all_couriers_are_cancelled(
    make_bus: MakeBus, context: contextvars.Context
) -> None:
    """Turn by turn of the loop: all that had begun to publish return, and so does the next."""
    for turn_count in range(30):
        bus = make_bus(target="memory:")

        @bus.on("order.*")
        async def wait_for_odd_ones(event: Event) -> None:
            if event.payload % 2:
                await asyncio.sleep(0)

        await bus.start()
        publishing = [
            asyncio.create_task(bus.publish("order.placed", number), context=context.copy())
            for number in range(8)
        ]
        for _ in range(turn_count):
            await asyncio.sleep(0)
        _cancel_couriers()
        await soon(asyncio.gather(*publishing))
        await soon(bus.publish("order.placed", 8))
        await soon(bus.idle())

        assert bus.counters["order.placed"].event_count == 9


def test_no_handler_begins_again_while_the_loop_ends(
    database: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """asyncio.run() cancels all tasks before it ends: what it has cut off is left to the next start."""
    bus, handler = EventBus(database), BlockingHandler()
    bus.subscribe(handler)

    async def main() -> None:
        publishing = start(bus.publish("order.placed"))
        await soon(handler.started.wait())
        publishing.cancel()

    asyncio.run(main())
    asyncio.run(bus.shutdown())

    assert len(handler.events) == 1
    assert "deliveries were cancelled from outside; they start again" in caplog.text


def _quick_errand() -> Errand:
    errand = Errand()
    errand.released.set()
    return errand


def _couriers() -> list["asyncio.Task[object]"]:
    return [task for task in asyncio.all_tasks() if task.get_name() == "postbus courier"]


def _cancel_couriers() -> None:
    """As a program does that cancels all tasks of its loop."""
    for task in _couriers():
        task.cancel()


async def _turns() -> None:
    """Let everything come as far as it comes without time or others."""
    for _ in range(20):
        await asyncio.sleep(0)
