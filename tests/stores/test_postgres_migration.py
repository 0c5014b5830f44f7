"""A schema is made or brought up to date when it is opened, whoever else opens it."""

import asyncio
import json
import re
import subprocess
import sys
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import asyncpg
import pytest

import postbus.stores
from postbus import Event, PgEventBus, PgStateStore, RetryPolicy
from postbus.errors import (
    InvalidConfigError,
    MigrationNeededError,
    SchemaTooNewError,
    StoreBusyError,
    StoreError,
)
from postbus.stores.named_queries import load_queries
from postbus.stores.postgres.migrations import VERSION, create_notify_trigger, migrate, render_sql
from postbus.stores.postgres.pool import Connection
from postbus.stores.postgres.soundness import check_sound
from tests.postgres.binaries import find
from tests.postgres.databases import Databases
from tests.postgres.server import Server
from tests.stores.postgres_catalog import describe, describe_tables
from tests.stores.postgres_old_tables import NOON, SHAPES, insert_old_event, make_old_tables, old_id
from tests.stores.postgres_steps import eventually

CHILD = Path(__file__).parent / "children" / "migrate_postgres.py"
SOURCES = Path(postbus.stores.__path__[0])
HOSTILE_NAMES = [
    "Größe",
    "two words",
    "semi;colon -- comment",
    'it\'s "quoted"',
    "back\\slash",
    "dollar $$ $1 $body$",
    "{schema} {schema_text} {version} %s %%",
    ":'psql' :variable",
    "emoji 🚌",
    "SELECT",
    "x" * 63,
    "ü" * 31,
]

# What was right in version 3, and is again in the end.
REPAIRS = {
    "no index": "DROP INDEX postbus.idx_events_stream, postbus.idx_dlq_retry, postbus.idx_outbox_due",
    "no keys": "ALTER TABLE postbus.event_bus_dlq DROP CONSTRAINT unique_subscriber_event; "
    "ALTER TABLE postbus.events DROP CONSTRAINT events_pkey",
    "keys of other names": "ALTER TABLE postbus.events RENAME CONSTRAINT events_id_key TO mine; "
    "ALTER INDEX postbus.event_bus_dlq_pkey RENAME TO mine_too",
    "an index that was never finished": "UPDATE pg_index SET indisvalid = false "
    "WHERE indexrelid = 'postbus.idx_events_stream'::regclass",
    "columns of other types": "ALTER TABLE postbus.events ALTER correlation_id TYPE uuid USING NULL, "
    "ALTER metadata TYPE jsonb, ALTER metadata SET DEFAULT '{}', ALTER metadata SET NOT NULL",
    "a column that is not required": "ALTER TABLE postbus.events ALTER id DROP NOT NULL",
}

# What keeps an old table from being upgraded, and what the server says of it.
OBSTACLES = {
    "a foreign key": (
        "CREATE TABLE postbus.mine (event_id uuid REFERENCES postbus.events (id))",
        "mine_event_id_fkey",
    ),
    "a view": ("CREATE VIEW postbus.mine AS SELECT id FROM postbus.events", "view mine"),
    "a generated column": (
        "ALTER TABLE postbus.events ADD mine text GENERATED ALWAYS AS (data->>'x') STORED",
        '"mine"',
    ),
    "an index on what becomes json": ("CREATE INDEX mine ON postbus.events USING gin (data)", "json .*gin"),
    "a payload that is no JSON": (
        "ALTER TABLE postbus.events ALTER data TYPE bytea USING NULL",
        "bytea to json .*ALTER TABLE events ALTER .*data",
    ),
    "a number that is none": ("ALTER TABLE postbus.events ADD global_sequence text", "text and bigint"),
    "a publication": ("CREATE PUBLICATION mine FOR TABLE postbus.events", "replica identity"),
    "a trigger": (
        "CREATE FUNCTION postbus.refuse() RETURNS trigger LANGUAGE plpgsql "
        "AS 'BEGIN RAISE EXCEPTION ''events are for ever''; END'; "
        "CREATE TRIGGER mine BEFORE UPDATE ON postbus.events EXECUTE FUNCTION postbus.refuse()",
        "events are for ever",
    ),
    "a table that is none of ours": ("CREATE TABLE postbus.event_bus_outbox (mine int)", "does not exist"),
}

# What another instance has done that is not finished yet.
SCRIPT_WITHOUT_COMMIT = render_sql("postbus").removesuffix("COMMIT;\n").partition(";\n")[2]


@pytest.fixture
async def connection(postgres_dsn: str) -> AsyncIterator[Connection]:
    connection = await asyncpg.connect(postgres_dsn)
    yield connection
    await connection.close()


@pytest.fixture
async def fresh(databases: Databases) -> dict[str, list[str]]:
    """What a new schema has."""
    return await _fresh(databases)


async def _fresh(databases: Databases) -> dict[str, list[str]]:
    async with databases.make() as dsn:
        connection = await asyncpg.connect(dsn)
        await migrate(connection, "postbus")
        description = await describe(connection, "postbus")
        await connection.close()
    return description


async def _make_version_3(connection: Connection) -> None:
    """A schema in which all that version 3 has is as it should be."""
    await migrate(connection, "postbus")
    await connection.execute("UPDATE postbus.postbus_schema SET version = 3")


async def _index(connection: Connection, name: str) -> str | None:
    """What the index of this name is."""
    definition = "SELECT pg_get_indexdef(to_regclass('postbus.' || $1))"
    found = await connection.fetchval(definition, name)
    assert found is None or isinstance(found, str)
    return found


