"""Reads a page of the log: the path that catching up lives on."""

import sqlite3
from collections.abc import Callable
from typing import NamedTuple

import msgspec

from postbus.events import Event, GlobalSequence, LogPage
from postbus.stores.named_queries import load_queries
from postbus.stores.sqlite.rows import COLUMNS, MOST_CHARACTERS, event_from_row, events_from_columns

_QUERIES = load_queries("postbus.stores.sqlite", "queries.sql")
_READ_WHOLE_ROWS = _QUERIES["read_whole_rows"].format(columns=COLUMNS)
# How many numbers one read looks through: who wants few of their events lets others in between.
_MOST_LOOKED_THROUGH = 5_000
_LEAST_LOOKED_THROUGH = 1_000

_decode_types = msgspec.json.Decoder(list[str]).decode


class _Slice(NamedTuple):
    """The events whose numbers are in between, of these types (as JSON); None: of all."""

    first: int
    last: GlobalSequence
    types: str | None = None

    @property
    def values(self) -> tuple[object, ...]:
        return (self.first, self.last, self.types, self.types)


def read_head(connection: sqlite3.Connection) -> GlobalSequence:
    """The highest number that was ever used and is committed; 0 if there is none."""
    return GlobalSequence(connection.execute(_QUERIES["last_sequence"]).fetchone()[0])


def read_page(
    connection: sqlite3.Connection,
    after: GlobalSequence,
    limit: int,
    is_wanted: Callable[[str], bool] | None,
) -> LogPage:
    """At most *limit* events after a number whose type is wanted; None: all are."""
    if limit <= 0:
        return LogPage([], after)
    # Asked first: every number up to it is visible in what is read next, or was deleted.
    head = read_head(connection)
    if head <= after:
        return LogPage([], after)
    (first,) = connection.execute(_QUERIES["next_sequence"], (after,)).fetchone()
    if first is None or first > head:
        return LogPage([], head)
    count = min(limit, _MOST_LOOKED_THROUGH)
    if is_wanted is None:
        part = _Slice(first, min(head, GlobalSequence(first + count - 1)))
    else:
        last = min(head, GlobalSequence(first + max(count, _LEAST_LOOKED_THROUGH) - 1))
        (found,) = connection.execute(_QUERIES["read_types"], (first, last)).fetchone()
        types = [name for name in _decode_types(found) if is_wanted(name)]
        if not types:
            return LogPage([], last)
        part = _Slice(first, last, msgspec.json.encode(types).decode())
    try:
        return _read_at_once(connection, part, count)
    except (sqlite3.Error, ValueError, TypeError, KeyError, RecursionError):
        # Too large, or another program wrote something that only a closer look can make sense of.
        return _read_rows(connection, part, count)


def _read_at_once(connection: sqlite3.Connection, part: _Slice, limit: int) -> LogPage:
    longest = connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, MOST_CHARACTERS)
    try:
        columns = connection.execute(_QUERIES["read_page"], part.values).fetchone()
    finally:
        connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, longest)
    return _cut(events_from_columns(columns), part.last, limit)


def _read_rows(connection: sqlite3.Connection, part: _Slice, limit: int) -> LogPage:
    """Row by row, so that no more is read than fits into memory."""
    events: list[Event] = []
    size = 0
    for row in connection.execute(_READ_WHOLE_ROWS, part.values):
        events.append(event_from_row(row))
        size += len(row[3])
        if size >= MOST_CHARACTERS or len(events) == limit:
            return LogPage(events, row[0])
    return LogPage(events, part.last)


def _cut(events: list[Event], up_to: GlobalSequence, limit: int) -> LogPage:
    if len(events) <= limit:
        return LogPage(events, up_to)
    last = events[limit - 1].global_sequence
    assert last is not None, "it was read with its number"
    return LogPage(events[:limit], last)
