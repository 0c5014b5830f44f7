"""SubscriberState: how far a subscriber has come, with the numbers it has not seen on the way.

A sequence number is taken before its transaction commits, so 8 can become visible before 7.
What is visible is delivered; the numbers in between are kept as open gaps, each a range, until
they are delivered too or are known to be dead. The checkpoint never passes an open gap.
SQLite and memory commit in order and have no gaps: this is for logs whose numbers come out of order.
"""

import math
from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Sequence

from postbus.events import Gap, GlobalSequence, LogPosition

MOST_OPEN_GAPS = 10_000


class SubscriberState:
    """Which numbers were delivered, in as much memory as there are gaps.

    >>> state = SubscriberState(5)
    >>> state.deliver(6), state.deliver(9), state.contiguous, state.head, state.open
    (True, True, 6, 9, (Gap(first=7, last=8),))
    >>> state.deliver(7), state.contiguous
    (True, 7)
    >>> state.settle(8), state.contiguous, state.open
    ((Gap(first=8, last=8),), 9, ())
    """

    # The open gaps are two lists in step, which bisect can search and append to without objects.
    __slots__ = ("_firsts", "_head", "_known_open", "_lasts")

    def __init__(self, position: int = 0) -> None:
        self._head: int = position
        self._firsts: list[int] = []
        self._lasts: list[int] = []
        # Asked for after every event, and mostly the same as the last time: None if it has to be made anew.
        self._known_open: tuple[Gap, ...] | None = ()

    @classmethod
    def restore(cls, position: int, head: int, open: Iterable[Sequence[int]]) -> "SubscriberState":
        """The state that was persisted as *position* (the contiguous one), *head* and *open*.

        If they do not belong together, such as after somebody moved the position by hand,
        the position counts: events may be delivered again, and none is passed over.

        >>> SubscriberState.restore(5, 9, [[6, 7]]).open
        (Gap(first=6, last=7),)
        >>> SubscriberState.restore(2, 9, [[6, 7]]).head
        2
        """
        state = cls(position)
        gaps = [Gap(*gap) for gap in open]
        if _belong_together(position, head, gaps):
            state._head = head
            state._firsts = [gap.first for gap in gaps]
            state._lasts = [gap.last for gap in gaps]
            state._known_open = tuple(gaps)
        return state

    @property
    def head(self) -> GlobalSequence:
        """The highest number delivered; what is to be read next is above it or in an open gap."""
        return GlobalSequence(self._head)

    @property
    def open(self) -> tuple[Gap, ...]:
        """The gaps below the head that may still be filled, in order, disjoint."""
        if self._known_open is None:
            self._known_open = tuple(map(Gap, self._firsts, self._lasts))
        return self._known_open

    @property
    def position(self) -> LogPosition:
        """Where to read on."""
        return LogPosition(self.head, self.open)

    @property
    def newest_gap(self) -> Gap | None:
        """The open gap with the highest numbers."""
        return Gap(self._firsts[-1], self._lasts[-1]) if self._firsts else None

    @property
    def contiguous(self) -> GlobalSequence:
        """The highest number up to which every one is delivered or dead: the checkpoint."""
        return GlobalSequence(self._firsts[0] - 1 if self._firsts else self._head)

    @property
    def is_waiting_for_gap(self) -> bool:
        """Whether there is an open gap."""
        return bool(self._firsts)

    @property
    def is_full(self) -> bool:
        """Whether to read nothing beyond the head until gaps are closed: back-pressure, not loss.

        What fills a gap is taken all the same: held back, it would be settled as dead.
        """
        return len(self._firsts) >= MOST_OPEN_GAPS

    def is_delivered(self, sequence: int) -> bool:
        """Whether this number needs no delivery: it was delivered, or is dead."""
        return sequence <= self._head and self._find_gap(sequence) is None

    def deliver(self, sequence: int) -> bool:
        """Note the delivery of this number; those skipped become a gap. False: there was no need of it."""
        head = self._head
        if sequence > head:
            if sequence > head + 1:
                self._open(head + 1, sequence - 1)
            self._head = sequence
            return True
        gap_at = self._find_gap(sequence)
        if gap_at is None:
            return False
        self._cut(gap_at, sequence, sequence)
        return True

    def deliver_run(self, first: int, last: int) -> None:
        """Note the delivery of every number from *first* to *last*, also of those that were not wanted.

        >>> state = SubscriberState()
        >>> state.deliver_run(1, 3_000_000_000), state.deliver_run(3_000_000_005, 3_000_000_009)
        (None, None)
        >>> state.contiguous, state.head
        (3000000000, 3000000009)
        """
        if self._firsts and first <= self._lasts[-1]:
            for gap_at in self._find_gaps(first, last):
                self._cut(gap_at, first, last)
        if last > self._head:
            if first > self._head + 1:
                self._open(self._head + 1, first - 1)
            self._head = last

    def pass_to(self, up_to: int, missing: Sequence[Gap] = ()) -> None:
        """Everything above the head and up to here is delivered or not wanted, but for these gaps.

        >>> state = SubscriberState(5)
        >>> state.pass_to(20, [Gap(8, 9)])
        >>> state.contiguous, state.head, state.open
        (7, 20, (Gap(first=8, last=9),))
        """
        for gap in missing:
            self._open(gap.first, gap.last)
        self._head = max(self._head, up_to)

    def copy(self) -> "SubscriberState":
        """Another one, to go on from here for a try."""
        other = SubscriberState(self._head)
        other._firsts, other._lasts = self._firsts.copy(), self._lasts.copy()
        other._known_open = self._known_open
        return other

    def deliver_page(self, sequences: Sequence[int]) -> None:
        """Note the delivery of these numbers, each given once and in ascending order.

        >>> state = SubscriberState(5)
        >>> state.deliver_page([6, 8, 9, 12])
        >>> state.open
        (Gap(first=7, last=7), Gap(first=10, last=11))
        """
        if sequences and sequences[-1] - sequences[0] == len(sequences) - 1:
            self.deliver_run(sequences[0], sequences[-1])
            return
        for sequence in sequences:
            self.deliver(sequence)

    def settle(self, up_to: int) -> tuple[Gap, ...]:
        """Open numbers up to this one are dead; which those were.

        Only what cannot appear any more may be settled: the open gaps must have been read,
        and what was found in them delivered, after *up_to* became known.
        """
        count = bisect_right(self._lasts, up_to)
        dead = list(map(Gap, self._firsts[:count], self._lasts[:count]))
        del self._firsts[:count], self._lasts[:count]
        if dead:
            self._known_open = None
        if self._firsts and self._firsts[0] <= up_to:
            dead.append(Gap(self._firsts[0], up_to))
            self._firsts[0] = up_to + 1
            self._known_open = None
        return tuple(dead)

    def _open(self, first: int, last: int) -> None:
        if self._known_open is not None:
            self._known_open += (Gap(first, last),)
        self._firsts.append(first)
        self._lasts.append(last)

    def _find_gap(self, sequence: int) -> int | None:
        """The index of the gap that holds this number."""
        gap_at = bisect_right(self._firsts, sequence) - 1
        return gap_at if gap_at >= 0 and sequence <= self._lasts[gap_at] else None

    def _find_gaps(self, first: int, last: int) -> range:
        """The indices of all gaps that hold one of these numbers, from the right: cutting moves the rest."""
        return range(bisect_right(self._firsts, last) - 1, bisect_right(self._lasts, first - 1) - 1, -1)

    def _cut(self, gap_at: int, first: int, last: int) -> None:
        """Take the numbers from *first* to *last* out of a gap, which leaves nothing, one part or two."""
        self._known_open = None
        gap_first, gap_last = self._firsts[gap_at], self._lasts[gap_at]
        left = [(gap_first, first - 1)] if gap_first < first else []
        right = [(last + 1, gap_last)] if last < gap_last else []
        self._firsts[gap_at : gap_at + 1] = [part[0] for part in left + right]
        self._lasts[gap_at : gap_at + 1] = [part[1] for part in left + right]


