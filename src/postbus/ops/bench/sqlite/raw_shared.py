"""The least that publishers in one event loop cost: one thread commits whatever they have queued up.

No payload is checked, no handler watched, no error told apart: what the bus needs beyond this is its own.
"""

import asyncio
import functools
import sqlite3
import threading
import time
from asyncio import Future
from collections.abc import Callable, Sequence
from pathlib import Path
from queue import SimpleQueue
from typing import NamedTuple

from postbus.doorbell import Doorbell
from postbus.ops.bench.measuring import Repetition, do_nothing
from postbus.ops.bench.model import Effort, Sample
from postbus.ops.bench.sqlite.raw import FINISH_RANGE, INSERT, LEAN_SCHEMA, ROW, new_file, new_row, sample_of
from postbus.stores.named_queries import load_queries

PUBLISHER_COUNT = 100
# Marked done so many at a time.
_FINISHED_AT_ONCE = 1000

_Job = tuple[Sequence[object], "Future[None]"]


class Table(NamedTuple):
    """Where the events go, and how."""

    schema: str
    insert: str
    row: str
    finish: str
    new_row: Callable[[], Sequence[object]]


def _new_own_row() -> Sequence[object]:
    row = new_row("processing")
    # It was changed last when it was made.
    return *row, row[-1]


LEAN = Table(LEAN_SCHEMA, INSERT, ROW, FINISH_RANGE, lambda: new_row("processing"))
# That of the bus, with all its columns and indexes.
OWN = Table(
    ";".join(load_queries("postbus.stores.sqlite", "schema.sql").values()),
    "INSERT INTO events (id, type, payload, status, created_at, updated_at) VALUES ",
    "(?, ?, ?, ?, ?, ?)",
    "UPDATE events SET status = 'done', updated_at = strftime('%Y-%m-%dT%H:%M:%f000+00:00') "
    "WHERE global_sequence > ? AND global_sequence <= ?",
    _new_own_row,
)


def commit_for_tasks(
    folder: Path, effort: Effort, synchronous: str, table: Table = LEAN, task_count: int = PUBLISHER_COUNT
) -> Sample:
    """Tasks that each wait for a shared commit and for a handler; marked done later."""

    async def run() -> Sample:
        with new_file(folder, synchronous, table.schema) as connection:
            loop, jobs = asyncio.get_running_loop(), SimpleQueue[_Job | None]()
            bell = Doorbell(loop)
            thread = threading.Thread(target=_commit_jobs, args=(connection, table, bell, jobs))
            thread.start()

            async def publish_until(deadline: float) -> int:
                count = 0
                while time.perf_counter() < deadline:
                    stored: Future[None] = loop.create_future()
                    jobs.put((table.new_row(), stored))
                    await stored
                    count += 1
                return count

            async def repeat_for(seconds: float) -> int:
                deadline = time.perf_counter() + seconds
                return sum(await asyncio.gather(*[publish_until(deadline) for _ in range(task_count)]))

            warm_up_count = await repeat_for(effort.warm_up)
            began, cpu_began = time.perf_counter(), time.process_time()
            count = await repeat_for(effort.seconds)
            seconds, cpu = time.perf_counter() - began, time.process_time() - cpu_began
            jobs.put(None)
            thread.join()
            bell.take_down()
            total = warm_up_count + count
            return sample_of(connection, Repetition(warm_up_count, total, count / seconds, cpu / count * 1e6))

    return asyncio.run(run())


def _commit_jobs(
    connection: sqlite3.Connection, table: Table, bell: Doorbell, jobs: "SimpleQueue[_Job | None]"
) -> None:
    last = finished = 0
    while (first := jobs.get()) is not None:
        group = [first, *[job for _ in range(jobs.qsize()) if (job := jobs.get()) is not None]]
        values = [value for row, _ in group for value in row]
        last = connection.execute(_insert_many(table, len(group)), values).lastrowid or 0
        bell.ring(_settle, [stored for _, stored in group])
        if last - finished > _FINISHED_AT_ONCE:
            # The last group may still be with its handlers.
            connection.execute(table.finish, (finished, last - len(group)))
            finished = last - len(group)
    connection.execute(table.finish, (finished, last))


@functools.cache
def _insert_many(table: Table, row_count: int) -> str:
    return table.insert + ", ".join([table.row] * row_count)


def _settle(futures: "Sequence[Future[None]]") -> None:
    for stored in futures:
        try:
            do_nothing(stored).send(None)  # type: ignore[arg-type]
        except StopIteration:
            stored.set_result(None)
