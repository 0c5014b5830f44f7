"""Reads a page of the log: the path that catching up lives on."""

import asyncio
import math
from bisect import bisect_right
from collections.abc import Sequence
from functools import partial
from itertools import chain
from typing import NamedTuple

import asyncpg

from postbus.events import Event, Gap, GlobalSequence, LogPage, LogPosition
from postbus.late_events import LateEvents
from postbus.ports import WantedEvents
from postbus.storable import LARGEST_NUMBER
from postbus.stores.postgres.database import Database
from postbus.stores.postgres.number_lists import to_literal
from postbus.stores.postgres.page_columns import (
    PageColumns,
    decode_numbers,
    decode_pieces,
    join_numbers,
    page_columns,
)
from postbus.stores.postgres.page_size import PageSize
from postbus.stores.postgres.pool import Connection
from postbus.stores.postgres.query_parts import fill_parts
from postbus.stores.postgres.rows import Columns, event_from_row, join_columns
from postbus.stores.postgres.translation import DRIVER_ERRORS
from postbus.stores.postgres.type_conditions import part_condition, type_condition

# A page of more text than this is decoded in slices of about the other size, between which others run.
_MUCH_TEXT = 1024 * 1024
_SLICE_OF_TEXT = 256 * 1024
# One event is found soon enough with a plan for a log of a quarter of the size: a new plan takes longer.
_DOUBLINGS_OF_NEXT = 2
# Where among the columns of read_next it is told whether there are retries.
_HAS_RETRIES = 8


class _Facts(NamedTuple):
    """What every page tells besides its events."""

    head: GlobalSequence
    server: str
    may_have_retries: bool
    # There are more events in the open gaps than fit, and nothing comes after them.
    is_cut: bool
    # How many events after the position fit.
    room: int
    # Only where not all events are wanted: the last number looked at, and those that are missing up to it, as
    # JSON.
    looked_up_to: GlobalSequence | None
    gap_firsts: str | None
    gap_lasts: str | None


_FACT_COUNT = len(_Facts._fields)


class LogPages:
    """Every page is read by one statement, so that it shows one moment."""

    def __init__(self, database: Database) -> None:
        self._database = database
        blocks = database.queries("log.sql")
        whole = fill_parts(blocks, and_wanted="", and_in_slice="")
        self._read_page, self._read_page_and_gaps = whole["read_page"], whole["read_page_and_gaps"]
        self._read_page_beside_gaps = whole["read_page_beside_gaps"]
        self._read_next = whole["read_next"]
        self._read_wanted_page = fill_parts(blocks)["read_wanted_page"]
        in_part = fill_parts(blocks, and_wanted=blocks["and_wanted_in_part"])
        self._read_page_of_part = in_part["read_wanted_page"]
        self._read_last_drawn = whole["read_last_drawn"]
        self._size = PageSize()
        self._head = 0
        # Whether the last whole page had no more than one event.
        self._come_singly = False
        # Whether nothing had appeared in the open gaps when somebody looked last.
        self._are_gaps_quiet = False
        self._sized: dict[tuple[str, int], str] = {}

    async def read_next(
        self, after: LogPosition, limit: int, wanted: WantedEvents | None
    ) -> tuple[LogPage, GlobalSequence] | None:
        """A page of the one event that comes next, and how far the log goes; None: only read() can tell."""
        if not self._come_singly or after.head < self._head or wanted is not None or after.open or limit <= 0:
            return None
        query = self._fit(self._read_next, _DOUBLINGS_OF_NEXT)
        rows = await self._database.fetch(query, min(after.head, LARGEST_NUMBER))
        # What to think of numbers that are missing, a page tells.
        if not rows or rows[0][0] != after.head + 1:
            return None
        self._head = rows[-1][0]
        event = event_from_row(rows[0])
        page = LogPage([event], rows[0][0], may_have_retries=rows[0][_HAS_RETRIES])
        return page, GlobalSequence(self._head)

    async def read(
        self, connection: Connection, after: LogPosition, limit: int, wanted: WantedEvents | None
    ) -> tuple[LogPage, GlobalSequence]:
        """The events in the open gaps and at most *limit* after the head, and how far the log goes."""
        try:
            rows = await self._fetch(connection, after, limit, wanted)
        except DRIVER_ERRORS as error:
            self._size.note_failure(error)
            raise
        facts = _Facts(*rows[0][:_FACT_COUNT])
        pieces = page_columns((row[_FACT_COUNT:] for row in rows), after.head)
        numbers = join_numbers(pieces)
        self._head, self._come_singly = facts.head, len(numbers) <= 1
        self._are_gaps_quiet = not facts.is_cut and (not numbers or numbers[0] > after.head)
        is_beyond = facts.head < after.head and after.head > await connection.fetchval(self._read_last_drawn)
        up_to, missing = _reach(facts, numbers, after, is_whole=wanted is None)
        page = LogPage(
            await _events_of(numbers, pieces),
            up_to,
            missing,
            facts.server,
            is_cut=facts.is_cut,
            is_beyond=is_beyond,
            may_have_retries=facts.may_have_retries,
        )
        if facts.is_cut or 0 < facts.room <= len(numbers):
            self._size.note_full()
        return page, facts.head

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
            return await self._fetch_with_gaps(connection, *place, *_bounds(after.open))
        return await connection.fetch(self._fit(self._read_page), *place)

    async def _fetch_with_gaps(self, connection: Connection, *values: object) -> list[asyncpg.Record]:
        if self._are_gaps_quiet:
            rows = await connection.fetch(self._fit(self._read_page_beside_gaps), *values)
            if not _Facts(*rows[0][:_FACT_COUNT]).is_cut:
                return rows
        return await connection.fetch(self._fit(self._read_page_and_gaps), *values)

    def _fit(self, query: str, step: int = 1) -> str:
        """The same statement in other words whenever the log has doubled *step* times.

        A prepared statement may keep the plan that was good when the log was empty: read all, and sort it.
        """
        doublings = math.ceil(self._head.bit_length() / step) * step
        sized = self._sized.get((query, doublings))
        if sized is None:
            sized = self._sized[query, doublings] = f"{query} /* less than 2^{doublings} events */"
        return sized


