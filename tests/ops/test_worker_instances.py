"""postbus worker --instances: several processes, supervised."""

import os
import re
import signal
import time
from pathlib import Path

import pytest

from tests.end_to_end.processes import wait_until
from tests.ops.commands import run
from tests.ops.workers import APP, Worker, journal, pids_in_journal, publish, wait_for_journal
from tests.postgres.processes import alive
from tests.postgres.server import Server

TWO = ("--instances", "2", "--health", "0")
_STANDBY = "standby"


@pytest.fixture
def hold(tmp_path: Path) -> Path:
    """As long as this file is there, handlers do not end."""
    path = tmp_path / "hold"
    path.touch()
    return path


def is_ready(worker: Worker) -> bool:
    return worker.ask("/ready")[0] == 200


def pids(worker: Worker) -> list[int]:
    return [instance["pid"] for instance in worker.instances()]


class TestTogether:
    def test_each_subscriber_is_active_once(self, tmp_path: Path, postgres_dsn: str) -> None:
        with Worker(*TWO, folder=tmp_path, target=postgres_dsn, subscribers="mail audit") as worker:
            worker.wait_until_ready()
            wait_until(lambda: is_ready(worker), "all are ready")
            states = {
                (instance["pid"], subscription["id"]): subscription["state"]
                for instance in worker.instances()
                for subscription in instance["subscriptions"]
            }
            publish(postgres_dsn, 1, 2)
            wait_for_journal(tmp_path, ["mail end 2", "audit end 2"])
            assert worker.end() == 0

        assert len(states) == 4
        for name in ("mail", "audit"):
            active = [key for key, state in states.items() if key[1] == name and state != _STANDBY]
            assert len(active) == 1
        assert sorted(journal(tmp_path)) == sorted(
            f"{name} {step} {n}" for name in ("mail", "audit") for step in ("begin", "end") for n in (1, 2)
        )

    @pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
    def test_a_signal_to_the_group_is_a_clean_end(
        self, tmp_path: Path, postgres_dsn: str, hold: Path, number: signal.Signals
    ) -> None:
        """As Ctrl-C in a terminal, which every process gets: the event at hand is finished once."""
        ready = tmp_path / "ready"
        with Worker(*TWO, "--ready-file", ready, folder=tmp_path, target=postgres_dsn) as worker:
            worker.wait_until_ready()
            children = pids(worker)
            publish(postgres_dsn, 1)
            wait_for_journal(tmp_path, ["mail begin 1"])
            worker.signal_group(number)
            wait_until(lambda: not ready.exists(), "the shutdown began")
            hold.unlink()

            assert worker.wait() == 0
        assert journal(tmp_path) == ["mail begin 1", "mail end 1"]
        assert not alive(children)
        assert "Traceback" not in worker.log()

    def test_a_signal_to_the_parent_alone_ends_all_of_them(
        self, tmp_path: Path, postgres_dsn: str, hold: Path
    ) -> None:
        with Worker(*TWO, folder=tmp_path, target=postgres_dsn) as worker:
            worker.wait_until_ready()
            children = pids(worker)
            publish(postgres_dsn, 1)
            wait_for_journal(tmp_path, ["mail begin 1"])
            worker.signal(signal.SIGTERM)
            wait_until(lambda: worker.ask("/ready")[1]["phase"] == "stopping", "the shutdown began")
            assert alive(children)
            hold.unlink()

            assert worker.wait() == 0
        assert journal(tmp_path) == ["mail begin 1", "mail end 1"]
        assert not alive(children)

    def test_a_second_signal_to_the_parent_ends_all_of_them_at_once(
        self, tmp_path: Path, postgres_dsn: str, hold: Path
    ) -> None:
        with Worker(*TWO, folder=tmp_path, target=postgres_dsn) as worker:
            worker.wait_until_ready()
            children = pids(worker)
            publish(postgres_dsn, 1)
            wait_for_journal(tmp_path, ["mail begin 1"])

            assert worker.signal_until_it_ends(signal.SIGTERM) == 143
        wait_until(lambda: not alive(children), "the instances are gone")

    def test_an_instance_that_hangs_is_killed_in_the_end(self, tmp_path: Path) -> None:
        """After the shutdown_timeout of its bus and a little more; the exit code tells."""
        file = tmp_path / "events.db"
        with Worker(*TWO, folder=tmp_path, target=file, shutdown_timeout=0.1) as worker:
            worker.wait_until_ready()
            children = pids(worker)
            publish(file, "hang")
            wait_for_journal(tmp_path, ["mail begin hang"])

            assert worker.end() == 1
            assert re.search(r"instance \d \(pid \d+\) does not end: killed", worker.log())
        assert not alive(children)


