"""From the call of publish in one process to the handler in another, on PostgreSQL."""

import asyncio
import importlib
import multiprocessing
import time
from functools import partial
from multiprocessing.synchronize import Event as ProcessEvent
from typing import cast

from bench.measuring import percentile
from bench.model import Candidate, Column, Effort, RatioColumn, Sample, Workload
from bench.pg.candidates import load_peer, on_postgres
from bench.pg.ends import Ends
from bench.pg.server import durability

_RATES = (50, 500)
# At a low rate a second has too few events for a p99.
_LONGER = 4.0
_PATIENCE = 30.0
_OURS = {"postbus": "bench.pg.buses", "raw": "bench.pg.raw"}
_LABELS = {"raw": "raw: NOTIFY in the transaction and a fetch"}


def run_across_processes(kind: str, rate: int, dsn: str, effort: Effort) -> Sample:
    """A second process sends the moment just before it publishes, so many times a second."""
    context = multiprocessing.get_context("spawn")
    is_ready, may_end = context.Event(), context.Event()
    seconds = effort.warm_up + effort.seconds * _LONGER
    sending = context.Process(target=_send, args=(kind, rate, dsn, seconds, is_ready, may_end), daemon=True)

    async def run() -> Sample:
        latencies: list[float] = []
        sent_count = max(1, int(rate * seconds))
        # Both processes read the same clock of the system.
        async with ends_of(kind).receiver(dsn, lambda moment: latencies.append(time.monotonic() - moment)):
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


def ends_of(kind: str) -> Ends:
    """The sender and the receiver of ourselves, of the raw driver or of a peer."""
    module = importlib.import_module(_OURS[kind]) if kind in _OURS else load_peer(kind)
    return cast(Ends, module)


async def _until_received(latencies: list[float], count: int) -> None:
    async with asyncio.timeout(_PATIENCE):
        # Not by an asyncio.Event: some receive in a thread.
        while len(latencies) < count:  # noqa: ASYNC110
            await asyncio.sleep(0.05)


def _send(
    kind: str, rate: int, dsn: str, seconds: float, is_ready: ProcessEvent, may_end: ProcessEvent
) -> None:
    async def send_at_rate() -> None:
        async with ends_of(kind).sender(dsn) as send:
            is_ready.wait()
            began = time.monotonic()
            for number in range(max(1, int(rate * seconds))):
                await asyncio.sleep(max(0.0, began + number / rate - time.monotonic()))
                await send(time.monotonic())
            may_end.wait()

    asyncio.run(send_at_rate())


def _candidate(kind: str, rate: int) -> Candidate:
    label = f"{_LABELS.get(kind, kind)}, {rate} events/s"
    return on_postgres(f"{kind}-{rate}", label, partial(run_across_processes, kind, rate))


WORKLOAD = Workload(
    name="pg-latency",
    title="PostgreSQL: publish in one process → handler entered in another",
    candidates=tuple(
        _candidate(kind, rate)
        for rate in _RATES
        for kind in ("postbus", "raw", "eventsourcing", "pgqueuer", "procrastinate")
        # It gets no 500 events a second done.
        if (kind, rate) != ("procrastinate", 500)
    ),
    columns=(Column("p50", "p50", "ms"), Column("p99", "p99", "ms")),
    ratios=tuple(RatioColumn("p50", f"p50 ÷ raw at {rate}/s", f"raw-{rate}") for rate in _RATES),
    needs_postgres=True,
)
