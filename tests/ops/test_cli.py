"""The commands: what they print, what they change, and their exit codes."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from postbus import Event, EventBus, EventStatus
from postbus.ops.cli import INSTALL_COMMAND, main
from postbus.ops.cli.group import postbus as group
from tests.ops.commands import ESCAPE, POSTBUS, dead_letter_count, run, stored, terminal


class TestGroup:
    def test_the_version_is_that_of_the_package(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["--version"]) == 0
        assert capsys.readouterr().out.startswith("postbus, version 0.")

    def test_the_package_can_be_run_as_a_module(self) -> None:
        """For whoever has no scripts on the PATH; it goes by the same name."""
        command = [sys.executable, "-m", "postbus"]
        version, unknown = (
            subprocess.run([*command, argument], capture_output=True, text=True, check=False)
            for argument in ("--version", "nix")
        )

        assert (version.returncode, version.stderr) == (0, "")
        assert version.stdout.startswith("postbus, version 0.")
        assert unknown.returncode == 2
        assert unknown.stderr.startswith("Usage: postbus ")

    def test_no_command_is_a_usage_error_that_shows_the_help(self) -> None:
        finished = run()

        assert finished.returncode == 2
        assert "dlq" in finished.stdout + finished.stderr

    def test_an_unknown_command_is_a_usage_error(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["nix"]) == 2
        assert "No such command 'nix'" in capsys.readouterr().err

    @pytest.mark.parametrize(
        "names",
        [
            ("bench",),
            ("demo",),
            ("migrate",),
            ("publish",),
            ("worker",),
            *(("dlq", n) for n in ("ls", "show", "retry", "resolve", "purge")),
        ],
    )
    def test_every_command_explains_itself_and_its_options(self, names: tuple[str, ...]) -> None:
        result = CliRunner().invoke(group, [*names, "--help"])

        assert result.exit_code == 0
        command: click.Command = group
        for name in names:
            assert isinstance(command, click.Group)
            command = command.commands[name]
        assert command.help
        assert all(
            option.opts[0] in result.output for option in command.params if isinstance(option, click.Option)
        )

    @pytest.mark.parametrize(
        "names",
        [("migrate",), ("publish",), *(("dlq", n) for n in ("ls", "show", "retry", "resolve", "purge"))],
    )
    def test_the_help_says_that_a_bus_is_a_file_or_on_a_server(self, names: tuple[str, ...]) -> None:
        output = CliRunner().invoke(group, [*names, "--help"]).output

        assert "postgresql://" in output
        assert "events.db" in output
        assert "The bus's file" not in output

    def test_the_help_of_migrate_says_what_needs_no_url(self) -> None:
        assert "Not needed with --sql" in " ".join(
            CliRunner().invoke(group, ["migrate", "-h"]).output.split()
        )

    def test_main_can_be_called_more_than_once(self) -> None:
        """The command's modules must not replace the function that starts them."""
        from postbus.ops import cli

        assert cli.main(["--version"]) == 0
        assert cli.main(["--version"]) == 0

    def test_ctrl_c_at_a_question_ends_with_130(self, database: Path) -> None:
        with terminal() as (_, theirs):
            arguments = ["dlq", "purge", "--older-than-days", "0", "--url", str(database)]
            with subprocess.Popen([*POSTBUS, *arguments], stdin=theirs, stderr=subprocess.PIPE) as process:
                assert process.stderr is not None
                assert process.stderr.read(6) == b"Delete"
                interrupt(process)

                assert process.returncode == 130
        assert dead_letter_count(database) == 3


class TestMissingExtra:
    @pytest.mark.parametrize("missing", ["click", "rich"])
    def test_the_pip_line_is_printed_and_the_exit_code_is_2(self, missing: str) -> None:
        script = (
            f"import sys; sys.modules[{missing!r}] = None\n"
            "from postbus.ops.cli import main; sys.exit(main(['demo']))"
        )
        finished = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)

        assert finished.returncode == 2
        assert finished.stdout == ""
        assert finished.stderr.splitlines()[-1] == "pip install 'postbus[cli]'" == INSTALL_COMMAND

    def test_another_missing_module_is_not_taken_for_the_extra(self) -> None:
        script = "import sys; sys.modules['msgspec'] = None\nfrom postbus.ops.cli import main; main(['demo'])"
        finished = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)

        assert finished.returncode == 1
        assert "msgspec" in finished.stderr
        assert INSTALL_COMMAND not in finished.stderr