class GapTimer:
    """How long the gaps of one state have been open: which to give up under gap_policy="timeout".

    Moments are float seconds of one monotonic clock. A gap that is filled in part keeps its age.

    >>> state, timer = SubscriberState(5), GapTimer(gap_timeout=5.0)
    >>> state.deliver(8), timer.note(state, now=100.0), timer.due_at
    (True, None, 105.0)
    >>> timer.overdue(state, now=104.9), timer.overdue(state, now=105.0)
    ((), (Gap(first=6, last=7),))
    """

    __slots__ = ("_gap_timeout", "_marks", "_overdue_up_to")

    def __init__(self, gap_timeout: float) -> None:
        self._gap_timeout = gap_timeout
        # Gaps open in the order of their numbers. So it is enough to keep, for each moment at which
        # new ones were seen, the last number of them: (number, moment), both ascending.
        self._marks: deque[tuple[int, float]] = deque()
        self._overdue_up_to = 0

    @property
    def due_at(self) -> float:
        """When to look again whether a gap is overdue; infinite if none is on its way."""
        return self._marks[0][1] + self._gap_timeout if self._marks else math.inf

    def note(self, state: SubscriberState, now: float) -> None:
        """See which gaps are open: the age of the new ones counts from *now*."""
        marks = self._marks
        while marks and marks[0][0] <= state.contiguous:
            marks.popleft()
        newest_gap = state.newest_gap
        if newest_gap is not None:
            noted_up_to = marks[-1][0] if marks else self._overdue_up_to
            if newest_gap.last > noted_up_to:
                marks.append((newest_gap.last, now))

    def overdue(self, state: SubscriberState, now: float) -> tuple[Gap, ...]:
        """The open gaps that were first seen *gap_timeout* ago or earlier.

        The caller records them and gives them up: state.settle(overdue[-1].last) settles just these.
        """
        while self._marks and now >= self.due_at:
            self._overdue_up_to = self._marks.popleft()[0]
        if self._overdue_up_to <= state.contiguous:
            return ()
        return tuple(gap for gap in state.open if gap.last <= self._overdue_up_to)


def _belong_together(position: int, head: int, gaps: Sequence[Gap]) -> bool:
    # A number that lies between two gaps was delivered, and so were the one before them and the head.
    delivered_before = [position, *(gap.last + 1 for gap in gaps)]
    return (
        all(before < gap.first <= gap.last for before, gap in zip(delivered_before, gaps, strict=False))
        and (gaps[0].first - 1 if gaps else head) == position
        and delivered_before[-1] <= head
    )


def merge_gaps(gaps: Iterable[Gap]) -> tuple[Gap, ...]:
    """The same numbers, in order and disjoint; gaps that end before they begin have none.

    >>> merge_gaps([Gap(6, 7), Gap(2, 3), Gap(3, 4), Gap(9, 8), Gap(5, 5)])
    (Gap(first=2, last=7),)
    """
    merged: list[Gap] = []
    for gap in sorted(gap for gap in gaps if gap.first <= gap.last):
        if merged and gap.first <= merged[-1].last + 1:
            merged[-1] = Gap(merged[-1].first, max(merged[-1].last, gap.last))
        else:
            merged.append(gap)
    return tuple(merged)
