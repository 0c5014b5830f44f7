"""Closing a store, whatever comes in between."""

import asyncio
import contextlib
import sqlite3
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from postbus.stores.sqlite import SQLiteStore
from tests.contracts.steps import add, make_draft


async def test_a_close_that_is_cancelled_leaves_no_file_open(tmp_path: Path) -> None:
    """Once it was closed after all, and whenever the cancellation came."""
    before = _count_open_files()
    for turns in range(4):
        store = SQLiteStore(tmp_path / f"{turns}.db")
        await store.open()
        await add(store, make_draft())
        closing = asyncio.ensure_future(store.close())
        for _ in range(turns):
            await asyncio.sleep(0)
        closing.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await closing
        await store.close()

    assert _count_open_files() == before


@pytest.mark.parametrize("again", [SQLiteStore.close, SQLiteStore.open])
async def test_a_close_that_is_cancelled_goes_on_and_the_next_one_waits_for_it(
    tmp_path: Path, again: Callable[[SQLiteStore], Awaitable[None]]
) -> None:
    """What still has to be written is, before anybody else may have the locks."""
    store = SQLiteStore(tmp_path / "events.db")
    await store.open()
    begun, ends = threading.Event(), threading.Event()

    def take_time(_: sqlite3.Connection) -> None:
        begun.set()
        ends.wait(30)

    assert store.dispatch_lock.try_acquire()
    writing = asyncio.ensure_future(store.write(take_time))
    await asyncio.to_thread(begun.wait, 30)
    closing = asyncio.ensure_future(store.close())
    await asyncio.wait([closing], timeout=0.05)
    closing.cancel()
    await asyncio.wait([closing])
    next_one = asyncio.ensure_future(again(store))
    await asyncio.wait([next_one], timeout=0.1)
    was_done, was_held = next_one.done(), store.dispatch_lock.is_held
    ends.set()
    await next_one
    await writing
    is_held = store.dispatch_lock.is_held
    await store.close()

    assert closing.cancelled()
    assert (was_done, was_held, is_held) == (False, True, False)


def _count_open_files() -> int:
    return len(list(Path("/dev/fd").iterdir()))
