"""Shutdown while another program holds the file: it ends in time, and the next start goes on."""

import asyncio
import logging
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from postbus import Event
from postbus.clock import SystemClock
from postbus.delivery.interrupted import INTERRUPTED
from tests.delivery.steps import BlockingHandler, FlakyHandler, MakeBus, query, soon, start


@pytest.fixture
def stranger(database: Path) -> Iterator[sqlite3.Connection]:
    """Another program, which has not begun to write yet."""
    with closing(sqlite3.connect(database, isolation_level=None)) as stranger:
        yield stranger


class LetsGo(logging.Handler):
    """Ends the write of the other program as soon as the bus says that it waits no longer."""

    def __init__(self, stranger: sqlite3.Connection) -> None:
        super().__init__(logging.WARNING)
        self._stranger = stranger

    def emit(self, record: logging.LogRecord) -> None:
        if "still in flight" in record.getMessage() and self._stranger.in_transaction:
            self._stranger.execute("ROLLBACK")


async def test_what_cannot_be_given_back_is_left_to_the_next_start(
    database: Path, make_bus: MakeBus, stranger: sqlite3.Connection, caplog: pytest.LogCaptureFixture
) -> None:
    """As after a crash: the attempt counts, and a warning says so."""
    bus, blocking = make_bus(clock=SystemClock(), shutdown_timeout=0.1), BlockingHandler()
    bus.subscribe(blocking)
    publishing = start(bus.publish("order.placed"))
    await soon(blocking.started.wait())
    stranger.execute("BEGIN IMMEDIATE")
    await soon(bus.shutdown())
    event_id = await soon(publishing)
    left = rows(database)
    stranger.execute("ROLLBACK")
    second, handler = make_bus(), FlakyHandler()
    second.subscribe(handler)
    await second.start()
    await soon(second.idle())

    assert left == [("processing", 0)]
    (event,) = handler.events
    assert (event.id, event.retry_count, event.errors) == (event_id, 1, [INTERRUPTED])
    (warning,) = warnings(caplog)
    assert "1 events were still in flight" in warning
    assert "the next start recovers them" in warning


async def test_it_is_given_back_after_all_if_the_file_is_free_when_it_is_closed(
    database: Path, make_bus: MakeBus, stranger: sqlite3.Connection
) -> None:
    """With its attempts as they were: nobody has to wait for that."""
    bus, blocking = make_bus(clock=SystemClock(), shutdown_timeout=0.1), BlockingHandler()
    bus.subscribe(blocking)
    publishing = start(bus.publish("order.placed"))
    await soon(blocking.started.wait())
    stranger.execute("BEGIN IMMEDIATE")
    letting_go, logger = LetsGo(stranger), logging.getLogger("postbus")
    logger.addHandler(letting_go)
    try:
        await soon(bus.shutdown())
    finally:
        logger.removeHandler(letting_go)
    await soon(publishing)

    assert rows(database) == [("pending", 0)]


async def test_a_handler_that_shuts_down_leaves_its_own_event_to_the_next_start(
    database: Path, make_bus: MakeBus, stranger: sqlite3.Connection, caplog: pytest.LogCaptureFixture
) -> None:
    """It is among those of which the warning tells."""
    bus, is_over = make_bus(clock=SystemClock(), shutdown_timeout=0.1), asyncio.Event()

    @bus.on("order.placed")
    async def stop(_: Event) -> None:
        stranger.execute("BEGIN IMMEDIATE")
        await bus.shutdown()
        is_over.set()

    await soon(bus.publish("order.placed"))
    await soon(is_over.wait())

    assert rows(database) == [("processing", 0)]
    (warning,) = warnings(caplog)
    assert "1 events were still in flight" in warning


def rows(path: Path) -> list[tuple[object, ...]]:
    return query(path, "SELECT status, retry_count FROM events")


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
