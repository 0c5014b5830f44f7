"""A bus on each kind of store, on a clock that stands still."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from postbus import EventBus
from postbus.ports import Store
from postbus.testing import ManualClock
from tests.contracts.shared_database import shared_database
from tests.delivery.fixtures import no_error_is_lost
from tests.delivery.steps import A_DAY, soon
from tests.durable.steps import DATABASES, Database, MakeBus

__all__ = ["no_error_is_lost", "shared_database"]


@pytest.fixture
def clock() -> ManualClock:
    """Stands still until it is moved."""
    return ManualClock()


@pytest.fixture(params=DATABASES)
def any_database(request: pytest.FixtureRequest, clock: ManualClock) -> Database:
    """A database of each kind, perhaps with something of earlier tests in it."""
    return DATABASES[request.param](request, clock)


@pytest.fixture
async def database(any_database: Database) -> Database:
    """What outlives a bus: one of each kind."""
    await any_database.empty()
    return any_database


@pytest.fixture
async def make_bus(database: Database, clock: ManualClock) -> AsyncIterator[MakeBus]:
    """Makes buses on the database of this test, without jitter, and shuts them down."""
    made: list[EventBus] = []

    def make(store: Store | None = None, **options: Any) -> EventBus:
        settings: dict[str, Any] = {
            "clock": clock,
            "noise": lambda: 0.0,
            "handler_timeout": A_DAY,
            "shutdown_timeout": A_DAY,
        }
        made.append(EventBus(store or database.new_store(), **{**settings, **options}))
        return made[-1]

    yield make
    for bus in made:
        await soon(bus.shutdown())
