"""Handlers that end the program: not for ever by the same event, and not at all from a thread."""

import asyncio
import contextlib
import contextvars
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from postbus import DeadLetter, Event, EventBus, ReliableDeliveryConfig, RetryPolicy
from tests.delivery.steps import A_DAY, soon

# More starts than any event needs to become a dead letter.
_MOST_STARTS = 6


async def _run(
    database: Path, handler: Callable[[Event], object], subscriber_id: str | None
) -> list[DeadLetter]:
    """One life of a program; what it finds when it is left alone."""
    bus = EventBus(
        database,
        retry=RetryPolicy(max_retries=1, base_delay=0),
        config=ReliableDeliveryConfig(max_retries=1, initial_retry_delay=0),
        # Nobody waits for a handler that has ended.
        shutdown_timeout=A_DAY,
    )
    bus.subscribe("*", handler, id=subscriber_id)
    async with bus:
        await bus.publish("order.placed", "good", event_id="first")
        await bus.publish("order.placed", "bad", event_id="second")
        await bus.publish("order.placed", "good", event_id="third")
        await soon(bus.idle())
        return list((await bus.dlq.list()).events)


@pytest.mark.parametrize("subscriber_id", [None, "mail"])
@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt])
@pytest.mark.parametrize("waits", [False, True])
def test_an_event_whose_handler_ends_the_program_becomes_a_dead_letter(
    database: Path, subscriber_id: str | None, error: type[BaseException], waits: bool
) -> None:
    """It counts as a crash, however orderly the program ends then."""
    seen: list[object] = []

    async def handle(event: Event) -> None:
        seen.append(event.payload)
        if waits:
            await asyncio.sleep(0)
        if event.payload == "bad":
            raise error

    dead: list[DeadLetter] = []
    end_count = 0
    for _ in range(_MOST_STARTS):
        try:
            dead = asyncio.run(_run(database, handle, subscriber_id))
            break
        except error:
            end_count += 1

    assert [letter.id for letter in dead] == ["second"]
    assert set(dead[0].errors) == {"interrupted: the process ended before this attempt did"}
    assert seen.count("bad") == end_count <= 3
    assert seen.count("good") == 2


@pytest.mark.parametrize("subscriber_id", [None, "mail"])
def test_a_function_in_a_thread_ends_only_itself(database: Path, subscriber_id: str | None) -> None:
    """No signal can be meant there: its attempt has failed."""

    def handle(event: Event) -> None:
        if event.payload == "bad":
            sys.exit(3)

    dead = asyncio.run(_run(database, handle, subscriber_id))

    assert [letter.errors for letter in dead] == [["RuntimeError: handler raised SystemExit(3)"] * 2]


def test_a_publisher_that_ends_the_program_holds_up_no_other(database: Path) -> None:
    """All go on together; a program may catch the end and run its loop to the end."""
    returned: list[int] = []

    async def publish(bus: EventBus, number: int) -> None:
        await bus.publish("order.placed", number)
        if number == 1:
            sys.exit("stop")
        returned.append(number)

    async def handle(_: Event) -> None:
        """Nothing to do."""

    with asyncio.Runner() as runner:
        bus = EventBus(database)
        bus.subscribe("*", handler=handle)
        runner.run(bus.start())
        loop = runner.get_loop()
        tasks = [loop.create_task(publish(bus, number)) for number in range(4)]
        with pytest.raises(SystemExit):
            loop.run_until_complete(asyncio.wait(tasks))
        runner.run(soon(asyncio.wait([task for task in tasks if not task.done()] or [tasks[0]])))
        runner.run(bus.shutdown())

    assert sorted(returned) == [0, 2, 3]


@pytest.mark.parametrize("count", [1, 4])
def test_publishers_whose_handler_ends_the_program_are_let_go(database: Path, count: int) -> None:
    """A program may catch the end and run its loop to the end."""

    async def handle(event: Event) -> None:
        if event.payload == "bad":
            sys.exit("stop")

    async def publish(bus: EventBus) -> None:
        await bus.publish("order.placed", "bad")

    with asyncio.Runner() as runner:
        bus = EventBus(database)
        bus.subscribe("*", handler=handle)
        # From the second one on an event can be delivered before the call that tells of it returns.
        runner.run(bus.publish("order.placed", "good"), context=contextvars.Context())
        loop = runner.get_loop()
        tasks = {loop.create_task(publish(bus), context=contextvars.Context()) for _ in range(count)}
        for _ in range(count):
            with contextlib.suppress(SystemExit):
                runner.run(soon(asyncio.wait(tasks)))
        runner.run(bus.shutdown())

    assert [task.exception() for task in tasks] == [None] * count


async def test_a_publisher_that_runs_the_event_loop_within_itself_holds_up_no_other(database: Path) -> None:
    """As nest_asyncio does, and dialogs of user interfaces: all go on together, one after the other."""
    bus, returned = EventBus(database), list[int]()
    loop: Any = asyncio.get_running_loop()

    async def publish(number: int) -> None:
        await bus.publish("order.placed", number)
        if number == 0:
            task = asyncio.current_task()
            assert task is not None
            asyncio.tasks._leave_task(loop, task)
            deadline = time.monotonic() + 10
            while len(returned) < 3 and time.monotonic() < deadline:
                loop._run_once()
            asyncio.tasks._enter_task(loop, task)
        returned.append(number)

    async def handle(_: Event) -> None:
        """Nothing to do."""

    bus.subscribe("*", handler=handle)
    async with bus:
        await asyncio.gather(*[publish(number) for number in range(4)])

    assert returned[-1] == 0
