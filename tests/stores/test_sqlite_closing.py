"""Closing a store, whatever comes in between."""

import asyncio
import contextlib
from pathlib import Path

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


def _count_open_files() -> int:
    return len(list(Path("/dev/fd").iterdir()))
