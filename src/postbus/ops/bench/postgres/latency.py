"""From the call of publish in one process to the handler in another, on PostgreSQL."""

import asyncio
import importlib
import multiprocessing
import time
from functools import partial
from multiprocessing.synchronize import Event as ProcessEvent
from typing import cast

from postbus.ops.bench.measuring import percentile
from postbus.ops.bench.model import Candidate, Column, Effort, RatioColumn, Sample, Workload
from postbus.ops.bench.postgres.candidates import on_postgres
from postbus.ops.bench.postgres.ends import Ends
from postbus.ops.bench.postgres.sessions import durability

# At a low rate a second has too few events for a p99.
_LONGER = 4.0
_PATIENCE = 30.0
OURS, RAW = "postbus.ops.bench.postgres.buses", "postbus.ops.bench.postgres.raw"
TITLE = "PostgreSQL: publish in one process → handler entered in another"
COLUMNS = (Column("p50", "p50", "ms"), Column("p99", "p99", "ms"))
_RATE = 500


def run_across_processes(module: str, rate: int, dsn: str, effort: Effort) -> Sample:
    """A second process sends the moment just before it publishes, so many times a second.

    *module* has the sender and the receiver.
    """
    context = multiprocessing.get_context("spawn")
    is_ready, may_end = context.Event(), context.Event()
    seconds = effort.warm_up + effort.seconds * _LONGER
    sending = context.Process(target=_send, args=(module, rate, dsn, seconds, is_ready, may_end), daemon=True)

    async def run() -> Sample:
        latencies: list[float] = []
        sent_count = max(1, int(rate * seconds))
        # Both processes read the same clock of the system.
        async with _ends(module).receiver(dsn, lambda moment: latencies.append(time.monotonic() - moment)):
            sending.start()
            is_ready.set()
            await _until_received(latencies, sent_count)
            may_end.set()
            await asyncio.to_thread(sending.join)
        measured = [latency * 1000 for latency in latencies[len(latencies) // 10 :]]
        if sending.exitcode != 0 or len(latencies) != sent_count:
            raise AssertionError(
                f"the sender ended with {sending.exitcode}, {len(latencies)} of {sent_count} events came"
            )
        figures = {"p50": percentile(measured, 50), "p99": percentile(measured, 99)}
        return Sample(figures=figures, settings=await durability(dsn))

    return asyncio.run(run())


def _ends(module: str) -> Ends:
    return cast(Ends, importlib.import_module(module))


async def _until_received(latencies: list[float], count: int) -> None:
    async with asyncio.timeout(_PATIENCE):
        # Not by an asyncio.Event: some receive in a thread.
        while len(latencies) < count:  # noqa: ASYNC110
            await asyncio.sleep(0.05)


def _send(
    module: str, rate: int, dsn: str, seconds: float, is_ready: ProcessEvent, may_end: ProcessEvent
) -> None:
    async def send_at_rate() -> None:
        async with _ends(module).sender(dsn) as send:
            is_ready.wait()
            began = time.monotonic()
            for number in range(max(1, int(rate * seconds))):
                await asyncio.sleep(max(0.0, began + number / rate - time.monotonic()))
                await send(time.monotonic())
            may_end.wait()

    asyncio.run(send_at_rate())


def across_processes(kind: str, label: str, module: str, rate: int) -> Candidate:
    """The way from a sender to a receiver, so many times a second."""
    run = partial(run_across_processes, module, rate)
    return on_postgres(f"{kind}-{rate}", f"{label}, {rate} events/s", run)


def postbus(rate: int) -> Candidate:
    """The way through a bus."""
    return across_processes("postbus", "postbus", OURS, rate)


def notify_and_fetch(rate: int) -> Candidate:
    """The raw limit."""
    return across_processes("raw", "raw: NOTIFY in the transaction and a fetch", RAW, rate)


def by_raw(rate: int) -> RatioColumn:
    """Divided by that."""
    return RatioColumn("p50", f"p50 ÷ raw at {rate}/s", f"raw-{rate}")


WORKLOAD = Workload(
    name="pg-latency",
    title=TITLE,
    candidates=(postbus(_RATE), notify_and_fetch(_RATE)),
    columns=COLUMNS,
    ratios=(by_raw(_RATE),),
    needs_postgres=True,
)
