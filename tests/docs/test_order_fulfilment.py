"""The example of a saga runs, and goes on where it was killed."""

import asyncio
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from postbus import Event, SQLiteStore

EXAMPLE = Path(__file__).parents[2] / "examples" / "order_fulfilment.py"
# Of ten orders one is above the limit.
SUMMARY = "1 orders cancelled, 9 orders fulfilled"
TYPES = {
    "order.placed": 10,
    "payment.requested": 10,
    "payment.received": 9,
    "payment.failed": 1,
    "shipment.requested": 9,
    "shipment.sent": 9,
    "order.fulfilled": 9,
    "order.cancelled": 1,
}


def run(*arguments: object) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, str(EXAMPLE), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def journal_of(path: Path) -> list[Event]:
    async def read() -> list[Event]:
        async with SQLiteStore(path) as store:
            return await store.read_all()

    return asyncio.run(read())


def test_every_order_comes_to_an_end() -> None:
    """On a temporary file, with a line for each event and a summary."""
    ended = run()

    assert (ended.returncode, ended.stderr) == (0, "")
    *lines, summary = ended.stdout.splitlines()
    assert summary == SUMMARY
    assert Counter(line.split()[1] for line in lines) == TYPES


def test_started_again_it_finds_all_done(tmp_path: Path) -> None:
    """No order is placed twice and no event is told twice."""
    run(tmp_path / "orders.db")
    again = run(tmp_path / "orders.db")

    assert (again.returncode, again.stdout, again.stderr) == (0, f"{SUMMARY}\n", "")


@pytest.mark.parametrize("line_count", [1, 5, 12, 25, 40])
def test_killed_it_goes_on_when_it_is_started_again(tmp_path: Path, line_count: int) -> None:
    """The saga has taken every step exactly once, wherever it was."""
    path = tmp_path / "orders.db"
    with subprocess.Popen([sys.executable, str(EXAMPLE), str(path)], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        for _ in range(line_count):
            process.stdout.readline()
        process.kill()
    ended = run(path)

    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout.splitlines()[-1] == SUMMARY
    assert Counter(event.type for event in journal_of(path)) == TYPES


def test_what_the_saga_published_can_be_traced_back(tmp_path: Path) -> None:
    """From an event to its cause, and from the cause to the order."""
    path = tmp_path / "orders.db"
    run(path)
    events = {event.id: event for event in journal_of(path)}
    requested = [event for event in events.values() if event.type == "payment.requested"]

    assert [events[event.causation_id or ""].type for event in requested] == ["order.placed"] * 10
    assert [event.correlation_id for event in requested] == [event.causation_id for event in requested]
