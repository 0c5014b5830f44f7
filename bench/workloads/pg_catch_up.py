"""A durable subscriber on PostgreSQL that begins at the beginning of a log which is long already."""

import asyncio
from functools import partial
from typing import Any

from bench.pg.candidates import of_peer
from bench.pg.own_checkpoints import commit_own_checkpoints
from postbus import Event, ReliableDeliveryConfig
from postbus.ops.bench.model import Candidate, Column, Effort, RatioColumn, Sample, Tier, Workload
from postbus.ops.bench.postgres import raw
from postbus.ops.bench.postgres.buses import batched_config
from postbus.ops.bench.postgres.candidates import on_postgres
from postbus.ops.bench.postgres.catch_up import (
    BY_CHECKPOINTS,
    BY_DECODED,
    COUNT,
    RATE,
    TITLE,
    batched,
    commit_checkpoints,
    raw_reader,
    read_and_decode,
    run_postbus,
    subscriber,
    synchronous,
)
from postbus.ops.bench.postgres.filling import fill
from postbus.ops.bench.postgres.sessions import Session, ask

_SLOW_COUNT = 20_000


async def read_payload(event: Event[dict[str, Any]]) -> None:
    """A handler that looks at what it is given."""
    assert event.payload["order"] == 42


async def do_nothing_in_transaction(event: Event, transaction: Session) -> None:
    """A transactional handler without statements of its own."""


async def write_row(event: Event, transaction: Session) -> None:
    """A transactional handler with one statement for each event."""
    await transaction.execute("INSERT INTO effects VALUES ($1)", event.id)


def run_writing_rows(count: int, dsn: str, effort: Effort) -> Sample:
    """Every event takes effect once."""
    asyncio.run(ask(dsn, "CREATE TABLE effects (event_id text)"))
    sample = run_postbus(count, ReliableDeliveryConfig(), write_row, dsn, effort)
    effects = asyncio.run(ask(dsn, "SELECT count(*) FROM effects"))
    if effects != count:
        raise AssertionError(f"{effects} of {count} events took effect")
    return sample


def _peer(name: str, label: str, package: str, function: str, count: int, **arguments: int) -> Candidate:
    run = of_peer(package, function, count=count, **arguments)
    return on_postgres(name, f"{package}: {label} ({count:,} events)", run, tier=Tier.QUICK)


WORKLOAD = Workload(
    name="pg-catch-up",
    title=TITLE,
    candidates=(
        batched(100),
        batched(1_000),
        subscriber(
            "payload", "the same, the handler looks at the payload", batched_config(1_000), read_payload
        ),
        synchronous(_SLOW_COUNT),
        subscriber(
            "transactional",
            "handlers in the checkpoint's transaction, batches of 100",
            ReliableDeliveryConfig(),
            do_nothing_in_transaction,
        ),
        on_postgres(
            "postbus-transactional-row",
            f"postbus: the same, each writes a row ({_SLOW_COUNT:,} events)",
            partial(run_writing_rows, _SLOW_COUNT),
            prepare=partial(fill, count=_SLOW_COUNT),
        ),
        raw_reader("rows", "rows only", partial(raw.read_log, count=COUNT, is_decoded=False), COUNT),
        read_and_decode(),
        raw_reader(
            "decoded-100",
            "the same, a checkpoint every 100 events",
            partial(raw.read_log, count=COUNT, is_decoded=True, checkpoint_every=100),
            COUNT,
        ),
        commit_checkpoints(),
        raw_reader(
            "checkpoints-off",
            "the same, not waiting for the disk",
            partial(raw.commit_checkpoints, synchronous_commit="off"),
        ),
        raw_reader(
            "checkpoints-own",
            "the statement of the bus and a commit for each event, nothing read",
            commit_own_checkpoints,
        ),
        _peer("eventsourcing", "subscription, no checkpoint", "eventsourcing", "deliver", 50_000),
        _peer(
            "eventsourcing-tracked", "runner, position tracked", "eventsourcing", "deliver_tracked", 10_000
        ),
        _peer("pgqueuer-1000", "batches of 1000", "pgqueuer", "deliver", 20_000, batch_size=1_000),
        _peer("pgqueuer-100", "batches of 100", "pgqueuer", "deliver", 20_000, batch_size=100),
        _peer("procrastinate", "worker", "procrastinate", "deliver", 500),
    ),
    columns=(
        RATE,
        Column("cpu", "CPU per event", "µs"),
        Column("memory", "peak memory above the start", "MB"),
    ),
    ratios=(BY_DECODED, RatioColumn("rate", "÷ with checkpoints of 100", "raw-decoded-100"), BY_CHECKPOINTS),
    needs_postgres=True,
)
