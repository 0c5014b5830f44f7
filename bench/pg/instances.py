"""Several processes that share the work of one subscriber on PostgreSQL."""

import asyncio
import multiprocessing
import time
from collections.abc import Awaitable, Callable, Mapping
from multiprocessing.sharedctypes import Synchronized
from multiprocessing.synchronize import Event as ProcessEvent
from typing import Any

from postbus import Event, ReliableDeliveryConfig
from postbus.ops.bench.measuring import EVENT_TYPE
from postbus.ops.bench.model import Sample
from postbus.ops.bench.postgres.filling import announce, create
from postbus.ops.bench.postgres.sessions import durability
from postbus.pg import PgEventBus

Wait = Callable[[], Awaitable[None]]
_PATIENCE = 60.0


async def wait_beside_others() -> None:
    """1 ms in which the process may do other things."""
    await asyncio.sleep(0.001)


async def hold_the_process() -> None:
    """1 ms in which it can't."""
    time.sleep(0.001)  # noqa: ASYNC251


async def wait_for_nothing() -> None:
    """The handler has nothing to do."""


def share_work(
    dsn: str,
    process_count: int,
    count: int,
    wait: Wait,
    options: Mapping[str, Any],
    config: ReliableDeliveryConfig,
) -> Sample:
    """From the moment that the events are there until every one was handled by one of the processes."""
    context = multiprocessing.get_context("spawn")
    asyncio.run(create(dsn))
    may_end, ready, handled = context.Event(), context.Value("i", 0), context.Value("i", 0)
    processes = [
        context.Process(
            target=_work, args=(dsn, wait, dict(options), config, ready, handled, may_end), daemon=True
        )
        for _ in range(process_count)
    ]
    for process in processes:
        process.start()
    _until(lambda: ready.value == process_count)
    asyncio.run(announce(dsn, count))
    began_at = time.perf_counter()
    _until(lambda: handled.value >= count)
    seconds = time.perf_counter() - began_at
    may_end.set()
    for process in processes:
        process.join(_PATIENCE)
    if handled.value != count:
        raise AssertionError(f"{handled.value} deliveries of {count} events")
    return Sample(figures={"rate": count / seconds}, settings=asyncio.run(durability(dsn)))


def _work(
    dsn: str,
    wait: Wait,
    options: dict[str, Any],
    config: ReliableDeliveryConfig,
    ready: "Synchronized[int]",
    handled: "Synchronized[int]",
    may_end: ProcessEvent,
) -> None:
    """One instance, until it may end."""
    count = 0

    async def handle(_event: Event) -> None:
        nonlocal count
        await wait()
        count += 1

    async def tell() -> None:
        nonlocal count
        # Not for each event: that would be measured as well.
        while True:
            if count:
                with handled.get_lock():
                    handled.value, count = handled.value + count, 0
            await asyncio.sleep(0.01)

    async def run() -> None:
        bus = PgEventBus(dsn, config=config)
        bus.subscribe(EVENT_TYPE, handle, id="bench", **options)
        async with bus:
            telling = asyncio.create_task(tell())
            await bus.subscription("bench").caught_up(_PATIENCE)
            with ready.get_lock():
                ready.value += 1
            await asyncio.to_thread(may_end.wait, _PATIENCE)
            telling.cancel()

    asyncio.run(run())


def _until(is_true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _PATIENCE
    while not is_true():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {_PATIENCE:g} s")
        time.sleep(0.002)
