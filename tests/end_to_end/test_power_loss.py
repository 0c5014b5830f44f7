"""A power cut: what was not synced may be missing or garbled, and nothing acknowledged is lost."""

# ruff: noqa: ASYNC240 (a test may wait for its disk)
import asyncio
import os
import random
import shutil
import signal
import sqlite3
import time
from contextlib import closing
from pathlib import Path

import pytest

from postbus import EventBus, SQLiteStore
from tests.end_to_end.children.handlers import make_bus
from tests.end_to_end.database import (
    check_batches_are_whole,
    check_integrity,
    check_nothing_lost,
    check_nothing_stuck,
    statuses,
)
from tests.end_to_end.history import History
from tests.end_to_end.processes import Child
from tests.end_to_end.wal import Log, SharedMemory, damage_tail

SNAPSHOT_COUNT = 30


class Snapshot:
    """The files of a stopped process, and what it had acknowledged by then."""

    def __init__(self, child: Child, path: Path, history: History, folder: Path) -> None:
        self.folder, self.path, self.history = folder, folder / "events.db", history
        folder.mkdir()
        child.signal(signal.SIGSTOP)
        # Its threads stop one by one, each after the call of the system that it is in.
        os.waitid(os.P_PID, child.process.pid, os.WSTOPPED | os.WNOWAIT)
        self.acknowledged = history.acknowledged()
        for suffix in ("", "-wal", "-shm"):
            shutil.copyfile(f"{path}{suffix}", f"{self.path}{suffix}")
        child.signal(signal.SIGCONT)
        self.log = Log(Path(f"{self.path}-wal"))
        self.memory = SharedMemory(Path(f"{self.path}-shm"))

    @property
    def is_log_current(self) -> bool:
        """A log that is begun anew has been copied into the database from end to end, and that synced."""
        return self.memory.salt == self.log.salt

    def synced_size(self) -> int:
        """So many bytes of the log are on the disk for certain."""
        return self.log.end_of_frame(self.memory.committed) if self.is_log_current else 0

    def restore(self, name: str, log: bytes, database: bytes | None = None) -> Path:
        """The files as the disk would have them after the cut, which no shared memory survives."""
        folder = self.folder / name.replace(" ", "-")
        folder.mkdir(exist_ok=True)
        path = folder / "events.db"
        path.write_bytes(self.path.read_bytes() if database is None else database)
        Path(f"{path}-wal").write_bytes(log)
        Path(f"{path}-shm").unlink(missing_ok=True)
        return path

    def torn_database(self, rng: random.Random) -> bytes:
        """Pages that an unfinished checkpoint was about to copy may be anything: the log has them too."""
        content = bytearray(self.path.read_bytes())
        size = self.log.page_size
        is_unfinished = self.is_log_current and self.memory.backfilled < self.memory.attempted
        for page in self.log.pages[: self.memory.attempted] if is_unfinished else ():
            if page * size <= len(content) and rng.random() < 0.5:
                content[(page - 1) * size : page * size] = rng.randbytes(size)
        return bytes(content)


@pytest.mark.timeout(180)
def test_a_power_cut_loses_nothing_acknowledged(
    path: Path, history: History, tmp_path: Path, rng: random.Random
) -> None:
    """At random moments under load; the file is intact, whatever became of the log's unsynced end."""
    with Child("publish_until_killed", path, history.path, folder=tmp_path) as child:
        child.say("publish")
        child.expect("recovered")
        child.expect("acknowledged")
        snapshots = []
        for number in range(SNAPSHOT_COUNT):
            time.sleep(rng.uniform(0.0, 0.2))
            snapshots.append(Snapshot(child, path, history, tmp_path / f"snapshot-{number}"))

    tails = [check_snapshot(snapshot, rng) for snapshot in snapshots]
    print(f"bytes that were not synced for certain: {tails}")
    assert any(tails)
    assert len(snapshots[-1].acknowledged) > 100


def check_snapshot(snapshot: Snapshot, rng: random.Random) -> int:
    """Everything acknowledged survives every kind of damage; how many bytes could be damaged."""
    synced_size = snapshot.synced_size()
    for name, log in damage_tail(snapshot.log.content, synced_size, rng).items():
        path = snapshot.restore(name, log, snapshot.torn_database(rng))
        try:
            check_integrity(path)
            check_batches_are_whole(path)
            lost = snapshot.acknowledged - set(statuses(path))
            assert not lost, snapshot.history.story(lost)
        except (AssertionError, sqlite3.Error) as error:
            raise AssertionError(f"{snapshot.folder.name}, {name}: {error!r}") from error
    path = snapshot.restore("recovered", snapshot.log.content[:synced_size])
    asyncio.run(recover(path, snapshot.history))
    check_nothing_lost(path, snapshot.history, snapshot.acknowledged)
    check_nothing_stuck(path, snapshot.history)
    shutil.rmtree(snapshot.folder)
    return len(snapshot.log.content) - synced_size


async def recover(path: Path, history: History) -> None:
    async with asyncio.timeout(30), make_bus(str(path), history) as bus:
        await bus.idle()
    history.close()


async def test_a_commit_waits_for_the_disk(path: Path) -> None:
    """FULL: SQLite syncs the log before it calls a transaction committed."""
    async with SQLiteStore(path) as store:
        settings = await store.write(
            lambda connection: connection.execute(
                "SELECT journal_mode, synchronous FROM pragma_journal_mode, pragma_synchronous"
            ).fetchone()
        )

    assert settings == ("wal", 2)


async def test_the_log_does_not_grow_for_ever(path: Path) -> None:
    """It is copied into the database now and then, while the bus is running."""
    largest = 0
    async with EventBus(SQLiteStore(path, synchronous="NORMAL")) as bus:
        for number in range(4_000):
            await bus.publish("order.placed", number)
            if number % 100 == 0:
                largest = max(largest, Path(f"{path}-wal").stat().st_size)

    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("SELECT count(*) FROM events").fetchone() == (4_000,)
    print(f"largest log: {largest / 1e6:.1f} MB")
    assert largest < 50_000_000
