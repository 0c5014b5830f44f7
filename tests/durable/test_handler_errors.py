"""Whatever a handler raises is its own affair: an attempt that failed, or an event for later."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from postbus import (
    Event,
    EventBusShutdownError,
    ReliableDeliveryConfig,
    RetryPolicy,
    WrongExpectedVersionError,
)
from tests.delivery.exits import EXITS_OF_ITS_OWN, wait_for_a_task
from tests.delivery.steps import FlakyHandler, begin, soon
from tests.durable.steps import ID, MakeBus, letters_of, publish_numbers

ONCE = RetryPolicy(max_retries=0)
TWICE = RetryPolicy(max_retries=1, base_delay=0)


class RudeError(BaseException):
    """Not even an Exception."""


class MuteError(Exception):
    """Can't say what happened."""

    def __str__(self) -> str:
        raise RuntimeError("mute")


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ValueError("boom"), "ValueError: boom"),
        (asyncio.CancelledError(), "CancelledError"),
        (TimeoutError("slow service"), "TimeoutError: slow service"),
        (WrongExpectedVersionError("s", 1, 2), "WrongExpectedVersionError: stream 's' is at version 2"),
        (RudeError("rude"), "RudeError: rude"),
        (MuteError(), "MuteError: (its message can't be shown"),
        (StopAsyncIteration(), "StopAsyncIteration"),
        (ExceptionGroup("two", [ValueError(1), ValueError(2)]), "ExceptionGroup: two (2 sub-exceptions)"),
        (EventBusShutdownError("publish"), "EventBusShutdownError: cannot publish"),
    ],
)
@pytest.mark.parametrize("kind", ["async", "plain"])
async def test_it_is_an_attempt_that_failed(
    make_bus: MakeBus, error: BaseException, text: str, kind: str
) -> None:
    """And the next event is delivered."""
    bus = make_bus()
    seen: list[Any] = []

    async def take(event: Event) -> None:
        take_plainly(event)

    def take_plainly(event: Event) -> None:
        if event.payload == 1:
            raise error
        seen.append(event.payload)

    bus.subscribe("*", take if kind == "async" else take_plainly, id=ID, retry=ONCE)
    await publish_numbers(bus, 1, 2)
    await soon(bus.idle())
    (letter,) = await letters_of(bus)

    assert seen == [2]
    assert len(letter.errors) == 1
    assert letter.errors[0].startswith(text)


@pytest.mark.parametrize(("handler", "error"), EXITS_OF_ITS_OWN.values(), ids=EXITS_OF_ITS_OWN)
async def test_generator_exit_is_an_attempt_that_failed(
    make_bus: MakeBus, handler: Callable[[Event], object], error: str
) -> None:
    """The subscriber goes on with the next event at once."""
    bus = make_bus()
    bus.subscribe("*", handler, id=ID, retry=TWICE)
    await publish_numbers(bus, 1, 2)
    await soon(bus.idle())

    assert [letter.errors for letter in await letters_of(bus)] == [[error, error]] * 2


async def test_an_exit_that_closes_the_task_is_an_attempt_that_failed(make_bus: MakeBus) -> None:
    """The subscriber goes on in another task, a little later; here it was reading the next page as well."""
    bus, seen = make_bus(config=ReliableDeliveryConfig(catch_up_batch_size=1)), list[object]()

    async def take(event: Event) -> None:
        seen.append(event.payload)
        if event.payload == 1:
            await wait_for_a_task(event)

    bus.subscribe("*", take, id=ID, retry=TWICE)
    await publish_numbers(bus, 1, 2, 3)
    await soon(bus.subscription(ID).wait_for(3))
    (letter,) = await letters_of(bus)

    assert letter.errors == ["GeneratorExit", "GeneratorExit"]
    assert seen == [1, 1, 2, 3]


async def test_a_handler_that_needs_the_bus_during_a_shutdown_has_not_failed(make_bus: MakeBus) -> None:
    """Its event is delivered again by the next start, with no attempt counted."""
    first = make_bus()
    started, released = asyncio.Event(), asyncio.Event()

    @first.on("*", id=ID, retry=ONCE)
    async def answer(_: Event) -> None:
        started.set()
        await released.wait()
        await first.publish("answer")

    await publish_numbers(first, 1)
    await soon(started.wait())
    stopping = await begin(first.shutdown())
    released.set()
    await soon(stopping)
    second, handler = make_bus(), FlakyHandler()
    second.subscribe("*", handler, id=ID)
    await second.start()
    await soon(second.idle())

    assert handler.payloads == [1]
    assert await letters_of(second) == []


async def test_a_handler_that_returns_something_has_not_failed(make_bus: MakeBus) -> None:
    bus = make_bus()
    bus.subscribe("*", lambda _: "whatever", id=ID)
    await publish_numbers(bus, 1)
    await soon(bus.idle())

    assert await letters_of(bus) == []


async def test_a_plain_function_around_an_async_one_is_awaited(make_bus: MakeBus) -> None:
    bus, handler = make_bus(), FlakyHandler()
    bus.subscribe("*", lambda event: handler(event), id=ID)
    await publish_numbers(bus, 1)
    await soon(bus.idle())

    assert handler.payloads == [1]
