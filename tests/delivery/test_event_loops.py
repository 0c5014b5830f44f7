"""A bus lives in one event loop."""

import asyncio
import contextvars
import threading
from pathlib import Path
from typing import Any

import pytest

from postbus import BusLoopError, Event, EventBus, EventBusShutdownError
from postbus.stores.sqlite import SQLiteStore
from tests.delivery.steps import FlakyHandler, soon, start, statuses

TASK_FACTORIES = [None, *([asyncio.eager_task_factory] if hasattr(asyncio, "eager_task_factory") else [])]


@pytest.mark.parametrize("task_factory", TASK_FACTORIES)
def test_handlers_begin_in_order_also_where_tasks_begin_at_once(database: Path, task_factory: Any) -> None:
    """Each of many publishers at once waits for a handler that waits, and none begins within another."""
    begun: list[int] = []
    bus = EventBus(database)

    @bus.on("order.*")
    async def wait(event: Event) -> None:
        begun.append(event.payload)
        await asyncio.sleep(0.001)

    async def main() -> None:
        asyncio.get_running_loop().set_task_factory(task_factory)
        async with bus:
            await asyncio.gather(*(bus.publish("order.placed", number) for number in range(1000)))

    asyncio.run(main())

    assert begun == list(range(1000))


def test_a_handler_that_cancels_its_task_leaves_nobody_waiting(database: Path) -> None:
    """The task serves others as well: what it has not begun by then is for another one."""
    store, begun, held = SQLiteStore(database), threading.Event(), threading.Event()
    bus = EventBus(store)

    @bus.on("order.*")
    async def cancel(event: Event) -> None:
        task = asyncio.current_task()
        if event.payload == 3 and task is not None:
            task.cancel()

    def hold(_: object) -> None:
        begun.set()
        held.wait(10)

    async def main() -> int:
        async with bus:
            # So that all of them come in one commit, and nobody after them.
            holding = start(store.write(hold))
            await asyncio.to_thread(begun.wait, 10)
            publishing = start(asyncio.gather(*(bus.publish("order.placed", n) for n in range(400))))
            for _ in range(5):
                await asyncio.sleep(0)
            held.set()
            await soon(holding)
            return len(await soon(publishing))

    # Only events of publishers without a context of their own share a task.
    assert contextvars.Context().run(asyncio.run, main()) == 400


def test_a_bus_can_be_made_before_there_is_a_loop(database: Path) -> None:
    """As a global of a module, with its handlers."""
    handler = FlakyHandler()
    bus = EventBus(database)
    bus.subscribe(handler)

    async def main() -> None:
        async with bus:
            await bus.publish("order.placed", 42)

    asyncio.run(main())

    assert handler.payloads == [42]


def test_another_loop_is_refused(database: Path) -> None:
    """With an error that says what to do; nothing is stored by it."""
    bus = EventBus(database)
    asyncio.run(bus.publish("order.placed", event_id="first"))

    for refused in (
        lambda: bus.publish("order.placed", event_id="second"),
        lambda: bus.publish_many([("order.placed", 1)]),
        lambda: bus.idle(),
        lambda: bus.settle_unhandled(),
    ):
        with pytest.raises(BusLoopError, match="another event loop"):
            asyncio.run(refused())
    asyncio.run(bus.shutdown())
    assert list(statuses(database)) == ["first"]


def test_a_bus_whose_loop_has_ended_can_be_shut_down_in_another(database: Path) -> None:
    """It closes its file and lets the dispatch go: a new bus owns it."""
    bus, handler = EventBus(database), FlakyHandler()
    asyncio.run(bus.publish("order.placed"))
    asyncio.run(bus.shutdown())

    async def main() -> None:
        async with EventBus(database) as successor:
            successor.subscribe(handler)
            await successor.publish("order.placed", 2)

    asyncio.run(main())

    assert handler.payloads == [2]


def test_a_bus_whose_loop_goes_on_is_shut_down_there(database: Path) -> None:
    """From another loop it can't be; the bus goes on."""
    bus = EventBus(database)
    with asyncio.Runner() as runner:
        runner.run(bus.start())
        with asyncio.Runner() as other, pytest.raises(BusLoopError, match="shut down"):
            other.run(bus.shutdown())
        runner.run(bus.publish("order.placed", event_id="still here"))
        runner.run(bus.shutdown())

    assert list(statuses(database)) == ["still here"]


def test_two_buses_in_two_loops_one_after_the_other(database: Path) -> None:
    """One bus for each loop is fine."""
    for number in range(2):
        bus = EventBus(database)

        async def main(bus: EventBus = bus, number: int = number) -> None:
            async with bus:
                await bus.publish("order.placed", event_id=str(number))

        asyncio.run(main())

    assert list(statuses(database)) == ["0", "1"]


@pytest.mark.parametrize("is_started_twice", [False, True])
def test_shutting_down_again_does_nothing_in_another_loop_either(
    database: Path, is_started_twice: bool
) -> None:
    """A bus of a module, and an application that is started for each of several tests, say."""
    bus = EventBus(database)
    bus.subscribe(FlakyHandler())

    async def use() -> None:
        async with bus:
            await bus.publish("order.placed", 42)

    asyncio.run(use())
    if is_started_twice:
        with pytest.raises(EventBusShutdownError):
            asyncio.run(use())
    asyncio.run(bus.shutdown())
