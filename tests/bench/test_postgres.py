"""The benchmark on PostgreSQL: a database for each candidate, work that is checked, peers that may lack."""

import asyncio
import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from bench.pg import candidates
from bench.workloads import WORKLOADS
from bench.workloads.pg_fan_out import Rounds, count_reads
from postbus.events import Event, GlobalSequence, LogPosition
from postbus.ops.bench.measuring import log_figures
from postbus.ops.bench.model import PeerMissingError
from postbus.ops.bench.postgres.bursts import repeat_together
from postbus.ops.bench.postgres.buses import Counting
from postbus.ops.bench.postgres.databases import new_database
from postbus.pg import PgEventStore
from tests.bench.steps import TINY
from tests.postgres.existing import Postgres
from tests.postgres.folders import make_folder, remove_folder
from tests.postgres.steps import ask

ROOT = Path(__file__).parents[2]
COUNT_DATABASES = "SELECT count(*) FROM pg_database"


def test_the_command_measures_ourselves_and_the_raw_driver_on_postgres(
    postgres: Postgres, tmp_path: Path
) -> None:
    """Each in a database of its own, of which none is left."""
    before = asyncio.run(ask(postgres.dsn("postgres"), COUNT_DATABASES))
    only = ["--only", "pg-append/postbus-1", "--only", "pg-append/raw-1", "--only", "pg-takeover"]
    arguments = ["--quick", "--rounds", "1", "--seconds", "0.01", "--dir", str(tmp_path), *only]
    written = ["--dsn", postgres.dsn("postgres"), "--json", str(tmp_path / "out.json")]
    finished = subprocess.run(
        [sys.executable, "-m", "bench", *arguments, *written],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )

    assert finished.returncode == 0, finished.stderr
    goals = {goal["name"]: goal for goal in json.loads((tmp_path / "out.json").read_text("utf-8"))["goals"]}
    assert goals["PostgreSQL: 1 publisher ÷ raw, 1 connection"]["found"]["median"] > 0
    assert goals["PostgreSQL: takeover after a clean exit, ms"]["found"]["median"] > 0
    assert asyncio.run(ask(postgres.dsn("postgres"), COUNT_DATABASES)) == before


def test_what_is_no_dsn_is_refused() -> None:
    """Before anything is measured."""
    finished = subprocess.run(
        [sys.executable, "-m", "bench", "--dsn", "localhost", "--list"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )

    assert finished.returncode == 2
    assert "expected postgresql://" in finished.stderr


def test_a_database_is_dropped_whatever_its_candidate_did(postgres: Postgres) -> None:
    """What a failed run has left would slow down the next one."""
    before = asyncio.run(ask(postgres.dsn("postgres"), COUNT_DATABASES))

    def fail(dsn: str) -> None:
        asyncio.run(ask(dsn, "CREATE TABLE left_behind (number integer)"))
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), new_database(postgres.dsn("postgres")) as dsn:
        fail(dsn)

    assert asyncio.run(ask(postgres.dsn("postgres"), COUNT_DATABASES)) == before


def test_all_workloads_on_postgres_are_named_so() -> None:
    """`--only 'pg-*'` means all of them and no other."""
    assert {name for name, workload in WORKLOADS.items() if workload.needs_postgres} == {
        name for name in WORKLOADS if name.startswith("pg-")
    }


def test_a_server_can_be_kept_in_a_folder_of_choice() -> None:
    """The disk is part of what is measured."""
    folder = make_folder(in_memory=True, base=Path("/var/tmp"))
    remove_folder(folder)

    assert folder.parent == Path("/var/tmp")


def test_a_folder_in_which_no_server_can_live_is_refused(tmp_path: Path) -> None:
    """Better than a server that says that its socket's path is too long."""
    deep = tmp_path / ("deep" * 20)
    deep.mkdir()

    with pytest.raises(LookupError, match="or the path is too long"):
        make_folder(in_memory=False, base=deep)


async def test_what_warmed_up_is_counted_and_not_measured(postgres_dsn: str) -> None:
    """All that was done must be in the database; what is timed is only the rest."""
    done = 0

    async def step() -> int:
        nonlocal done
        done += 2
        await asyncio.sleep(0)
        return 2

    burst = await repeat_together([step, step], TINY)

    assert burst.total_count == done
    assert 0 < burst.count < done
    assert len(burst.latencies) == burst.count / 2
    assert (await burst.sample(postgres_dsn, f"SELECT {done}")).figures["rate"] > 0
    with pytest.raises(AssertionError, match=f"{done} events were counted, 1 are stored"):
        await burst.sample(postgres_dsn, "SELECT 1")


def test_a_log_that_was_not_gone_through_has_no_figures() -> None:
    """A subscriber that misses an event is not fast."""
    began, cpu_began = time.perf_counter() - 1, time.process_time()

    assert log_figures(20, 10, began, cpu_began, subscriber_count=2)["deliveries"] == pytest.approx(
        20, rel=0.1
    )
    with pytest.raises(AssertionError, match="19 of 20 events were delivered"):
        log_figures(19, 10, began, cpu_began, subscriber_count=2)


async def test_a_round_is_over_when_every_subscriber_had_the_event(event: Event) -> None:
    """And the next one begins at nothing."""
    rounds, all_seen = Rounds(2), Counting(4)
    for _ in range(2):
        for _ in range(2):
            await rounds.handle(event)
            await all_seen.handle(event)
        await rounds.complete()
    await all_seen.complete()
    await rounds.handle(event)

    with pytest.raises(TimeoutError):
        await asyncio.wait_for(rounds.complete(), 0)


async def test_every_page_that_is_read_counts(postgres_dsn: str) -> None:
    """Also one without an event."""
    async with PgEventStore(postgres_dsn) as store:
        reads = count_reads(store)
        for _ in range(3):
            await store.log.read(LogPosition(GlobalSequence(0)), 10, None)

    assert reads() == 3


def test_a_peer_that_is_not_there_is_missing_and_a_mistake_of_ours_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A misspelt module of the benchmark must not look like a peer that nobody installed."""
    monkeypatch.setitem(sys.modules, "uvloop", None)
    monkeypatch.delitem(sys.modules, "bench.pg.peers.of_pgqueuer", raising=False)

    with pytest.raises(PeerMissingError, match="pgqueuer is not installed"):
        candidates.load_peer("pgqueuer")
    with pytest.raises(ModuleNotFoundError, match="of_nobody"):
        candidates.load_peer("nobody")


@pytest.fixture
def event() -> Event:
    """Any event."""
    return Event(id="1", type="bench.published", created_at="2026-01-01T00:00:00Z")  # type: ignore[arg-type]
