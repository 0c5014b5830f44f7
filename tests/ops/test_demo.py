"""The demonstration: real processes, a real kill, and an honest count."""

import asyncio
import contextlib
import os
import re
import signal
import sqlite3
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from postbus import SQLiteStore
from postbus.ops.cli.demo.check import check_receipts
from postbus.ops.cli.demo.child import PUBLISHER_COUNT
from postbus.ops.cli.demo.receipts import Counts, Receipts, ReceiptWriter
from postbus.stores.sqlite.dispatch_lock import FileDispatchLock
from tests.ops.commands import ESCAPE, POSTBUS, run, terminal

# So many that a test can act before they are published.
ENDLESS = 900_000


@pytest.fixture
def database(tmp_path: Path) -> Path:
    """Where the demonstration puts its file."""
    return tmp_path / "demo.db"


@contextlib.contextmanager
def running_demo(database: Path, order_count: int = ENDLESS) -> Iterator["subprocess.Popen[str]"]:
    """A demonstration in a process of its own that has acknowledged its first orders."""
    command = [*POSTBUS, "demo", "--orders", str(order_count), "--path", str(database)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            wait_until(lambda: len(receipts_of(database).acknowledged) > 100)
            yield process
        finally:
            process.kill()


def wait_until(is_true: Callable[[], bool]) -> None:
    """Other processes have no clock that we could move."""
    deadline = time.monotonic() + 60
    while not is_true():
        assert time.monotonic() < deadline, "it did not become true within a minute"
        time.sleep(0.02)


def receipts_of(database: Path) -> Receipts:
    receipts = Receipts(database.with_name(f"{database.name}.receipts"))
    receipts.read()
    return receipts


def child_ids(database: Path) -> list[int]:
    lines = database.with_name(f"{database.name}.receipts").read_text().splitlines()
    return [int(line.split(" ")[1]) for line in lines if line.startswith("started ")]


def is_alive(process_id: int) -> bool:
    try:
        os.kill(process_id, 0)
    except ProcessLookupError:
        return False
    return True


def has_owner(database: Path) -> bool:
    lock = FileDispatchLock(database)
    is_free = lock.try_acquire()
    lock.release()
    return not is_free


def figures_in(output: str) -> dict[str, int]:
    """The rows of the summary table."""
    rows = re.findall(r"^│ ([a-z ]+?) +│ +([\d,]+) │", output, re.MULTILINE)
    return {name: int(number.replace(",", "")) for name, number in rows}


def status_counts(database: Path) -> dict[str, int]:
    """How many events with a receipt have each status, in a file that SQLite finds in order."""
    acknowledged = receipts_of(database).acknowledged
    with contextlib.closing(sqlite3.connect(database)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        rows = connection.execute("SELECT id, status FROM events").fetchall()
    # Without a receipt is only what was in flight when a process was killed.
    assert len(rows) - len(acknowledged) <= PUBLISHER_COUNT
    return Counter(status for event_id, status in rows if event_id in acknowledged)


class TestWholeDemonstration:
    def test_nothing_is_lost_and_the_figures_are_those_of_the_file(self, database: Path) -> None:
        finished = run("demo", "--path", database)
        figures = figures_in(finished.stdout)

        assert finished.returncode == 0, finished.stderr
        assert status_counts(database) == {"done": figures["processed"], "dlq": figures["dead letters"]}
        assert len(receipts_of(database).acknowledged) == figures["published and acknowledged"] >= 10_000
        assert figures["processed"] + figures["dead letters"] == figures["published and acknowledged"]
        assert 5_000 <= figures["killed after"] <= figures["published and acknowledged"]
        assert figures["recovered"] > 0
        assert figures["dead letters"] == 2
        assert figures["saved by a retry"] == figures["retried"] - 2 > 50
        assert figures["lost"] == 0

    def test_off_a_terminal_there_are_plain_lines_and_no_files_stay_behind(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("TMPDIR", str(tmp_path))
        finished = run("demo", "--orders", "2000")

        assert finished.returncode == 0
        assert ESCAPE not in finished.stdout + finished.stderr
        assert "Killed the publishing process with SIGKILL" in finished.stderr
        assert "ValueError: unknown currency '???'" in finished.stdout
        assert "postbus demo --path demo.db" in finished.stdout
        assert list(tmp_path.iterdir()) == []

    def test_on_a_terminal_the_picture_is_live_and_fits_into_80_columns(self, database: Path) -> None:
        output = output_on_terminal(["demo", "--orders", "2000", "--path", str(database)])
        without_escapes = re.sub(r"\x1b\[[\d;?]*[A-Za-z]", "", output)

        assert f"{ESCAPE}[1A" in output, "the cursor moves up to draw over the last picture"
        assert re.search(r"✓ Looked up [\d,]+ receipts in the database", without_escapes)
        assert figures_in(without_escapes.replace("\r", ""))["lost"] == 0
        assert max(len(line) for line in re.split(r"[\r\n]+", without_escapes)) <= 80

    def test_an_order_that_vanishes_from_the_file_is_found_out(self, database: Path) -> None:
        """The demonstration can fail: it compares two independent records."""
        with running_demo(database, order_count=20_000) as process:
            victim = next(iter(receipts_of(database).acknowledged))
            with contextlib.closing(sqlite3.connect(database, timeout=60)) as connection:
                connection.execute("PRAGMA wal_autocheckpoint = 0")
                connection.execute("DELETE FROM events WHERE id = ?", (victim,))
                connection.commit()
            output, errors = process.communicate(timeout=100)

        assert process.returncode == 1
        assert figures_in(output)["lost"] == 1
        assert f"not stored: {victim}" in errors.splitlines()[-1]


class TestSignals:
    @pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
    def test_it_finishes_what_is_in_flight_and_says_how_far_it_came(
        self, database: Path, number: signal.Signals
    ) -> None:
        with running_demo(database) as process:
            process.send_signal(number)
            output, errors = process.communicate(timeout=100)
        figures, acknowledged = figures_in(output), receipts_of(database).acknowledged

        assert process.returncode == 128 + number, errors
        assert f"Stopped after {len(acknowledged):,} orders of {ENDLESS:,}" in output
        assert figures["published and acknowledged"] == len(acknowledged)
        assert (figures["pending"], figures["lost"]) == (0, 0)
        assert status_counts(database) == {"done": len(acknowledged)}
        assert not any(map(is_alive, child_ids(database)))

    def test_a_second_signal_ends_it_at_once(self, database: Path) -> None:
        with running_demo(database) as process:
            process.send_signal(signal.SIGTERM)
            process.send_signal(signal.SIGINT)
            output, _ = process.communicate(timeout=100)

        assert process.returncode in {130, 143}
        assert output == ""
        assert not any(map(is_alive, child_ids(database)))

    def test_no_child_outlives_a_parent_that_was_killed(self, database: Path) -> None:
        with running_demo(database) as process:
            process.kill()
            process.communicate()

        wait_until(lambda: not has_owner(database))
        assert set(status_counts(database)) == {"done"}


class TestFailures:
    def test_a_publishing_process_that_fails_is_an_error_with_its_own_words(
        self, tmp_path: Path, database: Path
    ) -> None:
        with running_demo(database) as process:
            os.kill(child_ids(database)[-1], signal.SIGABRT)
            output, errors = process.communicate(timeout=100)

        assert process.returncode == 1
        assert output == ""
        assert f"ended with exit code {-signal.SIGABRT}" in errors

    @pytest.mark.parametrize("name", ["demo.db", "demo.db.receipts"])
    def test_a_file_that_is_there_is_left_as_it_is(self, tmp_path: Path, name: str) -> None:
        (tmp_path / name).write_text("precious")
        finished = run("demo", "--path", tmp_path / "demo.db")

        assert finished.returncode == 2
        assert "is there already" in finished.stderr
        assert [path.read_text() for path in tmp_path.iterdir()] == ["precious"]

    def test_a_folder_that_is_missing_is_a_usage_error(self, tmp_path: Path) -> None:
        finished = run("demo", "--path", tmp_path / "nix" / "demo.db")

        assert finished.returncode == 2
        assert "does not exist" in finished.stderr

    @pytest.mark.parametrize("count", ["999", "many"])
    def test_too_few_orders_are_a_usage_error(self, count: str) -> None:
        """Among fewer refunds the poison would open its handler's circuit breaker."""
        assert run("demo", "--orders", count).returncode == 2


class TestReceipts:
    def test_a_reader_sees_what_was_written_so_far(self, tmp_path: Path) -> None:
        writer, reader = ReceiptWriter(tmp_path / "receipts"), Receipts(tmp_path / "receipts")
        reader.read()
        writer.start()
        writer.acknowledge("a")
        reader.read()
        writer.acknowledge("b")
        writer.recover("a")
        writer.count(Counts(3, 1))
        writer.start()
        writer.count(Counts(2, 0))
        reader.read()

        assert list(reader.acknowledged) == ["a", "b"]
        assert reader.recovered == {"a"}
        assert reader.counts == Counts(5, 1)
        assert 0 < reader.busy_seconds < 60

    def test_half_a_line_is_no_receipt_yet(self, tmp_path: Path) -> None:
        path = tmp_path / "receipts"
        reader = Receipts(path)
        path.write_text("started 1 5.0\nacknowledged a 5.1\nacknowl")
        reader.read()
        before = list(reader.acknowledged)
        with path.open("a") as file:
            file.write("edged b 5.2\n")
        reader.read()

        assert before == ["a"]
        assert list(reader.acknowledged) == ["a", "b"]

    def test_without_a_file_there_are_no_receipts(self, tmp_path: Path) -> None:
        reader = Receipts(tmp_path / "receipts")
        reader.read()

        assert reader.acknowledged == {}

    def test_a_receipt_without_an_event_is_missing(self, tmp_path: Path) -> None:
        async def check() -> list[str]:
            async with SQLiteStore(tmp_path / "events.db"):
                pass
            seen: list[int] = []
            findings = await check_receipts(tmp_path / "events.db", ["a", "b"], seen.append)
            assert seen == [2]
            return findings.missing_ids

        assert asyncio.run(check()) == ["a", "b"]


def output_on_terminal(arguments: list[str]) -> str:
    """Everything the command shows on a terminal of 80 columns."""
    settings = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "80", "LINES": "40"}
    parts: list[bytes] = []
    with terminal() as (ours, theirs):
        os.set_blocking(ours, False)
        with subprocess.Popen([*POSTBUS, *arguments], stdout=theirs, stderr=theirs, env=settings) as process:
            while process.poll() is None:
                parts += read_present(ours)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(0.02)
        parts += read_present(ours)
        assert process.returncode == 0
    return b"".join(parts).decode()


def read_present(file: int) -> Iterator[bytes]:
    """What is there now, without waiting for more."""
    with contextlib.suppress(BlockingIOError):
        while True:
            yield os.read(file, 65536)