class TestPublish:
    def test_the_event_is_pending_for_the_owner(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """It is not settled as an event that no handler wants, though no bus is running."""
        path = tmp_path / "new.db"
        arguments = ["publish", "order.placed", '{"order": 42}', "--url", str(path)]
        code = main([*arguments, "--metadata", "source=shop", "--metadata", "note=a=b"])
        event = stored(path, capsys.readouterr().out.strip())

        assert code == 0
        assert (event.type, event.payload, event.status) == (
            "order.placed",
            {"order": 42},
            EventStatus.PENDING,
        )
        assert event.metadata == {"source": "shop", "note": "a=b"}

    def test_the_same_id_is_stored_once(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        path = tmp_path / "new.db"
        arguments = ["publish", "order.placed", "--url", str(path), "--event-id", "order-42"]
        codes = main([*arguments, "1"]), main([*arguments, "2"])
        output = capsys.readouterr()

        assert codes == (0, 0)
        assert output.out == "order-42\norder-42\n"
        assert "nothing was stored" in output.err
        assert stored(path, "order-42").payload == 1

    def test_the_payload_may_be_left_out_or_come_from_standard_input(self, tmp_path: Path) -> None:
        path = tmp_path / "new.db"
        run("publish", "a", "--url", path, "--event-id", "none")
        command = [*POSTBUS, "publish", "a", "-", "--url", str(path), "--event-id", "piped"]
        subprocess.run(command, input='["ü"]', text=True, encoding="utf-8", check=True, capture_output=True)

        assert stored(path, "none").payload is None
        assert stored(path, "piped").payload == ["ü"]

    @pytest.mark.parametrize("text", ["{", "", "NaN", "-Infinity", "[" * 100_000])
    def test_a_payload_that_is_not_json_is_a_usage_error(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str
    ) -> None:
        path = tmp_path / "new.db"

        assert main(["publish", "a", "--url", str(path), "--", text]) == 2
        assert "is not JSON" in capsys.readouterr().err
        assert not path.exists()

    @pytest.mark.parametrize(
        ("event_type", "payload"), [("order..placed", "1"), ("a b", "1"), ("a", "1e999"), ("a", '"\\ud800"')]
    )
    def test_what_the_bus_refuses_is_one_line_and_exit_code_1(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str], event_type: str, payload: str
    ) -> None:
        assert main(["publish", event_type, payload, "--url", str(tmp_path / "new.db")]) == 1
        [line] = capsys.readouterr().err.splitlines()
        assert line.startswith("Error: ")
        assert "nothing was stored" in line

    @pytest.mark.parametrize("pair", ["source", "=web"])
    def test_metadata_without_key_or_value_is_a_usage_error(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str], pair: str
    ) -> None:
        assert main(["publish", "a", "--url", str(tmp_path / "new.db"), "--metadata", pair]) == 2
        assert "KEY=VALUE" in capsys.readouterr().err

    def test_a_running_bus_takes_the_event_up(self, tmp_path: Path) -> None:
        """The bus is in this process, the command in another."""

        async def serve() -> Event:
            bus = EventBus(tmp_path / "events.db")
            arrived: asyncio.Future[Event] = asyncio.get_running_loop().create_future()

            @bus.on("order.*")
            async def take(event: Event) -> None:
                arrived.set_result(event)

            async with bus:
                finished = await asyncio.to_thread(
                    run, "publish", "order.placed", '{"order": 42}', "--url", tmp_path / "events.db"
                )
                event = await asyncio.wait_for(arrived, 30)
                assert finished.stdout.strip() == event.id
                await bus.idle()
                assert (await bus.store.get(event.id)).status is EventStatus.DONE
                return event

        assert asyncio.run(serve()).payload == {"order": 42}


