"""Reads a page of the log: the path that catching up lives on."""

from collections.abc import Sequence

import asyncpg

from postbus.events import Gap, GlobalSequence, LogPage, LogPosition
from postbus.ports import WantedTypes
from postbus.stores.postgres.database import Database
from postbus.stores.postgres.pool import Connection
from postbus.stores.postgres.query_parts import fill_parts
from postbus.stores.postgres.rows import events_from_rows
from postbus.stores.postgres.type_conditions import type_condition

# As many as read_page has room for.
_MOST_EVENTS = 1000
LARGEST_NUMBER = 2**63 - 1


class LogPages:
    """Every page is read by one statement, so that it shows one moment."""

    def __init__(self, database: Database) -> None:
        blocks = database.queries("log.sql")
        whole = fill_parts(blocks, and_wanted="", and_in_slice="")
        self._read_page, self._read_page_and_gaps = whole["read_page"], whole["read_page_and_gaps"]
        self._read_wanted_page = fill_parts(blocks)["read_wanted_page"]
        self._head = 0
        self._sized: dict[tuple[str, int], str] = {}

    async def read(
        self, connection: Connection, after: LogPosition, limit: int, wanted: WantedTypes | None
    ) -> tuple[LogPage, GlobalSequence]:
        """The events in the open gaps and at most *limit* after the head, and how far the log goes."""
        # A number beyond all numbers is as good as the last one.
        place = (min(after.head, LARGEST_NUMBER), max(0, min(limit, _MOST_EVENTS)))
        if wanted is not None:
            condition = type_condition(wanted)
            query = self._fit(self._read_wanted_page)
            rows = await connection.fetch(query, *place, *_bounds(after.open), *condition)
            page = _wanted_page(rows, after)
        elif after.open:
            query = self._fit(self._read_page_and_gaps)
            rows = await connection.fetch(query, *place, *_bounds(after.open))
            page = _page(rows, after)
        else:
            rows = await connection.fetch(self._fit(self._read_page), *place)
            page = _page(rows, after)
        self._head = rows[0][0]
        return page, GlobalSequence(self._head)

    def _fit(self, query: str) -> str:
        """The same statement in other words whenever the log has doubled.

        A prepared statement may keep the plan that was good when the log was empty: read all, and sort it.
        """
        doublings = self._head.bit_length()
        sized = self._sized.get((query, doublings))
        if sized is None:
            sized = self._sized[query, doublings] = f"{query} /* less than 2^{doublings} events */"
        return sized


def _page(rows: Sequence[asyncpg.Record], after: LogPosition) -> LogPage:
    facts, found = rows[0], rows[1:]
    events, server = events_from_rows(found), facts[2]
    if not found or found[-1][0] <= after.head:
        return LogPage(events, after.head, server=server, is_cut=facts[5] == "true")
    up_to = found[-1][0]
    # Mostly there is no gap, and that is seen at a glance.
    new = found if not after.open else [row for row in found if row[0] > after.head]
    missing = () if up_to - after.head == len(new) else _skipped(new, after.head)
    return LogPage(events, up_to, missing, server)


def _skipped(rows: Sequence[asyncpg.Record], head: int) -> tuple[Gap, ...]:
    gaps = []
    for row in rows:
        if row[0] > head + 1:
            gaps.append(Gap(head + 1, row[0] - 1))
        head = row[0]
    return tuple(gaps)


def _wanted_page(rows: Sequence[asyncpg.Record], after: LogPosition) -> LogPage:
    facts, start = rows[0], 1
    while start < len(rows) and rows[start][1] is None:
        start += 1
    found = rows[start:]
    events, server = events_from_rows(found), facts[2]
    if facts[5] == "true":
        return LogPage(events, after.head, server=server, is_cut=True)
    new_count = sum(row[0] > after.head for row in found)
    looked_up_to = after.head if facts[7] is None else int(facts[7])
    # Where a page is full, nothing is known of what comes after its last event.
    is_full = new_count >= facts[6]
    last = found[-1][0] if new_count else after.head
    up_to = GlobalSequence(last if is_full else looked_up_to)
    missing = tuple(Gap(row[0], row[6]) for row in rows[1:start] if row[0] <= up_to)
    return LogPage(events, up_to, missing, server)


def _bounds(gaps: Sequence[Gap]) -> tuple[list[int], list[int]]:
    return [gap.first for gap in gaps], [gap.last for gap in gaps]
