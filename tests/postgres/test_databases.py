"""Each test has a database of its own."""

import asyncio

import asyncpg
import pytest

from tests.postgres.databases import Databases
from tests.postgres.existing import Postgres
from tests.postgres.steps import ask


async def names(postgres: Postgres) -> set[object]:
    """The databases of the server."""
    listed = await ask(postgres.dsn("postgres"), "SELECT array_agg(datname) FROM pg_database")
    assert isinstance(listed, list)
    return set(listed)


async def test_databases_know_nothing_of_each_other(databases: Databases) -> None:
    """The same table can be made in both."""
    async with databases.make() as one, databases.make() as other:
        await ask(one, "CREATE TABLE rows (id int)")

        assert await ask(one, "SELECT to_regclass('rows')::text") == "rows"
        assert await ask(other, "SELECT to_regclass('rows')::text") is None


async def test_a_test_gets_an_empty_database(postgres_dsn: str) -> None:
    """Nobody has made a table in it."""
    query = "SELECT count(*) FROM pg_tables WHERE schemaname NOT IN ('pg_catalog', 'information_schema')"

    assert await ask(postgres_dsn, query) == 0


async def test_a_database_is_dropped_with_those_who_use_it(databases: Databases, postgres: Postgres) -> None:
    """A connection that a test forgot keeps nothing alive."""
    before = await names(postgres)
    async with databases.make() as dsn:
        forgotten = await asyncpg.connect(dsn)

    assert await names(postgres) == before
    with pytest.raises((asyncpg.PostgresError, asyncpg.InterfaceError)):
        await forgotten.fetch("SELECT 1")


async def test_a_template_is_prepared_once_and_copied_often(databases: Databases) -> None:
    """What is written to a copy stays in that copy, and a connection left open does no harm."""
    prepared: list[str] = []
    left_open = []

    async def prepare(dsn: str) -> None:
        prepared.append(dsn)
        await ask(dsn, "CREATE TABLE rows (id int)")
        left_open.append(await asyncpg.connect(dsn))

    for _ in range(2):
        template = await databases.template("rows_table", prepare)
        async with databases.make(template) as dsn:
            assert await ask(dsn, "SELECT count(*) FROM rows") == 0
            await ask(dsn, "INSERT INTO rows VALUES (1)")

    assert len(prepared) == 1
    left_open[0].terminate()


async def test_a_template_that_could_not_be_prepared_is_not_used(
    databases: Databases, postgres: Postgres
) -> None:
    """The next test tries again, with an empty database."""
    before = await names(postgres)

    async def fail(dsn: str) -> None:
        await ask(dsn, "CREATE TABLE half (id int)")
        raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        await databases.template("half_made", fail)

    assert await names(postgres) == before
    template = await databases.template("half_made", lambda dsn: ask(dsn, "CREATE TABLE half (id int)"))
    async with databases.make(template) as dsn:
        assert await ask(dsn, "SELECT count(*) FROM half") == 0


async def test_nothing_is_left_on_a_server_that_others_use(postgres: Postgres) -> None:
    """Templates are dropped in the end."""
    before = await names(postgres)
    databases = Databases(postgres)
    await databases.template("mine", lambda dsn: ask(dsn, "SELECT 1"))
    assert await names(postgres) != before
    await databases.close()

    assert await names(postgres) == before


async def test_postgresql_18_is_there(databases18: Databases) -> None:
    """Whatever version the other tests run on, the newest can be asked for."""
    async with databases18.make() as dsn:
        version = await ask(dsn, "SELECT current_setting('server_version_num')::int")

    assert isinstance(version, int)
    assert version // 10000 == 18
