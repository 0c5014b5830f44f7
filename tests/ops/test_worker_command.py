"""postbus worker in one process: from its start to its end, and what it says when it can't."""

import json
import re
import signal
import time
from pathlib import Path

import pytest

from tests.end_to_end.processes import ROOT, wait_until
from tests.ops.commands import run
from tests.ops.workers import APP, Worker, journal, publish, wait_for_journal


@pytest.fixture(params=["sqlite", "postgres"])
def target(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A store of each kind."""
    if request.param == "sqlite":
        return str(tmp_path / "events.db")
    dsn: str = request.getfixturevalue("postgres_dsn")
    return dsn


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "events.db"


@pytest.fixture
def hold(tmp_path: Path) -> Path:
    """As long as this file is there, handlers do not end."""
    path = tmp_path / "hold"
    path.touch()
    return path


class TestSignals:
    @pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
    def test_the_event_at_hand_is_finished_and_never_comes_again(
        self, tmp_path: Path, target: str, hold: Path, number: signal.Signals
    ) -> None:
        """Its checkpoint is written, the locks are released, and the exit code is 0."""
        ready = tmp_path / "ready"
        with Worker("--ready-file", ready, folder=tmp_path, target=target) as worker:
            worker.wait_until_ready()
            publish(target, 1)
            wait_for_journal(tmp_path, ["mail begin 1"])
            worker.signal(number)
            wait_until(lambda: not ready.exists(), "the shutdown began")
            hold.unlink()
            assert worker.wait() == 0
        assert journal(tmp_path) == ["mail begin 1", "mail end 1"]

        publish(target, 2)
        with Worker(folder=tmp_path, target=target) as worker:
            wait_for_journal(tmp_path, ["mail end 2"])
            assert worker.end() == 0
        assert journal(tmp_path) == ["mail begin 1", "mail end 1", "mail begin 2", "mail end 2"]

    @pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
    def test_a_second_signal_ends_it_at_once_and_the_event_comes_again(
        self, tmp_path: Path, target: str, hold: Path, number: signal.Signals, code: int
    ) -> None:
        with Worker(folder=tmp_path, target=target) as worker:
            worker.wait_until_ready()
            publish(target, 1)
            wait_for_journal(tmp_path, ["mail begin 1"])
            assert worker.signal_until_it_ends(number) == code
        hold.unlink()

        with Worker(folder=tmp_path, target=target) as worker:
            wait_for_journal(tmp_path, ["mail end 1"])
            assert worker.end() == 0
        assert journal(tmp_path) == ["mail begin 1", "mail begin 1", "mail end 1"]

    def test_a_second_signal_ends_a_worker_that_hangs(self, tmp_path: Path, file: Path) -> None:
        """A handler that blocks the event loop does not block this."""
        with Worker(folder=tmp_path, target=file) as worker:
            worker.wait_until_ready()
            publish(file, "hang")
            wait_for_journal(tmp_path, ["mail begin hang"])
            assert worker.signal_until_it_ends(signal.SIGTERM) == 143

    def test_two_signals_at_the_same_moment_are_one(self, tmp_path: Path, file: Path, hold: Path) -> None:
        """As from those who signal a process and then its whole group."""
        with Worker(folder=tmp_path, target=file) as worker:
            worker.wait_until_ready()
            publish(file, 1)
            wait_for_journal(tmp_path, ["mail begin 1"])
            for number in (signal.SIGSTOP, signal.SIGTERM, signal.SIGINT, signal.SIGCONT):
                worker.signal(number)
            worker.wait_for_log("shutting down")
            hold.unlink()

            assert worker.wait() == 0
        assert journal(tmp_path) == ["mail begin 1", "mail end 1"]

    def test_a_signal_ends_it_while_it_starts(self, tmp_path: Path, file: Path) -> None:
        with Worker(folder=tmp_path, target=file, app=f"{APP}:make_never") as worker:
            wait_for_journal(tmp_path, ["begin to make"])
            assert worker.end() == 0
            assert worker.process.stdout is not None
            assert worker.process.stdout.read() == b""

    @pytest.mark.parametrize("count", [1, 2])
    def test_a_thread_of_the_application_that_never_ends_is_not_waited_for(
        self, tmp_path: Path, count: int
    ) -> None:
        """The bus has shut down in good order, so the exit code is 0, and it does not take for ever."""
        (tmp_path / "app.py").write_text(HAS_STUCK_THREAD)
        arguments = ("--instances", count)
        with Worker(*arguments, folder=tmp_path, target="", app="app", cwd=tmp_path) as worker:
            worker.wait_until_ready()

            assert worker.end() == 0
            assert (
                worker.log().count("threads of the application do not end and are not waited for: st")
                == count
            )
            assert "killed" not in worker.log()

    @pytest.mark.parametrize(("rest", "code"), [("1 / 0", 2), ("bus = EventBus('/')", 1)])
    def test_nor_is_it_by_a_worker_that_can_not_run(self, tmp_path: Path, rest: str, code: int) -> None:
        (tmp_path / "app.py").write_text(f"{HAS_STUCK_THREAD}{rest}\n")
        with Worker(folder=tmp_path, target="", app="app", cwd=tmp_path) as worker:
            assert worker.wait() == code

    def test_it_ends_when_the_application_shuts_its_bus_down(self, tmp_path: Path, file: Path) -> None:
        """A worker without a bus would be of no use to anybody."""
        with Worker(folder=tmp_path, target=file) as worker:
            worker.wait_until_ready()
            publish(file, "shut down")

            assert worker.wait() == 0
            assert "was shut down by the application" in worker.log()


HAS_STUCK_THREAD = """\
import threading
from postbus import EventBus

bus = EventBus('a.db')
threading.Thread(target=threading.Event().wait, name='stuck').start()
"""


class TestReadyFile:
    def test_it_exists_exactly_while_the_bus_is_started(self, tmp_path: Path, file: Path, hold: Path) -> None:
        """That of a killed process is gone before the bus starts."""
        ready = tmp_path / "ready"
        ready.write_text("1\n")
        arguments = ("--ready-file", ready)
        app = f"{APP}:Factories.make_slowly"
        with Worker(*arguments, folder=tmp_path, target=file, app=app) as worker:
            wait_for_journal(tmp_path, ["begin to make"])
            assert not ready.exists()
            hold.unlink()
            worker.wait_until_ready()
            assert ready.read_text() == f"{worker.process.pid}\n"

            hold.touch()
            publish(file, 1)
            wait_for_journal(tmp_path, ["mail begin 1"])
            worker.signal(signal.SIGTERM)
            wait_until(lambda: not ready.exists(), "the file is gone")
            assert worker.process.poll() is None
            hold.unlink()
            assert worker.wait() == 0
        assert not [path for path in tmp_path.iterdir() if "ready" in path.name]

    def test_the_file_of_a_successor_is_left_alone(self, tmp_path: Path, file: Path) -> None:
        ready = tmp_path / "ready"
        with Worker("--ready-file", ready, folder=tmp_path, target=file) as worker:
            worker.wait_until_ready()
            ready.write_text("1\n")
            assert worker.end() == 0

        assert ready.read_text() == "1\n"

    def test_it_comes_back_when_somebody_removes_it(self, tmp_path: Path, file: Path) -> None:
        """As a second worker does that is started with the same file by mistake, and can't run."""
        ready = tmp_path / "ready"
        with Worker("--ready-file", ready, folder=tmp_path, target=file) as worker:
            worker.wait_until_ready()
            with Worker("--ready-file", ready, folder=tmp_path, target=tmp_path) as second:
                assert second.wait() == 1
            wait_until(ready.exists, "it is there again")

            assert ready.read_text() == f"{worker.process.pid}\n"
            assert worker.end() == 0
        assert not ready.exists()

    @pytest.mark.parametrize("option", ["--ready-file", "--live-file"])
    def test_a_path_that_can_not_be_written_is_refused_before_the_bus_starts(
        self, tmp_path: Path, file: Path, option: str
    ) -> None:
        with Worker(option, tmp_path / "nowhere" / "file", folder=tmp_path, target=file) as worker:
            assert worker.wait() == 1
            assert re.search(f"{option} is .*; expected a file that can be written", worker.log())
        assert not file.exists()


class TestLiveFile:
    def test_it_is_touched_until_the_event_loop_hangs(self, tmp_path: Path, file: Path) -> None:
        live = tmp_path / "live"
        with Worker("--live-file", live, folder=tmp_path, target=file) as worker:
            worker.wait_until_ready()
            first = live.stat().st_mtime
            wait_until(lambda: live.stat().st_mtime > first, "it was touched again")
            publish(file, "hang")
            wait_for_journal(tmp_path, ["mail begin hang"])

            wait_until(lambda: time.time() - live.stat().st_mtime > 3, "it has gone stale")

    def test_it_is_gone_after_a_clean_end(self, tmp_path: Path, file: Path) -> None:
        live = tmp_path / "live"
        with Worker("--live-file", live, folder=tmp_path, target=file) as worker:
            worker.wait_until_ready()
            assert worker.end() == 0

        assert not live.exists()


class TestApp:
    def test_a_function_is_called(self, tmp_path: Path, file: Path) -> None:
        with Worker(folder=tmp_path, target=file, app=f"{APP}:Factories.make") as worker:
            worker.wait_until_ready()
            assert worker.end() == 0

        assert journal(tmp_path) == ["made"]

    def test_the_current_folder_comes_first(self, tmp_path: Path, file: Path) -> None:
        """Before an installed package of the same name."""
        (tmp_path / "psycopg.py").write_text("from postbus import EventBus\nbus = EventBus('a.db')\n")
        with Worker(folder=tmp_path, target=file, app="psycopg", cwd=tmp_path) as worker:
            worker.wait_until_ready()
            assert worker.end() == 0

        assert (tmp_path / "a.db").exists()

    def test_a_bus_without_subscriptions_is_warned_about(self, tmp_path: Path, file: Path) -> None:
        (tmp_path / "app.py").write_text("from postbus import EventBus\nbus = EventBus('a.db')\n")
        with Worker(folder=tmp_path, target=file, app="app:bus", cwd=tmp_path) as worker:
            worker.wait_until_ready()
            assert worker.end() == 0

            assert re.search("WARNING .* app:bus has no subscriptions", worker.log())

    def test_handlers_without_an_id_are_subscriptions_too(self, tmp_path: Path, file: Path) -> None:
        code = "from postbus import EventBus\nbus = EventBus('a.db')\nbus.subscribe('*', print)\n"
        (tmp_path / "app.py").write_text(code)
        with Worker(folder=tmp_path, target=file, app="app:bus", cwd=tmp_path) as worker:
            worker.wait_until_ready()
            assert worker.end() == 0

            assert "WARNING" not in worker.log()


class TestBadApp:
    @pytest.mark.parametrize(
        ("app", "says"),
        [
            ("nix", "there is no module 'nix'; looked in .*; start the worker in the folder"),
            ("nix.bus:bus", "there is no module 'nix'"),
            ("app.nix", "there is no module 'app.nix'"),
            ("app.py", "names a file; expected module:attribute.*; perhaps you mean app:bus"),
            ("./shop/app.py:b", "perhaps you mean shop.app:b"),
            ("app:", "expected module:attribute"),
            (":bus", "expected module:attribute"),
            ("app:a b", "expected module:attribute"),
            ("app:nix", "app has no attribute 'nix'; it has app:real"),
            ("app:real.nix", "app:real has no attribute 'nix'; expected a bus there"),
            ("app:number", "app:number is 42, of type int; expected an EventBus"),
            ("app:make_nothing", "app:make_nothing returned None, of type NoneType; expected an EventBus"),
            ("app:needs", "app:needs can't be called without arguments .*'what'"),
            ("app:breaks", "calling app:breaks failed: ZeroDivisionError"),
            ("broken", "importing broken failed: ValueError: no such setting"),
            ("lacks", "importing lacks failed: ModuleNotFoundError: No module named 'missing'"),
            ("typo", "importing typo failed: SyntaxError"),
            ("ends", "importing ends failed: SystemExit: 0"),
        ],
    )
    def test_it_says_what_was_found_and_what_to_do(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, app: str, says: str
    ) -> None:
        """In one line before any traceback; the exit code 2 means that trying again does not help."""
        monkeypatch.chdir(tmp_path)
        write_modules(tmp_path)
        finished = run("worker", app)

        assert (finished.returncode, finished.stdout) == (2, "")
        assert re.search(says, finished.stderr.splitlines()[0])

    @pytest.mark.parametrize("app", ["broken", "app:breaks"])
    def test_the_traceback_is_that_of_the_user(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, app: str
    ) -> None:
        """From the first line of theirs on."""
        monkeypatch.chdir(tmp_path)
        write_modules(tmp_path)
        finished = run("worker", app)

        files = re.findall(r'File "(.*)", line', finished.stderr)
        assert files == [str(tmp_path / f"{app.partition(':')[0]}.py")] * len(files) != []


def write_modules(folder: Path) -> None:
    (folder / "app.py").write_text(
        "from postbus import EventBus\n"
        "real, number = EventBus('a.db'), 42\n"
        "def make_nothing(): pass\n"
        "def needs(what): pass\n"
        "async def breaks(): 1 / 0\n"
    )
    (folder / "broken.py").write_text("def read(): raise ValueError('no such setting')\nread()\n")
    (folder / "lacks.py").write_text("import missing\n")
    (folder / "typo.py").write_text("bus = = 1\n")
    (folder / "ends.py").write_text("raise SystemExit(0)\n")


class TestStoreAtStart:
    def test_a_server_that_can_not_be_reached_is_exit_code_1(self, tmp_path: Path) -> None:
        """So that whoever supervises the worker starts it again."""
        with Worker(folder=tmp_path, target="postgresql://127.0.0.1:1/nix") as worker:
            assert worker.wait() == 1
            assert re.search(r"CRITICAL .*worker_app:bus can't run: ", worker.log())
            assert "Traceback" not in worker.log()

    def test_a_file_that_is_no_database_is_exit_code_1(self, tmp_path: Path, file: Path) -> None:
        file.write_text("no database\n" * 100)
        with Worker(folder=tmp_path, target=file) as worker:
            assert worker.wait() == 1
            assert "not a SQLite database" in worker.log()


class TestOutput:
    def test_standard_output_has_one_line(self, tmp_path: Path, file: Path) -> None:
        with Worker(folder=tmp_path, target=file) as worker:
            worker.wait_until_ready()
            assert worker.end() == 0
            assert worker.process.stdout is not None
            assert worker.process.stdout.read() == b""

    def test_a_closed_output_is_no_reason_to_end(self, tmp_path: Path, file: Path) -> None:
        with Worker(folder=tmp_path, target=file) as worker:
            assert worker.process.stdout is not None
            worker.process.stdout.close()
            publish(file, 1)
            wait_for_journal(tmp_path, ["mail end 1"])

            assert worker.end() == 0

    def test_a_plain_line_has_time_level_and_process(self, tmp_path: Path, file: Path) -> None:
        with Worker(folder=tmp_path, target=file) as worker:
            worker.wait_until_ready()
            assert worker.end() == 0
            pid = worker.process.pid
            lines = worker.log().splitlines()

        line = rf"\d{{4}}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{{3}}Z INFO {pid} postbus(\.worker)?: .+"
        assert lines
        assert all(re.fullmatch(line, each) for each in lines)

    def test_json_has_one_object_a_line_with_all_extras(self, tmp_path: Path, file: Path) -> None:
        (tmp_path / "app.py").write_text(LOGS_MUCH)
        arguments = ("--log-format", "json", "--log-level", "DEBUG")
        with Worker(*arguments, folder=tmp_path, target=file, app="app", cwd=tmp_path) as worker:
            worker.wait_until_ready()
            assert worker.end() == 0
            lines = [json.loads(line) for line in worker.log().splitlines()]

        plain, odd, failed = [line for line in lines if line["logger"] == "app"]
        assert plain["level"] == "DEBUG"
        assert plain["pid"] == worker.process.pid
        assert (plain["message"], plain["subscriber_id"], plain["attempt"]) == ("plain\nline", "mail", 3)
        assert (odd["pid"], odd["what"], odd["attempt"]) == (worker.process.pid, "nan", 3)
        assert "ZeroDivisionError" in failed["exception"]

    def test_the_level_is_the_least_that_is_logged(self, tmp_path: Path, file: Path) -> None:
        with Worker("--log-level", "error", folder=tmp_path, target=file) as worker:
            worker.wait_until_ready()
            assert worker.end() == 0

            assert worker.log() == ""


LOGS_MUCH = """\
import logging
from postbus import EventBus
logger = logging.getLogger("app")
logger.debug("plain\\nline", extra={"subscriber_id": "mail", "attempt": 3})
logger.info("odd", extra={"what": float("nan"), "many": {(1,): object()}, "attempt": 3})
try:
    1 / 0
except ZeroDivisionError:
    logger.exception("failed")
bus = EventBus("a.db")
"""


class TestUsage:
    @pytest.mark.parametrize(
        ("arguments", "says"),
        [
            (("--instances", "0"), "0 is not in the range"),
            (("--health", "localhost"), "'localhost' has no port"),
            (("--health", "1:99999"), "'1:99999' has no port"),
            (("--log-level", "loud"), "'loud' is not one of"),
            (("--log-format", "xml"), "'xml' is not one of"),
        ],
    )
    def test_a_bad_option_is_a_usage_error(self, arguments: tuple[str, ...], says: str) -> None:
        finished = run("worker", APP, *arguments)

        assert finished.returncode == 2
        assert says in finished.stderr


class TestExample:
    def test_it_runs_under_the_worker(self, tmp_path: Path, file: Path) -> None:
        (tmp_path / "worker_app.py").write_text((ROOT / "examples" / "worker_app.py").read_text())
        with Worker(folder=tmp_path, target=file, app="worker_app:bus", cwd=tmp_path) as worker:
            worker.wait_until_ready()
            publish(tmp_path / "orders.db", {"order": 42})
            worker.wait_for_log("mail about order 42")
            assert worker.end() == 0
