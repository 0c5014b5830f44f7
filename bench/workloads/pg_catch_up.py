"""A durable subscriber on PostgreSQL that begins at the beginning of a log which is long already."""

import asyncio
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from bench.measuring import EVENT_TYPE, peak_memory
from bench.model import Candidate, Column, Effort, RatioColumn, Sample, Tier, Workload
from bench.pg import raw
from bench.pg.buses import batched_config
from bench.pg.candidates import Run, of_peer, on_postgres
from bench.pg.figures import log_figures
from bench.pg.filling import fill
from bench.pg.server import durability
from bench.publishers import do_nothing
from postbus import CheckpointMode, Event, EventBus, ReliableDeliveryConfig
from postbus.pg import PgEventBus
from tests.postgres.steps import Session, ask

_COUNT = 100_000
_SLOW_COUNT = 5_000
_CHECKPOINT = "SELECT last_global_sequence FROM postbus.event_bus_checkpoints WHERE subscriber_id = 'bench'"


async def read_payload(event: Event[dict[str, Any]]) -> None:
    """A handler that looks at what it is given."""
    assert event.payload["order"] == 42


async def do_nothing_in_transaction(event: Event, transaction: Session) -> None:
    """A transactional handler without statements of its own."""


async def write_row(event: Event, transaction: Session) -> None:
    """A transactional handler with one statement for each event."""
    await transaction.execute("INSERT INTO effects VALUES ($1)", event.id)


def run_postbus(
    count: int, config: ReliableDeliveryConfig, handler: Callable[..., Any], dsn: str, _effort: Effort
) -> Sample:
    """Until the checkpoint is at the end of the log."""

    async def run() -> Sample:
        await ask(dsn, "CREATE TABLE IF NOT EXISTS effects (event_id text)")
        bus = PgEventBus(dsn, config=config)
        bus.subscribe(EVENT_TYPE, handler, id="bench")
        figures = await catch_up(bus, count)
        if (position := await ask(dsn, _CHECKPOINT)) != count:
            raise AssertionError(f"the checkpoint is at {position}, and not at {count}")
        effects = await ask(dsn, "SELECT count(*) FROM effects")
        if handler is write_row and effects != count:
            raise AssertionError(f"{effects} of {count} events took effect")
        return Sample(figures=figures, settings=await durability(dsn))

    return asyncio.run(run())


async def catch_up(bus: EventBus, count: int) -> dict[str, float]:
    """From the start of a bus until its subscriber "bench" has caught up."""
    memory_before = peak_memory()
    began, cpu_began = time.perf_counter(), time.process_time()
    async with bus:
        await bus.subscription("bench").caught_up()
        return log_figures(count, count, began, cpu_began, peak_memory() - memory_before)


def _ours(
    name: str,
    label: str,
    config: ReliableDeliveryConfig,
    handler: Callable[..., Any] = do_nothing,
    count: int = _COUNT,
) -> Candidate:
    return on_postgres(
        f"postbus-{name}",
        f"postbus: {label}",
        partial(run_postbus, count, config, handler),
        prepare=partial(fill, count=count),
    )


def _raw(name: str, label: str, run: Run, count: int = 0) -> Candidate:
    prepare = partial(fill, count=count) if count else None
    return on_postgres(f"raw-{name}", f"raw: {label}", run, prepare=prepare)


def _peer(name: str, label: str, package: str, function: str, count: int, **arguments: int) -> Candidate:
    run = of_peer(package, function, count=count, **arguments)
    return on_postgres(name, f"{package}: {label} ({count:,} events)", run, tier=Tier.QUICK)


_SYNCHRONOUS = ReliableDeliveryConfig(checkpoint_mode=CheckpointMode.synchronous())

WORKLOAD = Workload(
    name="pg-catch-up",
    title=f"PostgreSQL: catch-up of a durable subscriber, {_COUNT:,} events, handler that does nothing",
    candidates=(
        _ours("batched-100", "batches and checkpoints of 100", batched_config(100)),
        _ours("batched-1000", "batches and checkpoints of 1000", batched_config(1_000)),
        _ours("payload", "the same, the handler looks at the payload", batched_config(1_000), read_payload),
        _ours(
            "synchronous",
            f"checkpoint after every event ({_SLOW_COUNT:,} events)",
            _SYNCHRONOUS,
            count=_SLOW_COUNT,
        ),
        _ours(
            "transactional",
            "handlers in the checkpoint's transaction, batches of 100",
            ReliableDeliveryConfig(),
            do_nothing_in_transaction,
        ),
        _ours(
            "transactional-row",
            f"the same, each writes a row ({_SLOW_COUNT:,} events)",
            ReliableDeliveryConfig(),
            write_row,
            count=_SLOW_COUNT,
        ),
        _raw("rows", "rows only", partial(raw.read_log, count=_COUNT, is_decoded=False), _COUNT),
        _raw(
            "decoded",
            "read and decode with msgspec",
            partial(raw.read_log, count=_COUNT, is_decoded=True),
            _COUNT,
        ),
        _raw(
            "checkpoints",
            "an UPDATE and commit for each event, nothing read",
            partial(raw.commit_checkpoints, synchronous_commit="on"),
        ),
        _raw(
            "checkpoints-off",
            "the same, not waiting for the disk",
            partial(raw.commit_checkpoints, synchronous_commit="off"),
        ),
        _peer("eventsourcing", "subscription, no checkpoint", "eventsourcing", "deliver", 50_000),
        _peer("eventsourcing-tracked", "runner, position tracked", "eventsourcing", "deliver_tracked", 2_000),
        _peer("pgqueuer-1000", "batches of 1000", "pgqueuer", "deliver", 20_000, batch_size=1_000),
        _peer("pgqueuer-100", "batches of 100", "pgqueuer", "deliver", 20_000, batch_size=100),
        _peer("procrastinate", "worker", "procrastinate", "deliver", 500),
    ),
    columns=(
        Column("rate", "events/s", "/s"),
        Column("cpu", "CPU per event", "µs"),
        Column("memory", "peak memory above the start", "MB"),
    ),
    ratios=(
        RatioColumn("rate", "÷ raw decoded", "raw-decoded"),
        RatioColumn("rate", "÷ raw checkpoints", "raw-checkpoints"),
    ),
    needs_postgres=True,
)
