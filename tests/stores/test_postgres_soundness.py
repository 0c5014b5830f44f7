"""A log on which the gap rule could pass an event over is refused, with the reason and the repair."""

import os
from collections.abc import AsyncIterator

import asyncpg
import pytest

from postbus.errors import MigrationNeededError, UnsoundLogError
from postbus.stores.postgres.migrations import migrate
from postbus.stores.postgres.pool import Connection
from postbus.stores.postgres.schema_name import quoted_schema
from postbus.stores.postgres.soundness import check_sound
from tests.postgres.server import Server

SEQUENCE = '"postbus".events_global_sequence_seq'
TABLE = '"postbus".events'
# How it is broken, what is said about it, and the statement that the message gives for its repair.
FAULTS = {
    "cache": (
        f"ALTER SEQUENCE {SEQUENCE} CACHE 20",
        "CACHE 20.*without a lock",
        f"ALTER SEQUENCE {SEQUENCE} CACHE 1",
    ),
    "increment": (
        f"ALTER SEQUENCE {SEQUENCE} INCREMENT 2",
        "INCREMENT 2.*left out",
        f"ALTER SEQUENCE {SEQUENCE} INCREMENT 1",
    ),
    "cycle": (
        f"ALTER SEQUENCE {SEQUENCE} CYCLE",
        "CYCLE.*come again",
        f"ALTER SEQUENCE {SEQUENCE} NO CYCLE",
    ),
    "ownership": (
        f"ALTER SEQUENCE {SEQUENCE} OWNED BY NONE",
        "does not belong to events.global_sequence",
        f"ALTER SEQUENCE {SEQUENCE} OWNED BY {TABLE}.global_sequence",
    ),
    "unlogged": (
        f"ALTER TABLE {TABLE} SET UNLOGGED",
        "crash empties it",
        f"ALTER TABLE {TABLE} SET LOGGED",
    ),
    "no default": (
        f"ALTER TABLE {TABLE} ALTER global_sequence DROP DEFAULT",
        "does not draw its number",
        f"ALTER TABLE {TABLE} ALTER global_sequence SET DEFAULT nextval('{SEQUENCE}')",
    ),
    "default of another sequence": (
        f"CREATE SEQUENCE other; ALTER TABLE {TABLE} ALTER global_sequence SET DEFAULT nextval('other')",
        "does not draw its number",
        f"ALTER TABLE {TABLE} ALTER global_sequence SET DEFAULT nextval('{SEQUENCE}')",
    ),
    "default that calculates": (
        f"ALTER TABLE {TABLE} ALTER global_sequence SET DEFAULT nextval('{SEQUENCE}') + 1",
        "does not draw its number",
        f"ALTER TABLE {TABLE} ALTER global_sequence SET DEFAULT nextval('{SEQUENCE}')",
    ),
    "sequence behind its table": (
        f"INSERT INTO {TABLE} (global_sequence, id, event_type) VALUES (41, 'a', 'a')",
        "number 41 .* up to 0, .*come again",
        f"SELECT setval('{SEQUENCE}', 41)",
    ),
}

# What a role or a database may have.
SETTINGS = [
    "SET quote_all_identifiers = on",
    "SET search_path = hostile, pg_catalog",
    "SET standard_conforming_strings = off; SET quote_all_identifiers = on",
]


@pytest.fixture
async def connection(postgres_dsn: str) -> AsyncIterator[Connection]:
    connection = await asyncpg.connect(postgres_dsn)
    await migrate(connection, "postbus")
    yield connection
    await connection.close()


@pytest.mark.parametrize("fault", FAULTS)
async def test_a_fault_is_refused_with_its_reason_and_fine_after_the_repair(
    connection: Connection, fault: str
) -> None:
    """The statement in the message is the repair."""
    breaking, reason, repair = FAULTS[fault]
    await connection.execute(breaking)
    with pytest.raises(UnsoundLogError, match=reason) as caught:
        await check_sound(connection, "postbus")

    assert repair in str(caught.value)
    await connection.execute(repair)
    await check_sound(connection, "postbus")


