"""Wake-ups between real processes that share one SQLite file."""

import asyncio
import contextlib
import logging
import os
import shutil
import signal
import socket
import sys
import tempfile
import threading
import time
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from postbus.stores.sqlite.wake_up import FileWakeUps
from tests.patience import PATIENCE

ROOT = Path(__file__).parents[2]
# Generous: a loaded machine is slow and not wrong.


class Other:
    """Another process on the same database."""

    def __init__(self, process: Process) -> None:
        self.process = process
        self.woken_count = 0

    async def ask(self, command: str) -> str:
        """Give a command; its answer."""
        assert self.process.stdin is not None
        self.process.stdin.write(command.encode() + b"\n")
        while (line := await self._hear()) == "woken":
            self.woken_count += 1
        return line

    async def woken(self) -> None:
        """Return when it is woken."""
        assert await self._hear() == "woken"
        self.woken_count += 1

    async def kill(self) -> None:
        """SIGKILL, and wait until it is gone."""
        if self.process.returncode is None:
            self.process.kill()
        await self.process.wait()

    async def _hear(self) -> str:
        assert self.process.stdout is not None
        line = await asyncio.wait_for(self.process.stdout.readline(), PATIENCE)
        assert line, f"the process has ended with {await self.process.wait()}"
        return line.decode().strip()


class Listening:
    """Wake-ups of this process, counted."""

    def __init__(self, database: Path) -> None:
        self.wake_ups = FileWakeUps(database)
        self.woken_count = 0
        self._woken = asyncio.Event()
        self.wake_ups.listen(self._wake)
        assert self.wake_ups.is_listening

    async def woken(self) -> None:
        """Return when it is woken."""
        await asyncio.wait_for(self._woken.wait(), PATIENCE)
        self._woken.clear()

    def _wake(self) -> None:
        self.woken_count += 1
        self._woken.set()


@contextlib.asynccontextmanager
async def other(database: Path) -> AsyncIterator[Other]:
    module = "tests.stores.children.wake_up_process"
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", module, str(database), cwd=ROOT, stdin=PIPE, stdout=PIPE
    )
    started = Other(process)
    try:
        assert await started._hear() == "ready"
        yield started
    finally:
        await started.kill()
        assert process.stdin is not None
        process.stdin.close()


async def wait_until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, f"waited in vain until {what}"
        await asyncio.sleep(0.005)


def announcing(wake_ups: FileWakeUps, condition: Callable[[], bool]) -> Callable[[], bool]:
    """The condition, with one more announcement each time it is asked for."""

    def announce_and_ask() -> bool:
        wake_ups.announce()
        return condition()

    return announce_and_ask


def files(database: Path) -> list[str]:
    """The sockets beside the database; none either if there is no folder."""
    folder = wake_folder(database)
    return sorted(path.name for path in folder.iterdir()) if folder.exists() else []


def wake_folder(database: Path) -> Path:
    return Path(f"{database}-wake")


def make_old(path: Path) -> None:
    """As if it had been there for a minute."""
    a_minute_ago = time.time() - 60
    os.utime(path, (a_minute_ago, a_minute_ago))


def leave_dead_socket(database: Path) -> Path:
    """What a killed process leaves behind."""
    wake_folder(database).mkdir(exist_ok=True)
    path = wake_folder(database) / "1-dead"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as dead:
        dead.bind(str(path))
    return path


def open_files() -> set[str]:
    return {path.name for path in Path("/dev/fd").iterdir()}


@pytest.fixture
def database() -> Iterator[Path]:
    """In a folder that others may enter and whose name is short, which pytest's own is not."""
    folder = Path(tempfile.mkdtemp(prefix="postbus-")).resolve()
    folder.chmod(0o777)
    yield folder / "events.db"
    folder.chmod(0o777)
    shutil.rmtree(folder)


