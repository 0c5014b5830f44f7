"""A durable subscriber that begins at the beginning of a log which is long already."""

import asyncio
import sqlite3
import time
from contextlib import closing
from datetime import datetime
from functools import partial
from pathlib import Path

import msgspec

from bench.filling import FILE_NAME, fill
from bench.measuring import EVENT_TYPE, peak_memory
from bench.model import Candidate, Column, Effort, RatioColumn, Sample, Tier, Workload
from bench.publishers import do_nothing, settings_in_force, store_in
from bench.raw import settings_of
from postbus import CheckpointMode, Event, EventBus, EventStatus
from postbus.config import AnyCheckpointMode

PAGE_SIZE = 1_000
SIZES = (
    ("10k", 10_000, Tier.QUICK),
    ("100k", 100_000, Tier.QUICK),
    ("1m", 1_000_000, Tier.DEFAULT),
    ("10m", 10_000_000, Tier.LARGE),
)
_COUNT = 100_000
_SYNCHRONOUS_COUNT = 10_000
# All that an event has: which of it is empty is not known before it is read.
_COLUMNS = (
    "global_sequence, id, type, payload, created_at, status, retry_count, last_error, metadata, dlq_at, "
    "stream_id, stream_version, actor_id, purger_id, purged_at, correlation_id, causation_id, schema_version"
)
_READ = f"SELECT {_COLUMNS} FROM events WHERE global_sequence > ? ORDER BY global_sequence LIMIT ?"


def prepare(count: int, folder: Path) -> None:
    """A log of so many events."""
    fill(folder, count)


