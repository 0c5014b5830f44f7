"""Buses on one database, whose workers compete."""

import random
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from postbus import PgEventBus, ReliableDeliveryConfig
from tests.competing.steps import MakeBus
from tests.contracts.shared_database import SharedDatabase, shared_database
from tests.delivery.fixtures import no_error_is_lost
from tests.delivery.steps import soon
from tests.end_to_end.history import History

__all__ = ["no_error_is_lost", "shared_database"]


@pytest.fixture
async def dsn(shared_database: SharedDatabase) -> str:
    """A database with nothing in it."""
    await shared_database.empty()
    return shared_database.dsn


@pytest.fixture
async def make_bus(dsn: str) -> AsyncIterator[MakeBus]:
    """Makes buses on the database of this test, each an instance, and shuts them down."""
    made: list[PgEventBus] = []

    def make(*, target: Any = None, bus: dict[str, Any] | None = None, **config: Any) -> PgEventBus:
        config = {"poll_interval": 0.2, "initial_retry_delay": 0.05, **config}
        made.append(PgEventBus(target or dsn, config=ReliableDeliveryConfig(**config), **(bus or {})))
        return made[-1]

    yield make
    for bus in made:
        await soon(bus.shutdown())


@pytest.fixture
def history(tmp_path: Path) -> History:
    """What the instances tell."""
    return History(tmp_path / "history")


@pytest.fixture
def rng(request: pytest.FixtureRequest) -> random.Random:
    """Other moments for every test, the same in every run."""
    return random.Random(request.node.nodeid)
