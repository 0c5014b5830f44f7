"""What users call on any store: checks of what they give, and the log asked as often as it takes."""

from collections.abc import Iterable
from typing import Any

from postbus.config import DEFAULT_MAX_PAYLOAD_BYTES
from postbus.drafting import Drafts
from postbus.errors import InvalidEventFieldError, InvalidPageError
from postbus.events import Event, EventStatus, GlobalSequence, LogPosition
from postbus.ids import new_event_id
from postbus.ports import Clock, DraftStream, EventLog
from postbus.storable import LARGEST_NUMBER, event_id_to_find, is_storable, storable_id


class UserCalls:
    """The EventStore port, for a store that has a log."""

    log: EventLog

    def __init__(self, clock: Clock) -> None:
        self._draft_own: DraftStream = Drafts(
            _no_status, clock, new_event_id, DEFAULT_MAX_PAYLOAD_BYTES
        ).draft_stream
        self._draft: DraftStream = self._draft_own

    def append_as(self, draft: DraftStream | None) -> None:
        """Events are appended as the bus that uses the store would publish them: it knows its handlers."""
        self._draft = draft or self._draft_own

    async def append(
        self,
        stream_id: str,
        events: Iterable[object],
        *,
        expected_version: int | None = None,
        connection: Any = None,
    ) -> list[Event]:
        """Store events at the end of a stream, all or none; the stored events, in order.

        *expected_version* is where the stream must be: 0 if it must not exist yet, None for anywhere.
        An event is (type, payload), (type, payload, metadata) or a NewEvent. WrongExpectedVersionError.
        *connection*, where the store knows such: inside the caller's own transaction, so that they exist
        exactly when it commits.
        """
        drafts = self._draft(stream_id, events, expected_version)
        if connection is None:
            return await self.log.append(drafts)
        return await self.log.append_within(connection, drafts)

    async def read_stream(
        self, stream_id: str, from_version: int = 1, to_version: int | None = None
    ) -> list[Event]:
        """The events of a stream in the order of their versions, both bounds included. InvalidPageError."""
        first = _check_number("from_version", from_version, at_least=1)
        last = None if to_version is None else _check_number("to_version", to_version, at_least=0)
        known_id = storable_id(stream_id)
        return [] if known_id is None else await self.log.read_stream(known_id, first, last)

    async def read_all(self, after: int = 0, limit: int = 100) -> list[Event]:
        """At most *limit* events with a higher global sequence, in order. InvalidPageError."""
        position = LogPosition(GlobalSequence(_check_number("after", after, at_least=0)))
        limit = _check_number("limit", limit, at_least=0)
        events: list[Event] = []
        # As many as there are, however the log pages them.
        while len(events) < limit:
            page = await self.log.read(position, limit - len(events), None)
            if page.up_to == position.head:
                break
            events += page.events
            position = LogPosition(page.up_to)
        return events

    async def get(self, event_id: str) -> Event:
        """The event with this id. EventNotFoundError."""
        return await self.log.get(event_id_to_find(event_id))

    async def head(self) -> GlobalSequence:
        """The highest number in the log; 0 if there is none."""
        return await self.log.head()

    async def purge(self, event_id: str, purger_id: str) -> None:
        """Take the payload of an event away; that it happened stays.

        EventNotFoundError, InvalidEventFieldError.
        """
        if not isinstance(purger_id, str) or not purger_id or not is_storable(purger_id):
            raise InvalidEventFieldError("purger_id", purger_id, "a string that says who takes it away")
        await self.log.purge(event_id_to_find(event_id), purger_id)


def _no_status(event_type: str, *, wait: bool) -> EventStatus | None:  # noqa: ARG001
    """The store itself knows whether there are subscriptions that wait for the events."""
    return None


def _check_number(name: str, value: object, *, at_least: int) -> int:
    """The number, or the largest that a database knows: nothing lies beyond that."""
    if not isinstance(value, int) or isinstance(value, bool) or value < at_least:
        raise InvalidPageError(name, value, f"a whole number of {at_least} or more")
    return min(int(value), LARGEST_NUMBER)
