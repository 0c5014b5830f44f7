"""Settings and PostgreSQL servers shared by all tests; other fixtures live in the folder that uses them."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from tests.order import longest_first
from tests.postgres.binaries import find, find_version, version_of
from tests.postgres.databases import Databases
from tests.postgres.existing import ExistingServer, Postgres
from tests.postgres.proxy import Proxy
from tests.postgres.server import Server

# A loaded machine makes single examples slow without making them wrong.
settings.register_profile("default", deadline=None)
# The same examples on every run, so that a red build is red again on a developer's machine.
settings.register_profile("ci", deadline=None, derandomize=True, database=None)
settings.load_profile("ci" if os.environ.get("CI") else "default")

# A test run in the background inherits a SIGINT that is ignored, under nohup a SIGHUP, and so would every
# child that a test wants to interrupt. What is handled here is not ignored there.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, lambda *_: None)

# Tests start processes by the thousand. Where these may not leave compiled modules beside the sources,
# each of them would compile all modules again, and so would every worker of every test run.
if os.environ.pop("PYTHONDONTWRITEBYTECODE", None):
    compiled = Path(__file__).parents[1] / ".pytest_cache" / "compiled"
    os.environ["PYTHONPYCACHEPREFIX"] = sys.pycache_prefix = str(compiled)
    sys.dont_write_bytecode = False


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Workers get the files with the longest tests first."""
    if not hasattr(config, "workerinput"):
        return
    keys = longest_first((item.path, _allowed_seconds(config, item)) for item in items)
    items.sort(key=lambda item: keys[item.path])


def _allowed_seconds(config: pytest.Config, item: pytest.Item) -> float:
    marker = item.get_closest_marker("timeout")
    return float(config.getini("timeout") if marker is None else marker.args[0])


# A shared server starts when the first test asks for it, one for each worker.


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    """The server of all tests that leave it running."""
    if dsn := os.environ.get("POSTBUS_TEST_DSN"):
        yield ExistingServer(dsn)
        return
    with Server() as server:
        yield server


@pytest.fixture(scope="session")
def postgres18(request: pytest.FixtureRequest) -> Iterator[Server]:
    """A server of PostgreSQL 18, the newest that is supported; tests leave it running."""
    if "POSTBUS_TEST_DSN" not in os.environ and version_of(find()) == 18:
        yield request.getfixturevalue("postgres")
        return
    with Server(find_version(18)) as server:
        yield server


@pytest.fixture
def own_postgres() -> Iterator[Server]:
    """A server for this test alone, which may kill it."""
    with Server() as server:
        yield server


@pytest.fixture(scope="session")
def databases(postgres: Postgres) -> Iterator[Databases]:
    """Makes databases, empty ones or copies of templates."""
    databases = Databases(postgres)
    yield databases
    asyncio.run(databases.close())


@pytest.fixture(scope="session")
def databases18(postgres18: Postgres) -> Iterator[Databases]:
    """Makes databases on PostgreSQL 18."""
    databases = Databases(postgres18)
    yield databases
    asyncio.run(databases.close())


@pytest.fixture
async def postgres_dsn(databases: Databases) -> AsyncIterator[str]:
    """An empty database for this test alone."""
    async with databases.make() as dsn:
        yield dsn


@pytest.fixture
async def postgres_proxy(postgres: Postgres) -> AsyncIterator[Proxy]:
    """A network that fails when it is told to; `postgres_proxy.through(dsn)` leads to the same database."""
    async with Proxy(postgres) as proxy:
        yield proxy
