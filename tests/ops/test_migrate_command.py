"""postbus migrate: what it makes, what it prints, and its exit codes."""

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import asyncpg
import pytest
from click.testing import CliRunner, Result

from postbus import SQLiteStore
from postbus.ops.cli.group import postbus as group
from postbus.stores.postgres.migrations import VERSION, render_sql
from postbus.stores.postgres.pool import Connection
from tests.ops.commands import run


@pytest.fixture
async def connection(postgres_dsn: str) -> AsyncIterator[Connection]:
    connection = await asyncpg.connect(postgres_dsn)
    yield connection
    await connection.close()


async def _migrate(*arguments: str) -> "subprocess.CompletedProcess[str]":
    return await asyncio.to_thread(run, "migrate", *arguments)


def _invoke(*arguments: str) -> Result:
    return CliRunner().invoke(group, ["migrate", *arguments])


class TestPostgreSQL:
    async def test_it_makes_the_schema_and_says_so(self, postgres_dsn: str, connection: Connection) -> None:
        """The second time there is nothing to do."""
        first = await _migrate("--url", postgres_dsn)
        second = await _migrate("--url", postgres_dsn)

        assert (first.returncode, first.stderr) == (second.returncode, second.stderr) == (0, "")
        assert first.stdout == f"Schema 'postbus' went from no version to version {VERSION}.\n"
        assert second.stdout == f"Schema 'postbus' is at version {VERSION} already.\n"
        assert await connection.fetchval("SELECT max(version) FROM postbus.postbus_schema") == VERSION

    async def test_the_schema_and_the_trigger_are_the_users_choice(
        self, postgres_dsn: str, connection: Connection
    ) -> None:
        """The URL may come from the environment."""
        finished = await _migrate("--url", postgres_dsn, "--schema", "it's mine", "--notify-trigger")
        found = await connection.fetchval(
            "SELECT nspname FROM pg_trigger JOIN pg_class ON tgrelid = pg_class.oid "
            "JOIN pg_namespace ON relnamespace = pg_namespace.oid WHERE relname = 'events'"
        )

        assert finished.returncode == 0
        assert found == "it's mine"

    async def test_a_log_that_is_not_sound_fails_with_the_repair(
        self, postgres_dsn: str, connection: Connection
    ) -> None:
        """In one line on stderr, and exit code 1."""
        await _migrate("--url", postgres_dsn)
        await connection.execute("ALTER SEQUENCE postbus.events_global_sequence_seq CACHE 32")
        finished = await _migrate("--url", postgres_dsn)

        assert (finished.returncode, finished.stdout) == (1, "")
        assert 'ALTER SEQUENCE "postbus".events_global_sequence_seq CACHE 1' in finished.stderr
        assert len(finished.stderr.splitlines()) == 1

    async def test_a_table_of_another_program_fails_with_the_reason(
        self, postgres_dsn: str, connection: Connection
    ) -> None:
        """Nothing was changed."""
        await connection.execute("CREATE TABLE public.events (mine int)")
        finished = await _migrate("--url", postgres_dsn, "--schema", "public")

        assert finished.returncode == 1
        assert "not ours" in finished.stderr

    def test_a_server_that_is_not_there_fails_without_the_password(self) -> None:
        """Exit code 1, one line, and it says where."""
        result = _invoke("--url", "postgresql://me:secret@127.0.0.1:1/shop")

        assert result.exit_code == 1
        assert "127.0.0.1:1" in result.output
        assert "secret" not in result.output

    def test_a_name_that_is_too_long_is_a_usage_error(self) -> None:
        result = _invoke("--url", "postgresql://127.0.0.1:1/shop", "--schema", "x" * 64)

        assert result.exit_code == 2
        assert "--schema" in result.output
        assert "63 bytes" in result.output


class TestScript:
    @pytest.mark.parametrize("arguments", [[], ["--url", "postgresql://127.0.0.1:1/shop"]])
    def test_the_sql_is_printed_and_no_server_is_asked(self, arguments: list[str]) -> None:
        result = _invoke("--sql", "--schema", "bus", *arguments)

        assert (result.exit_code, result.stdout) == (0, render_sql("bus"))

    def test_the_trigger_is_printed_on_request(self) -> None:
        assert "CREATE OR REPLACE TRIGGER" not in _invoke("--sql").output
        assert "CREATE OR REPLACE TRIGGER" in _invoke("--sql", "--notify-trigger").output

    @pytest.mark.parametrize("option", [["--sql"], ["--schema", "postbus"], ["--notify-trigger"]])
    def test_a_file_has_no_such_thing(self, tmp_path: Path, option: list[str]) -> None:
        """The refusal names what is for PostgreSQL, and no file is made."""
        result = _invoke("--url", str(tmp_path / "events.db"), *option)

        assert result.exit_code == 2
        assert "are for PostgreSQL" in result.output
        assert not (tmp_path / "events.db").exists()


class TestSQLite:
    async def test_the_file_is_made_or_brought_up_to_date(self, tmp_path: Path) -> None:
        path = tmp_path / "events.db"
        finished = await _migrate("--url", f"sqlite:///{path}")
        async with SQLiteStore(path) as store:
            head = await store.head()

        assert (finished.returncode, finished.stdout, head) == (0, f"{path} is up to date.\n", 0)

    @pytest.mark.parametrize("url", ["memory:", "mysql://localhost/shop"])
    def test_anything_else_is_refused(self, url: str) -> None:
        assert _invoke("--url", url).exit_code != 0


class TestUsage:
    def test_a_url_is_needed(self) -> None:
        """The refusal names the option and the variable."""
        result = _invoke()

        assert result.exit_code == 2
        assert "--url" in result.output
        assert "POSTBUS_URL" in result.output

    @pytest.mark.parametrize("arguments", [["--sql"], ["--url", "postgresql://localhost/shop"]])
    def test_without_the_driver_the_pip_line_is_printed(self, arguments: list[str]) -> None:
        """Exit code 2, as for every missing extra."""
        script = (
            "import sys; sys.modules['asyncpg'] = None\n"
            f"from postbus.ops.cli import main; sys.exit(main(['migrate', *{arguments!r}]))"
        )
        finished = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)

        assert (finished.returncode, finished.stdout) == (2, "")
        assert 'pip install "postbus[postgres]"' in finished.stderr
