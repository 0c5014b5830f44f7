"""Reads a page of the log: the path that catching up lives on."""

import asyncio
from collections.abc import Sequence
from typing import Any

import asyncpg

from postbus.events import Event, Gap, GlobalSequence, LogPage, LogPosition
from postbus.late_events import LateEvents
from postbus.ports import WantedEvents
from postbus.stores.postgres.database import Database
from postbus.stores.postgres.page_size import PageSize
from postbus.stores.postgres.pool import Connection
from postbus.stores.postgres.query_parts import fill_parts
from postbus.stores.postgres.rows import events_from_rows
from postbus.stores.postgres.translation import DRIVER_ERRORS
from postbus.stores.postgres.type_conditions import part_condition, type_condition

LARGEST_NUMBER = 2**63 - 1
# A page of more text than this is decoded in slices of about the other size, between which others run.
_MUCH_TEXT = 1024 * 1024
_SLICE_OF_TEXT = 256 * 1024


class LogPages:
    """Every page is read by one statement, so that it shows one moment."""

    def __init__(self, database: Database) -> None:
        blocks = database.queries("log.sql")
        whole = fill_parts(blocks, and_wanted="", and_in_slice="")
        self._read_page, self._read_page_and_gaps = whole["read_page"], whole["read_page_and_gaps"]
        self._read_wanted_page = fill_parts(blocks)["read_wanted_page"]
        in_part = fill_parts(blocks, and_wanted=blocks["and_wanted_in_part"])
        self._read_page_of_part = in_part["read_wanted_page"]
        self._read_last_drawn = whole["read_last_drawn"]
        self._size = PageSize()
        self._head = 0
        self._sized: dict[tuple[str, int], str] = {}

    async def read(
        self, connection: Connection, after: LogPosition, limit: int, wanted: WantedEvents | None
    ) -> tuple[LogPage, GlobalSequence]:
        """The events in the open gaps and at most *limit* after the head, and how far the log goes."""
        try:
            rows = await self._fetch(connection, after, limit, wanted)
        except DRIVER_ERRORS as error:
            self._size.note_failure(error)
            raise
        facts = rows[0]
        self._head = facts[0]
        is_beyond = self._head < after.head and after.head > await connection.fetchval(self._read_last_drawn)
        if wanted is None:
            page = _page(facts, rows[1:], await decode_page(rows[1:]), after, is_beyond)
        else:
            start = 1
            while start < len(rows) and rows[start][1] is None:
                start += 1
            found = rows[start:]
            page = _wanted_page(facts, rows[1:start], found, await decode_page(found), after, is_beyond)
        if page.is_cut or 0 < facts[6] <= len(page.events):
            self._size.note_full()
        return page, GlobalSequence(self._head)

    async def _fetch(
        self, connection: Connection, after: LogPosition, limit: int, wanted: WantedEvents | None
    ) -> list[asyncpg.Record]:
        # A number beyond all numbers is as good as the last one.
        place = (min(after.head, LARGEST_NUMBER), *self._size.fit(limit))
        if wanted is not None and wanted.part is not None:
            query, of_part = self._fit(self._read_page_of_part), part_condition(wanted, wanted.part)
            return await connection.fetch(query, *place, *_bounds(after.open), *of_part)
        if wanted is not None:
            query, condition = self._fit(self._read_wanted_page), type_condition(wanted)
            return await connection.fetch(query, *place, *_bounds(after.open), *condition)
        if after.open:
            query = self._fit(self._read_page_and_gaps)
            return await connection.fetch(query, *place, *_bounds(after.open))
        return await connection.fetch(self._fit(self._read_page), *place)

    def _fit(self, query: str) -> str:
        """The same statement in other words whenever the log has doubled.

        A prepared statement may keep the plan that was good when the log was empty: read all, and sort it.
        """
        doublings = self._head.bit_length()
        sized = self._sized.get((query, doublings))
        if sized is None:
            sized = self._sized[query, doublings] = f"{query} /* less than 2^{doublings} events */"
        return sized


async def decode_page(rows: Sequence[asyncpg.Record | tuple[Any, ...]]) -> Sequence[Event]:
    """Their events; the event loop is not held up for long by large ones."""
    if sum([len(row[3] or "") for row in rows]) <= _MUCH_TEXT:
        return LateEvents(rows, events_from_rows, {row[2] for row in rows})
    events: list[Event] = []
    start = size = 0
    for end, row in enumerate(rows, 1):
        size += len(row[3] or "")
        if size >= _SLICE_OF_TEXT or end == len(rows):
            events += events_from_rows(rows[start:end])
            start, size = end, 0
            await asyncio.sleep(0)
    return events


def _page(
    facts: asyncpg.Record,
    found: Sequence[asyncpg.Record],
    events: Sequence[Event],
    after: LogPosition,
    is_beyond: bool,
) -> LogPage:
    server, retries = facts[2], facts[3] == "true"
    if not found or found[-1][0] <= after.head:
        return LogPage(
            events,
            after.head,
            server=server,
            is_cut=facts[5] == "true",
            is_beyond=is_beyond,
            may_have_retries=retries,
        )
    up_to = found[-1][0]
    # Mostly there is no gap, and that is seen at a glance.
    new = found if not after.open else [row for row in found if row[0] > after.head]
    missing = () if up_to - after.head == len(new) else _skipped(new, after.head)
    return LogPage(events, up_to, missing, server, may_have_retries=retries)


def _skipped(rows: Sequence[asyncpg.Record], head: int) -> tuple[Gap, ...]:
    gaps = []
    for row in rows:
        if row[0] > head + 1:
            gaps.append(Gap(head + 1, row[0] - 1))
        head = row[0]
    return tuple(gaps)


def _wanted_page(
    facts: asyncpg.Record,
    gaps: Sequence[asyncpg.Record],
    found: Sequence[asyncpg.Record],
    events: Sequence[Event],
    after: LogPosition,
    is_beyond: bool,
) -> LogPage:
    server, retries = facts[2], facts[3] == "true"
    if facts[5] == "true":
        return LogPage(
            events, after.head, server=server, is_cut=True, is_beyond=is_beyond, may_have_retries=retries
        )
    new_count = sum(row[0] > after.head for row in found)
    looked_up_to = after.head if facts[7] is None else int(facts[7])
    # Where a page is full, nothing is known of what comes after its last event.
    is_full = new_count >= facts[6]
    last = found[-1][0] if new_count else after.head
    up_to = GlobalSequence(last if is_full else looked_up_to)
    missing = tuple(Gap(row[0], row[6]) for row in gaps if row[0] <= up_to)
    return LogPage(events, up_to, missing, server, is_beyond=is_beyond, may_have_retries=retries)


def _bounds(gaps: Sequence[Gap]) -> tuple[list[int], list[int]]:
    return [gap.first for gap in gaps], [gap.last for gap in gaps]
