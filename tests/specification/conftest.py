"""The fixtures of the embedded bus, a database on PostgreSQL, and buses on a database of each kind."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from postbus import EventBus
from postbus.testing import ManualClock
from tests.contracts.shared_database import shared_database
from tests.delivery.fixtures import clock, database, make_bus, no_error_is_lost
from tests.delivery.steps import A_DAY, soon
from tests.durable.steps import DATABASES, Database, MakeBus

__all__ = ["clock", "database", "make_bus", "no_error_is_lost", "shared_database"]


@pytest.fixture
def still() -> ManualClock:
    """Stands still until it is moved."""
    return ManualClock()


@pytest.fixture(params=DATABASES)
def any_database(request: pytest.FixtureRequest, still: ManualClock) -> Database:
    """A database of each kind, perhaps with something of earlier tests in it."""
    return DATABASES[request.param](request, still)


@pytest.fixture
async def durable(any_database: Database) -> Database:
    """What outlives a bus."""
    await any_database.empty()
    return any_database


@pytest.fixture
async def new_bus(durable: Database, still: ManualClock) -> AsyncIterator[MakeBus]:
    """Makes buses on it, and shuts them down."""
    made: list[EventBus] = []

    def make(store: Any = None, **options: Any) -> EventBus:
        settings: dict[str, Any] = {
            "clock": still,
            "noise": lambda: 0.0,
            "handler_timeout": A_DAY,
            "shutdown_timeout": A_DAY,
        }
        made.append(EventBus(store or durable.new_store(), **{**settings, **options}))
        return made[-1]

    yield make
    for bus in made:
        await soon(bus.shutdown())
