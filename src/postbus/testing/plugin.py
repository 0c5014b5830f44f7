"""The pytest plugin: a bus in memory for each test, on a clock that makes nobody wait."""

import functools
import inspect
from collections.abc import Awaitable, Callable, Generator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from postbus.bus import EventBus
    from postbus.stores.memory import InMemoryStore
    from postbus.testing.clock import ManualClock

# Every run of pytest loads this module where postbus is installed, so the rest waits until it is asked for.


@pytest.fixture
def postbus_clock() -> "ManualClock":
    """The time of postbus_bus: it stands still, and a back-off passes at once.

    Override it with a ManualClock() to move the time by hand.
    """
    from postbus.testing.clock import ManualClock

    return ManualClock(auto_advance=True)


@pytest.fixture
def postbus_store(postbus_clock: "ManualClock") -> "InMemoryStore":
    """The store of postbus_bus: empty, in memory."""
    from postbus.stores.memory import InMemoryStore

    return InMemoryStore(clock=postbus_clock)


@pytest.fixture
def postbus_bus(postbus_store: "InMemoryStore", postbus_clock: "ManualClock") -> "EventBus":
    """A bus that starts right before an async test and is shut down right after it.

    Override it with a fixture that returns the bus of your program: that is started just as well.
    """
    from postbus.bus import EventBus

    # Without noise: the back-off is what the retry policy says, and postbus_clock.sleeps shows it.
    return EventBus(postbus_store, clock=postbus_clock, noise=lambda: 0.0)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Serve the bus around the test, in the event loop of the test.

    An async fixture would belong to one plugin (pytest-asyncio, in one of its modes, or anyio), and
    its loop may be another than that of the test. The test itself always is in the right one.
    """
    bus = getattr(item, "funcargs", {}).get("postbus_bus")
    if bus is None or not isinstance(item, pytest.Function) or not inspect.iscoroutinefunction(item.obj):
        return (yield)
    test = item.obj
    item.obj = _served(test, bus)
    try:
        return (yield)
    finally:
        # It may be run again, with another bus.
        item.obj = test


def _served(test: Callable[..., Awaitable[object]], bus: "EventBus") -> Callable[..., Awaitable[object]]:
    @functools.wraps(test)
    async def run(*args: object, **fixtures: object) -> object:
        async with bus:
            return await test(*args, **fixtures)

    return run
