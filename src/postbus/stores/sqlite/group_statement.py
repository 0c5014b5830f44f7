"""A group of new events as one statement, which can be its own transaction."""

import functools
import sqlite3
from collections.abc import Sequence
from typing import NamedTuple

from postbus.events import Draft
from postbus.stores.named_queries import load_queries
from postbus.stores.sqlite.rows import moments_to_text, to_json

_QUERIES = load_queries("postbus.stores.sqlite", "queries.sql")

_VALUES_PER_EVENT = 7
# In the place of None, for which the driver asks around ten times as long; no event has a number there.
_NONE = 0
# To prepare a statement for each number of events would take longer than to leave some room empty.
_SMALL_STEP, _LARGE_STEP = 10, 100
# SQLite takes 32,766 values in one statement.
MOST_EVENTS = 1_000


class Finished(NamedTuple):
    """Events that are to be marked done: all from the first number to the last."""

    first: int
    last: int
    now: str


def write_group(
    connection: sqlite3.Connection,
    last_sequence: int,
    drafts: Sequence[Draft],
    finished: Finished | None = None,
) -> int:
    """Store drafts with the numbers after *last_sequence*; how many: none if others were given out.

    More than that if finished events were marked as well, which is not done where others have triggers.
    """
    values: list[object] = []
    # All in place: the event loop stands still meanwhile.
    moments = moments_to_text([draft.created_at for draft in drafts])
    for sequence, (draft, moment) in enumerate(zip(drafts, moments, strict=True), last_sequence + 1):
        metadata, status = draft.metadata, draft.status
        values += (
            sequence, draft.id, draft.type, draft.payload_json.decode(),
            _NONE if status is None else status._value_,
            _NONE if metadata is None else to_json(metadata), moment
        )  # fmt: skip
    statement, room = _statement_for(len(drafts), finished is not None)
    values += room
    values.append(last_sequence)
    if finished is not None:
        values += (finished.now, finished.first, finished.last, last_sequence)
    return connection.execute(statement, values).rowcount


@functools.cache
def _statement_for(event_count: int, with_finished: bool) -> tuple[str, Sequence[int]]:
    """The statement for so many events, and the values of the room that they leave empty."""
    step = 1 if event_count == 1 else _SMALL_STEP if event_count <= _LARGE_STEP else _LARGE_STEP
    empty_count = -event_count % step
    return _statement(event_count + empty_count, with_finished), (_NONE,) * (_VALUES_PER_EVENT * empty_count)


@functools.cache
def _statement(row_count: int, with_finished: bool) -> str:
    row = f"({', '.join('?' * _VALUES_PER_EVENT)})"
    finished = _QUERIES["finish_beside"].removesuffix(";") if with_finished else ""
    return _QUERIES["write_group"].format(rows=", ".join([row] * row_count), finished=finished)
