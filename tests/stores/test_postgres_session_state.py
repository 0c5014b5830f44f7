"""What a transactional handler does to its session ends with its transaction."""

import asyncio
import contextlib
import uuid
from collections.abc import AsyncIterator
from datetime import datetime
from typing import Any

import asyncpg
import pytest

from postbus.stores.postgres.database import Database
from postbus.stores.postgres.own_pool import OwnPool
from tests.patience import PATIENCE
from tests.postgres.steps import ask
from tests.stores.postgres_steps import opened

_WHO = "SELECT current_user || ' ' || session_user"


@pytest.fixture
async def database(postgres_dsn: str) -> AsyncIterator[Database]:
    """With so few connections that the next user gets the handler's."""
    async with opened(postgres_dsn, pool_size=2) as database:
        yield database


async def do_in_transaction(database: Database, statement: str) -> None:
    """As a handler; return when its connection is lent again, or gone."""
    async with database.handler_transaction() as connection:
        await connection.execute(statement)


async def ask_all(database: Database, question: str) -> set[Any]:
    """What every connection of the pool answers."""
    async with contextlib.AsyncExitStack() as stack, asyncio.timeout(PATIENCE):
        connections = [await stack.enter_async_context(database.connection()) for _ in range(2)]
        return {await connection.fetchval(question) for connection in connections}


@pytest.fixture
async def tenant(postgres_dsn: str) -> AsyncIterator[str]:
    """A role with few rights: roles belong to the whole server."""
    name = f"tenant_{uuid.uuid4().hex}"
    await ask(postgres_dsn, f"CREATE ROLE {name}")
    yield name
    database = postgres_dsn.rsplit("/", 1)[1]
    admin = await asyncpg.connect(postgres_dsn.replace(f"/{database}", "/postgres"))
    await admin.execute(f"ALTER DATABASE {database} RESET role")
    await admin.execute(f"DROP ROLE {name}")
    await admin.close()


class TestRoles:
    @pytest.mark.parametrize("statement", ["SET ROLE {}", "SET SESSION AUTHORIZATION {}"])
    async def test_a_role_that_a_handler_sets_is_nobody_elses(
        self, database: Database, tenant: str, statement: str
    ) -> None:
        """Neither that of the next handler nor that of a publisher."""
        before = await ask_all(database, _WHO)
        await do_in_transaction(database, statement.format(tenant))

        assert await ask_all(database, _WHO) == before

    async def test_both_at_once_are_not_either(self, database: Database, tenant: str) -> None:
        before = await ask_all(database, _WHO)
        await do_in_transaction(database, f"SET SESSION AUTHORIZATION {tenant}; SET ROLE {tenant}")

        assert await ask_all(database, _WHO) == before

    @pytest.mark.parametrize("statement", ["SELECT 1", "SET ROLE NONE", "RESET ROLE"])
    async def test_the_role_that_all_connections_have_by_their_settings_stays(
        self, postgres_dsn: str, tenant: str, statement: str
    ) -> None:
        """Such as by ALTER ROLE … SET role: that is what a new connection has."""
        name = postgres_dsn.rsplit("/", 1)[1]
        await ask(postgres_dsn, f"ALTER DATABASE {name} SET role = '{tenant}'")
        connect = await asyncpg.connect(postgres_dsn)
        expected = await connect.fetchval(_WHO)
        await connect.close()
        pool = OwnPool(lambda: asyncpg.connect(postgres_dsn), 1)
        connection = await pool.acquire()
        await connection.execute(statement)
        await pool.release(connection, is_settled=True, is_changed=True)
        again = await pool.acquire()
        found = await again.fetchval(_WHO)
        await pool.release(again, is_settled=True)
        await pool.close()

        assert expected.startswith(tenant)
        assert found == expected


class TestCodecs:
    @pytest.mark.parametrize("kind", ["set_type_codec", "set_builtin_type_codec", "reset_type_codec"])
    async def test_a_codec_that_a_handler_sets_goes_with_its_connection(
        self, database: Database, kind: str
    ) -> None:
        """Nobody else reads or writes a type in another way because of it."""
        before = await ask_all(database, "SELECT pg_backend_pid()")
        async with database.handler_transaction() as connection:
            if kind == "set_type_codec":
                codec: dict[str, Any] = {"encoder": str, "decoder": str, "format": "text"}
                await connection.set_type_codec("timestamptz", schema="pg_catalog", **codec)
            elif kind == "set_builtin_type_codec":
                await connection.set_builtin_type_codec("timestamptz", schema="pg_catalog", codec_name="text")
            else:
                await connection.reset_type_codec("timestamptz", schema="pg_catalog")
            changed = await connection.fetchval("SELECT pg_backend_pid()")
        after = await ask_all(database, "SELECT pg_backend_pid()")

        assert changed in before
        assert changed not in after
        assert {type(each) for each in await ask_all(database, "SELECT now()")} == {datetime}

    async def test_a_handler_that_sets_none_leaves_its_connection_to_the_next(
        self, database: Database
    ) -> None:
        """To open one takes long."""
        before = await ask_all(database, "SELECT pg_backend_pid()")
        await do_in_transaction(database, "SET my.setting = '1'")

        assert await ask_all(database, "SELECT pg_backend_pid()") == before
        assert await ask_all(database, "SELECT current_setting('my.setting', true)") <= {None, ""}
