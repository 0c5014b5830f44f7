"""A durable subscriber on PostgreSQL that begins at the beginning of a log which is long already."""

import asyncio
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from postbus import CheckpointMode, EventBus, ReliableDeliveryConfig
from postbus.ops.bench.measuring import EVENT_TYPE, do_nothing, log_figures, peak_memory
from postbus.ops.bench.model import Candidate, Column, Effort, RatioColumn, Sample, Workload
from postbus.ops.bench.postgres import raw
from postbus.ops.bench.postgres.buses import batched_config
from postbus.ops.bench.postgres.candidates import Run, on_postgres
from postbus.ops.bench.postgres.filling import fill
from postbus.ops.bench.postgres.sessions import ask, durability
from postbus.pg import PgEventBus

COUNT = 200_000
TITLE = f"PostgreSQL: catch-up of a durable subscriber, {COUNT:,} events, handler that does nothing"
RATE = Column("rate", "events/s", "/s")
BY_DECODED = RatioColumn("rate", "÷ raw decoded", "raw-decoded")
BY_CHECKPOINTS = RatioColumn("rate", "÷ raw checkpoints", "raw-checkpoints")
_SYNCHRONOUS_COUNT = 1_000
_SYNCHRONOUS = ReliableDeliveryConfig(checkpoint_mode=CheckpointMode.synchronous())
_CHECKPOINT = "SELECT last_global_sequence FROM postbus.event_bus_checkpoints WHERE subscriber_id = 'bench'"


def run_postbus(
    count: int, config: ReliableDeliveryConfig, handler: Callable[..., Any], dsn: str, _effort: Effort
) -> Sample:
    """Until the checkpoint is at the end of the log."""

    async def run() -> Sample:
        bus = PgEventBus(dsn, config=config)
        bus.subscribe(EVENT_TYPE, handler, id="bench")
        figures = await catch_up(bus, count)
        if (position := await ask(dsn, _CHECKPOINT)) != count:
            raise AssertionError(f"the checkpoint is at {position}, and not at {count}")
        return Sample(figures=figures, settings=await durability(dsn))

    return asyncio.run(run())


async def catch_up(bus: EventBus, count: int) -> dict[str, float]:
    """Until the subscriber "bench" has caught up; connected before, as the raw driver is."""
    memory_before = peak_memory()
    async with bus:
        began, cpu_began = time.perf_counter(), time.process_time()
        await bus.subscription("bench").caught_up()
        return log_figures(count, count, began, cpu_began, peak_memory() - memory_before)


def subscriber(
    name: str,
    label: str,
    config: ReliableDeliveryConfig,
    handler: Callable[..., Any] = do_nothing,
    count: int = COUNT,
) -> Candidate:
    """One that is configured so."""
    return on_postgres(
        f"postbus-{name}",
        f"postbus: {label}",
        partial(run_postbus, count, config, handler),
        prepare=partial(fill, count=count),
    )


def batched(size: int) -> Candidate:
    """Read and checkpointed in batches of one size."""
    return subscriber(f"batched-{size}", f"batches and checkpoints of {size}", batched_config(size))


def synchronous(count: int) -> Candidate:
    """A checkpoint for each event."""
    label = f"checkpoint after every event ({count:,} events)"
    return subscriber("synchronous", label, _SYNCHRONOUS, count=count)


def raw_reader(name: str, label: str, run: Run, count: int = 0) -> Candidate:
    """The raw driver, on a log of so many events."""
    prepare = partial(fill, count=count) if count else None
    return on_postgres(f"raw-{name}", f"raw: {label}", run, prepare=prepare)


def read_and_decode() -> Candidate:
    """The raw limit of batched checkpoints."""
    run = partial(raw.read_log, count=COUNT, is_decoded=True)
    return raw_reader("decoded", "read and decode with msgspec", run, COUNT)


def commit_checkpoints() -> Candidate:
    """The raw limit of a checkpoint for each event."""
    run = partial(raw.commit_checkpoints, synchronous_commit="on")
    return raw_reader("checkpoints", "an UPDATE and commit for each event, nothing read", run)


WORKLOAD = Workload(
    name="pg-catch-up",
    title=TITLE,
    candidates=(batched(100), synchronous(_SYNCHRONOUS_COUNT), read_and_decode(), commit_checkpoints()),
    columns=(RATE,),
    ratios=(BY_DECODED, BY_CHECKPOINTS),
    needs_postgres=True,
)
