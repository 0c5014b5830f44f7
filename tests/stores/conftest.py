"""The log of a PostgreSQL store and another program beside it; who needs more has fixtures of its own."""

from collections.abc import AsyncIterator

import pytest

from postbus.stores.postgres import PgEventStore
from postbus.testing import ManualClock
from tests.postgres.databases import Databases
from tests.postgres.steps import Session
from tests.stores.checkpoint_steps import make_database
from tests.stores.log_steps import open_log, open_writer


@pytest.fixture
async def log_dsn(databases: Databases) -> AsyncIterator[str]:
    """A database for this test alone in which our tables are empty."""
    async with make_database(databases) as dsn:
        yield dsn


@pytest.fixture
async def store(log_dsn: str) -> AsyncIterator[PgEventStore]:
    """A store on that database."""
    async with open_log(log_dsn, ManualClock()) as store:
        yield store


@pytest.fixture
async def writer(store: PgEventStore, log_dsn: str) -> AsyncIterator[Session]:
    """Another program, which writes events as it likes."""
    async with open_writer(log_dsn) as writer:
        yield writer