async def _events_of(numbers: Sequence[GlobalSequence], pieces: Sequence[PageColumns]) -> Sequence[Event]:
    if sum(len(piece.payloads) for piece in pieces) > _MUCH_TEXT:
        return await decode_page(join_columns(piece.split() for piece in pieces))
    types = chain.from_iterable(piece.types for piece in pieces)
    return LateEvents(numbers, types, partial(decode_pieces, pieces))


async def decode_page(columns: Columns) -> Sequence[Event]:
    """Their events; the event loop is not held up for long by large ones."""
    sizes = list(map(len, columns.payloads))
    if sum(sizes) <= _MUCH_TEXT:
        return LateEvents(columns.numbers, columns.types, columns.decode)
    events: list[Event] = []
    start = size = 0
    for end, each in enumerate(sizes, 1):
        size += each
        if size >= _SLICE_OF_TEXT or end == len(sizes):
            events += columns.between(start, end).decode()
            start, size = end, 0
            await asyncio.sleep(0)
    return events


def _reach(
    facts: _Facts, numbers: Sequence[GlobalSequence], after: LogPosition, *, is_whole: bool
) -> tuple[GlobalSequence, tuple[Gap, ...]]:
    """Up to where the page tells of every number, and which of them it misses."""
    if facts.is_cut:
        return after.head, ()
    # What has appeared in the open gaps comes first.
    new = numbers[bisect_right(numbers, after.head) :] if after.open else numbers
    last = new[-1] if new else after.head
    if is_whole:
        # Mostly there is no gap, and that is seen at a glance.
        return last, () if last - after.head == len(new) else _skipped(new, after.head)
    # Where a page is full, nothing is known of what comes after its last event.
    is_full = len(new) >= facts.room
    up_to = last if is_full or facts.looked_up_to is None else facts.looked_up_to
    gaps = map(Gap, decode_numbers(facts.gap_firsts), decode_numbers(facts.gap_lasts))
    return up_to, tuple(gap for gap in gaps if gap.first <= up_to)


def _skipped(numbers: Sequence[GlobalSequence], head: GlobalSequence) -> tuple[Gap, ...]:
    gaps = []
    for number in numbers:
        if number > head + 1:
            gaps.append(Gap(GlobalSequence(head + 1), GlobalSequence(number - 1)))
        head = number
    return tuple(gaps)


def _bounds(gaps: Sequence[Gap]) -> tuple[str, str]:
    return to_literal(gap.first for gap in gaps), to_literal(gap.last for gap in gaps)
