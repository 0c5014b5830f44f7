"""Locks of durable subscribers between stores of one process, and between real processes."""

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from postbus.errors import StoreReadOnlyError
from postbus.events import SubscriberId
from postbus.stores.sqlite.subscriber_locks import FileSubscriberLocks
from tests.contracts.steps import MAIL, STOCK

ROOT = Path(__file__).parents[2]


class _Other:
    """Another process on the same database."""

    def __init__(self, database: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.stores.children.subscriber_locks", str(database)],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def acquire(self, name: str = MAIL) -> bool:
        return self._ask(f"acquire {name}") == "True"

    def release(self, name: str = MAIL) -> None:
        assert self._ask(f"release {name}") == "released"

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()

    def _ask(self, command: str) -> str:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{command}\n")
        self.process.stdin.flush()
        return self.process.stdout.readline().strip()


@pytest.fixture
def database(tmp_path: Path) -> Path:
    return tmp_path / "events.db"


@pytest.fixture
def start(database: Path) -> Iterator[Callable[[], _Other]]:
    with ExitStack() as stack:

        def start() -> _Other:
            other = _Other(database)
            stack.callback(other.kill)
            return other

        yield start


def acquire(locks: FileSubscriberLocks, subscriber_id: SubscriberId) -> bool:
    """Try to become the holder."""
    return asyncio.run(locks.try_acquire(subscriber_id))


class TestInOneProcess:
    def test_two_stores_on_one_file_exclude_each_other(self, database: Path) -> None:
        """The system would give the same process both locks."""
        one, other = FileSubscriberLocks(database), FileSubscriberLocks(database)

        assert [acquire(one, MAIL), acquire(other, MAIL), acquire(other, STOCK)] == [
            True,
            False,
            True,
        ]
        one.release_all()
        assert acquire(other, MAIL)
        other.release_all()

    def test_only_the_holder_can_release(self, database: Path) -> None:
        """A standby that shuts down takes nothing away from the one that runs."""
        one, other = FileSubscriberLocks(database), FileSubscriberLocks(database)
        acquire(one, MAIL)
        other.release(MAIL)
        other.release_all()

        assert not acquire(other, MAIL)
        one.release_all()

    def test_a_path_through_a_link_is_the_same_file(self, database: Path, tmp_path: Path) -> None:
        """The lock goes with the database and not with its name."""
        database.touch()
        (tmp_path / "link.db").symlink_to(database)
        one, other = FileSubscriberLocks(database), FileSubscriberLocks(tmp_path / "link.db")

        assert acquire(one, MAIL)
        assert not acquire(other, MAIL)
        one.release_all()

    def test_a_store_that_was_thrown_away_holds_nothing(self, database: Path) -> None:
        """A program that forgets to close must not lock itself out."""
        assert acquire(FileSubscriberLocks(database), MAIL)

        other = FileSubscriberLocks(database)
        assert acquire(other, MAIL)
        other.release_all()

    def test_a_folder_that_does_not_exist_is_a_clear_error(self, tmp_path: Path) -> None:
        """It names the file."""
        with pytest.raises(StoreReadOnlyError, match=r"nowhere.*-subscribers can't be opened"):
            acquire(FileSubscriberLocks(tmp_path / "nowhere" / "events.db"), MAIL)


class TestBetweenProcesses:
    def test_one_process_at_a_time_is_the_holder(self, database: Path, start: Callable[[], _Other]) -> None:
        """Each subscriber for itself, and the next one at once."""
        locks, other = FileSubscriberLocks(database), start()
        assert other.acquire(MAIL)

        assert not acquire(locks, MAIL)
        assert acquire(locks, STOCK)
        assert not other.acquire(STOCK)
        other.release(MAIL)
        assert acquire(locks, MAIL)
        locks.release_all()
        assert other.acquire(STOCK)

    def test_a_killed_process_holds_nothing(self, database: Path, start: Callable[[], _Other]) -> None:
        """SIGKILL: the system lets go for it, at once."""
        locks, other = FileSubscriberLocks(database), start()
        assert other.acquire(MAIL)
        assert not acquire(locks, MAIL)
        other.kill()

        assert acquire(locks, MAIL)
        locks.release_all()

    def test_a_second_store_that_lets_go_leaves_the_locks_of_the_first(
        self, database: Path, start: Callable[[], _Other]
    ) -> None:
        """Closing any descriptor of the file would drop all locks of the process."""
        one, second, other = FileSubscriberLocks(database), FileSubscriberLocks(database), start()
        assert acquire(one, MAIL)
        assert acquire(second, STOCK)
        second.release_all()

        assert not other.acquire(MAIL)
        assert other.acquire(STOCK)
        one.release_all()
        assert other.acquire(MAIL)

    def test_a_forked_child_holds_nothing_and_takes_nothing_away(
        self, database: Path, start: Callable[[], _Other]
    ) -> None:
        """Neither while it lives nor when it ends."""
        locks, other = FileSubscriberLocks(database), start()
        assert acquire(locks, MAIL)
        child = os.fork()
        if child == 0:
            os._exit(int(acquire(locks, MAIL)))
        _, status = os.waitpid(child, 0)

        assert os.waitstatus_to_exitcode(status) == 0
        assert not other.acquire(MAIL)
        assert not acquire(locks, MAIL)
        locks.release_all()
        assert other.acquire(MAIL)

    def test_a_forked_child_does_not_take_itself_for_the_holder(self, database: Path) -> None:
        """Once the parent has let go, the child can become it like anybody else."""
        locks = FileSubscriberLocks(database)
        assert acquire(locks, MAIL)
        heard, said = os.pipe()
        child = os.fork()
        if child == 0:
            os.read(heard, 1)
            os._exit(int(acquire(locks, MAIL)))
        locks.release(MAIL)
        os.write(said, b"!")
        _, status = os.waitpid(child, 0)
        os.close(heard)
        os.close(said)

        assert os.waitstatus_to_exitcode(status) == 1
