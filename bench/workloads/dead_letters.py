"""The page of the 100 newest dead letters, in a small and in a large file."""

import asyncio
import sqlite3
import time
from functools import partial
from pathlib import Path

from postbus import DLQInspector
from postbus.ops.bench.measuring import percentile
from postbus.ops.bench.model import Candidate, Column, Effort, Sample, Tier, Workload
from postbus.ops.bench.sqlite.filling import FILE_NAME, fill
from postbus.ops.bench.sqlite.publishers import settings_in_force, store_in

PAGE_SIZE = 100

# Only the rows: no total and no decoding.
_RAW_PAGE = """
SELECT global_sequence, id, type, payload, status, retry_count, last_error, metadata, created_at, dlq_at
FROM events
WHERE status = 'dlq' ORDER BY created_at DESC, global_sequence DESC LIMIT 100
"""


def prepare(count: int, folder: Path) -> None:
    """A file with nothing but dead letters."""
    fill(folder, count, status="dlq")


def run_postbus(count: int, folder: Path, effort: Effort) -> Sample:
    """The first page of an inspector opens the file; then page after page, alternating with raw reads."""

    async def run() -> Sample:
        raw_reader = sqlite3.connect(folder / FILE_NAME)
        store = store_in(folder)
        inspector = DLQInspector(store)
        first = await _time_page(inspector, count)
        page_times: list[float] = []
        raw_times: list[float] = []
        deadline = time.perf_counter() + effort.seconds
        while not page_times or time.perf_counter() < deadline:
            page_times.append(await _time_page(inspector, count))
            before = time.perf_counter()
            raw_reader.execute(_RAW_PAGE).fetchall()
            raw_times.append(time.perf_counter() - before)
        settings = await settings_in_force(store)
        raw_reader.close()
        await store.close()
        figures = {
            "page_p50": percentile(page_times, 50) * 1000,
            "page_p99": percentile(page_times, 99) * 1000,
            "first": first * 1000,
            "raw_p50": percentile(raw_times, 50) * 1000,
        }
        return Sample(figures=figures, settings=settings)

    return asyncio.run(run())


async def _time_page(inspector: DLQInspector, count: int) -> float:
    before = time.perf_counter()
    page = await inspector.list()
    seconds = time.perf_counter() - before
    if len(page.events) != min(PAGE_SIZE, count) or page.total != count:
        raise AssertionError(f"got {len(page.events)} of {page.total} dead letters, expected 100 of {count}")
    return seconds


def _candidate(name: str, count: int, tier: Tier) -> Candidate:
    return Candidate(
        name=name,
        label=f"postbus: DLQInspector.list(), {count:,} dead letters",
        prepare=partial(prepare, count),
        run=partial(run_postbus, count),
        tier=tier,
        time_limit=180.0,
    )


WORKLOAD = Workload(
    name="dead-letters",
    title="the page of the 100 newest dead letters",
    candidates=(
        _candidate("page-10k", 10_000, Tier.QUICK),
        _candidate("page-1m", 1_000_000, Tier.DEFAULT),
    ),
    columns=(
        Column("page_p50", "page p50", "ms"),
        Column("page_p99", "page p99", "ms"),
        Column("first", "first page, opening the file", "ms"),
        Column("raw_p50", "raw: the rows alone p50", "ms"),
    ),
)
