"""The pytest plugin: its fixtures work with whatever runs async tests."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest_plugins = ["pytester"]

PAGE = Path(__file__).parents[2] / "docs" / "testing.md"

FIXTURES = """
import pytest
from postbus.testing import RecordingObserver, assert_published

pytestmark = pytest.mark.asyncio
buses = []

@pytest.fixture
def observer(postbus_bus):
    observer = RecordingObserver("test")
    postbus_bus.subscribe(observer)
    return observer

async def test_it_is_started_in_the_loop_of_the_test(postbus_bus):
    buses.append(postbus_bus)
    await postbus_bus.publish("order.placed", {"order": 1})
    await assert_published(postbus_bus, "order.placed", {"order": 1}, count=1)

async def test_each_test_has_its_own(postbus_bus, postbus_store):
    assert postbus_bus is not buses[0]
    assert postbus_bus.store is postbus_store
    assert await postbus_store.head() == 0

async def test_it_was_shut_down():
    assert buses[0]._is_shut_down

class TestInAClass:
    async def test_subscribers_may_come_before_its_start(self, observer, postbus_bus):
        await postbus_bus.publish("order.placed")
        assert len(await observer.wait_for(1)) == 1

    async def test_through_another_fixture_it_is_started_as_well(self, observer, request):
        assert request.getfixturevalue("postbus_bus")._loop is not None

async def test_a_back_off_takes_no_time(postbus_bus, postbus_clock):
    @postbus_bus.on("order.*")
    async def fail(event):
        raise ValueError("out of paper")
    await postbus_bus.publish("order.placed")
    assert postbus_clock.sleeps == [1.0, 2.0, 4.0]
    assert (await postbus_bus.dlq.list()).total == 1
"""

OWN_BUS = """
import pytest
from postbus import EventBus
from postbus.testing import ManualClock

buses = []

@pytest.fixture
def postbus_clock():
    return ManualClock()

@pytest.fixture
def postbus_bus(postbus_store, postbus_clock):
    return EventBus(postbus_store, clock=postbus_clock, handler_timeout=2.0)

async def test_it_is_started(postbus_bus, postbus_clock):
    buses.append(postbus_bus)
    assert postbus_bus._loop is not None
    assert postbus_bus._clock is postbus_clock

def test_it_was_shut_down():
    assert buses[0]._is_shut_down
"""

NO_ASYNC_TESTS = """
import unittest

def test_plain(postbus_bus):
    '''
    >>> 1 + 1
    2
    '''
    assert postbus_bus._loop is None

class TestOld(unittest.TestCase):
    def test_old(self):
        pass
"""

FAILING = """
from postbus.testing import assert_published

buses = []

async def test_wrong(postbus_bus):
    buses.append(postbus_bus)
    await assert_published(postbus_bus, "order.placed")

def test_it_was_shut_down():
    assert buses[0]._is_shut_down
"""

# As plugins do that give a failed test another chance.
RUN_TWICE = """
from _pytest.runner import runtestprotocol

def pytest_runtest_protocol(item, nextitem):
    for _ in range(2):
        runtestprotocol(item, nextitem=nextitem)
        item._initrequest()
    return True
"""

# Plugins such as anyio's call an async test in a loop of their own.
OTHER_RUNNER = """
import asyncio, inspect, pytest

@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem):
    if inspect.iscoroutinefunction(pyfuncitem.obj):
        arguments = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}
        asyncio.run(pyfuncitem.obj(**arguments))
        return True
"""


def run(pytester: pytest.Pytester, *options: str) -> pytest.RunResult:
    """A run in a process of its own, which finds the plugin as it would in any project."""
    return pytester.runpytest_subprocess("-p", "no:cacheprovider", "-W", "error", *options)


def run_with_pytest_asyncio(pytester: pytest.Pytester, mode: str, *options: str) -> pytest.RunResult:
    pytester.makeini(f"[pytest]\nasyncio_mode = {mode}\nasyncio_default_fixture_loop_scope = function")
    return run(pytester, *options)


def count_tests(*sources: str) -> int:
    return sum(source.count("def test_") for source in sources)


@pytest.mark.parametrize("mode", ["auto", "strict"])
def test_the_fixtures_work_with_pytest_asyncio(pytester: pytest.Pytester, mode: str) -> None:
    """In both of its modes."""
    pytester.makepyfile(FIXTURES)

    run_with_pytest_asyncio(pytester, mode).assert_outcomes(passed=count_tests(FIXTURES))


def test_the_fixtures_work_with_any_other_plugin(pytester: pytest.Pytester) -> None:
    """Without pytest-asyncio: the bus lives in the loop that the test runs in, wherever that comes from."""
    pytester.makeini("[pytest]")
    pytester.makeconftest(OTHER_RUNNER)
    pytester.makepyfile(FIXTURES.replace("pytestmark = pytest.mark.asyncio", ""))

    run(pytester, "-p", "no:asyncio").assert_outcomes(passed=count_tests(FIXTURES))


def test_a_program_can_put_its_own_bus_and_clock_in_place(pytester: pytest.Pytester) -> None:
    """A fixture of the same name is enough: it is started and shut down all the same."""
    pytester.makepyfile(OWN_BUS)

    run_with_pytest_asyncio(pytester, "auto").assert_outcomes(passed=count_tests(OWN_BUS))


def test_a_test_that_is_run_again_has_another_bus(pytester: pytest.Pytester) -> None:
    """The first one was shut down."""
    pytester.makeconftest(RUN_TWICE)
    pytester.makepyfile("async def test_it_is_alive(postbus_bus): await postbus_bus.publish('order.placed')")

    run_with_pytest_asyncio(pytester, "auto").assert_outcomes(passed=2)


def test_other_tests_are_left_alone(pytester: pytest.Pytester) -> None:
    """Doctests, test cases of unittest and plain functions."""
    pytester.makepyfile(NO_ASYNC_TESTS)
    result = run_with_pytest_asyncio(pytester, "auto", "--doctest-modules")

    result.assert_outcomes(passed=count_tests(NO_ASYNC_TESTS) + 1)


def test_a_failing_test_fails_and_its_bus_is_shut_down(pytester: pytest.Pytester) -> None:
    """The message is that of the assertion; the traceback leads to the test."""
    pytester.makepyfile(FAILING)
    result = run_with_pytest_asyncio(pytester, "auto")

    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(
        [
            '>*await assert_published(postbus_bus, "order.placed")',
            "E*AssertionError: expected at least 1 published events that match order.placed, found 0*",
            "test_*.py:7: AssertionError",
        ]
    )


def test_the_tests_of_the_page_pass(pytester: pytest.Pytester) -> None:
    """Its examples are tests, and run as they would in a project of a reader."""
    blocks = re.findall(r"^```python\n(.*?)^```\n", PAGE.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    pytester.makepyfile("\n".join(blocks))

    run_with_pytest_asyncio(pytester, "auto").assert_outcomes(passed=count_tests(*blocks))


def test_postbus_testing_needs_no_pytest() -> None:
    """Programs may use a ManualClock where pytest is not installed."""
    code = "import sys; sys.modules['pytest'] = None; import postbus.testing"
    subprocess.run([sys.executable, "-c", code], check=True)
