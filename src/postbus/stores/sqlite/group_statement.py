"""A group of new and finished events as one statement, which is its own transaction."""

import functools
import sqlite3
from collections.abc import Sequence

from postbus.events import Draft, GlobalSequence
from postbus.stores.named_queries import load_queries
from postbus.stores.sqlite.rows import draft_to_row, sequences_to_json

_QUERIES = load_queries("postbus.stores.sqlite", "queries.sql")

_EVENTS_PER_ROW = 10
_COLUMNS = ("id", "type", "payload", "status", "metadata", "created_at")
_VALUES_PER_ROW = 4 + _EVENTS_PER_ROW * len(_COLUMNS)
# Larger groups leave more room empty: to prepare a statement for each number of rows would take longer.
_SMALL_GROUP = 100
# SQLite takes 32,766 values in one statement.
MOST_EVENTS = 1_000


def prepare_groups(connection: sqlite3.Connection) -> None:
    """Make the connection ready for write_group()."""
    numbers = range(1, _EVENTS_PER_ROW + 1)
    columns = [f"NULL AS {name}_{number}" for number in numbers for name in _COLUMNS]
    rows = [
        f"SELECT {number} AS number, {', '.join(f'new.{name}_{number} AS {name}' for name in _COLUMNS)}"
        for number in numbers
    ]
    connection.execute(_QUERIES["create_group_view"].format(columns=", ".join(columns)))
    connection.execute(_QUERIES["create_group_trigger"].format(rows=" UNION ALL ".join(rows)))


def write_group(
    connection: sqlite3.Connection,
    last_sequence: int,
    drafts: Sequence[Draft],
    finished: Sequence[GlobalSequence],
    now: str,
) -> None:
    """Store drafts with the numbers after *last_sequence*, if no others were given out; mark events done."""
    values: list[object] = []
    head: tuple[object, ...] = (last_sequence, last_sequence, sequences_to_json(finished), now)
    for start in range(0, len(drafts), _EVENTS_PER_ROW):
        values += head
        for draft in drafts[start : start + _EVENTS_PER_ROW]:
            values += draft_to_row(draft)
        head = (None, last_sequence + start + _EVENTS_PER_ROW, None, None)
    step = _EVENTS_PER_ROW if len(drafts) <= _SMALL_GROUP else _SMALL_GROUP
    row_count = (len(drafts) + -len(drafts) % step) // _EVENTS_PER_ROW
    values += [None] * (row_count * _VALUES_PER_ROW - len(values))
    connection.execute(_statement(row_count), values)


@functools.cache
def _statement(row_count: int) -> str:
    row = f"({', '.join('?' * _VALUES_PER_ROW)})"
    return _QUERIES["write_group"].format(rows=", ".join([row] * row_count))
