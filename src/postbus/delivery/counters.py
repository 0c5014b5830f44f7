"""How often events of each type were retried, saved by a retry, or buried."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

# Types with ids inside ("order.123.shipped") must not fill the memory: the rest counts as one.
_MOST_TYPES = 1_000
OTHER_TYPES = "*"


@dataclass(slots=True)
class RetryCounters:
    """What happened to the events of one type since the bus was made."""

    event_count: int = 0
    retry_count: int = 0
    success_after_retry_count: int = 0
    dead_letter_count: int = 0


class CountersByType:
    """One RetryCounters for each of the first thousand types, one for all others."""

    def __init__(self) -> None:
        self._counters: dict[str, RetryCounters] = {}

    def of(self, event_type: str) -> RetryCounters:
        """The counters to add to."""
        counters = self._counters.get(event_type)
        if counters is None:
            key = event_type if len(self._counters) < _MOST_TYPES else OTHER_TYPES
            counters = self._counters.setdefault(key, RetryCounters())
        return counters

    def snapshot(self) -> Mapping[str, RetryCounters]:
        """A copy that nothing changes any more."""
        return {event_type: replace(counters) for event_type, counters in self._counters.items()}
