"""Whoever reads on in the backlog does not read what lies before, nor what is no longer in it."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from postbus.stores.named_queries import load_queries
from postbus.stores.sqlite import SQLiteStore
from postbus.stores.sqlite.rows import COLUMNS

_QUERIES = load_queries("postbus.stores.sqlite", "queries.sql")


@pytest.mark.parametrize("type_count", [0, 1, 500])
async def test_pending_events_are_entered_at_the_number_that_was_reached(
    tmp_path: Path, type_count: int
) -> None:
    """Also where types are left out, and in order without sorting."""
    statement = _QUERIES["read_pending"].format(columns=COLUMNS, types=", ".join("?" * type_count))
    plan = await _plan(tmp_path / "events.db", statement, (1, *["a"] * type_count, 1))

    assert plan == ["SEARCH events USING INDEX idx_events_status (status=? AND global_sequence>?)"]


async def test_they_are_counted_without_being_read(tmp_path: Path) -> None:
    """That is asked several times a second, and there may be a million."""
    plan = await _plan(tmp_path / "events.db", _QUERIES["count_pending"], (1,))

    assert plan == ["SEARCH events USING COVERING INDEX idx_events_status (status=? AND global_sequence<?)"]


async def _plan(path: Path, statement: str, values: tuple[object, ...]) -> list[str]:
    async with SQLiteStore(path):
        pass
    with closing(sqlite3.connect(path)) as connection:
        return [row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {statement}", values)]
