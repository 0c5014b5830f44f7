"""postbus bench: what it measures, what it prints, and that nothing is left of it."""

import asyncio
import contextlib
import io
import json
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from rich.console import Console

from postbus.ops.bench.harness import Failed
from postbus.ops.bench.measuring import PAYLOAD_BYTES
from postbus.ops.bench.postgres.catalogue import WORKLOADS as ON_POSTGRES
from postbus.ops.bench.sqlite.catalogue import WORKLOADS as ON_SQLITE
from postbus.ops.cli.bench.tables import show_results
from tests.bench.steps import results_of, sample
from tests.ops.commands import ESCAPE, POSTBUS, run, terminal
from tests.postgres.existing import Postgres
from tests.postgres.steps import ask

TINY = ("--rounds", "1", "--seconds", "0.01")
COUNT_OWN_DATABASES = "SELECT count(*) FROM pg_database WHERE datdba = current_user::regrole"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where files are made, and nothing else."""
    path = tmp_path / "files"
    path.mkdir()
    return path


@contextlib.contextmanager
def role(postgres: Postgres, rights: str) -> Iterator[str]:
    """The DSN of a new user with no more than these rights."""
    admin, name = postgres.dsn("postgres"), f"bench_{secrets.token_hex(4)}"
    asyncio.run(ask(admin, f"CREATE ROLE {name} LOGIN PASSWORD 'secret' {rights}"))
    try:
        parts = urlsplit(admin)
        place = parts.netloc.rpartition("@")[2]
        query = f"?{parts.query}" if parts.query else ""
        yield f"postgresql://{name}:secret@{place}/postgres{query}"
    finally:
        asyncio.run(ask(admin, f"DROP ROLE {name}"))


@contextlib.contextmanager
def running_bench(*arguments: object) -> Iterator["subprocess.Popen[str]"]:
    """A benchmark in a process of its own that has measured something and measures the next."""
    command = [*POSTBUS, "bench", "--seconds", "20", "--rounds", "1", *map(str, arguments)]
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            wait_for_child(process)
            yield process
        finally:
            process.kill()


def wait_for_child(process: "subprocess.Popen[Any]") -> int:
    """The id of the process that measures."""
    while not (found := children_of(process.pid)):
        assert process.poll() is None, "it has ended without measuring anything"
    return found[0]


def children_of(parent: int) -> list[int]:
    """Those that are still there."""
    listed = subprocess.run(["ps", "-ww", "-eo", "pid,ppid,args"], capture_output=True, text=True, check=True)
    lines = [line.split(maxsplit=2) for line in listed.stdout.splitlines()[1:]]
    return [int(pid) for pid, ppid, words in lines if int(ppid) == parent and "ops.bench.child" in words]


def is_alive(process_id: int) -> bool:
    with contextlib.suppress(ProcessLookupError):
        os.kill(process_id, 0)
        state = Path(f"/proc/{process_id}/stat")
        return not state.exists() or state.read_text().rpartition(")")[2].split()[0] != "Z"
    return False


@pytest.mark.timeout(300)
def test_it_measures_a_bus_on_sqlite_beside_the_raw_driver(folder: Path, tmp_path: Path) -> None:
    """Every row has figures, the ratios are shown with bars, and no file is left."""
    finished = run("bench", *TINY, "--dir", folder, "--json", tmp_path / "out.json")
    report = json.loads((tmp_path / "out.json").read_text("utf-8"))

    assert finished.returncode == 0, finished.stdout + finished.stderr
    assert f"publish → handler → done, {PAYLOAD_BYTES}-byte payload" in finished.stdout
    assert "postbus: 1000 publishers" in finished.stdout
    assert "÷ 100 per commit" in finished.stdout
    assert "█" in finished.stdout
    assert "durability: WAL, synchronous=FULL" in finished.stdout
    assert "round 1 of 1  postbus: 1 publisher: " in finished.stderr
    assert [workload["name"] for workload in report["workloads"]] == list(ON_SQLITE)
    assert all(row["samples"] for workload in report["workloads"] for row in workload["rows"])
    assert "python" in report["machine"]
    assert list(folder.iterdir()) == []


@pytest.mark.timeout(300)
def test_it_measures_a_bus_on_postgres_in_databases_of_its_own(postgres: Postgres, tmp_path: Path) -> None:
    """The right to create databases is all that its user needs; none of them is left."""
    with role(postgres, "CREATEDB") as dsn:
        finished = run("bench", *TINY, "--dsn", dsn, "--json", tmp_path / "out.json")
        left = asyncio.run(ask(dsn, COUNT_OWN_DATABASES))
    report = json.loads((tmp_path / "out.json").read_text("utf-8"))

    assert finished.returncode == 0, finished.stdout + finished.stderr
    assert "postbus: 100 publishers" in finished.stdout
    assert "durability: fsync=" in finished.stdout
    assert [workload["name"] for workload in report["workloads"]] == list(ON_POSTGRES)
    assert all(row["samples"] for workload in report["workloads"] for row in workload["rows"])
    assert "server_version=" in report["machine"]["postgresql"]
    assert "secret" not in finished.stdout + finished.stderr + json.dumps(report)
    assert left == 0


def test_a_user_who_may_not_create_databases_is_told_what_is_needed(postgres: Postgres) -> None:
    """Instead of using the database that was named."""
    with role(postgres, "NOCREATEDB") as dsn:
        finished = run("bench", *TINY, "--dsn", dsn)

    assert (finished.returncode, finished.stdout) == (1, "")
    assert "may not create databases" in finished.stderr
    assert "CREATEDB" in finished.stderr
    assert "secret" not in finished.stderr


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("--dsn", "postgresql://nobody:secret@127.0.0.1:1/postgres"), 1, "can't connect to database"),
        (("--dsn", "localhost"), 1, "the DSN can't be understood"),
        (("--dsn", "postgresql://localhost/x", "--dir", "."), 2, "--dir is for SQLite"),
        (("--dir", "no/such/folder"), 2, "no/such/folder"),
        (("--json", "no/such/folder/out.json"), 2, "does not exist"),
        (("--rounds", "0"), 2, "--rounds"),
        (("--seconds", "0"), 2, "--seconds"),
    ],
)
def test_what_can_not_be_measured_is_refused_before_anything_is(
    arguments: tuple[str, ...], code: int, words: str
) -> None:
    """In words, and never with a traceback."""
    finished = run("bench", *arguments)

    assert (finished.returncode, finished.stdout) == (code, "")
    assert words in finished.stderr
    assert "Traceback" not in finished.stderr
    assert "secret" not in finished.stderr


def test_postgres_without_its_driver_names_the_extra() -> None:
    """SQLite needs no driver."""
    script = (
        "import sys; sys.modules['asyncpg'] = None; from postbus.ops.cli import main;"
        "sys.exit(main(['bench', '--dsn', 'postgresql://localhost/x']))"
    )
    finished = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)

    assert finished.returncode == 2
    assert 'pip install "postbus[postgres]"' in finished.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_it_soon_and_leaves_nothing(number: signal.Signals, folder: Path) -> None:
    """No process, no file; a second signal changes nothing."""
    with running_bench("--dir", folder) as process:
        child = wait_for_child(process)
        process.send_signal(number)
        process.send_signal(number)
        out, errors = process.communicate(timeout=15)

    assert (process.returncode, out) == (128 + number, "")
    assert errors.endswith("Stopped.\n")
    assert not is_alive(child)
    assert list(folder.iterdir()) == []


def test_a_signal_leaves_no_database(postgres: Postgres) -> None:
    """Although a process was connected to it."""
    with role(postgres, "CREATEDB") as dsn:
        with running_bench("--dsn", dsn) as process:
            process.send_signal(signal.SIGTERM)
            _, errors = process.communicate(timeout=15)
        left = asyncio.run(ask(dsn, COUNT_OWN_DATABASES))

    assert process.returncode == 128 + signal.SIGTERM, errors
    assert left == 0


def test_what_measures_ends_with_the_command_however_that_ends(folder: Path) -> None:
    """A child that nobody waits for would disturb what is measured next."""
    with running_bench("--dir", folder) as process:
        child = wait_for_child(process)
        process.kill()
        process.wait()

        # It would measure for more than twenty seconds.
        deadline = time.monotonic() + 15
        while is_alive(child):
            assert time.monotonic() < deadline, "it goes on by itself"
            time.sleep(0.02)


def test_a_terminal_shows_a_bar_and_what_is_measured(folder: Path) -> None:
    """It is gone when the command has ended."""
    command = [*POSTBUS, "bench", "--seconds", "20", "--dir", str(folder)]
    with terminal() as (ours, theirs):
        with subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=theirs,
            env={**os.environ, "TERM": "xterm"},
        ) as process:  # fmt: skip
            wait_for_child(process)
            process.send_signal(signal.SIGINT)
            process.wait()
        shown = os.read(ours, 65_536).decode()

    assert ESCAPE in shown
    assert "postbus: 1 publisher" in shown
    assert "0/" in shown
    assert shown.endswith("Stopped.\r\n")


def test_a_row_that_failed_says_why_and_the_others_have_their_ratio() -> None:
    """Nothing is left out, and a bar stands beside every ratio."""
    results = results_of(
        ours=[sample(50.0), sample(70.0)], raw=[sample(100.0), sample(100.0)], peer=[Failed("it [broke]")]
    )
    shown = io.StringIO()
    show_results(Console(file=shown, width=100), {"cores": "2"}, results)
    lines = {line.split("  ")[0].strip(): line for line in shown.getvalue().splitlines()}

    assert lines["cores"].split() == ["cores", "2"]
    assert lines["the ours"].split() == ["the", "ours", "60.0", "50.0", "…", "70.0", "0.60", "█████"]
    assert lines["the raw"].split() == ["the", "raw", "100", "100", "…", "100"]
    assert lines["the peer"].split() == ["the", "peer", "failed"]
    assert "the peer: it [broke]" in lines
