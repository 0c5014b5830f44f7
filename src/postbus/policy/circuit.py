"""CircuitBreaker: leave a subscription that mostly fails alone for a while."""

import enum
import math
from collections import deque

WINDOW_SECONDS = 60
OPEN_SECONDS = 30.0
LEAST_OUTCOMES = 4


class CircuitState(enum.StrEnum):
    """Whether attempts may run: all of them, none, or one probe."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"


# Reading a member through its class costs as much as the rest of a recorded success.
_CLOSED, _OPEN, _HALF_OPEN = CircuitState.CLOSED, CircuitState.OPEN, CircuitState.HALF_OPEN


class _Bucket:
    """The outcomes of one second: memory stays bounded however many there are."""

    __slots__ = ("failure_count", "outcome_count", "second")

    def __init__(self, second: int) -> None:
        self.second = second
        self.outcome_count = 0
        self.failure_count = 0


class CircuitBreaker:
    """Opens when more than half of at least 4 outcomes within 60 s failed; probes after 30 s.

    Moments are float seconds of one monotonic clock.

    >>> breaker = CircuitBreaker()
    >>> [breaker.record(False, now=100.0) for _ in range(4)]
    [False, False, False, True]
    >>> breaker.try_enter(now=129.9), breaker.try_enter(now=130.0), breaker.try_enter(now=130.0)
    (False, True, False)
    >>> breaker.record(True, now=131.0)
    True
    >>> str(breaker.state)
    'closed'
    """

    def __init__(self) -> None:
        self._state = _CLOSED
        self._probe_due_at = 0.0
        self._forget_outcomes()

    @property
    def state(self) -> CircuitState:
        """Closed, open or half-open; an open one stays open until somebody enters as its probe."""
        return self._state

    def try_enter(self, now: float) -> bool:
        """Whether an attempt may run now; from an open breaker that is due, one gets in as its probe."""
        if self._state is _CLOSED:
            return True
        if self._state is _HALF_OPEN or now < self._probe_due_at:
            return False
        self._state = _HALF_OPEN
        return True

    def record(self, succeeded: bool, now: float) -> bool:
        """Count an outcome; in a half-open breaker it is the probe's and decides. Whether that changes it."""
        if self._state is not _CLOSED:
            return self._settle_probe(succeeded, now)
        if now >= self._bucket_ends_at:
            self._begin_bucket(math.floor(now))
        bucket = self._bucket
        bucket.outcome_count += 1
        self._outcome_count += 1
        if not succeeded:
            bucket.failure_count += 1
            self._failure_count += 1
        if self._failure_count * 2 > self._outcome_count >= LEAST_OUTCOMES:
            self._open(now)
            return True
        return False

    def abandon_probe(self) -> None:
        """The probe ended without an outcome: another may enter in its place."""
        if self._state is _HALF_OPEN:
            self._state = _OPEN

    def seconds_until_probe(self, now: float) -> float:
        """How long to wait before trying to enter; infinite while a probe is under way."""
        if self._state is _CLOSED:
            return 0.0
        # No wait can be told: the probe ends when it ends, and its outcome is recorded then.
        return math.inf if self._state is _HALF_OPEN else max(0.0, self._probe_due_at - now)

    def _settle_probe(self, succeeded: bool, now: float) -> bool:
        # Open: the attempt began before the breaker opened, so it says nothing new.
        if self._state is not _HALF_OPEN:
            return False
        if succeeded:
            self._state = _CLOSED
            self._forget_outcomes()
        else:
            self._open(now)
        return True

    def _open(self, now: float) -> None:
        self._state = _OPEN
        self._probe_due_at = now + OPEN_SECONDS

    def _begin_bucket(self, second: int) -> None:
        buckets = self._buckets
        while buckets and buckets[0].second <= second - WINDOW_SECONDS:
            expired = buckets.popleft()
            self._outcome_count -= expired.outcome_count
            self._failure_count -= expired.failure_count
        self._bucket = _Bucket(second)
        self._bucket_ends_at = second + 1.0
        buckets.append(self._bucket)

    def _forget_outcomes(self) -> None:
        self._buckets: deque[_Bucket] = deque()
        self._bucket = _Bucket(0)
        # The first outcome begins the first bucket, whatever the clock says.
        self._bucket_ends_at = -math.inf
        self._outcome_count: int = 0
        self._failure_count: int = 0
