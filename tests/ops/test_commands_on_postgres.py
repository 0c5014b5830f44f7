"""publish and dlq on a PostgreSQL server: which schema they work on, and that dlq makes none."""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator

import asyncpg
import pytest
from click.testing import CliRunner, Result

from postbus import Event, PgEventBus, ReliableDeliveryConfig
from postbus.ops.cli.group import postbus as group
from postbus.stores.postgres.pool import Connection
from tests.ops.commands import run, terminal

# One that has to be quoted.
SCHEMA = "the shop's"
DLQ_COMMANDS = [
    ("ls",),
    ("show", "x"),
    ("retry", "x"),
    ("retry", "--all"),
    ("resolve", "x", "--by", "anna"),
    ("purge", "--older-than-days=1", "--yes"),
]


@pytest.fixture
async def connection(postgres_dsn: str) -> AsyncIterator[Connection]:
    connection = await asyncpg.connect(postgres_dsn)
    yield connection
    await connection.close()


async def _invoke(*arguments: str) -> Result:
    """Run a command in a thread, since it starts an event loop of its own."""
    return await asyncio.to_thread(CliRunner().invoke, group, arguments)


async def _bury(bus: PgEventBus, *event_types: str) -> None:
    """Publish events that a subscriber gives up."""

    async def fail(event: Event) -> None:
        raise ValueError(f"no {event.type}")

    bus.subscribe("*", fail, id="mail")
    async with bus:
        for event_type in event_types:
            await bus.publish(event_type)
        await bus.idle()


async def _schemas(connection: Connection) -> list[str]:
    rows = await connection.fetch(
        "SELECT nspname FROM pg_namespace WHERE nspname !~ '^pg_' AND nspname <> 'information_schema'"
    )
    return sorted(row["nspname"] for row in rows)


class TestPublish:
    async def test_the_event_is_in_the_log_of_its_schema(
        self, postgres_dsn: str, connection: Connection
    ) -> None:
        """The tables are made if they are not there, as those of a file are."""
        result = await _invoke(
            "publish", "order.placed", '{"order": 42}', "--url", postgres_dsn, "--schema", SCHEMA
        )
        row = await connection.fetchrow(f'SELECT id, event_type, data::text FROM "{SCHEMA}".events')

        assert result.exit_code == 0
        assert row is not None
        assert (row["id"], row["event_type"]) == (result.stdout.strip(), "order.placed")
        assert json.loads(row["data"]) == {"order": 42}
        assert await _schemas(connection) == ["public", SCHEMA]

    async def test_the_usual_schema_is_that_of_a_bus(self, postgres_dsn: str, connection: Connection) -> None:
        result = await _invoke("publish", "order.placed", "--url", postgres_dsn)

        assert result.exit_code == 0
        assert await connection.fetchval("SELECT id FROM postbus.events") == result.stdout.strip()


