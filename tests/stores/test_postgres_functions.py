"""The SQL functions: any client in any language publishes inside its own transaction."""

import asyncio
import json
import re
import subprocess
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any

import asyncpg
import psycopg
import pytest
import sqlalchemy
from psycopg.types.json import Json, Jsonb
from sqlalchemy.dialects.postgresql import JSONB

from postbus import PgEventStore
from postbus.stores.postgres.appending import Appending
from tests.contracts.steps import make_draft
from tests.patience import PATIENCE
from tests.postgres.binaries import find
from tests.postgres.steps import Session, ask
from tests.stores.appending_steps import Announced, open_session, stored_ids, until_waiting_for_lock
from tests.stores.postgres_steps import eventually, listening, opened

FILL = "INSERT INTO postbus.events (id, event_type) SELECT n::text, 'x' FROM"
IDS = "SELECT array_agg(id ORDER BY global_sequence) FROM postbus.events"


@pytest.fixture
async def dsn(postgres_dsn: str) -> str:
    """A database whose tables and functions are made."""
    async with opened(postgres_dsn):
        return postgres_dsn


@pytest.fixture
async def session(dsn: str) -> AsyncIterator[Session]:
    async with open_session(dsn) as session:
        yield session


class TestFromAnyClient:
    async def test_psycopg(self, dsn: str) -> None:
        """Payloads as text, json and jsonb; rolled back, the event does not exist."""
        publish = "SELECT postbus.publish('order.placed', %s, event_id => %s)"
        async with await psycopg.AsyncConnection.connect(dsn) as connection:
            for number, payload in enumerate(['{"a": 1}', Json({"a": 1}), Jsonb({"a": 1})]):
                await connection.execute(publish, (payload, f"rolled back {number}"))
                await connection.rollback()
                await connection.execute(publish, (payload, f"committed {number}"))
                await connection.commit()

        async with open_session(dsn) as session:
            assert await stored_ids(session) == [f"committed {number}" for number in range(3)]
            payloads = await session.fetch("SELECT DISTINCT (data->'a')::text FROM postbus.events")
        assert [tuple(row) for row in payloads] == [("1",)]

    @pytest.mark.parametrize(
        "arguments",
        [
            "%s, %s", "%s::text, %s", "%s::json, %s", "%s::jsonb, %s", "%s, %s::text", "%s, %s::json",
            "%s, %s::jsonb", "%s::text, %s::jsonb", "%s::text, metadata => %s::jsonb",
            "%s::jsonb, %s::jsonb", "%s, metadata => %s",
        ],
    )  # fmt: skip
    async def test_payload_and_metadata_may_be_of_different_types(self, dsn: str, arguments: str) -> None:
        """What has no type is what the other is, or text."""
        async with await psycopg.AsyncConnection.connect(dsn) as connection:
            await connection.execute(
                f"SELECT postbus.publish('a', {arguments})", ('{"a": 1}', '{"source": "web"}')
            )
        async with PgEventStore(dsn) as store:
            (event,) = await store.read_all()

        assert (event.payload, event.metadata) == ({"a": 1}, {"source": "web"})

    async def test_sqlalchemy(self, dsn: str) -> None:
        """As a function expression, and as text, beside rows of its own."""
        await asyncio.to_thread(_publish_with_sqlalchemy, dsn)

        assert (await ask(dsn, IDS))[1:] == ["committed"]  # type: ignore[index]
        assert await ask(dsn, "SELECT array_agg(id) FROM orders") == [2]

    async def test_psql(self, dsn: str) -> None:
        """The shortest call of all is enough."""
        script = """
            BEGIN; SELECT postbus.publish('a', event_id => 'rolled back'); ROLLBACK;
            BEGIN; SELECT postbus.publish('a', event_id => 'committed'); COMMIT;
            SELECT postbus.publish('a');
            SELECT postbus.publish('a', '{"b": 1}', '{"source": "psql"}');
        """
        psql = await asyncio.create_subprocess_exec(
            find() / "psql", "--no-psqlrc", "-v", "ON_ERROR_STOP=1", dsn, stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        _, errors = await psql.communicate(script.encode())

        assert (psql.returncode, errors) == (0, b"")
        assert (await ask(dsn, IDS))[0] == "committed"  # type: ignore[index]
        async with open_session(dsn) as session:
            rows = await session.fetch(
                "SELECT data::text, metadata::text FROM postbus.events ORDER BY global_sequence"
            )
        assert [tuple(row) for row in rows] == [
            ("null", None), ("null", None), ('{"b": 1}', '{"source": "psql"}'),
        ]  # fmt: skip

    async def test_a_block_that_catches_an_exception_takes_its_events_along(self, session: Session) -> None:
        """PL/pgSQL undoes what was published inside it, and nothing else."""
        await session.execute("""
            DO $$ BEGIN
                PERFORM postbus.publish('a', event_id => 'before', stream_id => 's');
                BEGIN
                    PERFORM postbus.publish('a', event_id => 'undone', stream_id => 's');
                    RAISE division_by_zero;
                EXCEPTION WHEN division_by_zero THEN
                    PERFORM postbus.publish('a', event_id => 'after', stream_id => 's',
                        expected_version => 1);
                END;
            END $$
        """)

        assert await stored_ids(session) == ["before", "after"]

    async def test_a_savepoint_takes_its_events_along(self, session: Session) -> None:
        """As every other change."""
        await session.execute("""
            BEGIN; SELECT postbus.publish('a', event_id => 'before');
            SAVEPOINT s; SELECT postbus.publish('a', event_id => 'undone');
            ROLLBACK TO s; SELECT postbus.publish('a', event_id => 'after'); COMMIT
        """)

        assert await stored_ids(session) == ["before", "after"]

    async def test_a_transaction_may_be_prepared(self, session: Session) -> None:
        """Unless it notifies: PostgreSQL refuses that, and readers find the event without it."""
        await session.execute("BEGIN; SELECT postbus.publish('a', event_id => 'x')")
        with pytest.raises(asyncpg.FeatureNotSupportedError):
            await session.execute("PREPARE TRANSACTION 'postbus test'")
        await session.execute("BEGIN; SELECT postbus.publish('a', event_id => 'prepared', notify => false)")
        await session.execute("PREPARE TRANSACTION 'postbus test'")
        before = await stored_ids(session)
        await session.execute("COMMIT PREPARED 'postbus test'")

        assert before == []
        assert await stored_ids(session) == ["prepared"]


def _publish_with_sqlalchemy(dsn: str) -> None:
    engine = sqlalchemy.create_engine(dsn.replace("postgresql://", "postgresql+psycopg://"))
    payload = sqlalchemy.cast({"a": 1}, JSONB)
    as_text = sqlalchemy.text("SELECT postbus.publish(:type, :payload, event_id => :id)")
    values = {"type": "order.placed", "payload": '{"a": 1}'}
    with engine.begin() as connection:
        connection.execute(sqlalchemy.text("CREATE TABLE orders (id int)"))
        connection.execute(sqlalchemy.select(sqlalchemy.func.postbus.publish("order.placed", payload)))
    with engine.connect() as connection:
        connection.execute(as_text, {**values, "id": "rolled back"})
        connection.execute(sqlalchemy.text("INSERT INTO orders VALUES (1)"))
    with engine.begin() as connection:
        connection.execute(as_text, {**values, "id": "committed"})
        connection.execute(sqlalchemy.text("INSERT INTO orders VALUES (2)"))
    engine.dispose()


class TestPublish:
    async def test_every_field_is_stored(self, session: Session) -> None:
        """By name, in any order."""
        before = datetime.now(UTC)
        number = await session.fetchval("""
            SELECT postbus.publish(event_type => 'order.placed', payload => jsonb_build_object('a', 1),
                metadata => '{"source": "web"}', stream_id => 's', expected_version => 0, event_id => 'e',
                actor_id => 'anna', correlation_id => 'c', causation_id => 'b', schema_version => 2)
        """)
        row = await session.fetchrow("""
            SELECT global_sequence, id, event_type, data::text, metadata::text, stream_id, stream_version,
                actor_id, correlation_id, causation_id, schema_version FROM postbus.events
        """)
        created_at = await session.fetchval("SELECT created_at FROM postbus.events")

        values = ("e", "order.placed", '{"a": 1}', '{"source": "web"}', "s", 1, "anna", "c", "b", 2)
        assert row is not None
        assert tuple(row) == (number, *values)
        assert before <= created_at <= datetime.now(UTC)

    async def test_what_the_publisher_does_not_give_is_made(self, session: Session) -> None:
        """A time-ordered id, and the moment of the call even in a long transaction."""
        async with session.transaction():
            for _ in range(3):
                await session.execute("SELECT postbus.publish('a'), pg_sleep(0.002)")
        rows = await session.fetch("SELECT id, created_at FROM postbus.events ORDER BY global_sequence")

        ids = [row["id"] for row in rows]
        assert ids == sorted(set(ids))
        assert all(
            re.fullmatch("[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}", each)
            for each in ids
        )
        assert len({row["created_at"] for row in rows}) == 3

    async def test_a_given_id_is_stored_once(self, session: Session) -> None:
        """Whoever publishes it again learns the number that it has."""
        numbers = [
            await session.fetchval("SELECT postbus.publish('a', $1::json, event_id => 'once')", str(payload))
            for payload in range(2)
        ]

        assert numbers == [1, 1]
        assert await session.fetchval("SELECT data::text FROM postbus.events") == "0"

    async def test_a_stream_at_another_version_refuses_with_a_code_of_its_own(self, session: Session) -> None:
        """So that a program can tell it from every other error."""
        await session.execute(
            "SELECT postbus.publish('a', stream_id => 's'), postbus.publish('a', stream_id => 's')"
        )
        with pytest.raises(asyncpg.PostgresError, match="'s' is at version 2, expected 1; nothing") as caught:
            await session.execute("SELECT postbus.publish('a', stream_id => 's', expected_version => 1)")

        assert caught.value.sqlstate == "PB001"

    @pytest.mark.parametrize(
        "arguments",
        [
            "''", "NULL", "'a b'", "'a..b'", "'.a'", "'a.'", "'a.*'", "E'a\\n'", "repeat('x', 256)",
            "'a', 'nope'", "'a', '{\"x\": NaN}'", "'a', '\"\\u0000\"'", "'a', '\"\\ud800\"'",
            "'a', to_json(repeat('x', 17000000))", "'a', '1', '[]'", "'a', '1', 'null'",
            "'a', '1', '{\"a\": 1}'",
            "'a', '1', '{\"a\": \"\\u0000\"}'", "'a', '1', json_build_object('a', repeat('x', 70000))::text",
            "'a', event_id => ''", "'a', event_id => repeat('x', 256)", "'a', stream_id => E'a\\x01'",
            "'a', actor_id => ''", "'a', expected_version => 0",
            "'a', stream_id => 's', expected_version => -1",
            "'a', schema_version => 0",
        ],
    )  # fmt: skip
    async def test_what_no_reader_could_use_is_refused(self, session: Session, arguments: str) -> None:
        """With the reason; nothing is stored and no number is burned."""
        with pytest.raises((asyncpg.DataError, asyncpg.PostgresError)) as caught:
            await session.execute(f"SELECT postbus.publish({arguments})")

        assert str(caught.value.sqlstate).startswith("22")
        assert await session.fetchval("SELECT postbus.publish('a')") == 1

    @pytest.mark.parametrize(
        ("payload", "reason"),
        [
            ("1e400", "1.797e308, 1e400"),
            ("-1.8e308", "1.797e308, 1[.]8e308"),
            ('{"a": [1, 2E+309]}', "1.797e308, 2E[+]309"),
            (f"1{'0' * 310}.5", "1.797e308, 10000"),
            (f"12{'0' * 250}e60", "1.797e308, 12000"),
            ("1e999999999", "1.797e308, 1e999999999"),
            ('{"1e400": "\\\\", "b": 1e400}', "1.797e308"),
            (f"1{'0' * 4300}", "an integer of 4301 digits"),
            ("[" * 101 + "]" * 101, "deeper than 100 levels"),
            ('{"a":' * 100 + "[]" + "}" * 100, "deeper than 100 levels"),
            ("[" * 5000 + "]" * 5000, "deeper than 100 levels"),
            ("[" * 200_000 + "]" * 200_000, "deeper than 100 levels"),
        ],
        ids=lambda text: text[:20],
    )
    async def test_what_bus_publish_would_refuse_is_refused(
        self, session: Session, payload: str, reason: str
    ) -> None:
        """It would be a dead letter of every subscriber; the refusal says why."""
        with pytest.raises(
            asyncpg.InvalidParameterValueError, match=rf"the payload .*{reason}.*nothing was stored"
        ):
            await session.execute("SELECT postbus.publish('a', $1::text)", payload)

        assert await session.fetchval("SELECT postbus.publish('a')") == 1

    @pytest.mark.parametrize(
        "payload",
        [
            "1.7976931348623157e308", "-1e308", "1e-400", "0e400", "1e0000000005", f"0.{'0' * 500}1",
            f"1{'0' * 250}e50", f"1{'0' * 320}e-20", f"1{'0' * 4299}", f"0.{'1' * 5000}",
            '"1e400"', '{"\\"1e400": "\\\\", "b\\\\\\"": "1e400 1e400"}',
            "[" * 100 + "1" + "]" * 100, '{"a":' * 100 + "1" + "}" * 100,
            json.dumps("[" * 1000), json.dumps([{"a": [1]}] * 1000),
        ],
        ids=lambda text: text[:20],
    )  # fmt: skip
    async def test_what_it_takes_is_what_a_reader_gets(
        self, dsn: str, session: Session, payload: str
    ) -> None:
        """Also what only looks like a number that is too large, or like many levels."""
        await session.execute("SELECT postbus.publish('a', $1::text)", payload)
        async with PgEventStore(dsn) as store:
            (event,) = await store.read_all()

        assert event.payload == json.loads(payload)

    async def test_names_of_any_language_are_fine(self, session: Session) -> None:
        """What bus.publish takes."""
        for name in ("bestellung.geändert", "注文.作成", "order-placed_2.x:y", "x" * 255):
            await session.execute("SELECT postbus.publish($1, stream_id => $2)", name, name[:100])

        assert await session.fetchval("SELECT count(*) FROM postbus.events") == 4

    async def test_writers_in_sql_and_in_python_share_a_streams_versions(
        self, dsn: str, session: Session
    ) -> None:
        """One waits for the other, so that versions rise with the numbers."""
        async with opened(dsn) as database:
            appending = Appending(database, Announced())
            transaction = session.transaction()
            await transaction.start()
            await session.execute("SELECT postbus.publish('a', stream_id => 's')")
            call = asyncio.create_task(appending.append([make_draft(stream_id="s", expected_version=1)]))
            await until_waiting_for_lock(dsn)
            await transaction.commit()
            (stored,) = await call

        assert stored.stream_version == 2


class TestNotifications:
    async def test_a_published_event_notifies_when_it_is_committed(self, dsn: str, session: Session) -> None:
        """With its number and nothing else, however large it is; not if it is rolled back."""
        async with listening(dsn, "postbus:postbus") as listener:
            transaction = session.transaction()
            await transaction.start()
            await session.execute("SELECT postbus.publish('a', to_json(repeat('x', 300000)))")
            await listener.connection.execute("SELECT 1")
            before = list(listener.heard)
            await transaction.commit()
            await session.execute("BEGIN; SELECT postbus.publish('a'); ROLLBACK")
            await session.execute("SELECT postbus.publish('a', notify => false)")
            await session.execute("SELECT postbus.publish('a')")
            await eventually(lambda: len(listener.heard) == 2)

        assert before == []
        assert listener.heard == ["1", "4"]

    async def test_the_trigger_notifies_once_for_a_statement(self, dsn: str, session: Session) -> None:
        """With the highest number, whoever inserts and however; one that inserts nothing is silent."""
        await session.execute("""
            CREATE TRIGGER notify AFTER INSERT ON postbus.events REFERENCING NEW TABLE AS appended
            FOR EACH STATEMENT EXECUTE FUNCTION postbus.notify_appended()
        """)
        insert = f"{FILL} generate_series($1::int, $2) AS n"
        async with listening(dsn, "postbus:postbus") as listener:
            await session.execute(insert, 1, 0)
            await session.execute(insert, 1, 300)
            await session.copy_records_to_table(
                "events", schema_name="postbus", columns=["id", "event_type"], records=[("copied", "x")] * 1
            )
            await eventually(lambda: len(listener.heard) == 2)

        assert listener.heard == ["300", "301"]

    @pytest.mark.parametrize(
        "schema",
        ["postbus", "s" * 55, "s" * 56, "é" * 27, "é" * 28, 'we"ird', "a'b", "a$$b", "a.b; --", "{schema}"],
    )
    async def test_python_and_sql_have_the_same_name_for_the_channel(
        self, postgres_dsn: str, schema: str
    ) -> None:
        """Also where the name of the schema is too long for a channel, or hostile."""
        async with opened(postgres_dsn, schema=schema) as database:
            row = await database.fetch_row(
                f'SELECT "{schema.replace(chr(34), chr(34) * 2)}".postbus_channel() AS channel'
            )

        assert row is not None
        assert row["channel"] == database.channel


class TestSafety:
    @pytest.mark.parametrize(
        "schema", ['we"ird', "a'b", "a$$b", "a.b; --", "Events", "☃ 🎉", "pub lic", "{schema}"]
    )
    async def test_a_schema_may_have_any_name(self, postgres_dsn: str, schema: str) -> None:
        """It is never taken for a part of a statement."""
        async with opened(postgres_dsn, schema=schema) as database:
            appending = Appending(database, Announced(database.channel))
            await appending.append([make_draft()])
            await appending.append([make_draft(), make_draft()])
            await appending.append([make_draft(stream_id="a", is_idempotent=True)])
            quoted = schema.replace('"', '""')
            await database.execute(
                f"SELECT \"{quoted}\".publish('a', stream_id => 'a', expected_version => 1)"
            )

            count = await database.fetch_row(f'SELECT count(*) FROM "{quoted}".events')
            assert count is not None
            assert count[0] == 5

    async def test_two_schemas_of_one_database_know_nothing_of_each_other(self, postgres_dsn: str) -> None:
        """Same streams and same ids in both, at the same time."""
        async with opened(postgres_dsn) as one, opened(postgres_dsn, schema="other") as other:
            draft = make_draft(id="x", stream_id="a", expected_version=0)
            async with one.transaction() as connection:
                await Appending(one, Announced()).insert_within(connection, [draft])
                async with asyncio.timeout(PATIENCE):
                    assert len(await Appending(other, Announced()).append([draft])) == 1

    async def test_names_of_the_caller_never_stand_in_for_ours(self, session: Session) -> None:
        """Whatever it has in its search_path, temporary tables and operators included."""
        await session.execute("""
            CREATE SCHEMA trap;
            CREATE TABLE trap.events AS SELECT * FROM postbus.events;
            CREATE TEMP TABLE events AS SELECT * FROM postbus.events;
            CREATE FUNCTION trap.append_events(
                int[], text[], text[], text[], text[], timestamptz[], boolean[], text[], bigint[], text[],
                text[], text[], bigint[], boolean, text
            ) RETURNS integer LANGUAGE sql AS 'SELECT 1/0';
            CREATE FUNCTION trap.postbus_channel() RETURNS text LANGUAGE sql AS 'SELECT (1/0)::text';
            CREATE FUNCTION trap.is_less(bigint, bigint) RETURNS boolean LANGUAGE sql AS 'SELECT 1/0 = 1';
            CREATE OPERATOR trap.- (LEFTARG = bigint, RIGHTARG = bigint, FUNCTION = trap.is_less);
            CREATE FUNCTION trap.pg_notify(text, text) RETURNS void LANGUAGE sql AS 'SELECT 1/0';
            CREATE DOMAIN trap.json AS integer;
            CREATE DOMAIN trap.text AS integer;
            SET search_path = trap, pg_temp, pg_catalog;
            SELECT postbus.publish('a', stream_id => 's', expected_version => 0);
        """)
        await session.execute("CALL postbus.insert_and_notify('x', 'a', '1', now(), 'a channel', NULL)")

        assert await session.fetchval("SELECT count(*) FROM postbus.events") == 2
        assert await session.fetchval("SELECT count(*) FROM trap.events") == 0
        assert await session.fetchval("SELECT current_setting('search_path')") == "trap, pg_temp, pg_catalog"

    async def test_every_function_has_a_search_path_of_its_own(self, session: Session) -> None:
        """And none runs with the rights of its owner. Only one that commits can have no settings."""
        rows = await session.fetch(
            "SELECT proname, prosecdef, proconfig FROM pg_proc WHERE pronamespace = 'postbus'::regnamespace"
        )

        assert len(rows) >= 10
        assert [row["proname"] for row in rows if row["prosecdef"]] == []
        own = "search_path=postbus, pg_temp"
        without = [row["proname"] for row in rows if own not in (row["proconfig"] or ())]
        assert without == ["insert_and_notify"]

    async def test_a_role_that_may_insert_may_publish(self, dsn: str, session: Session) -> None:
        """No rights on other tables are needed; without them PostgreSQL says what is missing."""
        await session.execute("DROP ROLE IF EXISTS postbus_test_writer; CREATE ROLE postbus_test_writer")
        try:
            await session.execute("""
                GRANT USAGE ON SCHEMA postbus TO postbus_test_writer;
                GRANT SELECT, INSERT ON postbus.events TO postbus_test_writer;
                GRANT USAGE ON SEQUENCE postbus.events_global_sequence_seq TO postbus_test_writer;
                SET ROLE postbus_test_writer;
                SELECT postbus.publish('a', stream_id => 's', event_id => 'x');
                RESET ROLE;
                REVOKE INSERT ON postbus.events FROM postbus_test_writer;
                SET ROLE postbus_test_writer
            """)
            with pytest.raises(asyncpg.InsufficientPrivilegeError, match="events"):
                await session.execute("SELECT postbus.publish('a')")
        finally:
            await session.execute(
                "RESET ROLE; DROP OWNED BY postbus_test_writer; DROP ROLE postbus_test_writer"
            )

        assert await stored_ids(session) == ["x"]

    async def test_a_plan_made_on_a_small_table_is_right_for_a_large_one(self, dsn: str) -> None:
        """Statistics come late: looking ids and versions up never reads the whole table."""
        async with opened(dsn, pool_size=2) as database, open_session(dsn) as session:
            appending = Appending(database, Announced())
            for number in range(20):
                await appending.append([make_draft(id=f"{number}", stream_id="a", is_idempotent=True)])
                await session.execute("ANALYZE postbus.events")
            await session.execute(f"{FILL} generate_series(100, 20000) AS n")
            before = await _reads(session)
            for number in range(20):
                await appending.append([make_draft(id=f"x{number}", stream_id="a", is_idempotent=True)])
            await database.close()
            await _all_others_ended(session)

            assert await _reads(session) == before


async def _reads(session: Session) -> Any:
    """How many rows were read by going through the whole table."""
    return await session.fetchval(
        "SELECT seq_tup_read FROM pg_stat_all_tables WHERE relid = 'postbus.events'::regclass"
    )


async def _all_others_ended(session: Session) -> None:
    """Return when the statistics of sessions that have ended are in."""
    others = (
        "SELECT count(*) FROM pg_stat_activity "
        "WHERE datname = current_database() AND backend_type = 'client backend'"
    )
    async with asyncio.timeout(10):
        while await session.fetchval(others) > 1:
            pass