async def test_every_fault_is_named_at_once(connection: Connection) -> None:
    """Nobody wants to repair one, start, and be told the next."""
    faults = ("cache", "cycle", "no default", "sequence behind its table")
    for fault in faults:
        await connection.execute(FAULTS[fault][0])
    with pytest.raises(UnsoundLogError) as caught:
        await check_sound(connection, "postbus")

    assert all(FAULTS[fault][2] in str(caught.value) for fault in faults)


@pytest.mark.parametrize("schema", ['it\'s "quoted"', "back\\slash", "two words"])
async def test_the_repair_of_a_schema_with_a_hostile_name_works(connection: Connection, schema: str) -> None:
    """The statement can be pasted as it is."""
    table = f"{quoted_schema(schema)}.events"
    await migrate(connection, schema)
    await connection.execute(f"ALTER TABLE {table} ALTER global_sequence DROP DEFAULT")
    with pytest.raises(UnsoundLogError) as caught:
        await check_sound(connection, schema)
    _, _, repair = str(caught.value).partition("after it was drawn: ")
    await connection.execute(repair)

    await check_sound(connection, schema)


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("schema", ["postbus", 'it\'s "quoted"', "back\\slash"])
async def test_no_setting_of_the_role_changes_the_verdict(
    connection: Connection, schema: str, settings: str
) -> None:
    """The log is as sound or unsound as before."""
    number = f"ALTER TABLE {quoted_schema(schema)}.events ALTER global_sequence SET DEFAULT"
    default = await connection.fetchval(
        "SELECT $1 || quote_literal(quote_ident($2) || '.events_global_sequence_seq')", "nextval(", schema
    )
    await migrate(connection, schema)
    await connection.execute("""
        CREATE SCHEMA hostile; CREATE TABLE hostile.pg_class (); CREATE TABLE hostile.pg_depend ();
        CREATE FUNCTION hostile.nextval(regclass) RETURNS bigint LANGUAGE sql AS 'SELECT 1::bigint'
    """)
    await connection.execute(settings)
    await check_sound(connection, schema)
    for broken in (f"hostile.{default})", f"pg_catalog.{default}) + 1", f"abs(pg_catalog.{default}))"):
        await connection.execute(f"{number} {broken}")
        with pytest.raises(UnsoundLogError, match="does not draw its number"):
            await check_sound(connection, schema)


async def test_numbers_in_use_are_no_fault(connection: Connection) -> None:
    """Events stored, rolled back and deleted, and a writer that is still at work."""
    insert = f"INSERT INTO {TABLE} (id, event_type) VALUES (gen_random_uuid(), 'a')"
    await check_sound(connection, "postbus")
    await connection.execute(insert)
    await connection.execute(f"BEGIN; {insert}; ROLLBACK")
    await check_sound(connection, "postbus")
    await connection.execute(f"DELETE FROM {TABLE}")
    async with connection.transaction():
        await connection.execute(insert)
        await check_sound(connection, "postbus")


async def test_the_check_does_not_look_like_a_writer(connection: Connection) -> None:
    """It must not hold the lock by which writers of events are known, not even until its transaction ends."""
    async with connection.transaction():
        await check_sound(connection, "postbus")
        modes = await connection.fetch(
            "SELECT mode FROM pg_locks WHERE pid = pg_backend_pid() AND relation = $1::text::regclass",
            SEQUENCE,
        )

    assert {mode for (mode,) in modes} == {"AccessShareLock"}


async def test_another_kind_of_table_is_refused(connection: Connection) -> None:
    """A partition can be attached with rows in it that drew no number."""
    await connection.execute(f"""
        ALTER TABLE {TABLE} RENAME TO plain;
        CREATE TABLE {TABLE} (LIKE "postbus".plain INCLUDING DEFAULTS) PARTITION BY RANGE (global_sequence);
        ALTER SEQUENCE {SEQUENCE} OWNED BY {TABLE}.global_sequence
    """)
    with pytest.raises(UnsoundLogError, match="no plain table"):
        await check_sound(connection, "postbus")


