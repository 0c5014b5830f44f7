"""Event ids: time-ordered, unique, and valid UUIDs of version 7."""

import itertools
import os
import random
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable

import pytest

from postbus import ids
from postbus.ids import new_event_id

# The clock stands still around the fork, then parent and child go on to the same millisecond:
# only what the child does of its own accord can keep their ids apart.
FORK_SCRIPT = """
import os, time
from postbus.ids import new_event_id
now = time.time_ns()
for _ in range(20):
    time.time_ns = lambda: now
    before = new_event_id()
    reader, writer = os.pipe()
    child = os.fork()
    ids = [new_event_id() for _ in range(100)]
    now += 1_000_000
    ids += [new_event_id() for _ in range(100)]
    if child == 0:
        os.write(writer, " ".join(ids).encode())
        os._exit(0)
    os.waitpid(child, 0)
    print(before, *ids)
    print(before, *os.read(reader, 100_000).decode().split())
    os.close(reader)
    os.close(writer)
"""
SEEDED_SCRIPT = """
import random
random.seed(1)
from postbus.ids import new_event_id
random.seed(1)
print(new_event_id().split("-", 2)[2])
"""


def run_python(script: str) -> list[str]:
    """The lines a script prints in a process of its own."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True
    )
    return done.stdout.splitlines()


@pytest.fixture
def set_clock(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Makes the wall clock show a moment, in milliseconds, and forgets it all after the test."""
    monkeypatch.setattr(ids, "_series", ids._Series(0))
    return lambda now: monkeypatch.setattr(time, "time_ns", lambda: now * 1_000_000)


def test_an_id_is_a_uuid_of_version_7(set_clock: Callable[[int], None]) -> None:
    """Version and variant are where RFC 9562 has them, and the text is the usual one."""
    for millisecond in range(1000):
        set_clock(millisecond)
        event_id = new_event_id()
        parsed = uuid.UUID(event_id)

        assert parsed.version == 7
        assert parsed.variant == uuid.RFC_4122
        assert str(parsed) == event_id


def test_an_id_begins_with_the_time() -> None:
    """48 bits of milliseconds, so that ids of different processes sort by time."""
    earliest = time.time_ns() // 1_000_000
    milliseconds = uuid.UUID(new_event_id()).int >> 80

    assert earliest <= milliseconds <= time.time_ns() // 1_000_000 + 1


def test_ids_strictly_increase() -> None:
    """Many in one millisecond, and from one millisecond to the next."""
    made = [new_event_id() for _ in range(100_000)]

    assert all(earlier < later for earlier, later in itertools.pairwise(made))


def test_ids_increase_when_the_clock_is_set_back(set_clock: Callable[[int], None]) -> None:
    """An hour back, and forward again: no id is less than the one before."""
    made = []
    for moment in (10**12, 10**12 - 3_600_000, 10**12 - 1, 10**12, 10**12 + 1, 0, 10**12 + 2):
        set_clock(moment)
        made += [new_event_id() for _ in range(100)]

    assert made == sorted(set(made))


def test_ids_increase_when_another_thread_is_faster(
    set_clock: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thread that read the clock earlier doesn't take the others back to its millisecond."""
    made: list[str] = []
    interruptions = iter([2000])

    class Interrupted(random.Random):
        def getrandbits(self, k: int, /) -> int:
            for later in interruptions:
                set_clock(later)
                made.append(new_event_id())
            return super().getrandbits(k)

    set_clock(1000)
    monkeypatch.setattr(ids, "_random", Interrupted())
    made.append(new_event_id())
    set_clock(1000)
    made.append(new_event_id())

    assert made == sorted(set(made))


def test_two_processes_with_the_same_seed_make_different_ids() -> None:
    """What follows the time is random, whatever the user does with random.seed."""
    assert run_python(SEEDED_SCRIPT) != run_python(SEEDED_SCRIPT)


def test_making_an_id_uses_up_none_of_the_users_random_numbers() -> None:
    """A simulation with a fixed seed stays the same when it publishes."""
    random.seed(1)
    first = random.random()
    random.seed(1)
    new_event_id()

    assert random.random() == first


def test_threads_never_get_the_same_id() -> None:
    """Each of them sees its own ids increase."""
    found: list[list[str]] = []

    def make_many() -> None:
        found.append([new_event_id() for _ in range(20_000)])

    switch_interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=make_many) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(switch_interval)

    assert len({event_id for made in found for event_id in made}) == 8 * 20_000
    assert all(made == sorted(made) for made in found)


def test_a_forked_child_makes_ids_of_its_own() -> None:
    """It shares none with its parent, and its ids go on increasing."""
    lines = [line.split() for line in run_python(FORK_SCRIPT)]

    assert len(lines) == 40
    for parents, children in zip(lines[::2], lines[1::2], strict=True):
        assert set(parents) & set(children) == {parents[0]}
        assert children == sorted(set(children))
        assert len(children) == 201