async def _numbers(connection: Connection) -> dict[str, int]:
    rows = await connection.fetch("SELECT id, global_sequence FROM postbus.events ORDER BY global_sequence")
    return {row["id"]: row["global_sequence"] for row in rows}


async def _versions(connection: Connection) -> list[int]:
    return [version for (version,) in await connection.fetch("SELECT version FROM postbus.postbus_schema")]


async def _wait_until_it_waits(observer: Connection, waiting: Connection) -> None:
    """Until the server says that *waiting* waits for a lock."""
    query = "SELECT count(*) FROM pg_locks WHERE NOT granted AND pid = $1"
    while not await observer.fetchval(query, waiting.get_server_pid()):  # noqa: ASYNC110
        await asyncio.sleep(0.01)


async def _insert(connection: Connection, event_id: str) -> int:
    number = await connection.fetchval(
        "INSERT INTO postbus.events (id, event_type) VALUES ($1, 'order.paid') RETURNING global_sequence",
        event_id,
    )
    assert isinstance(number, int)
    return number


class TestNew:
    async def test_a_new_schema_is_sound_and_at_the_present_version(self, connection: Connection) -> None:
        """The gap rule can be used from the first event on, and that has number 1."""
        await migrate(connection, "postbus")
        await check_sound(connection, "postbus")

        assert await _versions(connection) == [VERSION]
        assert [await _insert(connection, "a"), await _insert(connection, "b")] == [1, 2]

    async def test_migrating_again_changes_nothing(self, connection: Connection) -> None:
        """Not even a lock is taken: only the version is read."""
        await migrate(connection, "postbus")
        before = await describe(connection, "postbus")
        await connection.execute("SET default_transaction_read_only = on")
        await migrate(connection, "postbus")

        assert await describe(connection, "postbus") == before

    @pytest.mark.parametrize("schema", HOSTILE_NAMES)
    async def test_a_schema_may_have_any_name(self, connection: Connection, schema: str) -> None:
        """The name is data: neither quotes nor dollars nor what looks like a gap to fill ends it."""
        await migrate(connection, schema)
        await migrate(connection, schema)
        await check_sound(connection, schema)
        found = await connection.fetch(
            "SELECT nspname FROM pg_namespace WHERE nspname !~ '^pg_' "
            "AND nspname NOT IN ('public', 'information_schema')"
        )

        assert [name for (name,) in found] == [schema]

    @pytest.mark.parametrize(
        ("schema", "reason"),
        [
            ("", "1 to 63 bytes"),
            ("x" * 64, "it has 64"),
            ("ü" * 32, "it has 64"),
            ("nul \0", "NUL"),
            ("\ud800", "surrogate"),
            ("pg_events", "pg_"),
            ("a $postbus$ b", "postbus"),
        ],
    )
    async def test_a_name_that_postgresql_would_change_is_refused(
        self, connection: Connection, schema: str, reason: str
    ) -> None:
        """A name that is cut off would be another schema's name, too."""
        with pytest.raises(InvalidConfigError, match=reason):
            await migrate(connection, schema)

    async def test_a_schema_of_a_newer_postbus_is_left_alone(self, connection: Connection) -> None:
        """The refusal says which version was found."""
        await migrate(connection, "postbus")
        await connection.execute(f"INSERT INTO postbus.postbus_schema VALUES ({VERSION + 1})")
        with pytest.raises(SchemaTooNewError, match="schema 'postbus'") as caught:
            await migrate(connection, "postbus")

        assert (caught.value.found, caught.value.known) == (VERSION + 1, VERSION)

    async def test_a_table_of_another_program_is_refused_and_left_as_it_is(
        self, connection: Connection
    ) -> None:
        """All or nothing: none of our tables stands beside it."""
        await connection.execute("CREATE TABLE public.events (id int, name text)")
        with pytest.raises(
            StoreError, match=r"not ours: it lacks .*stream_id.*schema of its own. Nothing was"
        ):
            await migrate(connection, "public")
        tables = await connection.fetch(
            "SELECT relname FROM pg_class WHERE relnamespace = 'public'::regnamespace"
        )

        assert [name for (name,) in tables] == ["events"]

    async def test_the_trigger_is_made_once(self, connection: Connection) -> None:
        """And then nothing is asked of the role but to look."""
        await migrate(connection, "postbus")
        await create_notify_trigger(connection, "postbus")
        await connection.execute("SET default_transaction_read_only = on")
        await create_notify_trigger(connection, "postbus")

        assert len((await describe(connection, "postbus"))["triggers"]) == 1


