"""Closing a store, whatever comes in between."""

import asyncio
import contextlib
import sqlite3
import threading
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from postbus.errors import StoreBusyError
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


async def test_a_close_waits_only_once_for_whoever_holds_the_file(tmp_path: Path) -> None:
    """Not with each commit that is still to come: there is one more after the last job."""
    durations = []
    for count in range(3):
        path = tmp_path / f"{count}.db"
        store = SQLiteStore(path)
        await store.open()
        with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as stranger:
            stranger.execute("BEGIN IMMEDIATE")
            writing = asyncio.ensure_future(store.write(_nothing))
            await asyncio.sleep(0)
            began_at = time.monotonic()
            await store.close()
            durations.append(time.monotonic() - began_at)
        with pytest.raises(StoreBusyError):
            await writing

    # A second is SQLite's own patience.
    assert min(durations) < 1.7


def _nothing(_: sqlite3.Connection) -> None:
    """Write nothing, within a transaction."""


def _count_open_files() -> int:
    return len(list(Path("/dev/fd").iterdir()))