def run_raw(count: int, folder: Path, _effort: Effort, *, is_decoded: bool) -> Sample:
    """Page after page in one thread; if it is to be decoded, each row becomes what a handler is given."""
    decode, statuses = msgspec.json.Decoder().decode, {status.value: status for status in EventStatus}
    with closing(sqlite3.connect(folder / FILE_NAME, isolation_level=None)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        began, cpu_began, after, seen = time.perf_counter(), time.process_time(), 0, 0
        while rows := connection.execute(_READ, (after, PAGE_SIZE)).fetchall():
            if is_decoded:
                for row in rows:
                    Event(
                        global_sequence=row[0],
                        id=row[1],
                        type=row[2],
                        payload=decode(row[3]),
                        created_at=datetime.fromisoformat(row[4]),
                        status=statuses[row[5]],
                        retry_count=row[6],
                        last_error=row[7],
                        metadata=row[8],
                        dlq_at=row[9],
                        stream_id=row[10],
                        stream_version=row[11],
                        actor_id=row[12],
                        purger_id=row[13],
                        purged_at=row[14],
                        correlation_id=row[15],
                        causation_id=row[16],
                        schema_version=row[17],
                    )
            after = rows[-1][0]
            seen += len(rows)
        figures = _figures(seen, count, began, cpu_began, 0)
        return Sample(figures=figures, settings=settings_of(connection))


def run_postbus(count: int, mode: AnyCheckpointMode, folder: Path, _effort: Effort) -> Sample:
    """Until the checkpoint is at the end of the log."""

    async def run() -> Sample:
        bus = EventBus(store_in(folder))
        bus.subscribe(EVENT_TYPE, do_nothing, id="bench", checkpoint_mode=mode)
        return await _catch_up(bus, folder, count)

    return asyncio.run(run())


def run_transactional(count: int, folder: Path, _effort: Effort) -> Sample:
    """The handler writes one row of its own for each event, in the transaction of the checkpoint."""

    async def run() -> Sample:
        with closing(sqlite3.connect(folder / FILE_NAME)) as connection:
            connection.execute("CREATE TABLE effects (event_id TEXT)")
        bus = EventBus(store_in(folder))

        def write_effect(event: Event, transaction: sqlite3.Connection) -> None:
            transaction.execute("INSERT INTO effects VALUES (?)", (event.id,))

        bus.subscribe(EVENT_TYPE, write_effect, id="bench")
        sample = await _catch_up(bus, folder, count)
        with closing(sqlite3.connect(folder / FILE_NAME)) as connection:
            (effects,) = connection.execute("SELECT count(*) FROM effects").fetchone()
        if effects != count:
            raise AssertionError(f"{effects} of {count} events took effect")
        return sample

    return asyncio.run(run())


async def _catch_up(bus: EventBus, folder: Path, count: int) -> Sample:
    memory_before = peak_memory()
    began, cpu_began = time.perf_counter(), time.process_time()
    async with bus:
        await bus.subscription("bench").caught_up()
        figures = _figures(count, count, began, cpu_began, peak_memory() - memory_before)
        store = bus.store
        settings = await settings_in_force(store)  # type: ignore[arg-type]
    _check_checkpoint(folder, count)
    return Sample(figures=figures, settings=settings)


def _figures(seen: int, count: int, began: float, cpu_began: float, memory: int) -> dict[str, float]:
    seconds, cpu_seconds = time.perf_counter() - began, time.process_time() - cpu_began
    if seen != count:
        raise AssertionError(f"{seen} of {count} events were read")
    return {
        "rate": count / seconds,
        "cost": seconds / count * 1e6,
        "cpu": cpu_seconds / count * 1e6,
        "memory": memory / 2**20,
    }


def _check_checkpoint(folder: Path, count: int) -> None:
    with closing(sqlite3.connect(folder / FILE_NAME)) as connection:
        (position,) = connection.execute("SELECT last_global_sequence FROM event_bus_checkpoints").fetchone()
    if position != count:
        raise AssertionError(f"the checkpoint is at {position}, and not at {count}")


def _candidate(name: str, label: str, count: int, mode: AnyCheckpointMode, tier: Tier) -> Candidate:
    return Candidate(
        name=name,
        label=f"postbus: {label}",
        prepare=partial(prepare, count),
        run=partial(run_postbus, count, mode),
        tier=tier,
        time_limit=60.0 + 60.0 * count / 1_000_000,
    )


_BATCHED = CheckpointMode.batched(batch_size=100)

CATCH_UP = Workload(
    name="catch-up",
    title=f"catch-up of a durable subscriber, {_COUNT:,} events, handler that does nothing, synchronous=FULL",
    candidates=(
        _candidate("postbus-batched", "checkpoint every 100 events", _COUNT, _BATCHED, Tier.QUICK),
        _candidate(
            "postbus-batched-1000",
            "checkpoint every 1000 events",
            _COUNT,
            CheckpointMode.batched(batch_size=1_000),
            Tier.QUICK,
        ),
        _candidate(
            "postbus-synchronous",
            f"checkpoint after every event ({_SYNCHRONOUS_COUNT:,} events)",
            _SYNCHRONOUS_COUNT,
            CheckpointMode.synchronous(),
            Tier.QUICK,
        ),
        Candidate(
            name="postbus-transactional",
            label="postbus: one row of the handler's own per event, in the checkpoint's transaction",
            prepare=partial(prepare, _COUNT),
            run=partial(run_transactional, _COUNT),
        ),
        Candidate(
            name="raw-decoded",
            label="raw: read and decode with msgspec",
            prepare=partial(prepare, _COUNT),
            run=partial(run_raw, _COUNT, is_decoded=True),
        ),
        Candidate(
            name="raw-rows",
            label="raw: rows only",
            prepare=partial(prepare, _COUNT),
            run=partial(run_raw, _COUNT, is_decoded=False),
        ),
    ),
    columns=(
        Column("rate", "events/s", "/s"),
        Column("cpu", "CPU per event", "µs"),
        Column("memory", "peak memory above the start", "MB"),
    ),
    ratios=(RatioColumn("rate", "÷ raw decoded", "raw-decoded"),),
)

LOG_GROWTH = Workload(
    name="log-growth",
    title="catch-up through logs of growing length, checkpoint every 100 events, synchronous=FULL",
    candidates=tuple(
        _candidate(f"log-{name}", f"{count:,} events", count, _BATCHED, tier) for name, count, tier in SIZES
    ),
    columns=(
        Column("rate", "events/s", "/s"),
        Column("cost", "per event", "µs"),
        Column("memory", "peak memory above the start", "MB"),
    ),
    ratios=(RatioColumn("cost", "cost ÷ at 100k", "log-100k"),),
)
