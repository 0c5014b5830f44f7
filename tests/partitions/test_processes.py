"""Waiting for processes ends, whether they go on or not."""

import pytest

from tests.partitions.processes import until_done


async def test_processes_that_do_nothing_any_more_are_not_waited_for() -> None:
    """The failure names what is missing."""
    with pytest.raises(AssertionError, match=r"0 events are done and 2 are not: \[7, 8\]"):
        await until_done([], [8, 7], stalls_after=0.01)


async def test_nothing_is_waited_for_if_nothing_is_missing() -> None:
    assert await until_done([], []) == []