class TestWaking:
    async def test_another_process_wakes_this_one(self, database: Path) -> None:
        """Each announcement arrives, long before anybody would poll twice."""
        listening = Listening(database)
        async with other(database) as publisher:
            for _ in range(10):
                assert await publisher.ask("announce") == "announced"
                await listening.woken()
        listening.wake_ups.close()

        assert listening.woken_count == 10

    async def test_this_process_wakes_all_others(self, database: Path) -> None:
        """Both of two listening processes are woken."""
        async with other(database) as first, other(database) as second:
            assert await first.ask("listen") == await second.ask("listen") == "True"
            announcer = FileWakeUps(database)
            announcer.announce()
            announcer.close()

            await first.woken()
            await second.woken()

    async def test_nobody_wakes_itself(self, database: Path) -> None:
        """Two stores of one process wake each other and not themselves."""
        first, second = Listening(database), Listening(database)
        first.wake_ups.announce()
        await second.woken()
        second.wake_ups.announce()
        await first.woken()
        first.wake_ups.close()
        second.wake_ups.close()

        assert (first.woken_count, second.woken_count) == (1, 1)

    async def test_many_announcements_that_wait_wake_once(self, database: Path) -> None:
        """A busy loop is called once for all it has missed."""
        listening, announcer = Listening(database), FileWakeUps(database)
        for _ in range(5):
            announcer.announce()
        await listening.woken()
        announcer.announce()
        await listening.woken()
        listening.wake_ups.close()
        announcer.close()

        assert listening.woken_count == 2

    async def test_a_listener_that_hangs_holds_up_no_publisher(self, database: Path) -> None:
        """A full buffer is no error and no reason to wait; the sleeper is woken when it goes on."""
        async with other(database) as sleeper, other(database) as publisher:
            assert await sleeper.ask("listen") == "True"
            sleeper.process.send_signal(signal.SIGSTOP)
            await publisher.ask("announce_a_thousand_times")
            sleeper.process.send_signal(signal.SIGCONT)

            await sleeper.woken()

    async def test_listening_again_replaces_the_first(self, database: Path) -> None:
        """There is one socket, and the first callback is not called any more."""
        listening, announcer, woken = Listening(database), FileWakeUps(database), asyncio.Event()
        listening.wake_ups.listen(woken.set)
        announcer.announce()
        await asyncio.wait_for(woken.wait(), PATIENCE)

        assert len(files(database)) == 1
        assert listening.woken_count == 0
        listening.wake_ups.close()
        announcer.close()

    async def test_a_database_behind_a_link_is_the_same_database(self, database: Path) -> None:
        """Whatever name a process knows it by."""
        link = database.parent / "link.db"
        link.symlink_to(database)
        listening = Listening(database)
        async with other(link) as publisher:
            await publisher.ask("announce")
            await listening.woken()
        listening.wake_ups.close()

    async def test_a_path_too_long_for_a_socket(self, tmp_path: Path) -> None:
        """The address of a socket has about 100 bytes; the path of a database may have more."""
        folder = tmp_path / ("long" * 50)
        folder.mkdir()
        listening = Listening(folder / "events.db")
        async with other(folder / "events.db") as publisher:
            await publisher.ask("announce")
            await listening.woken()
        listening.wake_ups.close()

        assert list(folder.iterdir()) == []


