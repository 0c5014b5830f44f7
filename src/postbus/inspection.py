"""DLQInspector: looks at dead letters and gives them another chance; needs a store and no bus."""

import math
from datetime import timedelta

from postbus.clock import SystemClock
from postbus.errors import InvalidPageError, NotADeadLetterError
from postbus.events import DeadLetterPage, Event, EventStatus
from postbus.policy.names import check_event_id, check_event_type
from postbus.ports import Clock, Store

DEFAULT_PAGE_SIZE = 100
# Larger than this SQLite takes no number.
_LARGEST_NUMBER = 2**63 - 1


class DLQInspector:
    """The dead letters of one store, while a bus runs on it or while none does."""

    def __init__(self, store: Store, *, clock: Clock | None = None) -> None:
        self._store = store
        self._clock: Clock = clock or SystemClock()

    async def list(self, limit: int = DEFAULT_PAGE_SIZE, offset: int = 0) -> DeadLetterPage:
        """A page of dead letters, newest first, and how many there are in all."""
        _check_whole_number("limit", limit)
        _check_whole_number("offset", offset)
        await self._store.open()
        return await self._store.dead_letters.page(limit, offset)

    async def get(self, event_id: str) -> Event:
        """One dead letter. EventNotFoundError, NotADeadLetterError."""
        check_event_id(event_id)
        await self._store.open()
        event = await self._store.get(event_id)
        if event.status is not EventStatus.DLQ:
            raise NotADeadLetterError(event_id, event.status)
        return event

    async def retry(self, event_id: str) -> None:
        """Begin anew with one dead letter: pending, no attempts, no errors. A running bus takes it up."""
        check_event_id(event_id)
        await self._store.open()
        await self._store.dead_letters.revive(event_id)

    async def retry_all(self, event_type: str | None = None) -> int:
        """Begin anew with every dead letter, or with those of one type; how many."""
        if event_type is not None:
            check_event_type(event_type)
        await self._store.open()
        return await self._store.dead_letters.revive_all(event_type)

    async def purge(self, older_than_days: float) -> int:
        """Delete dead letters whose created_at is so many days ago, or more; how many."""
        is_number = isinstance(older_than_days, int | float) and not isinstance(older_than_days, bool)
        if not is_number or not math.isfinite(older_than_days) or older_than_days < 0:
            raise InvalidPageError("older_than_days", older_than_days, "a finite number of 0 or more")
        await self._store.open()
        try:
            cutoff = self._clock.now() - timedelta(days=older_than_days)
        except OverflowError:
            return 0  # before the calendar begins nothing was published
        return await self._store.dead_letters.purge(cutoff)


def _check_whole_number(name: str, value: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= _LARGEST_NUMBER:
        raise InvalidPageError(name, value, "a whole number of 0 or more")
