"""A group of new events as one statement, which can be its own transaction."""

import functools
import sqlite3
from collections.abc import Sequence
from datetime import datetime

from postbus.events import Draft, GlobalSequence
from postbus.stores.named_queries import load_queries
from postbus.stores.sqlite.rows import draft_to_row, moment_to_text, sequences_to_json, to_json

_QUERIES = load_queries("postbus.stores.sqlite", "queries.sql")

_VALUES_PER_EVENT = 7
# To prepare a statement for each number of events would take longer than to leave some room empty.
_SMALL_STEP, _LARGE_STEP = 10, 100
# SQLite takes 32,766 values in one statement.
MOST_EVENTS = 1_000


def write_group(
    connection: sqlite3.Connection,
    last_sequence: int,
    drafts: Sequence[Draft],
    finished: Sequence[GlobalSequence],
    now: datetime,
) -> bool:
    """Store drafts with the numbers after *last_sequence*, and that other events are finished.

    False and nothing if numbers were given out by somebody else.
    """
    values: list[object] = []
    for sequence, draft in enumerate(drafts, last_sequence + 1):
        values.append(sequence)
        values += draft_to_row(draft)
    row_count = _count_rows(len(drafts))
    values += (None,) * (_VALUES_PER_EVENT * (row_count - len(drafts)))
    values.append(last_sequence)
    if not finished:
        return connection.execute(_statement("write_group", row_count), values).rowcount == len(drafts)
    values += (moment_to_text(now), sequences_to_json(finished), last_sequence)
    changed = connection.execute(_statement("write_group_and_finish", row_count), values).rowcount
    if changed in (0, len(drafts) + len(finished)):
        return changed > 0
    # Fewer: some of the finished are not in processing any more, or a trigger keeps new events out.
    return _count_stored(connection, drafts) == len(drafts)


def _count_stored(connection: sqlite3.Connection, drafts: Sequence[Draft]) -> int:
    ids = to_json([draft.id for draft in drafts])
    (count,) = connection.execute(_QUERIES["count_ids"], (ids,)).fetchone()
    return int(count)


def _count_rows(event_count: int) -> int:
    if event_count == 1:
        return 1
    step = _SMALL_STEP if event_count <= _LARGE_STEP else _LARGE_STEP
    return event_count + -event_count % step


@functools.cache
def _statement(name: str, row_count: int) -> str:
    row = f"({', '.join('?' * _VALUES_PER_EVENT)})"
    return _QUERIES[name].format(rows=", ".join([row] * row_count))
