"""One PostgreSQL database for many tests, one after the other: emptying it is faster than a new one."""

import asyncio
from collections.abc import Iterator

import asyncpg
import pytest

from tests.postgres.databases import Databases

# What a test before left open would keep its locks.
_END_SESSIONS = """
    SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity
    WHERE datname = current_database() AND pid <> pg_backend_pid()
"""
# The schema of the store stays, with nothing in it; what a test has made itself goes.
_EMPTY = """
    DO $$
    DECLARE
        found text;
    BEGIN
        SELECT string_agg(format('%I.%I', schemaname, tablename), ', ') INTO found
        FROM pg_tables WHERE schemaname = 'postbus' AND tablename <> 'postbus_schema';
        IF found IS NOT NULL THEN
            EXECUTE 'TRUNCATE ' || found || ' RESTART IDENTITY';
        END IF;
        FOR found IN SELECT format('%I', tablename) FROM pg_tables WHERE schemaname = 'public' LOOP
            EXECUTE 'DROP TABLE public.' || found;
        END LOOP;
    END $$
"""


class SharedDatabase:
    """A database of which every test thinks that it is new."""

    def __init__(self, dsn: str) -> None:
        self.dsn = dsn

    async def empty(self) -> None:
        """Leave nothing of the tests before."""
        connection = await asyncpg.connect(self.dsn)
        try:
            await connection.execute(_END_SESSIONS)
            await connection.execute(_EMPTY)
        finally:
            await connection.close()


@pytest.fixture(scope="session")
def shared_database(databases: Databases) -> Iterator[SharedDatabase]:
    """Made when the first test asks for it."""
    with asyncio.Runner() as runner:
        made = databases.make()
        yield SharedDatabase(runner.run(made.__aenter__()))
        runner.run(made.__aexit__(None, None, None))
