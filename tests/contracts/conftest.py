"""One open store of each kind, on a clock that stands still."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from postbus.testing import ManualClock
from tests.contracts.backends import BACKENDS, EventStore, open_store


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture(params=BACKENDS)
async def store(
    request: pytest.FixtureRequest, tmp_path: Path, clock: ManualClock
) -> AsyncIterator[EventStore]:
    async with open_store(request.param, tmp_path, clock) as store:
        yield store
