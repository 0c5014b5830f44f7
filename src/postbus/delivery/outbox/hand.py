"""The rows of the outbox that a worker has: those that wait for a handler, and all whose leases it keeps."""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence

from postbus.events import Claimed


class Hand:
    """Gives rows to the runners, in order."""

    def __init__(self, on_low: Callable[[], None], on_suspect_gone: Callable[[], None]) -> None:
        self._on_low, self._on_suspect_gone = on_low, on_suspect_gone
        self._waiting: deque[Claimed] = deque()
        self._takers: deque[asyncio.Future[None]] = deque()
        self._held: dict[int, Claimed] = {}
        # Those that were held when the leases were last looked at.
        self._older: set[int] = set()
        self._low = 0
        self.taken_count = 0
        """How many rows the runners have taken in all."""
        self.suspect: Claimed | None = None
        """The one suspect that the worker may have."""

    @property
    def waiting_count(self) -> int:
        """How many rows no runner has taken yet."""
        return len(self._waiting)

    @property
    def idle_count(self) -> int:
        """How many runners wait for a row."""
        return len(self._takers)

    @property
    def is_holding(self) -> bool:
        """Whether there are rows of which it is not written yet what became of them."""
        return bool(self._held)

    @property
    def held(self) -> list[Claimed]:
        """All rows of which it is not written yet what became of them."""
        return list(self._held.values())

    def add(self, claimed: Sequence[Claimed], ahead: int) -> None:
        """These are ours now; more are to be asked for when half of *ahead* wait."""
        self._low = ahead // 2
        for each in claimed:
            self._held[each.row_id] = each
            if each.is_suspect:
                self.suspect = each
        self._waiting.extend(claimed)
        for _ in claimed:
            if not self._takers:
                break
            _answer(self._takers.popleft())

    def take(self) -> Claimed | None:
        """The next row, if there is one."""
        if not self._waiting:
            return None
        self.taken_count += 1
        claimed = self._waiting.popleft()
        if len(self._waiting) <= self._low:
            self._on_low()
        return claimed

    async def wait(self) -> None:
        """Return when there may be a row to take."""
        taker: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._takers.append(taker)
        try:
            await taker
        except asyncio.CancelledError:
            if taker in self._takers:
                self._takers.remove(taker)
            elif self._waiting and self._takers:
                _answer(self._takers.popleft())
            raise

    def release_takers(self) -> None:
        """Let those who wait look whether they are to end."""
        while self._takers:
            _answer(self._takers.popleft())

    def take_back(self) -> list[Claimed]:
        """All that no runner has taken: nobody will."""
        waiting, self._waiting = list(self._waiting), deque()
        return waiting

    def drop(self, claimed: Claimed) -> None:
        """It is written what became of the row, or it is not ours any more."""
        if self._held.get(claimed.row_id) is claimed:
            del self._held[claimed.row_id]
        if self.suspect is claimed:
            self.suspect = None
            self._on_suspect_gone()

    def grow_older(self) -> list[Claimed]:
        """The rows that were held when this was last asked: it is time to renew their leases."""
        older = [claimed for row_id, claimed in self._held.items() if row_id in self._older]
        self._older = set(self._held)
        return older


def _answer(taker: "asyncio.Future[None]") -> None:
    if not taker.done():
        taker.set_result(None)
