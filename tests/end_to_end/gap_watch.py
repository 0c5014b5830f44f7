"""Looks at the checkpoints while everything is at work, to see how long a dead number holds them up."""

import heapq
import time
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

import asyncpg

from tests.end_to_end.gap_history import Transaction

_LOOK = """
SELECT subscriber_id, last_global_sequence AS position, open_gaps,
    coalesce(head, last_global_sequence) AS head,
    (SELECT max(global_sequence) FROM postbus.events) AS high
FROM postbus.event_bus_checkpoints
"""


class Look(NamedTuple):
    """How far a subscriber had come at one moment."""

    at: float
    high: int
    head: int
    position: int
    open_gaps: list[int]

    def is_passed(self, number: int) -> bool:
        """Whether this number, which is dead, holds nothing up."""
        before = bisect_right(self.open_gaps, number)
        # The gaps are first, last, first, last …
        is_open = before % 2 == 1 or (before > 0 and self.open_gaps[before - 1] == number)
        return number <= self.head and not is_open

    @property
    def is_settled(self) -> bool:
        """Whether it is at the end of the log, with nothing to wait for."""
        return self.position == self.high and not self.open_gaps


class Watch:
    """Keeps what was seen of every subscriber."""

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self._connection: asyncpg.Connection[asyncpg.Record] | None = None
        self.looks: dict[str, list[Look]] = {}

    async def look(self) -> None:
        """Now."""
        if self._connection is None:
            self._connection = await asyncpg.connect(self._dsn)
        rows = await self._connection.fetch(_LOOK)
        at = time.monotonic()
        for row in rows:
            seen = Look(at, row["high"] or 0, row["head"], row["position"], row["open_gaps"])
            self.looks.setdefault(row["subscriber_id"], []).append(seen)

    async def close(self) -> None:
        """Keep no connection, until the next look."""
        if self._connection is not None:
            await self._connection.close()
            self._connection = None

    def check_moving(self, subscriber_ids: Sequence[str], seconds: float) -> None:
        """Fail for one that is behind and has not come any further for so long."""
        for each in subscriber_ids:
            looks = self.looks.get(each, [])
            place = bisect_right(looks, time.monotonic() - seconds, key=lambda look: look.at)
            if place and looks[-1].head == looks[place - 1].head < looks[place - 1].high:
                raise AssertionError(f"{each} stands still for {seconds:g} s: {looks[-1]}")

    def is_settled(self, subscriber_ids: Sequence[str]) -> bool:
        """Whether all of them had nothing to do any more at the last look."""
        return all(each in self.looks and self.looks[each][-1].is_settled for each in subscriber_ids)


class Wait(NamedTuple):
    """For how many seconds a dead number held up a subscriber."""

    in_all: float
    """From the end of its transaction, or from when the subscriber had come to a higher number."""
    idle: float
    """The part of it in which no transaction was at work any more that had begun before."""


def waits_for_dead(
    looks: Sequence[Look], transactions: Sequence[Transaction]
) -> tuple[list[Wait], list[int]]:
    """How long each dead number was waited for, with the time from a kill to the next start.

    And those that were never passed.
    """
    dying = sorted((each.ended_at, number) for each in transactions for number in each.dead)[::-1]
    busy = _Busy(transactions)
    hidden: list[int] = []
    open_since: dict[int, float] = {}
    waits = []
    for look in looks:
        while dying and dying[-1][0] <= look.at:
            heapq.heappush(hidden, dying.pop()[1])
        while hidden and hidden[0] < look.head:
            open_since[heapq.heappop(hidden)] = look.at
        for number in [number for number in open_since if look.is_passed(number)]:
            since = open_since.pop(number)
            waits.append(Wait(look.at - since, max(0.0, look.at - max(since, busy.until(since)))))
    return waits, sorted(open_since)


class _Busy:
    """Until when transactions were at work that had begun by some moment."""

    def __init__(self, transactions: Sequence[Transaction]) -> None:
        spans = sorted((each.began_at, each.ended_at) for each in transactions)
        self._began_at = [began_at for began_at, _ in spans]
        self._ended_at = list(accumulate((ended_at for _, ended_at in spans), max))

    def until(self, moment: float) -> float:
        """When the last of them ended."""
        count = bisect_right(self._began_at, moment)
        return self._ended_at[count - 1] if count else 0.0
