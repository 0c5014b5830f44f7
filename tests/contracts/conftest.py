"""One open store of each kind, on a clock that stands still."""

from collections.abc import AsyncIterator

import pytest

from postbus.ports import Store
from postbus.testing import ManualClock
from tests.contracts.backends import BACKENDS, Backend, open_store
from tests.contracts.shared_database import shared_database

__all__ = ["shared_database"]


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> Backend:
    """Makes empty stores, of each kind."""
    return BACKENDS[request.param](request)


@pytest.fixture
async def store(backend: Backend, clock: ManualClock) -> AsyncIterator[Store]:
    async with open_store(backend, clock) as store:
        yield store
