"""A process that ends at the k-th call of the database, for every k: a fresh one goes on without a loss."""

import asyncio
import itertools
import os
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.end_to_end.children.crash_at import CRASHED
from tests.end_to_end.children.handlers import make_bus
from tests.end_to_end.database import (
    check_batches_are_whole,
    check_integrity,
    check_nothing_lost,
    check_nothing_stuck,
    statuses,
)
from tests.end_to_end.history import ACKNOWLEDGED, History
from tests.end_to_end.processes import Child

CHILD_COUNT = max(2, min(4, os.cpu_count() or 1))
# With fewer calls than this the scenario does not do what it claims to.
LEAST_CALLS = 40


@pytest.mark.timeout(180)
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_crash_at_any_call_of_the_database_loses_nothing(tmp_path: Path, when: str) -> None:
    """k = 1, 2, … until the scenario completes without reaching its k-th call."""
    with ExitStack() as stack:
        children = [stack.enter_context(Child("crash_at", folder=tmp_path)) for _ in range(CHILD_COUNT)]
        workers = stack.enter_context(ThreadPoolExecutor(CHILD_COUNT))
        for first in itertools.count(1, CHILD_COUNT):
            ks = range(first, first + CHILD_COUNT)
            folders = [tmp_path / f"{when}-{k}" for k in ks]
            if not all(list(workers.map(crash_and_recover, children, folders, ks, [when] * CHILD_COUNT))):
                break

    assert first >= LEAST_CALLS


def crash_and_recover(child: Child, folder: Path, k: int, when: str) -> bool:
    """Whether there was a k-th call; whether or not, everything has to be in order afterwards."""
    folder.mkdir()
    path, history = folder / "events.db", History(folder / "history")
    child.say(f"{path} {history.path} {k} {when}")
    exit_code = int(child.hear())
    assert exit_code in (0, CRASHED), f"k = {k} {when}: {exit_code}\n{child.errors()}"
    try:
        asyncio.run(recover(path, history))
        check_nothing_lost(path, history, history.acknowledged())
        check_nothing_stuck(path, history)
        check_batches_are_whole(path)
        check_integrity(path)
    except Exception as error:
        raise AssertionError(f"k = {k} {when}: {error!r}\n{history.story(history.acknowledged())}") from error
    finally:
        history.close()
    return exit_code == CRASHED


async def recover(path: Path, history: History) -> None:
    """Start a bus on what the crash left, and publish as if nothing had happened."""
    async with asyncio.timeout(30), make_bus(str(path), history) as bus:
        event_id = await bus.publish("ok.afterwards")
        history.note(ACKNOWLEDGED, event_id)
        await bus.idle()
    assert statuses(path)[event_id] == "done"