class TestUrl:
    def test_the_environment_names_the_file(
        self, database: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.setenv("POSTBUS_URL", f"sqlite:///{database}")

        assert main(["dlq", "ls"]) == 0
        assert "3 dead letters" in capsys.readouterr().out

    def test_no_file_at_all_is_a_usage_error(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["dlq", "ls"]) == 2
        assert "POSTBUS_URL" in capsys.readouterr().err

    def test_memory_is_a_usage_error(self, capsys: pytest.CaptureFixture[str]) -> None:
        """What was published there would be lost at once."""
        assert main(["publish", "a", "--url", "memory:"]) == 2
        assert "ends with its process" in capsys.readouterr().err

    @pytest.mark.parametrize(
        "command", [("ls",), ("show", "x"), ("retry", "x"), ("purge", "--older-than-days=1", "--yes")]
    )
    def test_a_mistyped_path_creates_no_file(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str], command: tuple[str, ...]
    ) -> None:
        path = tmp_path / "evnets.db"

        assert main(["dlq", *command, "--url", str(path)]) == 1
        assert capsys.readouterr().err == f"Error: there is no file {path}; check --url\n"
        assert not path.exists()

    @pytest.mark.parametrize(
        "command",
        [
            ("publish", "a"),
            ("dlq", "ls"),
            ("dlq", "show", "x"),
            ("dlq", "retry", "--all"),
            ("dlq", "resolve", "x", "--by", "anna"),
            ("dlq", "purge", "--older-than-days=1", "--yes"),
        ],
    )
    def test_a_file_has_no_schema(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str], command: tuple[str, ...]
    ) -> None:
        """The refusal says what it is for, and no file is made."""
        path = tmp_path / "events.db"

        assert main([*command, "--url", str(path), "--schema", "postbus"]) == 2
        assert "--schema is for PostgreSQL" in capsys.readouterr().err
        assert not path.exists()

    def test_a_file_that_is_no_database_is_one_line_and_left_as_it_is(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        path = tmp_path / "notes.txt"
        path.write_text("not a database\n" * 100)

        assert main(["dlq", "ls", "--url", str(path)]) == 1
        assert main(["publish", "a", "--url", str(path)]) == 1
        lines = capsys.readouterr().err.splitlines()
        assert [line.startswith("Error: ") and "not a SQLite database" in line for line in lines] == [
            True,
            True,
        ]
        assert path.read_text() == "not a database\n" * 100

    @pytest.mark.parametrize("url", ["", ":memory:", "mysql://host/db", "sqlite://"])
    def test_a_target_that_names_no_store_is_one_line(
        self, capsys: pytest.CaptureFixture[str], url: str
    ) -> None:
        code = main(["publish", "a", "--url", url])

        assert code in {1, 2}
        assert "Traceback" not in capsys.readouterr().err


class TestColour:
    @pytest.mark.parametrize(("environment", "has_colour"), [({}, True), ({"NO_COLOR": "1"}, False)])
    def test_no_color_is_respected_on_a_terminal(
        self, database: Path, environment: dict[str, str], has_colour: bool
    ) -> None:
        output = output_on_terminal(["dlq", "show", "mail-1", "--url", str(database)], environment)

        assert "mail-1" in output
        assert (f"{ESCAPE}[31m" in output) is has_colour


def output_on_terminal(arguments: list[str], environment: dict[str, str]) -> str:
    """What the command shows on a terminal; little enough to fit into its buffer."""
    settings = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "80", **environment}
    with terminal() as (ours, theirs):
        subprocess.run([*POSTBUS, *arguments], stdout=theirs, stderr=theirs, env=settings, check=True)
        return os.read(ours, 65536).decode()


def interrupt(process: "subprocess.Popen[bytes]") -> None:
    """Press Ctrl-C, and again if it came at the one moment before a process waits for its input."""
    while process.poll() is None:
        process.send_signal(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(2)
