"""Where in a pool's rows to look for the next ones to claim."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

# When a row is due, and its number: the order in which rows are claimed.
Place = tuple[datetime, int]

_BEGINNING: Place = (datetime.fromtimestamp(0, UTC), 0)
# Looking from the beginning on takes at most a share of the time, and comes at most so often.
_SECONDS_BETWEEN = 0.2
_SHARE = 0.05


@dataclass(frozen=True, slots=True)
class Look:
    """One look for rows."""

    after: Place
    began_at: float


class ClaimPlace:
    """Goes on where the last look has ended, and only now and then begins at the beginning.

    In front are the rows that others have, and what the server still keeps of those that were deleted: many,
    if somebody's transaction has been open for long.
    """

    def __init__(self, look_again: Callable[[], None]) -> None:
        self._look_again = look_again
        self.last = _BEGINNING
        """The last place that had a row for us."""
        self._whole_at = 0.0
        self._alarm: asyncio.TimerHandle | None = None

    def begin(self) -> Look:
        """After which place to look now."""
        now = asyncio.get_running_loop().time()
        return Look(_BEGINNING if now >= self._whole_at else self.last, now)

    def end(self, look: Look, found: Sequence[Place], *, is_full: bool) -> None:
        """These places had rows for us, in order; *is_full*: there may be more after them."""
        last = found[-1] if found else _BEGINNING
        if look.after == _BEGINNING:
            now = asyncio.get_running_loop().time()
            # With nothing new among them there may be more from before.
            is_behind = is_full and last <= self.last
            self._whole_at = now if is_behind else now + max(_SECONDS_BETWEEN, (now - look.began_at) / _SHARE)
        elif not is_full:
            self._ring_later()
        self.last = max(self.last, last)

    def start_over(self) -> None:
        """There are rows again in front."""
        self._whole_at = 0.0

    def _ring_later(self) -> None:
        """What was put back in front is not to wait for the next wake-up."""
        if self._alarm is None:
            self._alarm = asyncio.get_running_loop().call_at(self._whole_at, self._ring)

    def _ring(self) -> None:
        self._alarm = None
        self._look_again()