class TestWhoListens:
    async def test_a_publisher_finds_who_begins_to_listen_later(self, database: Path) -> None:
        """Also after it has looked and found nobody."""
        announcer = FileWakeUps(database)
        announcer.announce()
        listening = Listening(database)
        await wait_until(announcing(announcer, lambda: listening.woken_count > 0), "the listener is found")
        listening.wake_ups.close()
        announcer.close()

    async def test_a_listener_that_comes_within_the_same_tick_is_found(self, database: Path) -> None:
        """A folder that changed twice within one tick of its clock looks as if it had changed once."""
        first, announcer = Listening(database), FileWakeUps(database)
        folder = wake_folder(database)
        changed_at = folder.stat().st_mtime_ns
        announcer.announce()
        await first.woken()
        second = Listening(database)
        os.utime(folder, ns=(changed_at, changed_at))
        await wait_until(announcing(announcer, lambda: second.woken_count > 0), "the second is found")

        for wake_ups in (first.wake_ups, second.wake_ups, announcer):
            wake_ups.close()

    async def test_a_thousand_announcements_hardly_look_at_the_folder(self, database: Path) -> None:
        """Looking costs more than announcing to nobody, so it is not done every time."""
        wake_folder(database).mkdir()
        async with other(database) as publisher:
            listing_count = int(await publisher.ask("announce_a_thousand_times"))

        assert 1 <= listing_count <= 100

    async def test_a_killed_listener_is_cleaned_up(self, database: Path) -> None:
        """Its socket goes with the next announcement; who is alive is woken all the same."""
        listening, announcer = Listening(database), FileWakeUps(database)
        async with other(database) as victim:
            assert await victim.ask("listen") == "True"
            await victim.kill()
        assert len(files(database)) == 2
        for name in files(database):
            make_old(wake_folder(database) / name)
        announcer.announce()
        await listening.woken()

        assert len(files(database)) == 1
        listening.wake_ups.close()
        announcer.close()

    async def test_a_newborn_socket_is_not_taken_for_dead(self, database: Path) -> None:
        """Between the appearance of its file and its readiness it refuses, as a dead one does."""
        path, announcer = leave_dead_socket(database), FileWakeUps(database)
        announcer.announce()
        assert path.exists()
        make_old(path)
        announcer.announce()
        announcer.close()

        assert not path.exists()

    async def test_a_strangers_file_is_left_alone(self, database: Path) -> None:
        """Only dead sockets are removed."""
        wake_folder(database).mkdir()
        path = wake_folder(database) / "notes.txt"
        path.touch()
        make_old(path)
        announcer = FileWakeUps(database)
        announcer.announce()
        announcer.close()

        assert path.exists()

    async def test_the_folder_may_vanish_at_any_time(self, database: Path) -> None:
        """Nobody stumbles over it, and who listens again is woken again."""
        listening, announcer = Listening(database), FileWakeUps(database)
        announcer.announce()
        await listening.woken()
        shutil.rmtree(wake_folder(database))
        announcer.announce()
        listening.wake_ups.close()
        again = Listening(database)
        await wait_until(announcing(announcer, lambda: again.woken_count > 0), "the listener is found")
        again.wake_ups.close()
        announcer.close()

    async def test_processes_that_come_and_go_do_not_get_into_each_others_way(self, database: Path) -> None:
        """The last one removes the folder, at any moment of those who come."""
        async with other(database) as first, other(database) as second:
            failure_counts = await asyncio.gather(*[each.ask("come_and_go") for each in (first, second)])

        assert failure_counts == ["0", "0"]
        assert not wake_folder(database).exists()


