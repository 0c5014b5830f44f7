"""Rows that another program wrote, or a mishap damaged: they stop nobody but themselves."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from postbus import EventStatus
from tests.delivery.steps import FlakyHandler, MakeBus, leave_behind, soon, statuses


def spoil(path: Path, event_id: str, column: str, value: object) -> None:
    """Overwrite one value as no bus would."""
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(f"UPDATE events SET {column} = {value} WHERE id = ?", (event_id,))


@pytest.mark.parametrize("value", ["'no JSON'", "'{}'", "'\"text\"'"])
async def test_errors_that_are_no_array_do_not_keep_the_bus_from_starting(
    database: Path, make_bus: MakeBus, value: str
) -> None:
    """The event is recovered and delivered like any other."""
    await leave_behind(database, "odd", "processing")
    spoil(database, "odd", "last_error", value)
    bus, handler = make_bus(), FlakyHandler()
    bus.subscribe(handler)
    await bus.start()
    await soon(bus.idle())

    assert (await bus.store.get("odd")).status is EventStatus.DONE


@pytest.mark.parametrize(
    "payload", ["'{no json'", f"'{'[' * 100_000}{']' * 100_000}'", "CAST(x'22ff22' AS TEXT)", "x'00ff'", "17"]
)
async def test_a_payload_that_cannot_be_read_is_a_dead_letter_and_the_next_event_is_done(
    database: Path, make_bus: MakeBus, payload: str
) -> None:
    """At once, without an attempt; unless it can be read after all."""
    await leave_behind(database, "odd", "pending")
    await leave_behind(database, "next", "pending")
    spoil(database, "odd", "payload", payload)
    bus, handler = make_bus(), FlakyHandler()
    bus.subscribe(handler)
    await bus.start()
    await soon(bus.idle())
    await bus.shutdown()

    assert statuses(database)["next"] == "done"
    assert statuses(database)["odd"] == ("done" if payload == "17" else "dlq")


async def test_a_moment_that_is_none_holds_nobody_up(database: Path, make_bus: MakeBus) -> None:
    """It is shown as the beginning of time."""
    await leave_behind(database, "odd", "pending")
    spoil(database, "odd", "created_at", "'yesterday'")
    bus, handler = make_bus(), FlakyHandler()
    bus.subscribe(handler)
    await bus.start()
    await soon(bus.idle())

    assert handler.events[0].created_at.year == 1970
