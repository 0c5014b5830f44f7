"""Processes that end in the middle of a handler, again and again: the guilty event is buried, no other."""

import asyncio
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from postbus.delivery.interrupted import INTERRUPTED
from tests.delivery.steps import query

# Publishes once, on the first run only, and ends itself in the handler of "order.poison".
_CHILD = """
import asyncio, os, sys
from postbus import EventBus, RetryPolicy
from postbus.testing import ManualClock

path, how, max_retries, is_first = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4] == "first"
clock = ManualClock(auto_advance=True)
bus = EventBus(path, clock=clock, retry=RetryPolicy(max_retries=max_retries, base_delay=0.0))

# Published one by one, they are in flight together only if they wait for each other.
beside = [] if how == "at once" and is_first else None

async def stay_in_flight(event):
    if beside is not None:
        beside.append(event)
        await asyncio.Event().wait()

@bus.on("order.*")
async def handle(event):
    if event.type == "order.poison":
        while beside is not None and len(beside) < 3:
            await asyncio.sleep(0)
        os._exit(9)
    await stay_in_flight(event)

@bus.on("flaky.*")
async def fail_until_the_last(event):
    await stay_in_flight(event)
    if event.retry_count < max_retries:
        raise ValueError("flaky")

async def main():
    if is_first:
        types = ["order.before", "order.poison", "order.behind", "flaky.one"]
        if how == "together":
            await bus.publish_many([(type, None) for type in types])
        elif how == "at once":
            await asyncio.gather(*(bus.publish(type) for type in types))
        else:
            await bus.publish_many([(type, None) for type in types], wait=False)
    await bus.start()
    await bus.idle()
    await bus.shutdown()

asyncio.run(main())
"""


class Outcome(NamedTuple):
    """What is left after as many runs as it took."""

    crash_count: int
    statuses: dict[str, str]
    poison_errors: str


async def run_until_it_survives(path: Path, how: str, max_retries: int) -> Outcome:
    """Start the child until it ends by itself."""
    for crash_count in range(20):
        arguments = [str(path), how, str(max_retries), "again" if crash_count else "first"]
        child = await asyncio.to_thread(
            subprocess.run, [sys.executable, "-c", _CHILD, *arguments], check=False, timeout=60
        )
        if child.returncode != 9:
            assert child.returncode == 0
            break
    statuses = dict(query(path, "SELECT type, status FROM events"))
    [(errors,)] = query(path, "SELECT last_error FROM events WHERE type = 'order.poison'")
    return Outcome(crash_count, statuses, errors)


@pytest.mark.parametrize("how", ["in the background", "together", "at once"])
async def test_the_guilty_event_is_buried_and_no_other(database: Path, how: str) -> None:
    """Three attempts that each end the process, then a dead letter; those in flight beside it are done."""
    outcome = await run_until_it_survives(database, how, max_retries=2)

    assert outcome.statuses == {
        "order.before": "done",
        "order.poison": "dlq",
        "order.behind": "done",
        "flaky.one": "done",
    }
    assert outcome.crash_count == 3
    assert outcome.poison_errors.count(INTERRUPTED) == 3


@pytest.mark.parametrize(("how", "crash_count"), [("in the background", 1), ("together", 2), ("at once", 2)])
async def test_events_that_had_not_begun_are_not_buried_with_it(
    database: Path, how: str, crash_count: int
) -> None:
    """Without any retries one crash that is the guilty one's for certain buries it, and nothing else.

    Where several were under way nobody knows which it was: each has one more attempt, alone.
    """
    outcome = await run_until_it_survives(database, how, max_retries=0)

    assert outcome.statuses == {
        "order.before": "done",
        "order.poison": "dlq",
        "order.behind": "done",
        "flaky.one": "done",
    }
    assert outcome.crash_count == crash_count
