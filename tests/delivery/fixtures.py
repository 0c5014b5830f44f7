"""Fixtures of the embedded bus, for the conftest.py of each folder that tests it."""

import asyncio
import gc
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from postbus import EventBus
from postbus.testing import ManualClock
from tests.delivery.steps import A_DAY, MakeBus, soon


@pytest.fixture(autouse=True)
async def no_error_is_lost() -> AsyncIterator[None]:
    """A task that dies unseen fails the test during which it died."""
    unseen: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: unseen.append(context))
    yield
    # asyncio tells of a dead task when it is forgotten.
    gc.collect(1)

    assert not unseen, unseen


@pytest.fixture
def database(tmp_path: Path) -> Path:
    """Where the file of this test is."""
    return tmp_path / "events.db"


@pytest.fixture
def clock() -> ManualClock:
    """Lets every back-off pass by itself."""
    return ManualClock(auto_advance=True)


@pytest.fixture
async def make_bus(database: Path, clock: ManualClock) -> AsyncIterator[MakeBus]:
    """Makes buses on the file of this test, without jitter unless asked for, and shuts them down."""
    made: list[EventBus] = []

    def make(**options: Any) -> EventBus:
        target = options.pop("target", database)
        settings: dict[str, Any] = {
            "clock": clock,
            "noise": lambda: 0.0,
            "handler_timeout": A_DAY,
            "shutdown_timeout": A_DAY,
        }
        made.append(EventBus(target, **{**settings, **options}))
        return made[-1]

    yield make
    for bus in made:
        await soon(bus.shutdown())
