"""DLQInspector: looks at dead letters and gives them another chance; needs a store and no bus."""

import math
from datetime import timedelta

from postbus.clock import SystemClock
from postbus.errors import InvalidEventFieldError, InvalidPageError, InvalidTargetError
from postbus.events import DeadLetter, DeadLetterPage, SubscriberId
from postbus.policy.names import check_event_type, check_id_field, check_subscriber_id
from postbus.ports import Clock, Store
from postbus.storable import LARGEST_NUMBER, event_id_to_find, is_storable

DEFAULT_PAGE_SIZE = 100


class DLQInspector:
    """The dead letters of one store, while a bus runs on it or while none does.

    An event that the in-process handlers gave up has its dead letter under its own id. One that a durable
    subscriber gave up has an id of its own; the event's id stands for all dead letters of that event.
    """

    def __init__(self, store: Store, *, clock: Clock | None = None) -> None:
        if not hasattr(store, "dead_letters"):
            raise InvalidTargetError(
                store,
                f"is of type {type(store).__qualname__}",
                'a store, such as SQLiteStore("events.db") or bus.store',
            )
        self._store = store
        self._clock: Clock = clock or SystemClock()

    async def list(
        self, limit: int = DEFAULT_PAGE_SIZE, offset: int = 0, subscriber_id: str | None = None
    ) -> DeadLetterPage:
        """A page of unresolved dead letters, newest first, and how many there are in all.

        Those of the handlers and of every durable subscriber, or those of one subscriber.
        """
        limit = _check_whole_number("limit", limit)
        offset = _check_whole_number("offset", offset)
        checked_id = _check_subscriber_id(subscriber_id)
        await self._store.open()
        return await self._store.dead_letters.page(limit, offset, checked_id)

    async def get(self, dead_letter_id: str) -> DeadLetter:
        """One dead letter, resolved or not. EventNotFoundError, NotADeadLetterError."""
        known_id = event_id_to_find(dead_letter_id)
        await self._store.open()
        return await self._store.dead_letters.get(known_id)

    async def retry(self, dead_letter_id: str) -> None:
        """Give it another chance. A running bus takes it up. EventNotFoundError, NotADeadLetterError.

        With the handlers it begins anew: pending, no attempts, no errors. A durable subscriber
        makes one more attempt; if that fails too, the dead letter has one error more.
        """
        known_id = event_id_to_find(dead_letter_id)
        await self._store.open()
        await self._store.dead_letters.revive(known_id)

    async def retry_all(self, event_type: str | None = None, subscriber_id: str | None = None) -> int:
        """Retry every unresolved dead letter, or those of one type, of one subscriber; how many."""
        if event_type is not None:
            event_type = check_event_type(event_type)
        checked_id = _check_subscriber_id(subscriber_id)
        await self._store.open()
        return await self._store.dead_letters.revive_all(event_type, checked_id)

    async def resolve(self, dead_letter_id: str, by: str, notes: str | None = None) -> None:
        """Note that somebody has seen to it: it leaves the list and stays on record, and is not retried.

        EventNotFoundError, NotADeadLetterError.
        """
        known_id = event_id_to_find(dead_letter_id)
        resolver = check_id_field("by", by)
        if resolver is None:
            raise InvalidEventFieldError("by", by, "a string that says who has seen to it")
        _check_notes(notes)
        await self._store.open()
        await self._store.dead_letters.resolve(known_id, resolver, notes)

    async def purge(self, older_than_days: float) -> int:
        """Delete dead letters that are so many days old, or more, resolved ones too; how many.

        Those of the handlers are as old as their event, which is deleted with them. Those of a durable
        subscriber are as old as their death, and their event stays.
        """
        is_number = isinstance(older_than_days, int | float) and not isinstance(older_than_days, bool)
        if not is_number or not 0 <= older_than_days < math.inf:
            raise InvalidPageError("older_than_days", older_than_days, "a finite number of 0 or more")
        await self._store.open()
        try:
            cutoff = self._clock.now() - timedelta(days=older_than_days)
        except OverflowError:
            return 0  # before the calendar begins nothing was published
        return await self._store.dead_letters.purge(cutoff)


def _check_whole_number(name: str, value: int) -> int:
    """The number, or the largest that a database knows: nothing lies beyond that."""
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise InvalidPageError(name, value, "a whole number of 0 or more")
    return min(value, LARGEST_NUMBER)


def _check_subscriber_id(subscriber_id: str | None) -> SubscriberId | None:
    return None if subscriber_id is None else SubscriberId(check_subscriber_id(subscriber_id))


def _check_notes(notes: object) -> None:
    if notes is not None and not (isinstance(notes, str) and is_storable(notes)):
        raise InvalidEventFieldError("notes", notes, "a text without NUL and lone surrogates, or None")
