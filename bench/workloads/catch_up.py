"""A durable subscriber that begins at the beginning of a log which is long already."""

import asyncio
import sqlite3
from contextlib import closing
from functools import partial
from pathlib import Path

from postbus import CheckpointMode, Event, EventBus
from postbus.ops.bench.measuring import EVENT_TYPE
from postbus.ops.bench.model import Candidate, Column, Effort, RatioColumn, Sample, Tier, Workload
from postbus.ops.bench.sqlite.catch_up import (
    BATCHED,
    COUNT,
    batched,
    catch_up,
    commit_checkpoints,
    prepare,
    read_and_decode,
    run_raw,
    synchronous,
    with_mode,
)
from postbus.ops.bench.sqlite.filling import FILE_NAME
from postbus.ops.bench.sqlite.publishers import store_in

_SYNCHRONOUS_COUNT = 10_000
SIZES = (
    ("10k", 10_000, Tier.QUICK),
    ("100k", 100_000, Tier.QUICK),
    ("1m", 1_000_000, Tier.DEFAULT),
    ("10m", 10_000_000, Tier.LARGE),
)


def run_transactional(count: int, folder: Path, _effort: Effort) -> Sample:
    """The handler writes one row of its own for each event, in the transaction of the checkpoint."""

    async def run() -> Sample:
        with closing(sqlite3.connect(folder / FILE_NAME)) as connection:
            connection.execute("CREATE TABLE effects (event_id TEXT)")
        bus = EventBus(store_in(folder))

        def write_effect(event: Event, transaction: sqlite3.Connection) -> None:
            transaction.execute("INSERT INTO effects VALUES (?)", (event.id,))

        bus.subscribe(EVENT_TYPE, write_effect, id="bench")
        sample = await catch_up(bus, folder, count)
        with closing(sqlite3.connect(folder / FILE_NAME)) as connection:
            (effects,) = connection.execute("SELECT count(*) FROM effects").fetchone()
        if effects != count:
            raise AssertionError(f"{effects} of {count} events took effect")
        return sample

    return asyncio.run(run())


CATCH_UP = Workload(
    name="catch-up",
    title=f"catch-up of a durable subscriber, {COUNT:,} events, handler that does nothing, synchronous=FULL",
    candidates=(
        batched(),
        with_mode(
            "postbus-batched-1000",
            "checkpoint every 1000 events",
            COUNT,
            CheckpointMode.batched(batch_size=1_000),
        ),
        synchronous(_SYNCHRONOUS_COUNT),
        Candidate(
            name="postbus-transactional",
            label="postbus: one row of the handler's own per event, in the checkpoint's transaction",
            prepare=partial(prepare, COUNT),
            run=partial(run_transactional, COUNT),
        ),
        read_and_decode(),
        Candidate(
            name="raw-rows",
            label="raw: rows only",
            prepare=partial(prepare, COUNT),
            run=partial(run_raw, COUNT, is_decoded=False),
        ),
        commit_checkpoints(),
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
)

LOG_GROWTH = Workload(
    name="log-growth",
    title="catch-up through logs of growing length, checkpoint every 100 events, synchronous=FULL",
    candidates=tuple(
        with_mode(f"log-{name}", f"{count:,} events", count, BATCHED, tier) for name, count, tier in SIZES
    ),
    columns=(
        Column("rate", "events/s", "/s"),
        Column("cost", "per event", "µs"),
        Column("memory", "peak memory above the start", "MB"),
        Column("memory_each", "memory per event", "B"),
    ),
    ratios=(RatioColumn("cost", "cost ÷ at 100k", "log-100k"),),
)
