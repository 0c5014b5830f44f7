"""publish → handler → done, at the durability of the default and at the lower one."""

import asyncio
from collections.abc import Callable
from contextvars import ContextVar
from functools import partial
from pathlib import Path

from bench import peers, raw
from bench.model import Candidate, Column, Effort, RatioColumn, Sample, Tier, Workload
from bench.publishers import bus_on, check_all_done, measure_publishers, settings_in_force, store_in

PUBLISHER_COUNTS = (1, 10, 100, 1000)

_request_id: ContextVar[str] = ContextVar("request_id")

Run = Callable[[Path, Effort, str], Sample]

_RAW: tuple[tuple[str, str, Run], ...] = (
    ("raw-commit", "raw: one INSERT and commit per event", raw.commit_each),
    ("raw-thread", "raw: the same in a thread of its own, awaited in an event loop", raw.commit_in_thread),
    ("raw-three", "raw: insert, processing, done: three commits (stand-in for the TypeScript reference)",
     raw.commit_three_times),
    ("raw-lean", "raw: 100 per commit, inserted and marked done, lean schema", raw.commit_groups),
    ("raw-specified", "raw: the same, the specification's schema", raw.commit_groups_as_specified),
    ("raw-batch", "raw: executemany of 1000 in one transaction, inserted only", raw.insert_batches),
)  # fmt: skip
_PEERS: tuple[tuple[str, str, Run], ...] = (
    ("huey", "huey: enqueue, dequeue (at most once), execute", peers.run_huey),
    ("persist-queue", "persist-queue: SQLiteAckQueue put, get, ack", peers.run_persist_queue),
    ("litequeue", "litequeue: put, pop, done", peers.run_litequeue),
)


def run_postbus(publisher_count: int, synchronous: str, folder: Path, effort: Effort) -> Sample:
    """Concurrent publishers and a handler that does nothing."""

    async def run() -> Sample:
        store = store_in(folder, synchronous)
        async with bus_on(store) as bus:
            burst = await measure_publishers(bus, publisher_count, effort)
            await check_all_done(store)
            return Sample(
                figures={"rate": burst.rate, **burst.cpu_figures()}, settings=await settings_in_force(store)
            )

    return asyncio.run(run())


def run_postbus_with_context(publisher_count: int, synchronous: str, folder: Path, effort: Effort) -> Sample:
    """The same in an application that has a context variable, as tracing and web frameworks do."""
    _request_id.set("request 1")
    return run_postbus(publisher_count, synchronous, folder, effort)


def _workload(synchronous: str, tier: Tier) -> Workload:
    def at_level(run: Run) -> Callable[[Path, Effort], Sample]:
        return lambda folder, effort: run(folder, effort, synchronous)

    ours = tuple(
        Candidate(
            name=f"postbus-{count}",
            label=f"postbus: {count} {'publisher' if count == 1 else 'publishers'}",
            run=partial(run_postbus, count, synchronous),
            tier=tier,
        )
        for count in PUBLISHER_COUNTS
    )
    in_context = Candidate(
        name="postbus-100-context",
        label="postbus: 100 publishers that have a context variable set",
        run=partial(run_postbus_with_context, 100, synchronous),
        tier=tier,
    )
    others = tuple(
        Candidate(name=name, label=label, run=at_level(run), tier=tier)
        for name, label, run in (*_RAW, *_PEERS)
    )
    return Workload(
        name=f"publish-{synchronous.lower()}",
        title=f"publish → handler → done, synchronous={synchronous}, 200-byte payload",
        candidates=(*ours, in_context, *others),
        columns=(
            Column("rate", "events/s", "/s"),
            Column("cpu", "CPU per event", "µs"),
            Column("loop_cpu", "of it in the loop", "µs"),
        ),
        ratios=(
            RatioColumn("rate", "÷ one commit each", "raw-commit"),
            RatioColumn("rate", "÷ one commit each, in a thread", "raw-thread"),
            RatioColumn("rate", "÷ three commits", "raw-three"),
            RatioColumn("rate", "÷ lean groups", "raw-lean"),
            RatioColumn("rate", "÷ specified groups", "raw-specified"),
        ),
    )


FULL = _workload("FULL", Tier.QUICK)
NORMAL = _workload("NORMAL", Tier.DEFAULT)