class TestRestarts:
    def test_a_killed_instance_is_started_again_while_another_takes_over(
        self, tmp_path: Path, postgres_dsn: str, hold: Path
    ) -> None:
        ready = tmp_path / "ready"
        with Worker(*TWO, "--ready-file", ready, folder=tmp_path, target=postgres_dsn) as worker:
            worker.wait_until_ready()
            before = pids(worker)
            publish(postgres_dsn, 1)
            wait_for_journal(tmp_path, ["mail begin 1"])
            [active] = pids_in_journal(tmp_path)
            os.kill(active, signal.SIGKILL)
            hold.unlink()
            wait_for_journal(tmp_path, ["mail end 1"])
            worker.wait_for_log(r"instance \d ended with SIGKILL; starting it again in 0\.1 s")
            wait_until(lambda: is_ready(worker), "all are ready again")
            wait_until(ready.exists, "the file says so")

            after = pids(worker)
            assert worker.end() == 0
        assert len(set(after) & set(before)) == 1
        assert active not in after
        assert pids_in_journal(tmp_path) >= {active}
        assert journal(tmp_path).count("mail end 1") == 1

    def test_a_store_that_can_not_be_reached_yet_is_waited_for(
        self, tmp_path: Path, own_postgres: Server
    ) -> None:
        """With a growing delay: exit code 1 is no bad app."""
        own_postgres.kill()
        with Worker(*TWO, folder=tmp_path, target=own_postgres.dsn()) as worker:
            worker.wait_for_log(r"instance \d ended with exit code 1; starting it again in 0\.2 s")
            assert worker.ask("/ready")[0] == 503
            own_postgres.start()
            worker.wait_until_ready()

            assert worker.end() == 0

    def test_a_bad_app_ends_the_parent_with_its_exit_code(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Starting it again would not help."""
        monkeypatch.chdir(tmp_path)
        (tmp_path / "broken.py").write_text("1 / 0\n")
        finished = run("worker", "broken", "--instances", "3")

        assert finished.returncode == 2
        assert "ZeroDivisionError" in finished.stderr
        assert "starting it again would not help" in finished.stderr
        assert "starting it again in" not in finished.stderr

    def test_an_app_that_goes_bad_later_does_not_take_the_others_with_it(self, tmp_path: Path) -> None:
        """As in the middle of an upgrade: what runs goes on, and the other is tried again."""
        (tmp_path / "app.py").write_text("from postbus import EventBus\nbus = EventBus('a.db')\n")
        with Worker(*TWO, folder=tmp_path, target="", app="app", cwd=tmp_path) as worker:
            worker.wait_until_ready()
            victim, other = pids(worker)
            (tmp_path / "app.py").write_text("1 / 0\n")
            os.kill(victim, signal.SIGKILL)
            worker.wait_for_log(r"instance 1 ended with exit code 2; starting it again in 0\.2 s")
            assert alive([other])
            assert not is_ready(worker)
            (tmp_path / "app.py").write_text("from postbus import EventBus\nbus = EventBus('a.db')\n")
            wait_until(lambda: is_ready(worker), "all are ready again")

            assert worker.end() == 0


class TestOrphans:
    @pytest.mark.parametrize("what", ["at rest", "in a handler", "hanging"])
    def test_they_end_when_the_parent_is_killed(self, tmp_path: Path, what: str) -> None:
        """By themselves and in good order, or at once if they can't."""
        file = tmp_path / "events.db"
        with Worker(*TWO, folder=tmp_path, target=file, shutdown_timeout=2) as worker:
            worker.wait_until_ready()
            children = pids(worker)
            if what == "in a handler":
                (tmp_path / "hold").touch()
                publish(file, 1)
                wait_for_journal(tmp_path, ["mail begin 1"])
            elif what == "hanging":
                publish(file, "hang")
                wait_for_journal(tmp_path, ["mail begin hang"])
            worker.process.kill()
            (tmp_path / "hold").unlink(missing_ok=True)
            wait_until(lambda: not alive(children), "they are gone", timeout=15)

        if what == "in a handler":
            assert journal(tmp_path) == ["mail begin 1", "mail end 1"]

    def test_one_that_is_still_being_imported_ends_too(self, tmp_path: Path) -> None:
        (tmp_path / "slow.py").write_text(
            "import os, time\nopen('journal', 'a').write(f'{os.getpid()} importing\\n')\ntime.sleep(3600)\n"
        )
        with Worker(*TWO, folder=tmp_path, target="", app="slow", cwd=tmp_path) as worker:
            wait_until(lambda: len(pids_in_journal(tmp_path)) == 2, "both are at it")
            worker.process.kill()

            wait_until(lambda: not alive(pids_in_journal(tmp_path)), "they are gone")

    def test_what_the_application_starts_inherits_nothing_of_this(self, tmp_path: Path) -> None:
        """Neither the pipe of the reports nor that of the supervisor: it could read it or keep it open."""
        (tmp_path / "app.py").write_text(INHERITS)
        with Worker(*TWO, folder=tmp_path, target="", app="app", cwd=tmp_path) as worker:
            worker.wait_until_ready()
            assert worker.end() == 0

        assert journal(tmp_path) == ["[] True", "[] True"]


INHERITS = """\
import os
from postbus import EventBus

def is_inherited(number):
    try:
        return os.get_inheritable(number)
    except OSError:
        return False

numbers = [number for number in range(3, 256) if is_inherited(number)]
has_no_input = os.fstat(0).st_rdev == os.stat(os.devnull).st_rdev
with open("journal", "a") as journal:
    journal.write(f"{os.getpid()} {numbers} {has_no_input}\\n")
bus = EventBus("a.db")
"""


class TestStatus:
    def test_a_parent_is_ready_when_all_are(self, tmp_path: Path, hold: Path) -> None:
        file, ready = tmp_path / "events.db", tmp_path / "ready"
        arguments = (*TWO, "--ready-file", ready)
        with Worker(*arguments, folder=tmp_path, target=file, app=f"{APP}:Factories.make_slowly") as worker:
            wait_until(lambda: journal(tmp_path).count("begin to make") == 2, "both start")
            status, answer = worker.ask("/ready")
            assert (status, answer["is_ready"], answer["phase"]) == (503, False, "starting")
            assert worker.ask("/live") == (200, {"is_live": True})
            assert not ready.exists()
            hold.unlink()
            worker.wait_until_ready()
            assert ready.read_text() == f"{worker.process.pid}\n"
            wait_until(lambda: is_ready(worker), "all are ready")

            answer = worker.ask("/ready")[1]
            assert (answer["pid"], answer["phase"]) == (worker.process.pid, "started")
            assert [len(instance["subscriptions"]) for instance in answer["instances"]] == [1, 1]
            assert worker.end() == 0
        assert not ready.exists()

    def test_an_instance_that_hangs_makes_the_parent_neither_ready_nor_live(self, tmp_path: Path) -> None:
        """So the file goes stale and the endpoint says it."""
        file, live = tmp_path / "events.db", tmp_path / "live"
        with Worker(*TWO, "--live-file", live, folder=tmp_path, target=file) as worker:
            worker.wait_until_ready()
            wait_until(lambda: is_ready(worker), "all are ready")
            publish(file, "hang")

            wait_until(lambda: worker.ask("/live") == (503, {"is_live": False}), "it says so")
            assert worker.ask("/ready")[0] == 503
            wait_until(lambda: time.time() - live.stat().st_mtime > 2, "the file has gone stale")

    def test_standard_output_has_one_line(self, tmp_path: Path) -> None:
        with Worker(*TWO, folder=tmp_path, target=tmp_path / "events.db") as worker:
            worker.wait_until_ready()
            assert worker.end() == 0
            assert worker.process.stdout is not None
            assert worker.process.stdout.read() == b""