class TestDoingWithout:
    def test_announcing_where_nobody_listens_leaves_no_trace(
        self, database: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        """A process that only publishes needs neither a folder nor a socket, and that is no news."""
        before = open_files()
        announcer = FileWakeUps(database)
        with caplog.at_level(logging.DEBUG, logger="postbus"):
            announcer.announce()

        assert open_files() == before
        assert list(database.parent.iterdir()) == []
        assert caplog.records == []

    async def test_a_folder_that_cannot_be_written(self, database: Path) -> None:
        """Who may not write beside the database can neither listen nor fails to publish."""
        database.parent.chmod(0o555)
        async with other(database) as stranger:
            await stranger.ask("drop_privileges")

            assert await stranger.ask("listen") == "False"
            assert await stranger.ask("announce") == "announced"
            assert await stranger.ask("end") == "ended"

    async def test_a_listener_that_this_user_may_not_wake(self, database: Path) -> None:
        """It polls; the publisher and the sockets of others do not suffer."""
        listening = Listening(database)
        for name in files(database):
            (wake_folder(database) / name).chmod(0o700)
        async with other(database) as stranger, other(database) as friend:
            await stranger.ask("drop_privileges")
            assert await stranger.ask("announce") == "announced"
            await friend.ask("announce")
            await listening.woken()
        listening.wake_ups.close()

    async def test_a_file_in_the_place_of_the_folder(
        self, database: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        """Polling remains, and only who debugs hears of it."""
        wake_folder(database).write_text("mine")
        wake_ups = FileWakeUps(database)
        with caplog.at_level(logging.DEBUG, logger="postbus"):
            wake_ups.listen(lambda: None)
            wake_ups.announce()
        wake_ups.close()

        assert not wake_ups.is_listening
        assert {record.levelno for record in caplog.records} == {logging.DEBUG}
        assert wake_folder(database).read_text() == "mine"


class TestForking:
    async def test_a_forked_child_that_closes_takes_nothing_from_its_parent(self, database: Path) -> None:
        """The parent's socket stays where it is, and the parent goes on hearing."""
        async with other(database) as parent:
            assert await parent.ask("listen") == "True"
            before = files(database)
            assert await parent.ask("fork_and_close") == "0"
            assert files(database) == before
            announcer = FileWakeUps(database)
            announcer.announce()
            while parent.woken_count < 1:
                await parent.woken()
            announcer.close()

    async def test_a_forked_child_does_not_keep_its_parents_socket_alive(self, database: Path) -> None:
        """When the parent is killed its socket is dead, although the child lives on."""
        async with other(database) as parent:
            assert await parent.ask("listen") == "True"
            child = int(await parent.ask("fork"))
            try:
                await parent.kill()
                (name,) = files(database)
                make_old(wake_folder(database) / name)
                announcer = FileWakeUps(database)
                await wait_until(
                    announcing(announcer, lambda: files(database) == []), "the socket is removed"
                )
                announcer.close()
            finally:
                os.kill(child, signal.SIGKILL)


class TestClosing:
    async def test_closing_twice_changes_nothing(self, database: Path) -> None:
        """Nothing is left beside the database, the folder included; and it can listen again."""
        listening = Listening(database)
        listening.wake_ups.close()
        listening.wake_ups.close()
        assert not listening.wake_ups.is_listening
        assert list(database.parent.iterdir()) == []
        again = Listening(database)
        async with other(database) as publisher:
            await publisher.ask("announce")
            await again.woken()
        again.wake_ups.close()

    async def test_closing_in_another_thread_ends_reading_in_the_loop(self, database: Path) -> None:
        """The loop has no reader left when the thread is waited for, and the socket is closed."""
        before = open_files()
        listening = Listening(database)
        await asyncio.to_thread(listening.wake_ups.close)

        assert open_files() - before == set()
        assert files(database) == []

    def test_closing_after_the_loop_was_closed(self, database: Path) -> None:
        """As at the end of a program that has not shut its bus down, in whatever thread."""
        before = open_files()
        for close in (FileWakeUps.close, close_in_thread):

            async def listen() -> FileWakeUps:
                return Listening(database).wake_ups

            close(asyncio.run(listen()))

            assert files(database) == []
            assert open_files() == before

    async def test_no_file_stays_open(self, database: Path) -> None:
        """Whatever is done, and also where listening is not possible."""
        # The loop opens what it needs for itself.
        await asyncio.to_thread(lambda: None)
        before = open_files()
        long_path = database.parent / ("long" * 50) / "events.db"
        long_path.parent.mkdir()
        for path in (database, long_path, database.parent / "missing" / "events.db"):
            for _ in range(5):
                first, second = FileWakeUps(path), FileWakeUps(path)
                first.listen(lambda: None)
                second.announce()
                first.announce()
                first.close()
                second.close()

        assert open_files() == before


def close_in_thread(wake_ups: FileWakeUps) -> None:
    thread = threading.Thread(target=wake_ups.close)
    thread.start()
    thread.join()
