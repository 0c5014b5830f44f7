"""The peers, each in its fastest documented way of taking one item from stored to done.

None of those with a database shares a commit between producers, so one producer is their best case.
"""

import asyncio
import importlib
import inspect
import sqlite3
import time
from contextlib import closing
from pathlib import Path
from types import ModuleType

import msgspec

from postbus.ops.bench.measuring import PAYLOAD, Repetition, repeat
from postbus.ops.bench.model import Effort, PeerMissingError, Sample
from postbus.ops.bench.sqlite.raw import settings_of

# More are refused: it takes up to 100 events that wait, the one that is handled among them.
BUBUS_PUBLISHERS = 40


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
    # Newer versions, which need Python 3.12, want to know which delivery is done.
    is_fenced = "claim_id" in inspect.signature(queue.done).parameters

    def step() -> int:
        queue.put(msgspec.json.encode(PAYLOAD).decode())
        message = queue.pop()
        msgspec.json.decode(message.data)
        queue.done(message.message_id, **({"claim_id": message.claim_id} if is_fenced else {}))
        return 1

    with closing(queue):
        connection = _set_level(queue.conn, synchronous)
        repetition = repeat(step, effort)
        [done_count] = connection.execute("SELECT count(*) FROM Queue WHERE status = 2").fetchone()
        return _sample(connection, repetition, done_count)


def run_eventsourcing(folder: Path, effort: Effort, synchronous: str, *, batch_size: int) -> Sample:
    """Stored only, so many in each transaction: it has no handler that is told at once."""
    environment = {"PERSISTENCE_MODULE": "eventsourcing.sqlite", "SQLITE_DBNAME": str(folder / "log.db")}
    with _load("bench.event_sourced", "eventsourcing").open_log(environment) as log:

        def step() -> int:
            log.insert(batch_size)
            return batch_size

        # Nobody else needs a connection, so that it is always the same one.
        with log.recorder.datastore.get_connection(commit=True) as pooled:
            connection = _set_level(pooled._sqlite_conn, synchronous)
        repetition = repeat(step, effort)
        query = f"SELECT count(*) FROM {log.recorder.events_table_name}"
        [stored_count] = connection.execute(query).fetchone()
        return _sample(connection, repetition, stored_count)


def run_bubus(folder: Path, effort: Effort, _synchronous: str) -> Sample:
    """Dispatched, handled, and then written to its file, which it neither syncs nor reads again."""
    bubus, path, handled_count = _load("bubus", "bubus"), folder / "events.jsonl", 0

    class Published(bubus.BaseEvent):  # type: ignore[misc, name-defined]
        payload: dict[str, object]

    async def count_one(_event: object) -> None:
        nonlocal handled_count
        handled_count += 1

    async def run() -> Sample:
        bus = bubus.EventBus(name="bench", wal_path=path)
        bus.on(Published, count_one)

        async def publish_for(seconds: float) -> int:
            deadline = time.perf_counter() + seconds

            async def publish() -> int:
                count = 0
                while not count or time.perf_counter() < deadline:
                    await bus.dispatch(Published(payload=PAYLOAD))
                    count += 1
                return count

            return sum(await asyncio.gather(*(publish() for _ in range(BUBUS_PUBLISHERS))))

        total = await publish_for(effort.warm_up)
        began, cpu_began = time.perf_counter(), time.process_time()
        count = await publish_for(effort.seconds)
        seconds, cpu_seconds = time.perf_counter() - began, time.process_time() - cpu_began
        await bus.stop(clear=True)
        _check(total + count, handled_count)
        figures = {"rate": count / seconds, "cpu": cpu_seconds / count * 1e6}
        return Sample(figures=figures, settings="no database: a JSONL file without fsync")

    sample = asyncio.run(run())
    _check(handled_count, len(path.read_text("utf-8").splitlines()))
    return sample


def _load(module: str, package: str) -> ModuleType:
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        # A mistake of ours is no missing peer.
        if (error.name or "").partition(".")[0] in ("bench", "postbus"):
            raise
        raise PeerMissingError(package) from error


def _set_level(connection: sqlite3.Connection, synchronous: str) -> sqlite3.Connection:
    """Their own settings differ (litequeue: NORMAL; the others: SQLite's default); durability must not."""
    connection.execute(f"PRAGMA synchronous = {synchronous}")
    return connection


def _sample(connection: sqlite3.Connection, repetition: Repetition, done_count: int) -> Sample:
    """The rate, unless the peer says that the work was not done."""
    _check(repetition.total_count, done_count)
    return Sample(figures={"rate": repetition.rate, "cpu": repetition.cpu}, settings=settings_of(connection))


def _check(counted: int, done: int) -> None:
    if done != counted:
        raise AssertionError(f"{counted} items were counted, {done} are done")