@pytest.mark.parametrize("schema", ["nowhere", "public"])
async def test_a_schema_without_our_tables_is_not_called_unsound(connection: Connection, schema: str) -> None:
    """It has to be migrated."""
    with pytest.raises(MigrationNeededError, match="postbus migrate"):
        await check_sound(connection, schema)


async def test_a_role_from_which_events_are_hidden_is_refused(own_postgres: Server) -> None:
    """To it a hidden event looks like a number that nobody used."""
    owner = await asyncpg.connect(own_postgres.dsn())
    await migrate(owner, "postbus")
    await owner.execute(f"""
        CREATE ROLE app LOGIN;
        GRANT USAGE ON SCHEMA postbus TO app;
        GRANT SELECT ON ALL TABLES IN SCHEMA postbus TO app;
        ALTER TABLE {TABLE} ENABLE ROW LEVEL SECURITY
    """)
    app = await asyncpg.connect(own_postgres.dsn(), user="app")
    await check_sound(owner, "postbus")
    with pytest.raises(UnsoundLogError, match="row-level security") as caught:
        await check_sound(app, "postbus")

    for statement in (
        f"ALTER TABLE {TABLE} DISABLE ROW LEVEL SECURITY",
        f"GRANT SELECT, USAGE ON SEQUENCE {SEQUENCE} TO app",
    ):
        assert statement in str(caught.value)
        await owner.execute(statement)
    await check_sound(app, "postbus")
    for connection in (owner, app):
        await connection.close()


class FutureStandby(Server):
    """A server that can turn into a standby; it follows nobody, and takes no writes."""

    def become_standby(self) -> None:
        self.stop()
        data, signal = self.folder / "data", self.folder / "data" / "standby.signal"
        signal.touch()
        os.chown(signal, data.stat().st_uid, data.stat().st_gid)
        self.start()

    def _is_ready(self, pid: int) -> bool:
        return super()._is_ready(pid) or self._pid_file()[7:] == ["standby "]


async def test_a_standby_is_refused() -> None:
    """Events get there without the lock that shows their writers at work."""
    with FutureStandby() as server:
        connection = await asyncpg.connect(server.dsn())
        await migrate(connection, "postbus")
        await connection.close()
        server.become_standby()
        connection = await asyncpg.connect(server.dsn())
        with pytest.raises(UnsoundLogError, match=r"standby.*connect to the primary"):
            await check_sound(connection, "postbus")
        with pytest.raises(MigrationNeededError, match="read-only"):
            await migrate(connection, "elsewhere")
        await connection.close()


async def test_the_target_of_a_logical_subscription_is_refused() -> None:
    """Its rows come with the numbers of another server."""
    with Server(settings={"wal_level": "logical"}) as server:
        source = await asyncpg.connect(server.dsn())
        await migrate(source, "postbus")
        await source.execute("CREATE DATABASE target")
        await source.execute(f"CREATE PUBLICATION log FOR TABLE {TABLE}")
        await source.execute("SELECT pg_create_logical_replication_slot('log', 'pgoutput')")
        target = await asyncpg.connect(server.dsn("target"))
        await migrate(target, "postbus")
        await check_sound(target, "postbus")
        await target.execute(
            f"CREATE SUBSCRIPTION log CONNECTION '{server.dsn()}' PUBLICATION log "
            "WITH (create_slot = false, enabled = false, copy_data = false)"
        )
        with pytest.raises(UnsoundLogError, match="logical subscription"):
            await check_sound(target, "postbus")
        await check_sound(source, "postbus")

        await target.execute("DROP SUBSCRIPTION log")
        await check_sound(target, "postbus")
        await target.close()
        await source.close()
