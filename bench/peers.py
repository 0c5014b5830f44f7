"""The peers, each in its fastest documented way of taking one item from stored to done.

None of them shares a commit between producers, so one producer is their best case.
"""

import importlib
import sqlite3
from contextlib import closing
from pathlib import Path
from types import ModuleType

import msgspec

from bench.measuring import PAYLOAD, Repetition, repeat
from bench.model import Effort, PeerMissingError, Sample
from bench.raw import settings_of


def run_huey(folder: Path, effort: Effort, synchronous: str) -> Sample:
    """Enqueue, dequeue (which deletes: at most once), execute; no result is stored."""
    huey = _load("huey", "huey").SqliteHuey(filename=str(folder / "huey.db"), fsync=True, results=False)
    executed_count = 0

    @huey.task()  # type: ignore[untyped-decorator]
    def count_one(payload: object) -> None:
        nonlocal executed_count
        executed_count += payload is not None

    def step() -> int:
        count_one(PAYLOAD)
        huey.dequeue().execute()
        return 1

    with closing(huey.storage):
        connection = _set_level(huey.storage.conn, synchronous)
        repetition = repeat(step, effort)
        return _sample(connection, repetition, executed_count)


def run_persist_queue(folder: Path, effort: Effort, synchronous: str) -> Sample:
    """Put, get, acknowledge; asking for the next in order spares it a scan of what was acknowledged."""
    queue = _load("persistqueue", "persist-queue").SQLiteAckQueue(str(folder))
    last = 0

    def step() -> int:
        nonlocal last
        queue.put(PAYLOAD)
        order = {"id": last, "next_in_order": True} if last else {}
        last = queue.get(block=False, raw=True, **order)["pqid"]
        queue.ack(id=last)
        return 1

    # It has one connection for both ends, unless it is asked to serve several threads.
    with closing(queue):
        connection = _set_level(queue._putter, synchronous)
        repetition = repeat(step, effort)
        return _sample(connection, repetition, queue.acked_count())


def run_litequeue(folder: Path, effort: Effort, synchronous: str) -> Sample:
    """Put, pop, done."""
    queue = _load("litequeue", "litequeue").LiteQueue(str(folder / "litequeue.db"))

    def step() -> int:
        queue.put(msgspec.json.encode(PAYLOAD).decode())
        message = queue.pop()
        msgspec.json.decode(message.data)
        queue.done(message.message_id)
        return 1

    with closing(queue.conn):
        connection = _set_level(queue.conn, synchronous)
        repetition = repeat(step, effort)
        [done_count] = connection.execute("SELECT count(*) FROM Queue WHERE status = 2").fetchone()
        return _sample(connection, repetition, done_count)


def _load(module: str, package: str) -> ModuleType:
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise PeerMissingError(package) from error


def _set_level(connection: sqlite3.Connection, synchronous: str) -> sqlite3.Connection:
    """Their own settings differ (litequeue: NORMAL; the others: SQLite's default); durability must not."""
    connection.execute(f"PRAGMA synchronous = {synchronous}")
    return connection


def _sample(connection: sqlite3.Connection, repetition: Repetition, done_count: int) -> Sample:
    """The rate, unless the peer says that the work was not done."""
    if done_count != repetition.total_count:
        raise AssertionError(f"{repetition.total_count} items were counted, {done_count} are done")
    return Sample(figures={"rate": repetition.rate, "cpu": repetition.cpu}, settings=settings_of(connection))