class TestAtOnce:
    async def test_ten_instances_that_start_at_once_migrate_once(self, postgres_dsn: str) -> None:
        """Whatever isolation their role prefers: each finds the schema ready."""
        connections = [await asyncpg.connect(postgres_dsn) for _ in range(10)]
        for connection in connections:
            await connection.execute("SET default_transaction_isolation = 'serializable'")
        await asyncio.gather(*[migrate(connection, "postbus") for connection in connections])
        applied = await _versions(connections[0])
        writers = await connections[0].fetch(
            "SELECT xmin::text FROM pg_proc WHERE pronamespace = 'postbus'::regnamespace "
            "UNION SELECT xmin::text FROM postbus.postbus_schema"
        )
        for connection in connections:
            await connection.close()

        assert applied == [VERSION]
        assert len(writers) == 1

    async def test_ten_instances_that_start_at_once_upgrade_old_events_once(
        self, postgres_dsn: str, connection: Connection
    ) -> None:
        """No event gets a second number."""
        await make_old_tables(connection, "no numbers")
        for number in range(20):
            await insert_old_event(connection, number, seconds=number)
        connections = [await asyncpg.connect(postgres_dsn) for _ in range(10)]
        await asyncio.gather(*[migrate(each, "postbus") for each in connections])
        for each in connections:
            await each.close()

        assert list((await _numbers(connection)).values()) == [*range(1, 21)]

    async def test_ten_processes_that_start_at_once_all_succeed(
        self, postgres_dsn: str, connection: Connection
    ) -> None:
        """Each is connected before the first begins."""
        command = (sys.executable, str(CHILD), postgres_dsn, "postbus")
        children = [
            await asyncio.create_subprocess_exec(*command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
            for _ in range(10)
        ]
        for child in children:
            assert child.stdout is not None
            assert await child.stdout.readline() == b"ready\n"
        await asyncio.gather(*[child.communicate(b"go\n") for child in children])

        assert [child.returncode for child in children] == [0] * 10
        assert await connection.fetchval("SELECT count(*) FROM postbus.postbus_schema") == 1

    async def test_waiting_for_another_instance_outlasts_a_statement_timeout(
        self, postgres_dsn: str, connection: Connection
    ) -> None:
        """A role's statement_timeout is for its queries; the first instance may need longer."""
        first = await asyncpg.connect(postgres_dsn)
        async with first.transaction():
            await first.execute(SCRIPT_WITHOUT_COMMIT)
            await connection.execute("SET statement_timeout = '300ms'")
            second = asyncio.create_task(migrate(connection, "postbus"))
            await _wait_until_it_waits(first, connection)
            await first.execute("SELECT pg_sleep(0.4)")
            assert not second.done()
        await second
        await first.close()

        assert await _versions(connection) == [VERSION]

    async def test_waiting_for_another_instance_outlasts_a_transaction_timeout(
        self, databases18: Databases
    ) -> None:
        """Which PostgreSQL has since 17: it would end the session, of a long migration too."""
        async with databases18.make() as dsn:
            first, connection = await asyncpg.connect(dsn), await asyncpg.connect(dsn)
            async with first.transaction():
                await first.execute(SCRIPT_WITHOUT_COMMIT)
                await connection.execute("SET transaction_timeout = '300ms'")
                second = asyncio.create_task(migrate(connection, "postbus"))
                await _wait_until_it_waits(first, connection)
                await first.execute("SELECT pg_sleep(0.4)")
                assert not second.done()
            await second
            own_setting = await connection.fetchval("SHOW transaction_timeout")
            versions = await _versions(connection)
            for each in (first, connection):
                await each.close()

        assert (versions, own_setting) == ([VERSION], "300ms")

    async def test_a_migration_that_is_cancelled_can_be_repeated(
        self, postgres_dsn: str, connection: Connection
    ) -> None:
        """On the same connection, which is left outside a transaction and without the lock."""
        first = await asyncpg.connect(postgres_dsn)
        async with first.transaction():
            await first.execute(SCRIPT_WITHOUT_COMMIT)
            second = asyncio.create_task(migrate(connection, "postbus"))
            await _wait_until_it_waits(first, connection)
            second.cancel()
            with pytest.raises(asyncio.CancelledError):
                await second
        await first.close()
        assert not connection.is_in_transaction()
        await migrate(connection, "postbus")

        assert await _versions(connection) == [VERSION]

    async def test_a_table_that_somebody_holds_is_not_waited_for_for_ever(
        self, postgres_dsn: str, connection: Connection
    ) -> None:
        """Every writer would wait behind us; the refusal says whom to end, and nothing was changed."""
        await make_old_tables(connection, "no numbers")
        other = await asyncpg.connect(postgres_dsn)
        async with other.transaction():
            await insert_old_event(other, 1, seconds=0)
            with pytest.raises(StoreBusyError, match="end the long transactions"):
                await migrate(connection, "postbus")
        await other.close()

        assert await connection.fetchval("SELECT to_regclass('postbus.postbus_schema')") is None
        await migrate(connection, "postbus")


class TestUpgrade:
    @pytest.mark.parametrize("shape", SHAPES)
    async def test_an_upgrade_ends_in_the_schema_of_a_new_install(
        self, connection: Connection, fresh: dict[str, list[str]], shape: str
    ) -> None:
        """Down to the names of the constraints, so that there is one schema to think about."""
        await make_old_tables(connection, shape)
        await insert_old_event(connection, 1, seconds=0)
        await migrate(connection, "postbus")
        await check_sound(connection, "postbus")

        assert await describe(connection, "postbus") == fresh

    async def test_so_does_an_upgrade_from_version_1(
        self, connection: Connection, fresh: dict[str, list[str]]
    ) -> None:
        """Which had neither partitions nor an outbox."""
        await connection.execute("CREATE SCHEMA postbus; SET search_path TO postbus, pg_temp")
        await connection.execute(
            "CREATE TABLE postbus_schema "
            "(version integer PRIMARY KEY, applied_at timestamptz NOT NULL DEFAULT now())"
        )
        queries = load_queries("postbus.stores.postgres", "migrations.sql")
        for name, block in queries.items():
            if name.startswith("1_"):
                await connection.execute(block.replace("{columns}", queries["columns"]))
        await connection.execute("INSERT INTO postbus_schema (version) VALUES (1); RESET search_path")
        await migrate(connection, "postbus")
        upgraded = await describe(connection, "postbus")

        assert await _versions(connection) == [1, VERSION]
        assert {**upgraded, "versions": fresh["versions"]} == fresh

    @pytest.mark.parametrize("shape", SHAPES)
    async def test_it_does_so_on_postgresql_18(self, databases18: Databases, shape: str) -> None:
        """Where NOT NULL is a constraint with a name."""
        fresh = await _fresh(databases18)
        async with databases18.make() as dsn:
            connection = await asyncpg.connect(dsn)
            await make_old_tables(connection, shape)
            await migrate(connection, "postbus")
            upgraded = await describe(connection, "postbus")
            await connection.close()

        assert upgraded == fresh

    async def test_only_the_tables_of_the_schema_of_the_bus_are_upgraded(
        self, connection: Connection
    ) -> None:
        """A table of an earlier bus in another schema is none of its business, until it is moved."""
        await make_old_tables(connection, "no numbers")
        await insert_old_event(connection, 1, seconds=0)
        await connection.execute("ALTER TABLE postbus.events SET SCHEMA public; DROP SCHEMA postbus CASCADE")
        await migrate(connection, "postbus")
        in_postbus = await connection.fetchval("SELECT count(*) FROM postbus.events")
        await migrate(connection, "public")
        in_public = await connection.fetch("SELECT id, global_sequence FROM public.events")

        assert in_postbus == 0
        assert [tuple(row) for row in in_public] == [(str(old_id(1)), 1)]

    async def test_old_events_are_numbered_in_the_order_in_which_they_happened(
        self, connection: Connection
    ) -> None:
        """By their time, and those of one moment by their id; new events come after them."""
        await make_old_tables(connection, "no numbers")
        for number, seconds in [(5, 1), (9, 0), (2, 3), (4, 1), (3, 1.5)]:
            await insert_old_event(connection, number, seconds)
        await migrate(connection, "postbus")

        assert await _numbers(connection) == {str(old_id(n)): i for i, n in enumerate([9, 4, 5, 3, 2], 1)}
        assert await _insert(connection, "new") == 6

    async def test_numbers_that_were_handed_out_stay(self, connection: Connection) -> None:
        """A subscriber may have passed them; events without one come after all of them, in their order."""
        await make_old_tables(connection, "numbers may be missing")
        for number in (1, 2, 3, 4):
            await insert_old_event(connection, number, seconds=-number)
        await connection.execute(
            "UPDATE postbus.events SET global_sequence = NULL WHERE id IN ($1, $2)", old_id(1), old_id(3)
        )
        await migrate(connection, "postbus")

        assert await _numbers(connection) == {str(old_id(n)): i for n, i in [(2, 2), (4, 4), (3, 5), (1, 6)]}
        assert await _insert(connection, "new") == 7

    async def test_numbers_that_the_sequence_does_not_know_of_are_not_given_again(
        self, connection: Connection
    ) -> None:
        """The table was copied from elsewhere with its numbers, the sequence was not."""
        await make_old_tables(connection, "numbers may be missing")
        await insert_old_event(connection, 1, seconds=0)
        await insert_old_event(connection, 2, seconds=0)
        await connection.execute("UPDATE postbus.events SET global_sequence = NULL WHERE id = $1", old_id(1))
        await connection.execute("UPDATE postbus.events SET global_sequence = 90 WHERE id = $1", old_id(2))
        await migrate(connection, "postbus")

        assert await _numbers(connection) == {str(old_id(2)): 90, str(old_id(1)): 91}
        assert await _insert(connection, "new") == 92

    async def test_no_event_gets_a_number_that_a_checkpoint_has_passed(self, connection: Connection) -> None:
        """The events of the highest numbers were deleted; their numbers are not used again."""
        await make_old_tables(connection, "no numbers, but a bus")
        await insert_old_event(connection, 1, seconds=0)
        await connection.execute(
            "INSERT INTO postbus.event_bus_checkpoints VALUES ('mail', 40, $1, $2)", old_id(1), NOON
        )
        await migrate(connection, "postbus")

        assert await _numbers(connection) == {str(old_id(1)): 41}
        assert await _insert(connection, "new") == 42

    @pytest.mark.parametrize("shape", ["numbers by BIGSERIAL", "numbers by identity", "numbers as the key"])
    async def test_a_number_that_was_rolled_back_or_deleted_is_not_used_again(
        self, connection: Connection, shape: str
    ) -> None:
        """The sequence goes on where it was, however the column got its numbers."""
        await make_old_tables(connection, shape)
        for number in (1, 2, 3):
            await insert_old_event(connection, number, seconds=0)
        await connection.execute("DELETE FROM postbus.events WHERE id = $1", old_id(3))
        await migrate(connection, "postbus")

        assert list((await _numbers(connection)).values()) == [1, 2]
        assert await _insert(connection, "new") == 4

    async def test_an_upgrade_keeps_what_the_events_say(self, connection: Connection) -> None:
        """A purged event stays purged, and what refuses large events is gone."""
        await make_old_tables(connection, "no numbers")
        await insert_old_event(connection, 1, seconds=0, data='{"order": 42, "no": null}')
        await insert_old_event(connection, 2, seconds=1, data=None)
        await migrate(connection, "postbus")
        await connection.execute(
            "INSERT INTO postbus.events (id, event_type, data) VALUES ('large', 'a', $1)",
            json.dumps("x" * 300_000),
        )
        first, second, _ = await connection.fetch("SELECT * FROM postbus.events ORDER BY global_sequence")

        assert (first["stream_id"], first["stream_version"], first["actor_id"]) == (
            *(str(old_id(1001)), 1),
            str(old_id(7)),
        )
        assert (first["event_type"], first["created_at"]) == ("order.placed", NOON)
        assert json.loads(first["data"]) == {"order": 42, "no": None}
        assert second["data"] is None

    async def test_an_upgrade_keeps_checkpoints_and_dead_letters(self, connection: Connection) -> None:
        """A dead letter gets the copy of its event that it lacked, as far as the event is still there."""
        await make_old_tables(connection, "numbers may be missing")
        await insert_old_event(connection, 1, seconds=0, data='{"order": 42}')
        await connection.execute(
            "INSERT INTO postbus.event_bus_checkpoints VALUES ('mail', 1, $1, $2)", old_id(1), NOON
        )
        for event, error in [(1, "no address"), (2, None)]:
            await connection.execute(
                "INSERT INTO postbus.event_bus_dlq (subscriber_id, event_id, global_sequence, error_message, "
                "retry_count, created_at) VALUES ('mail', $1, $2, $3, 4, $4)",
                *(old_id(event), event, error, NOON + timedelta(hours=1)),
            )
        await migrate(connection, "postbus")
        checkpoint = await connection.fetchrow("SELECT * FROM postbus.event_bus_checkpoints")
        present, gone = await connection.fetch("SELECT * FROM postbus.event_bus_dlq ORDER BY global_sequence")

        assert checkpoint is not None
        assert (checkpoint["last_global_sequence"], checkpoint["last_event_id"]) == (1, str(old_id(1)))
        assert (checkpoint["updated_at"], checkpoint["open_gaps"]) == (NOON, [])
        assert (present["event_id"], present["event_type"]) == (str(old_id(1)), "order.placed")
        assert (json.loads(present["payload"]), present["event_created_at"]) == ({"order": 42}, NOON)
        assert (present["retry_count"], json.loads(present["error_history"])) == (4, ["no address"])
        assert (gone["event_type"], gone["payload"], gone["error_history"]) == ("unknown", None, "[]")
        assert gone["event_created_at"] == gone["created_at"] == NOON + timedelta(hours=1)

    async def test_what_the_user_added_to_the_old_table_stays(self, connection: Connection) -> None:
        """A column, an index, a trigger and a grant that are none of ours."""
        await make_old_tables(connection, "no numbers")
        await connection.execute(
            "ALTER TABLE postbus.events ADD COLUMN tenant int; CREATE INDEX mine ON postbus.events (tenant); "
            "GRANT SELECT ON postbus.events TO PUBLIC; "
            "CREATE TRIGGER mine BEFORE UPDATE ON postbus.events FOR EACH ROW "
            "EXECUTE FUNCTION suppress_redundant_updates_trigger()"
        )
        await migrate(connection, "postbus")
        after = await describe(connection, "postbus")

        assert any("tenant" in column for column in after["columns"])
        assert any("mine" in index for index in after["indexes"])
        assert any("mine" in trigger for trigger in after["triggers"])
        assert "=r/" in await connection.fetchval(
            "SELECT relacl::text FROM pg_class WHERE oid = 'postbus.events'::regclass"
        )

    async def test_a_dead_letter_keeps_the_copy_that_it_has(self, connection: Connection) -> None:
        """The event may have gone since."""
        await make_old_tables(connection, "a bus of other types")
        await connection.execute(
            "INSERT INTO postbus.event_bus_dlq "
            "(subscriber_id, event_id, global_sequence, retry_count, payload) "
            "VALUES ('mail', $1, 1, 4, '{\"order\": 42}')",
            old_id(1),
        )
        await migrate(connection, "postbus")
        letter = await connection.fetchrow("SELECT * FROM postbus.event_bus_dlq")

        assert letter is not None
        assert (letter["id"], letter["event_id"]) == ("1", str(old_id(1)))
        assert (json.loads(letter["payload"]), letter["event_type"]) == ({"order": 42}, "unknown")

    @pytest.mark.parametrize(
        ("index", "columns"),
        [
            ("idx_events_stream", "events (stream_id)"),
            ("idx_events_stream", "events (stream_version, event_type)"),
            ("events_id_key", "events (event_type)"),
            ("idx_dlq_created_at", "event_bus_dlq (retry_count)"),
            ("idx_dlq_subscriber", "event_bus_dlq (event_id, subscriber_id)"),
            ("idx_outbox_due", "event_bus_outbox (status)"),
        ],
    )
    async def test_an_index_that_only_has_the_name_of_ours_does_not_stand_in_for_it(
        self, connection: Connection, fresh: dict[str, list[str]], index: str, columns: str
    ) -> None:
        """It goes on under another name; without the one on streams a version could be given twice."""
        await make_old_tables(connection, "a bus with an outbox")
        await connection.execute(f"DROP INDEX IF EXISTS postbus.{index}")
        await connection.execute(f"CREATE INDEX {index} ON postbus.{columns}")
        await migrate(connection, "postbus")
        indexes = (await describe(connection, "postbus"))["indexes"]
        (renamed,) = set(indexes) - set(fresh["indexes"])

        assert set(fresh["indexes"]) <= set(indexes)
        assert f"INDEX {index}_old_" in renamed
        assert f"ON postbus.{columns.replace(' ', ' USING btree ', 1)}" in renamed

    @pytest.mark.parametrize("name", ["idx_events_stream", "events_id_key", "idx_outbox_retries"])
    async def test_a_name_that_another_table_has_given_is_refused(
        self, connection: Connection, name: str
    ) -> None:
        """It would be missed there; the refusal names it."""
        await make_old_tables(connection, "no numbers")
        await connection.execute(
            f"CREATE TABLE postbus.mine (id int); CREATE INDEX {name} ON postbus.mine (id)"
        )
        before = await describe_tables(connection)
        with pytest.raises(StoreError, match=rf"something called {name}, .*of table event.* another name"):
            await migrate(connection, "postbus")

        assert await describe_tables(connection) == before

    @pytest.mark.parametrize(
        "table", ["events", "event_bus_checkpoints", "event_bus_dlq", "event_bus_outbox"]
    )
    async def test_a_column_that_nobody_would_fill_is_refused(
        self, connection: Connection, table: str
    ) -> None:
        """Every event would be; the refusal names the column and says what to do."""
        await make_old_tables(connection, "a bus with an outbox")
        await connection.execute(f"ALTER TABLE postbus.{table} ADD COLUMN tenant int NOT NULL")
        before = await describe_tables(connection)
        with pytest.raises(StoreError, match=rf"no default: {table}\.tenant\. .*give it a DEFAULT.* Nothing"):
            await migrate(connection, "postbus")

        assert await describe_tables(connection) == before
        await connection.execute(f"ALTER TABLE postbus.{table} ALTER tenant SET DEFAULT 1")
        await migrate(connection, "postbus")

    @pytest.mark.parametrize(
        ("shape", "damage", "rows"),
        [
            (
                "no numbers",
                "ALTER TABLE postbus.events DROP CONSTRAINT events_stream_id_stream_version_key; "
                "UPDATE postbus.events SET stream_id = id, stream_version = 1; "
                "INSERT INTO postbus.events "
                "SELECT gen_random_uuid(), id, 1, 'a', '1', now() FROM postbus.events",
                r"events has rows that idx_events_stream forbids: Key \(stream_id, stream_version\)=\(",
            ),
            (
                "a bus of other types",
                "INSERT INTO postbus.event_bus_dlq (subscriber_id, event_id, global_sequence, retry_count) "
                "SELECT 'mail', id, 1, 4 FROM postbus.events, generate_series(1, 2)",
                r"event_bus_dlq has rows that UNIQUE \(subscriber_id, event_id\) forbids: Key .*\(mail, ",
            ),
        ],
    )
    async def test_rows_that_we_would_never_have_let_in_are_refused(
        self, connection: Connection, shape: str, damage: str, rows: str
    ) -> None:
        """It takes a human to say which of them is right."""
        await make_old_tables(connection, shape)
        await insert_old_event(connection, 1, seconds=0)
        await connection.execute(damage)
        with pytest.raises(StoreError, match=rf"{rows}.* Change or delete all of these rows but one"):
            await migrate(connection, "postbus")

        assert await connection.fetchval("SELECT to_regclass('postbus.postbus_schema')") is None

    @pytest.mark.parametrize(("obstacle", "words"), OBSTACLES.values(), ids=OBSTACLES)
    async def test_what_the_server_can_not_change_is_refused_with_its_words(
        self, connection: Connection, obstacle: str, words: str
    ) -> None:
        """In one line: what it said, that nothing was changed, and what to do."""
        await make_old_tables(connection, "no numbers")
        await insert_old_event(connection, 1, seconds=0)
        await connection.execute(obstacle)
        before = await describe_tables(connection)
        with pytest.raises(
            StoreError,
            match=rf"^schema 'postbus' is not at version {VERSION}, and .*{words}.*; nothing was changed; "
            "drop or change .*, or give postbus a schema of its own$",
        ) as caught:
            await migrate(connection, "postbus")

        assert type(caught.value) is StoreError
        assert "CASCADE" not in str(caught.value)
        assert await describe_tables(connection) == before

    async def test_an_upgrade_that_fails_leaves_everything_as_it_was(self, connection: Connection) -> None:
        """A view keeps the type of a column from being changed; not even the sequence has moved."""
        await make_old_tables(connection, "numbers may be missing")
        await insert_old_event(connection, 1, seconds=0)
        await connection.execute("CREATE VIEW postbus.mine AS SELECT id FROM postbus.events")
        with pytest.raises(StoreError, match="used by a view"):
            await migrate(connection, "postbus")

        assert await connection.fetchval("SELECT to_regclass('postbus.postbus_schema')") is None
        assert await connection.fetchval("SELECT last_value FROM postbus.events_global_sequence_seq") == 1
        await connection.execute("DROP VIEW postbus.mine")
        await migrate(connection, "postbus")


class TestFromVersion3:
    @pytest.mark.parametrize("damage", REPAIRS.values(), ids=REPAIRS)
    async def test_what_an_old_table_left_behind_is_repaired(
        self, connection: Connection, fresh: dict[str, list[str]], damage: str
    ) -> None:
        """Version 3 took over what was there without looking."""
        await _make_version_3(connection)
        await connection.execute(damage)
        await migrate(connection, "postbus")
        upgraded = await describe(connection, "postbus")

        assert await _versions(connection) == [3, VERSION]
        assert {**upgraded, "versions": fresh["versions"]} == fresh

    async def test_an_index_of_our_name_is_kept_under_another(self, connection: Connection) -> None:
        """Beside ours."""
        await _make_version_3(connection)
        ours = await _index(connection, "idx_events_stream")
        await connection.execute(
            "DROP INDEX postbus.idx_events_stream; "
            "CREATE INDEX idx_events_stream ON postbus.events (stream_id)"
        )
        await migrate(connection, "postbus")

        assert await _index(connection, "idx_events_stream") == ours

    async def test_versions_that_were_given_twice_are_refused(self, connection: Connection) -> None:
        """With the stream and the version, and what to do."""
        await _make_version_3(connection)
        await connection.execute(
            "DROP INDEX postbus.idx_events_stream; "
            "INSERT INTO postbus.events (id, event_type, stream_id, stream_version) "
            "VALUES ('a', 'x', 'order-42', 7), ('b', 'x', 'order-42', 7)"
        )
        with pytest.raises(StoreError, match=r"\(order-42, 7\) is duplicated\. Change or delete"):
            await migrate(connection, "postbus")
        await connection.execute("UPDATE postbus.events SET stream_version = 8 WHERE id = 'b'")
        await migrate(connection, "postbus")

    async def test_where_all_is_well_no_table_is_locked(
        self, postgres_dsn: str, connection: Connection
    ) -> None:
        """But to be read. Nor is an index made anew whose pages the user keeps emptier."""
        await _make_version_3(connection)
        await connection.execute("ALTER INDEX postbus.idx_events_stream SET (fillfactor = 70)")
        other = await asyncpg.connect(postgres_dsn)
        async with other.transaction():
            await other.execute(
                "LOCK TABLE postbus.events, postbus.event_bus_checkpoints, postbus.event_bus_dlq, "
                "postbus.event_bus_outbox, postbus.event_bus_gap_timeouts, postbus.postbus_states "
                "IN EXCLUSIVE MODE"
            )
            await migrate(connection, "postbus")
        await other.close()

        assert await _versions(connection) == [3, VERSION]


def _run_psql(script: str, dsn: str) -> "subprocess.CompletedProcess[str]":
    command = [str(find() / "psql"), "--no-psqlrc", "--quiet", "--set=ON_ERROR_STOP=1", f"--dbname={dsn}"]
    return subprocess.run(command, input=script, text=True, capture_output=True, check=False)


class TestScript:
    @pytest.mark.parametrize("shape", [None, *SHAPES])
    async def test_the_script_makes_the_same_schema(
        self, connection: Connection, postgres_dsn: str, fresh: dict[str, list[str]], shape: str | None
    ) -> None:
        """Run by psql, twice, on a new database and on each kind of old one: no word of complaint."""
        if shape is not None:
            await make_old_tables(connection, shape)
            await insert_old_event(connection, 1, seconds=0)
        for _ in range(2):
            finished = await asyncio.to_thread(_run_psql, render_sql("postbus"), postgres_dsn)
            assert (finished.returncode, finished.stdout, finished.stderr) == (0, "", "")

        assert await describe(connection, "postbus") == fresh

    @pytest.mark.parametrize("schema", HOSTILE_NAMES)
    async def test_the_script_takes_any_name(
        self, connection: Connection, postgres_dsn: str, schema: str
    ) -> None:
        """The program then finds nothing to do."""
        script = render_sql(schema, notify_trigger=True)
        finished = await asyncio.to_thread(_run_psql, script, postgres_dsn)
        await connection.execute("SET default_transaction_read_only = on")
        await migrate(connection, schema)
        await create_notify_trigger(connection, schema)

        assert (finished.returncode, finished.stderr) == (0, "")

    async def test_an_old_script_does_not_touch_a_newer_schema(
        self, connection: Connection, postgres_dsn: str
    ) -> None:
        """It would put old functions in the place of new ones."""
        await migrate(connection, "postbus")
        await connection.execute(f"INSERT INTO postbus.postbus_schema VALUES ({VERSION + 1})")
        finished = await asyncio.to_thread(_run_psql, render_sql("postbus"), postgres_dsn)

        assert finished.returncode != 0
        assert "newer postbus" in finished.stderr


class TestReadOnly:
    async def test_a_standby_is_told_from_a_role_without_rights(self, own_postgres: Server) -> None:
        """Another role would not help there: only another server does."""
        own_postgres.stop()
        # Without anybody to follow it waits, and answers what is asked.
        (own_postgres.folder / "data" / "standby.signal").touch()
        own_postgres.start()
        connection = await asyncpg.connect(own_postgres.dsn())
        with pytest.raises(
            MigrationNeededError, match=r"not at version .* server is a standby.*connect to the primary"
        ) as caught:
            await migrate(connection, "postbus")
        await connection.close()

        assert "role" not in str(caught.value)

    @pytest.mark.parametrize(
        ("setting", "source"),
        [
            ("ALTER DATABASE {database} SET default_transaction_read_only = on", "database"),
            (
                "ALTER ROLE CURRENT_USER IN DATABASE {database} SET default_transaction_read_only = on",
                "database user",
            ),
        ],
    )
    async def test_so_is_a_setting_that_forbids_to_write(
        self, connection: Connection, postgres_dsn: str, setting: str, source: str
    ) -> None:
        """It says which one, and where it was made."""
        await connection.execute(setting.format(database=postgres_dsn.rpartition("/")[2]))
        reader = await asyncpg.connect(postgres_dsn)
        with pytest.raises(
            MigrationNeededError,
            match=rf"default_transaction_read_only is on \(source: {source}\).* turn it off",
        ) as caught:
            await migrate(reader, "postbus")
        await reader.close()

        assert "may not change it" not in str(caught.value)


class TestEncoding:
    @pytest.fixture
    async def latin(self, postgres_dsn: str, connection: Connection) -> AsyncIterator[str]:
        """The DSN of a database that has no room for most characters."""
        name = f"{postgres_dsn.rpartition('/')[2]}_latin"
        await connection.execute(
            f"CREATE DATABASE {name} ENCODING 'LATIN1' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0"
        )
        yield f"{postgres_dsn.rpartition('/')[0]}/{name}"
        await connection.execute(f"DROP DATABASE {name} WITH (FORCE)")

    async def test_a_database_that_could_not_store_every_event_is_refused(self, latin: str) -> None:
        """Before anything is made: what was found, what is needed, and how to get it."""
        connection = await asyncpg.connect(latin)
        with pytest.raises(StoreError, match=r"_latin has the encoding LATIN1, and .*UTF8.*ENCODING 'UTF8'"):
            await migrate(connection, "postbus")
        schemas = await connection.fetchval("SELECT count(*) FROM pg_namespace WHERE nspname = 'postbus'")
        await connection.close()

        assert schemas == 0

    async def test_the_script_refuses_it_as_well(self, latin: str) -> None:
        """It is run where postbus is not."""
        finished = await asyncio.to_thread(_run_psql, render_sql("postbus"), latin)

        assert finished.returncode != 0
        assert "has the encoding LATIN1" in finished.stderr

    @pytest.mark.parametrize(
        ("package", "file"),
        [
            (f"postbus.stores.{store}", path.name)
            for store in ("postgres", "sqlite")
            for path in sorted((SOURCES / store / "sql").glob("*.sql"))
        ],
    )
    def test_no_statement_needs_more_than_ascii(self, package: str, file: str) -> None:
        """Whatever the encodings are on the way to the server."""
        queries = load_queries(package, file)

        assert [name for name, query in queries.items() if not query.isascii()] == []


def _documented_grants() -> list[str]:
    """The statements of docs/postgres.md for a role that only runs the application."""
    page = (Path(__file__).parents[2] / "docs" / "postgres.md").read_text("utf-8")
    (block,) = re.findall(r"^```text\n(GRANT .*?)^```", page, re.MULTILINE | re.DOTALL)
    return [grant for grant in block.split(";\n") if grant]


class TestRoles:
    """On a server of its own, since roles belong to no database."""

    async def test_an_application_role_needs_no_right_to_create(self, own_postgres: Server) -> None:
        """It opens a migrated schema; a missing one is refused with the command to run."""
        owner = await asyncpg.connect(own_postgres.dsn())
        await owner.execute("CREATE ROLE app LOGIN")
        app = await asyncpg.connect(own_postgres.dsn(), user="app")
        with pytest.raises(MigrationNeededError, match=rf"version {VERSION}.*postbus migrate.*--sql"):
            await migrate(app, "postbus")
        await migrate(owner, "postbus")
        with pytest.raises(StoreError, match="grant it USAGE"):
            await migrate(app, "postbus")
        await owner.execute(
            "GRANT USAGE ON SCHEMA postbus TO app; "
            "GRANT SELECT, USAGE ON ALL SEQUENCES IN SCHEMA postbus TO app; "
            "GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA postbus TO app"
        )
        await migrate(app, "postbus")
        await check_sound(app, "postbus")
        with pytest.raises(MigrationNeededError, match=r"trigger.*--notify-trigger"):
            await create_notify_trigger(app, "postbus")

        assert await _insert(app, "a") == 1
        for connection in (owner, app):
            await connection.close()

    async def test_what_the_documentation_grants_is_enough(self, own_postgres: Server) -> None:
        """For all that writes: events, checkpoints, dead letters, the outbox, states, and their purging."""
        owner = await asyncpg.connect(own_postgres.dsn())
        await migrate(owner, "postbus")
        await owner.execute(f"CREATE ROLE app LOGIN; {';'.join(_documented_grants())}")
        bus = PgEventBus(own_postgres.dsn().replace("postgres@", "app@"))
        seen: list[str] = []

        async def fail_once(event: Event) -> None:
            seen.append(event.type)
            if seen.count(event.type) == 1:
                raise ValueError(event.type)

        once = RetryPolicy(max_retries=0)
        bus.subscribe("mail.*", fail_once, id="mail", retry=once)
        bus.subscribe("print.*", fail_once, id="print", retry=once, mode="competing")
        async with bus:
            for name in ("mail", "print"):
                await bus.publish(f"{name}.sent", 1, stream_id=name)
            await bus.idle()
            for letter in (await bus.dlq.list()).events:
                await bus.dlq.retry(letter.dead_letter_id)
            await PgStateStore(bus.store, "counts", int).put("a", 1)
            await eventually(lambda: len(seen) == 4)
            await bus.idle()
            await bus.dlq.purge(older_than_days=0)
        await owner.close()

        assert sorted(seen) == ["mail.sent", "mail.sent", "print.sent", "print.sent"]

    @pytest.mark.parametrize("missing", range(3))
    async def test_none_of_what_it_grants_can_be_left_out(self, own_postgres: Server, missing: int) -> None:
        """Without any of it nothing is published."""
        owner = await asyncpg.connect(own_postgres.dsn())
        await migrate(owner, "postbus")
        grants = [grant for place, grant in enumerate(_documented_grants()) if place != missing]
        await owner.execute(f"CREATE ROLE app LOGIN; {';'.join(grants)}")
        await owner.close()
        with pytest.raises(StoreError, match=r"GRANT|grant"):
            async with PgEventBus(own_postgres.dsn().replace("postgres@", "app@")) as bus:
                await bus.publish("order.placed")

    async def test_a_role_that_owns_only_the_schema_can_migrate(self, own_postgres: Server) -> None:
        """The right to create schemas is not asked for where the schema is there."""
        owner = await asyncpg.connect(own_postgres.dsn())
        await owner.execute("CREATE ROLE app LOGIN; CREATE SCHEMA postbus AUTHORIZATION app")
        app = await asyncpg.connect(own_postgres.dsn(), user="app")
        await migrate(app, "postbus")
        await check_sound(app, "postbus")

        for connection in (owner, app):
            await connection.close()

    async def test_an_old_table_keeps_its_owner_when_a_superuser_upgrades_it(
        self, own_postgres: Server
    ) -> None:
        """The sequence goes to the owner of the table, who can go on writing."""
        owner = await asyncpg.connect(own_postgres.dsn())
        await owner.execute("CREATE ROLE app LOGIN; GRANT CREATE ON DATABASE postgres TO app")
        app = await asyncpg.connect(own_postgres.dsn(), user="app")
        await make_old_tables(app, "no numbers")
        await insert_old_event(app, 1, seconds=0)
        await migrate(owner, "postbus")

        assert await _insert(app, "new") == 2
        for connection in (owner, app):
            await connection.close()
