"""A process with durable subscribers that ends at the k-th writing call of the database, for every k."""

import asyncio
import itertools
import os
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest

from postbus import EventBus
from postbus.events import SubscriberId
from tests.end_to_end.children.crash_at import CRASHED
from tests.end_to_end.children.durable_crash_at import (
    ANSWERED,
    BATCH_SIZE,
    BATCHED,
    SAGA,
    SUBSCRIBERS,
    SYNCHRONOUS,
    TRANSACTIONAL,
    catch_up,
    make_durable_bus,
)
from tests.end_to_end.database import check_batches_are_whole, check_integrity, connect
from tests.end_to_end.durable_database import (
    KILLED,
    check_acknowledged_stored,
    check_all_handled,
    check_effects_once,
    check_order,
    check_repetitions,
    dead_letters,
    numbers,
)
from tests.end_to_end.history import ACKNOWLEDGED, History
from tests.end_to_end.processes import Child

CHILD_COUNT = max(2, min(4, os.cpu_count() or 1))
# With fewer calls than this the scenario does not do what it claims to.
LEAST_CALLS = 80


@pytest.mark.timeout(180)
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_crash_at_any_write_to_the_database_costs_no_subscriber_an_event(tmp_path: Path, when: str) -> None:
    """k = 1, 2, … until the scenario completes without reaching its k-th write."""
    with ExitStack() as stack:
        children = [
            stack.enter_context(Child("durable_crash_at", folder=tmp_path)) for _ in range(CHILD_COUNT)
        ]
        workers = stack.enter_context(ThreadPoolExecutor(CHILD_COUNT))
        for first in itertools.count(1, CHILD_COUNT):
            ks = range(first, first + CHILD_COUNT)
            folders = [tmp_path / f"{when}-{k}" for k in ks]
            if not any(list(workers.map(crash_and_recover, children, folders, ks, [when] * CHILD_COUNT))):
                break

    assert first >= LEAST_CALLS


def crash_and_recover(child: Child, folder: Path, k: int, when: str) -> bool:
    """Whether there was a k-th call; whether or not, everything has to be in order afterwards."""
    folder.mkdir()
    path, history = folder / "events.db", History(folder / "history")
    child.say(f"{path} {history.path} {k} {when}")
    exit_code = int(child.hear())
    assert exit_code in (0, CRASHED), f"k = {k} {when}: {exit_code}\n{child.errors()}"
    history.note(KILLED, str(k))
    try:
        asyncio.run(recover(path, history))
        check_everything(path, history)
    except Exception as error:
        raise AssertionError(f"k = {k} {when}: {error!r}\n{history.story(numbers(path))}") from error
    finally:
        history.close()
    return exit_code == CRASHED


async def recover(path: Path, history: History) -> None:
    """Start a bus on what the crash left, and publish as if nothing had happened."""
    bus = make_durable_bus(str(path), history)
    async with asyncio.timeout(30), bus:
        history.note(ACKNOWLEDGED, await bus.publish("order.ok", stream_id="a"))
        await catch_up(bus)
        await finish_retries(bus)


async def finish_retries(bus: EventBus) -> None:
    """Until every retry that somebody asked for before the crash has had its attempt."""
    for subscriber_id in SUBSCRIBERS:
        while await bus.store.dead_letters.wanted_retries(SubscriberId(subscriber_id), 1):
            await bus.idle()


def check_everything(path: Path, history: History) -> None:
    """Nothing lost, little repeated, effects once, dead letters only where they belong."""
    check_acknowledged_stored(path, history)
    poison = numbers(path, "%.poison").keys()
    for subscriber_id in SUBSCRIBERS:
        assert dead_letters(path, subscriber_id).keys() == poison, subscriber_id
    for subscriber_id, most in ((SYNCHRONOUS, 1), (BATCHED, BATCH_SIZE)):
        handled = [event_id for what, event_id in history.lines() if what == subscriber_id]
        check_all_handled(path, history, subscriber_id, handled)
        check_order(path, history, subscriber_id, handled)
        check_repetitions(history, subscriber_id, most)
    check_effects_once(path, history, TRANSACTIONAL)
    check_answered_once(path)
    check_batches_are_whole(path)
    check_integrity(path)


def check_answered_once(path: Path) -> None:
    """The saga has published one answer to each order, and remembers just these."""
    orders = numbers(path, "order.%").keys() - numbers(path, "%.poison").keys()
    with connect(path) as connection:
        answers = connection.execute("SELECT payload ->> '$' FROM events WHERE type = ?", (ANSWERED,))
        answered = Counter(row[0] for row in answers)
        states = connection.execute(
            "SELECT value FROM postbus_states, json_each(state) WHERE store_name = ?", (SAGA,)
        )
        remembered = Counter(row[0] for row in states)
    assert answered == remembered == Counter(orders)
