"""Reads a page of the log in one statement.

Row by row the reading thread would ask for the GIL with every event, while the event loop is busy
with those before. As one JSON text the page is put together without the GIL, and read in one go.
"""

import sqlite3
from collections.abc import Callable

import msgspec

from postbus.events import Event, GlobalSequence, LogPage
from postbus.stores.named_queries import load_queries
from postbus.stores.sqlite.rows import COLUMNS, MOST_CHARACTERS, event_from_row

_QUERIES = load_queries("postbus.stores.sqlite", "queries.sql")
_READ_LOG = _QUERIES["read_log"].format(columns=COLUMNS)
# How many events one read looks through at most: who wants few of them lets others in between.
_MOST_LOOKED_THROUGH = 5_000
_LEAST_LOOKED_THROUGH = 1_000

_decode = msgspec.json.Decoder(list[Event]).decode
_decode_types = msgspec.json.Decoder(list[str]).decode


def read_head(connection: sqlite3.Connection) -> GlobalSequence:
    """The highest number that was ever used and is committed; 0 if there is none."""
    return GlobalSequence(connection.execute(_QUERIES["last_sequence"]).fetchone()[0])


def read_page(
    connection: sqlite3.Connection, after: GlobalSequence, limit: int, is_wanted: Callable[[str], bool] | None
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
    try:
        return _read_at_once(connection, after, head, limit, types)
    except (sqlite3.DataError, sqlite3.OperationalError, msgspec.MsgspecError, UnicodeError, RecursionError):
        # Too large for one text, or another program wrote something that only row by row can be told from.
        return _read_row_by_row(connection, after, head, limit, types)


def _read_at_once(
    connection: sqlite3.Connection,
    after: GlobalSequence,
    up_to: GlobalSequence,
    limit: int,
    types: list[str] | None,
) -> LogPage:
    values: tuple[object, ...] = (after, up_to, limit)
    query = _QUERIES["read_page"]
    if types is not None:
        query, values = _QUERIES["read_page_of_types"], (after, up_to, _as_json(types), limit)
    longest = connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, MOST_CHARACTERS)
    try:
        text, count, last = connection.execute(query, values).fetchone()
    finally:
        connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, longest)
    events = _decode(text) if count else []
    return LogPage(events, GlobalSequence(last) if count == limit else up_to)


def _read_row_by_row(
    connection: sqlite3.Connection,
    after: GlobalSequence,
    up_to: GlobalSequence,
    limit: int,
    types: list[str] | None,
) -> LogPage:
    events: list[Event] = []
    size, last = 0, after
    for row in connection.execute(_READ_LOG, (after, up_to)):
        size += len(row[3])
        last = row[0]
        if types is None or row[2] in types:
            events.append(event_from_row(row))
        if len(events) == limit or size >= MOST_CHARACTERS:
            return LogPage(events, last)
    return LogPage(events, up_to)


def _as_json(types: list[str]) -> str:
    return msgspec.json.encode(types).decode()
