"""sqlite-event-bus, Error Handling: every row of its table."""

import asyncio
import sqlite3
import threading
from contextlib import closing
from pathlib import Path

import pytest

from postbus import (
    Event,
    EventBusShutdownError,
    EventStatus,
    InvalidPayloadError,
    RetryPolicy,
    SQLiteStore,
)
from postbus.testing import ManualClock
from tests.delivery.steps import (
    ALWAYS,
    BlockingHandler,
    FlakyHandler,
    MakeBus,
    query,
    soon,
    start,
    statuses,
)


async def test_handler_throws(make_bus: MakeBus) -> None:
    """Retried as the policy says, then a dead letter; publish itself does not raise."""
    bus, handler = make_bus(retry=RetryPolicy(max_retries=2)), FlakyHandler(ALWAYS)
    bus.subscribe(handler)
    event_id = await bus.publish("order.placed")

    assert len(handler.events) == 3
    assert (await bus.store.get(event_id)).status is EventStatus.DLQ


async def test_handler_timeout(make_bus: MakeBus) -> None:
    """A failure like any other: retried, and the error says what happened."""
    clock = ManualClock()
    bus = make_bus(clock=clock, handler_timeout=30.0)
    slow, quick = BlockingHandler(), FlakyHandler()

    @bus.on("order.*")
    async def slow_at_first(event: Event) -> None:
        await (quick(event) if event.retry_count else slow(event))

    publishing = start(bus.publish("order.placed"))
    await soon(slow.started.wait())
    await clock.advance(30)
    await soon(clock.wait_for_sleepers(1))
    await clock.advance(1)
    event = await bus.store.get(await soon(publishing))

    assert (slow.was_cancelled, len(quick.events)) == (True, 1)
    assert (event.status, event.retry_count) == (EventStatus.DONE, 1)
    assert event.errors == ["TimeoutError: handler took longer than 30 s and was cancelled"]


async def test_handler_timeout_leaves_a_thread_running(make_bus: MakeBus) -> None:
    """A plain function can't be cancelled: its attempt has failed, and it goes on in the background."""
    clock = ManualClock()
    bus = make_bus(clock=clock, handler_timeout=30.0, retry=RetryPolicy(max_retries=0))
    started, released, ended = threading.Event(), threading.Event(), threading.Event()

    @bus.on("order.*")
    def slow(_: object) -> None:
        started.set()
        released.wait(10)
        ended.set()

    publishing = start(bus.publish("order.placed"))
    await asyncio.to_thread(started.wait, 10)
    await clock.advance(30)
    event = await bus.store.get(await soon(publishing))
    was_running = not ended.is_set()
    released.set()

    assert event.status is EventStatus.DLQ
    assert was_running
    assert await asyncio.to_thread(ended.wait, 10)


async def test_sqlite_lock(database: Path, make_bus: MakeBus) -> None:
    """Whoever holds the database is waited for, with pauses, also when SQLite itself does not wait."""
    bus = make_bus()
    await bus.start()
    assert isinstance(bus.store, SQLiteStore)
    await bus.store.write(lambda connection: connection.execute("PRAGMA busy_timeout = 0").fetchone())
    with closing(sqlite3.connect(database, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        publishing = start(bus.publish("order.placed", event_id="patient"))
        await asyncio.wait([publishing], timeout=0.1)
        was_done = publishing.done()
        other.execute("COMMIT")
    await soon(publishing)

    assert not was_done
    assert statuses(database) == {"patient": "done"}


async def test_invalid_payload(database: Path, make_bus: MakeBus) -> None:
    """What is not JSON is refused before anything is stored, with the place where it is."""
    bus, handler = make_bus(), FlakyHandler()
    bus.subscribe(handler)
    with pytest.raises(InvalidPayloadError, match=r'payload\["when"\] is of type object'):
        await bus.publish("order.placed", {"when": object()})

    assert query(database, "SELECT * FROM events") == []
    assert handler.events == []


async def test_subscribe_after_shutdown(make_bus: MakeBus) -> None:
    """Refused, by call and by decorator."""
    bus = make_bus()
    await bus.shutdown()

    with pytest.raises(EventBusShutdownError, match="subscribe"):
        bus.subscribe("order.*", FlakyHandler())
    with pytest.raises(EventBusShutdownError, match="subscribe"):
        bus.on("order.*")(FlakyHandler())


async def test_publish_after_shutdown(database: Path, make_bus: MakeBus) -> None:
    """Refused, and nothing is stored."""
    bus = make_bus()
    await bus.publish("order.placed", event_id="before")
    await bus.shutdown()
    with pytest.raises(EventBusShutdownError, match="publish"):
        await bus.publish("order.placed", event_id="after")

    assert list(statuses(database)) == ["before"]


async def test_a_publisher_that_waits_for_a_slow_handler_is_let_go_by_the_shutdown(make_bus: MakeBus) -> None:
    """It has its id, as the event is stored, and does not wait for ever."""
    clock = ManualClock()
    bus = make_bus(clock=clock, shutdown_timeout=5.0)
    bus.subscribe(handler := BlockingHandler())
    publishing = start(bus.publish("order.placed", event_id="stored"))
    await soon(handler.started.wait())
    stopping = start(bus.shutdown())
    await clock.advance(5)
    await soon(stopping)

    assert await soon(publishing) == "stored"