class TestDeadLetters:
    async def test_those_of_one_schema(self, postgres_dsn: str) -> None:
        """A bus in another schema of the same database has dead letters of its own."""
        config = ReliableDeliveryConfig(max_retries=0)
        await _bury(PgEventBus(postgres_dsn, config=config), "mail.queued")
        await _bury(PgEventBus(postgres_dsn, schema=SCHEMA, config=config), "order.placed", "order.paid")
        there = ("--url", postgres_dsn, "--schema", SCHEMA)

        usual = await _invoke("dlq", "ls", "--url", postgres_dsn)
        assert "mail.queued" in usual.stdout
        assert usual.stdout.endswith("1 to 1 of 1 dead letter, newest first\n")
        page = json.loads((await _invoke("dlq", "ls", "--json", *there)).stdout)
        assert [event["type"] for event in page["events"]] == ["order.paid", "order.placed"]
        retried = await _invoke("dlq", "retry", "--all", "--type", "order.paid", *there)
        assert (retried.exit_code, retried.stdout) == (0, "retried 1 dead letter\n")
        dead_letter_id = page["events"][1]["dead_letter_id"]
        assert "no order.placed" in (await _invoke("dlq", "show", dead_letter_id, *there)).stdout
        assert (await _invoke("dlq", "resolve", dead_letter_id, "--by", "anna", *there)).exit_code == 0
        purged = await _invoke("dlq", "purge", "--older-than-days", "0", "--yes", *there)
        assert purged.stdout == "deleted 2 dead letters\n"
        assert (await _invoke("dlq", "ls", "--url", postgres_dsn)).stdout == usual.stdout

    @pytest.mark.parametrize("command", DLQ_COMMANDS, ids=" ".join)
    @pytest.mark.parametrize("schema", [None, SCHEMA])
    async def test_a_database_without_a_bus_fails_and_gets_none(
        self, postgres_dsn: str, connection: Connection, command: tuple[str, ...], schema: str | None
    ) -> None:
        """As a mistyped path of a file: one line that names both options, and nothing is made."""
        before = await _schemas(connection)
        options = ("--schema", schema) if schema else ()
        result = await _invoke("dlq", *command, "--url", postgres_dsn, *options)

        assert result.exit_code == 1
        [line] = result.output.splitlines()
        assert line.startswith(f"Error: there is no schema {schema or 'postbus'!r}")
        assert line.endswith("; check --url and --schema")
        assert await _schemas(connection) == before == ["public"]

    async def test_a_schema_without_tables_of_ours_stays_as_it_is(
        self, postgres_dsn: str, connection: Connection
    ) -> None:
        """Not even a table that could be one of an earlier bus is touched by somebody who looks."""
        await connection.execute(f'CREATE SCHEMA "{SCHEMA}"; CREATE TABLE "{SCHEMA}".events (id text)')
        result = await _invoke("dlq", "ls", "--url", postgres_dsn, "--schema", SCHEMA)
        tables = await connection.fetch(
            "SELECT relname FROM pg_class JOIN pg_namespace n ON n.oid = relnamespace WHERE nspname = $1",
            SCHEMA,
        )

        assert result.exit_code == 1
        assert "check --url and --schema" in result.output
        assert [table["relname"] for table in tables] == ["events"]

    @pytest.mark.parametrize("command", [("publish", "a"), ("dlq", "ls")], ids=" ".join)
    async def test_a_server_that_is_not_there_fails_without_the_password(
        self, command: tuple[str, ...]
    ) -> None:
        result = await _invoke(*command, "--url", "postgresql://me:secret@127.0.0.1:1/shop")

        assert result.exit_code == 1
        assert "127.0.0.1:1" in result.output
        assert "secret" not in result.output

    def test_the_question_names_the_schema_and_not_the_password(self) -> None:
        url = "postgresql://me:secret@127.0.0.1:1/shop"
        with terminal() as (ours, theirs):
            os.write(ours, b"n\n")
            finished = run(
                "dlq", "purge", "--older-than-days", 0, "--url", url, "--schema", SCHEMA, stdin=theirs
            )

        assert finished.returncode == 1
        assert "nothing was deleted" in finished.stderr
        assert f"dead letters of schema {SCHEMA!r} in database 'shop' on 127.0.0.1:1 " in finished.stderr
        assert "secret" not in finished.stderr


class TestSchema:
    @pytest.mark.parametrize("command", [("publish", "a"), ("dlq", "ls"), ("migrate",)], ids=" ".join)
    @pytest.mark.parametrize(("schema", "reason"), [("x" * 64, "63 bytes"), ("", "1 to 63")])
    async def test_a_bad_name_is_a_usage_error(
        self, command: tuple[str, ...], schema: str, reason: str
    ) -> None:
        """Nothing is connected: there is no server at that address."""
        result = await _invoke(*command, "--url", "postgresql://127.0.0.1:1/shop", "--schema", schema)

        assert result.exit_code == 2
        assert "--schema" in result.output
        assert reason in result.output


class TestMissingDriver:
    @pytest.mark.parametrize("command", [("publish", "a"), ("dlq", "ls")], ids=" ".join)
    @pytest.mark.parametrize("schema", [[], ["--schema", SCHEMA]])
    def test_the_pip_line_is_printed_and_the_exit_code_is_2(
        self, command: tuple[str, ...], schema: list[str]
    ) -> None:
        arguments = [*command, "--url", "postgresql://127.0.0.1:1/shop", *schema]
        script = (
            "import sys; sys.modules['asyncpg'] = None\n"
            f"from postbus.ops.cli import main; sys.exit(main({arguments!r}))"
        )
        finished = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)

        assert (finished.returncode, finished.stdout) == (2, "")
        assert 'pip install "postbus[postgres]"' in finished.stderr
