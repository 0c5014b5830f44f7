"""A handler that takes too long is cancelled; one that will not end is left behind, and holds up nobody."""

import asyncio
import contextlib
import time
from typing import Any

from postbus import Event, RetryPolicy
from tests.competing.steps import MakeBus, Noting, compete, publish_numbers, query, until, within

ONCE = RetryPolicy(max_retries=0)


async def test_a_handler_that_takes_too_long_is_cancelled(make_bus: MakeBus) -> None:
    """That is a failed attempt like any other, and the worker goes on."""
    bus, noting, cancelled = make_bus(), Noting(), []

    async def handle(event: Event) -> None:
        if event.payload == 1:
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                cancelled.append(event.payload)
                raise
        await noting(event)

    compete(bus, handle, timeout=0.1, retry=ONCE, concurrency=1)
    await publish_numbers(bus, 1, 2, 3)
    await within(10, bus.idle())

    assert cancelled == [1]
    assert noting.numbers == [2, 3]
    (letter,) = (await bus.dlq.list()).events
    assert letter.errors == ["TimeoutError: handler took longer than 0.1 s and was cancelled"]


async def test_a_handler_that_will_not_end_is_left_behind(make_bus: MakeBus) -> None:
    """Its place is taken by another, and when it ends after all that changes nothing."""
    bus, noting, ends = make_bus(), Noting(), asyncio.Event()

    async def handle(event: Event) -> None:
        while event.payload == 1 and not ends.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await ends.wait()
        await noting(event)

    compete(bus, handle, timeout=0.1, retry=ONCE, concurrency=1)
    try:
        await publish_numbers(bus, 1, 2, 3)
        await until(lambda: noting.numbers == [2, 3])
        await within(10, bus.idle())
    finally:
        ends.set()
    await until(lambda: noting.numbers == [2, 3, 1])
    await publish_numbers(bus, 4)
    await within(10, bus.idle())

    (letter,) = (await bus.dlq.list()).events
    assert letter.payload == 1
    assert "goes on nevertheless" in letter.errors[0]
    assert noting.numbers == [2, 3, 1, 4]


async def test_a_transactional_handler_that_will_not_end_is_left_behind(make_bus: MakeBus, dsn: str) -> None:
    """And what it does afterwards is undone."""
    bus, ends, handled = make_bus(), asyncio.Event(), []

    async def handle(event: Event, connection: Any) -> None:
        await connection.execute("INSERT INTO effects VALUES ($1)", event.payload)
        while event.payload == 1 and not ends.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await ends.wait()
        handled.append(event.payload)

    await query(dsn, "CREATE TABLE effects (number int)")
    compete(bus, handle, timeout=0.1, retry=ONCE, concurrency=1)
    try:
        await publish_numbers(bus, 1, 2)
        await until(lambda: handled == [2])
        await within(10, bus.idle())
    finally:
        ends.set()
    await until(lambda: handled == [2, 1])
    await bus.shutdown()

    assert await query(dsn, "SELECT number FROM effects") == [(2,)]
    letters = await query(dsn, "SELECT payload FROM postbus.event_bus_dlq")
    assert letters == [("1",)]


async def test_a_plain_function_that_hangs_holds_up_nobody(make_bus: MakeBus) -> None:
    """Its thread is left alone."""
    bus, seen = make_bus(), []

    def handle(event: Event) -> None:
        if event.payload == 1:
            time.sleep(3.0)
        seen.append(event.payload)

    compete(bus, handle, timeout=0.2, retry=ONCE, concurrency=1)
    await publish_numbers(bus, 1, 2)
    seconds = await until(lambda: seen == [2])
    await within(10, bus.idle())

    assert seconds < 2.8
    (letter,) = (await bus.dlq.list()).events
    assert letter.errors == [
        "TimeoutError: handler took longer than 0.2 s and goes on: a thread can't be cancelled"
    ]
