"""A handler that never ends: the others go on, and the program ends when it is told to."""

import asyncio
from pathlib import Path

import pytest

from tests.end_to_end.children.handlers import make_bus
from tests.end_to_end.children.hang import HANGING_COUNT, KINDS, OTHERS_COUNT, SHUTDOWN_TIMEOUT
from tests.end_to_end.database import check_integrity, statuses
from tests.end_to_end.history import History
from tests.end_to_end.processes import Child

# A second for handlers to end that were cut off, and patience with a loaded machine.
GRACE = SHUTDOWN_TIMEOUT + 1.0 + 3.0


@pytest.mark.parametrize("kind", KINDS)
def test_the_others_go_on_and_the_hanging_time_out(
    path: Path, history: History, tmp_path: Path, kind: str
) -> None:
    """Even with more of them than there are threads; each becomes a dead letter."""
    with Child("hang", path, history.path, kind, 0.5, folder=tmp_path) as child:
        others = float(child.hear().removeprefix("others "))
        child.expect("handed over")
        seconds = float(child.hear().removeprefix("shut down "))

        assert child.wait(timeout=GRACE) == 0, child.errors()
    assert others < 5.0
    assert seconds < GRACE
    found = sorted(statuses(path).values())
    assert found == ["dlq"] * (HANGING_COUNT + 1) + ["done"] * (2 * OTHERS_COUNT + 1)
    check_integrity(path)


@pytest.mark.parametrize("kind", KINDS)
def test_a_shutdown_waits_no_longer_than_its_grace(
    path: Path, history: History, tmp_path: Path, kind: str
) -> None:
    """What hangs is put back to pending, no attempt counted; a later bus delivers it."""
    with Child("hang", path, history.path, kind, 3600, folder=tmp_path) as child:
        others = float(child.hear().removeprefix("others "))
        seconds = float(child.hear().removeprefix("shut down "))

        assert child.wait(timeout=GRACE) == 0, child.errors()
    assert others < 5.0
    assert SHUTDOWN_TIMEOUT <= seconds < GRACE
    found = statuses(path)
    assert {found[event_id] for event_id in history.acknowledged()} == {"done"}
    assert sorted(found.values()).count("pending") == HANGING_COUNT
    assert asyncio.run(deliver(path, history)) == [0] * HANGING_COUNT
    assert set(statuses(path).values()) == {"done"}
    check_integrity(path)


async def deliver(path: Path, history: History) -> list[int]:
    """Deliver what is pending; how often each had been tried before."""
    retry_counts: list[int] = []
    bus = make_bus(str(path), history)
    bus.subscribe("hang.*", lambda event: retry_counts.append(event.retry_count))
    async with bus:
        await bus.idle()
    return retry_counts
