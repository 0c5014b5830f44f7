"""A durable subscriber that begins at the beginning of a log which is long already."""

import asyncio
import sqlite3
import time
from contextlib import closing
from datetime import datetime
from functools import partial
from pathlib import Path

import msgspec

from postbus import CheckpointMode, Event, EventBus, EventStatus
from postbus.config import AnyCheckpointMode
from postbus.ops.bench.measuring import EVENT_TYPE, do_nothing, log_figures, peak_memory, repeat
from postbus.ops.bench.model import Candidate, Column, Effort, RatioColumn, Sample, Tier, Workload
from postbus.ops.bench.sqlite.filling import FILE_NAME, fill
from postbus.ops.bench.sqlite.publishers import settings_in_force, store_in
from postbus.ops.bench.sqlite.raw import new_file, settings_of

PAGE_SIZE = 1_000
COUNT = 100_000
BATCHED = CheckpointMode.batched(batch_size=100)
_SYNCHRONOUS_COUNT = 2_000
# All that an event has: which of it is empty is not known before it is read.
_COLUMNS = (
    "global_sequence, id, type, payload, created_at, status, retry_count, last_error, metadata, dlq_at, "
    "stream_id, stream_version, actor_id, purger_id, purged_at, correlation_id, causation_id, schema_version"
)
_CHECKPOINTS = """
CREATE TABLE checkpoints (subscriber_id TEXT PRIMARY KEY, last_global_sequence INTEGER NOT NULL);
INSERT INTO checkpoints VALUES ('bench', 0);
"""
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
        figures = log_figures(seen, count, began, cpu_began)
        return Sample(figures=figures, settings=settings_of(connection))


def run_raw_checkpoints(folder: Path, effort: Effort) -> Sample:
    """A checkpoint is moved and committed for each event; nothing is read."""
    with new_file(folder, "FULL", _CHECKPOINTS) as connection:
        position = 0

        def step() -> int:
            nonlocal position
            position += 1
            connection.execute("UPDATE checkpoints SET last_global_sequence = ?", (position,))
            return 1

        repetition = repeat(step, effort)
        figures = {"rate": repetition.rate, "cpu": repetition.cpu}
        return Sample(figures=figures, settings=settings_of(connection))


def run_postbus(count: int, mode: AnyCheckpointMode, folder: Path, _effort: Effort) -> Sample:
    """Until the checkpoint is at the end of the log."""

    async def run() -> Sample:
        bus = EventBus(store_in(folder))
        bus.subscribe(EVENT_TYPE, do_nothing, id="bench", checkpoint_mode=mode)
        return await catch_up(bus, folder, count)

    return asyncio.run(run())


async def catch_up(bus: EventBus, folder: Path, count: int) -> Sample:
    """From the start of a bus until the checkpoint of its subscriber "bench" is at the end of the log."""
    memory_before = peak_memory()
    began, cpu_began = time.perf_counter(), time.process_time()
    async with bus:
        await bus.subscription("bench").caught_up()
        figures = log_figures(count, count, began, cpu_began, peak_memory() - memory_before)
        store = bus.store
        settings = await settings_in_force(store)  # type: ignore[arg-type]
    _check_checkpoint(folder, count)
    return Sample(figures=figures, settings=settings)


def _check_checkpoint(folder: Path, count: int) -> None:
    with closing(sqlite3.connect(folder / FILE_NAME)) as connection:
        (position,) = connection.execute("SELECT last_global_sequence FROM event_bus_checkpoints").fetchone()
    if position != count:
        raise AssertionError(f"the checkpoint is at {position}, and not at {count}")


def with_mode(
    name: str, label: str, count: int, mode: AnyCheckpointMode, tier: Tier = Tier.QUICK
) -> Candidate:
    """A subscriber with this kind of checkpoints."""
    return Candidate(
        name=name,
        label=f"postbus: {label}",
        prepare=partial(prepare, count),
        run=partial(run_postbus, count, mode),
        tier=tier,
        time_limit=60.0 + 60.0 * count / 1_000_000,
    )


def batched() -> Candidate:
    """In the place of a checkpoint for each event."""
    return with_mode("postbus-batched", "checkpoint every 100 events", COUNT, BATCHED)


def synchronous(count: int) -> Candidate:
    """A checkpoint for each event."""
    label = f"checkpoint after every event ({count:,} events)"
    return with_mode("postbus-synchronous", label, count, CheckpointMode.synchronous())


def commit_checkpoints() -> Candidate:
    """The raw limit of a checkpoint for each event."""
    return Candidate(
        name="raw-checkpoints",
        label="raw: an UPDATE and commit for each event, nothing read",
        run=run_raw_checkpoints,
    )


def read_and_decode() -> Candidate:
    """The raw limit of batched checkpoints."""
    return Candidate(
        name="raw-decoded",
        label="raw: read and decode with msgspec",
        prepare=partial(prepare, COUNT),
        run=partial(run_raw, COUNT, is_decoded=True),
    )


WORKLOAD = Workload(
    name="catch-up",
    title=f"catch-up of a durable subscriber, {COUNT:,} events, handler that does nothing",
    candidates=(batched(), synchronous(_SYNCHRONOUS_COUNT), read_and_decode(), commit_checkpoints()),
    columns=(Column("rate", "events/s", "/s"),),
    ratios=(
        RatioColumn("rate", "÷ read and decode", "raw-decoded"),
        RatioColumn("rate", "÷ commits", "raw-checkpoints"),
    ),
)
