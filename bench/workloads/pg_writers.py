"""Appends of many writers on PostgreSQL, each with a connection of its own, in each mode of notifying."""

import asyncio
import multiprocessing
import time
from contextlib import AsyncExitStack
from functools import partial
from multiprocessing.queues import Queue
from multiprocessing.synchronize import Barrier
from typing import Literal

from postbus.ops.bench.model import Column, Effort, RatioColumn, Sample, Tier, Workload
from postbus.ops.bench.postgres.buses import COUNT_EVENTS, publish_step
from postbus.ops.bench.postgres.candidates import on_postgres
from postbus.ops.bench.postgres.filling import create
from postbus.ops.bench.postgres.sessions import ask, durability
from postbus.pg import PgEventBus

NotifyMode = Literal["after_commit", "trigger", "off"]
_MODES: tuple[NotifyMode, ...] = ("after_commit", "trigger", "off")
_WRITER_COUNTS = (1, 8, 32, 64)
# A process for each of 64 would be measured by how long the machine takes to switch between them.
_MOST_PROCESSES = 4
_PATIENCE = 40.0


def run_writers(writer_count: int, mode: NotifyMode, dsn: str, effort: Effort) -> Sample:
    """Every writer is a bus that publishes one event after the other."""
    process_count = min(writer_count, _MOST_PROCESSES)
    context = multiprocessing.get_context("spawn")
    barrier, counts = context.Barrier(process_count), context.Queue()
    asyncio.run(create(dsn))
    writers = [
        context.Process(
            target=_write,
            args=(dsn, mode, writer_count // process_count, effort, barrier, counts),
            daemon=True,
        )
        for _ in range(process_count)
    ]
    for writer in writers:
        writer.start()
    found = [counts.get(timeout=_PATIENCE) for _ in writers]
    for writer in writers:
        writer.join()
    total, measured, seconds = (sum(column) for column in zip(*found, strict=True))
    return asyncio.run(_sample(dsn, total, measured * process_count / seconds))


async def _sample(dsn: str, total: int, rate: float) -> Sample:
    stored = await ask(dsn, COUNT_EVENTS)
    if stored != total:
        raise AssertionError(f"{total} events were counted, {stored} are stored")
    return Sample(figures={"rate": rate}, settings=await durability(dsn))


def _write(
    dsn: str,
    mode: NotifyMode,
    bus_count: int,
    effort: Effort,
    barrier: Barrier,
    counts: "Queue[tuple[int, int, float]]",
) -> None:
    """So many buses in this process; how many events in all, how many of them in how many seconds."""

    async def write_for(buses: list[PgEventBus], seconds: float) -> int:
        deadline = time.perf_counter() + seconds

        async def write(bus: PgEventBus) -> int:
            step, count = publish_step(bus), 0
            while time.perf_counter() < deadline:
                count += await step()
            return count

        return sum(await asyncio.gather(*map(write, buses)))

    async def run() -> None:
        async with AsyncExitStack() as stack:
            buses = [
                await stack.enter_async_context(PgEventBus(dsn, notify=mode, pool_size=2))
                for _ in range(bus_count)
            ]
            barrier.wait(_PATIENCE)
            warm_up_count = await write_for(buses, effort.warm_up)
            began = time.perf_counter()
            count = await write_for(buses, effort.seconds)
            seconds = time.perf_counter() - began
            # Nobody leaves while others are being measured.
            barrier.wait(_PATIENCE)
        counts.put((warm_up_count + count, count, seconds))

    asyncio.run(run())


WORKLOAD = Workload(
    name="pg-writers",
    title="PostgreSQL: writers with connections of their own, in up to four processes",
    candidates=tuple(
        on_postgres(
            f"{mode}-{count}",
            f'postbus: {count} writer{"s" if count > 1 else ""}, notify="{mode}"',
            partial(run_writers, count, mode),
            tier=Tier.QUICK if count == 32 else Tier.DEFAULT,
        )
        for count in _WRITER_COUNTS
        for mode in _MODES
    ),
    columns=(Column("rate", "events/s", "/s"),),
    ratios=tuple(RatioColumn("rate", f"÷ off, {count}", f"off-{count}") for count in _WRITER_COUNTS),
    needs_postgres=True,
)
