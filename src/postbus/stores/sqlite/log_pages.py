"""Reads a page of the log: the path that catching up lives on."""

import sqlite3
from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from postbus.events import Event, GlobalSequence, LogPage
from postbus.stores.named_queries import load_queries
from postbus.stores.sqlite.rows import COLUMNS, MOST_CHARACTERS, event_from_log, event_from_row

_QUERIES = load_queries("postbus.stores.sqlite", "queries.sql")
_READ_WHOLE_ROWS = _QUERIES["read_whole_rows"].format(columns=COLUMNS)
# How many events one read looks through at most: who wants few of them lets others in between.
_MOST_LOOKED_THROUGH = 5_000
_LEAST_LOOKED_THROUGH = 1_000

_decode_types = msgspec.json.Decoder(list[str]).decode


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
    limit = min(limit, _MOST_LOOKED_THROUGH)
    types: list[str] | None = None
    if is_wanted is not None:
        most = max(limit, _LEAST_LOOKED_THROUGH)
        found, count, last = connection.execute(_QUERIES["skim_log"], (after, most)).fetchone()
        types = [name for name in _decode_types(found) if is_wanted(name)]
        if count == most:
            head = last
        if not types:
            return LogPage([], max(head, after))
    wanted = None if types is None else msgspec.json.encode(types).decode()
    query = _QUERIES["read_page"]
    values: tuple[object, ...] = (after, head, limit)
    if wanted is not None:
        query, values = _QUERIES["read_page_of_types"], (after, head, wanted, limit)
    try:
        return _make_page(connection.execute(query, values), event_from_log, head, limit)
    except sqlite3.OperationalError:
        # Another program wrote something that can't be put into JSON.
        rows = connection.execute(_READ_WHOLE_ROWS, (after, head, wanted, wanted, limit))
        return _make_page(rows, event_from_row, head, limit)


def _make_page(
    rows: Iterable[tuple[Any, ...]],
    make_event: Callable[[tuple[Any, ...]], Event],
    up_to: GlobalSequence,
    limit: int,
) -> LogPage:
    events: list[Event] = []
    size = 0
    for row in rows:
        events.append(make_event(row))
        size += len(row[3])
        if size >= MOST_CHARACTERS or len(events) == limit:
            return LogPage(events, row[0])
    return LogPage(events, up_to)
