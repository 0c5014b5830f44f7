"""Which commits of a bus are worth a notification of their own, for as long as the whole log is in flood.

The numbers of the log are drawn by all writers together. So each of them sees by its own ones how busy all of
them are, and they can share the notifications out without a word between them: whoever commits a multiple
of a certain number notifies. That number is a power of two, so that writers who see the log differently
still agree: a multiple of the larger one is a multiple of the smaller.
"""

import math

# How far apart the notifications of all writers are to be, and no less than one of them takes: where the
# server is busy, they would keep it busier still. It is a flood if several commits come in that time.
_SECONDS_BETWEEN = 0.004
_SEVERAL = 4
# Whatever the rate: after so many numbers somebody notifies.
_MOST_NUMBERS = 1_024
# A flood lasts: the rate is that of the last stretch of at least so long. And whoever has been silent for so
# long is no part of it, and notifies at once. It is longer where statements take long: a few of them are no
# flood there, nor is it silence to publish one event after the other.
_STRETCH = 0.02
_STATEMENTS_IN_STRETCH = 4
# Multiples may all be among the numbers of others, or be rolled back: who publishes steadily notifies after
# so many times as many commits as it usually takes, or when a reader would look by itself.
_STEPS_WITHOUT = 4
_LONGEST_DEBT = 1.0
# Of how long a notification takes, with the share of the last one.
_LONGEST_STATEMENT = 0.05
_SHARE_OF_LAST = 0.25


class Thinning:
    """One bus's share of the notifications. Moments are seconds of any clock that only goes forward."""

    def __init__(self) -> None:
        self.step = 1
        """Whose multiples are notified at once; 1: there is no flood."""
        self._head = 0
        self._committed_at: float | None = None
        # Where the stretch began that the rate is taken of, and how many of its numbers cost no commit.
        self._first_at, self._first_head, self._extra_count = 0.0, 0, 0
        # Since when and how many commits nobody may have been told of.
        self._owed_since, self._owed_count = 0.0, 0
        self._statement_seconds = 0.0
        self._stretch = _STRETCH

    def commit(self, first: int, last: int, now: float) -> bool:
        """It has committed numbers from *first* to *last*: whether to notify now; if not, see due_at."""
        was_silent = self._committed_at is None or now - self._committed_at >= self._stretch
        self._observe(first, last, now)
        self._committed_at = now
        if not self._owed_count:
            self._owed_since = now
        self._owed_count += 1
        has_multiple = last // self.step > (first - 1) // self.step
        if not (was_silent or has_multiple or self._owed_count > self.step * _STEPS_WITHOUT):
            return False
        self.settle()
        return True

    @property
    def due_at(self) -> float | None:
        """When to notify of what was committed since the last notification, unless something else is."""
        if not self._owed_count or self._committed_at is None:
            return None
        return min(self._committed_at + self._stretch, self._owed_since + _LONGEST_DEBT)

    def settle(self) -> None:
        """A notification goes out now: it tells of everything that was committed before."""
        self._owed_count = 0

    def note_statement(self, seconds: float) -> None:
        """A notification took so long."""
        seconds = min(seconds, _LONGEST_STATEMENT)
        self._statement_seconds += (seconds - self._statement_seconds) * _SHARE_OF_LAST
        self._stretch = max(_STRETCH, self._statement_seconds * _STATEMENTS_IN_STRETCH)

    def _observe(self, first: int, last: int, now: float) -> None:
        if self._committed_at is None:
            self._begin_stretch(last, now)
        # Numbers are committed out of order: a lower one tells nothing of how far the log has come.
        elif last > self._head:
            # Those of one commit want one notification, however many they are.
            self._extra_count += last - max(first, self._head + 1)
            self._head = last
        if (seconds := now - self._first_at) >= self._stretch:
            numbers = self._head - self._first_head
            between = max(_SECONDS_BETWEEN, self._statement_seconds)
            self.step = _step(numbers * between / seconds, self._extra_count * between / seconds)
            self._begin_stretch(self._head, now)

    def _begin_stretch(self, head: int, now: float) -> None:
        self._first_head, self._first_at, self._extra_count = head, now, 0
        self._head = head


def _step(number_count: float, extra_count: float) -> int:
    """The power of two in whose steps to notify if so many numbers come in between.

    *extra_count* of them are in one commit with others.

    >>> _step(3.9, 0.0), _step(4.0, 0.0), _step(33.0, 0.0), _step(33.0, 30.0)
    (1, 4, 64, 1)
    """
    if number_count - extra_count < _SEVERAL:
        return 1
    return 1 << (math.ceil(min(number_count, _MOST_NUMBERS)) - 1).bit_length()
