"""sqlite-event-bus, Crash Recovery: its three steps, and a process that really ends mid-dispatch."""

import asyncio
import subprocess
import sys
from pathlib import Path

from postbus import EventStatus
from postbus.delivery.interrupted import INTERRUPTED, INTERRUPTED_AMONG_OTHERS
from postbus.testing import ManualClock
from tests.delivery.steps import (
    ALWAYS,
    FlakyHandler,
    MakeBus,
    leave_behind,
    query,
    soon,
    statuses,
)

_CRASHING = """
import asyncio, os, sys
from postbus import EventBus

bus = EventBus(sys.argv[1])

@bus.on("order.*")
async def crash(event):
    os._exit(9)

asyncio.run(bus.publish("order.placed", {"order": 42}, {"source": "web"}, event_id="mid-dispatch"))
"""


async def test_1_all_events_in_processing_are_found(database: Path, make_bus: MakeBus) -> None:
    """However many, of whatever type; what is settled is left alone."""
    for number in range(3):
        await leave_behind(database, f"stuck {number}", "processing", type=f"order.{number}", payload=number)
    await leave_behind(database, "finished", "done", payload="finished")
    await leave_behind(database, "dead", "dlq", payload="dead")
    bus, handler = make_bus(), FlakyHandler()
    bus.subscribe(handler)
    await bus.start()
    await soon(bus.idle())

    assert handler.payloads == [0, 1, 2]
    assert statuses(database)["dead"] == "dlq"


async def test_2_they_are_reset_to_pending_and_count_one_more_attempt(
    database: Path, make_bus: MakeBus
) -> None:
    """Before anything is delivered; the story of its attempts says why."""
    await leave_behind(database, "first", "processing")
    await leave_behind(database, "second", "processing", retry_count=1, errors=["boom"])
    bus = make_bus()
    bus.subscribe("user.*", FlakyHandler())
    await bus.start()
    rows = query(database, "SELECT status, retry_count, json_extract(last_error, '$') FROM events")

    error = INTERRUPTED_AMONG_OTHERS
    assert rows == [("pending", 1, f'["{error}"]'), ("pending", 2, f'["boom","{error}"]')]


async def test_3_they_are_dispatched_through_the_normal_flow(
    database: Path, make_bus: MakeBus, clock: ManualClock
) -> None:
    """With retries and back-off for the attempts that are left, and a dead letter in the end."""
    await leave_behind(database, "stuck", "processing")
    bus, handler = make_bus(), FlakyHandler(ALWAYS)
    bus.subscribe(handler)
    await bus.start()
    await soon(bus.idle())
    event = await bus.store.get("stuck")

    assert [event.retry_count for event in handler.events] == [1, 2, 3]
    assert clock.sleeps == [2.0, 4.0]
    assert event.status is EventStatus.DLQ
    assert event.errors == [INTERRUPTED, *(f"ValueError: boom {number}" for number in (1, 2, 3))]


async def test_a_process_that_ends_mid_dispatch_loses_nothing(database: Path, make_bus: MakeBus) -> None:
    """The next process delivers what the handler of the last one was at."""
    child = await asyncio.to_thread(
        subprocess.run, [sys.executable, "-c", _CRASHING, str(database)], timeout=60, check=False
    )
    left_behind = statuses(database)
    bus, handler = make_bus(), FlakyHandler()
    bus.subscribe(handler)
    await bus.start()
    await soon(bus.idle())

    assert (child.returncode, left_behind) == (9, {"mid-dispatch": "processing"})
    assert [(event.payload, event.metadata, event.retry_count) for event in handler.events] == [
        ({"order": 42}, {"source": "web"}, 1)
    ]
    assert (await bus.store.get("mid-dispatch")).status is EventStatus.DONE
