"""All events in the order of their global sequence and in streams, in memory."""

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any

from postbus.errors import NoForeignTransactionError
from postbus.events import Draft, Event, GlobalSequence, LogPage, LogPosition, OpenWriter
from postbus.ports import WantedEvents
from postbus.stores.memory.intake import check_drafts, store_drafts
from postbus.stores.memory.records import to_event
from postbus.stores.memory.state import State

# How many numbers one read looks through at most: a reader who wants few of them lets others in between.
_LOOKED_THROUGH = 1000


class InMemoryEventLog:
    """Fulfils ports.EventLog."""

    def __init__(self, state: State) -> None:
        self._state = state

    async def append(self, drafts: Sequence[Draft]) -> list[Event]:
        """Store the drafts, all or none; the stored events, in order. WrongExpectedVersionError."""
        self._state.check_open()
        check_drafts(self._state, drafts)
        store_drafts(self._state, drafts)
        return [to_event(self._state.by_id[draft.id]) for draft in drafts]

    async def store(self, drafts: Sequence[Draft]) -> None:
        """As append, for whoever does not need the events."""
        await self.append(drafts)

    async def append_within(self, connection: Any, drafts: Sequence[Draft]) -> list[Event]:  # noqa: ARG002
        """There are no transactions but our own."""
        raise NoForeignTransactionError("InMemoryStore")

    async def read(
        self,
        after: LogPosition,
        limit: int,
        wanted: WantedEvents | None,
        *,
        with_sample: bool = False,  # noqa: ARG002
    ) -> LogPage:
        """At most *limit* events after a position whose type is wanted; None: all are."""
        self._state.check_open()
        events: list[Event] = []
        up_to: int = after.head
        last = min(self._state.last_sequence, up_to + _LOOKED_THROUGH)
        while up_to < last and len(events) < limit:
            up_to += 1
            record = self._state.records.get(up_to)
            if record is not None and (wanted is None or wanted(record.draft.type)):
                events.append(to_event(record))
        return LogPage(events, GlobalSequence(up_to))

    async def now(self, head: GlobalSequence) -> LogPosition:
        """Numbers commit in order: nothing can appear below the head."""
        return LogPosition(head)

    async def open_writers(self) -> list[OpenWriter]:
        """Nobody: numbers commit in order."""
        return []

    async def read_stream(self, stream_id: str, from_version: int, to_version: int | None) -> list[Event]:
        """The events of a stream in the order of their versions, both bounds included."""
        self._state.check_open()
        return [
            to_event(self._state.records[sequence])
            for version, sequence in self._state.streams.get(stream_id, {}).items()
            if from_version <= version and (to_version is None or version <= to_version)
        ]

    async def get(self, event_id: str) -> Event:
        """The event with this id. EventNotFoundError."""
        self._state.check_open()
        return to_event(self._state.get(event_id))

    async def head(self) -> GlobalSequence:
        """The highest number in the log; 0 if there is none."""
        self._state.check_open()
        return self.known_head

    async def position_at(self, moment: datetime) -> GlobalSequence:
        """The number just before the first event whose created_at is *moment* or later; else the head."""
        self._state.check_open()
        for sequence, record in self._state.records.items():
            if record.draft.created_at >= moment:
                return GlobalSequence(sequence - 1)
        return self.known_head

    async def purge(self, event_id: str, purger_id: str) -> None:
        """Take the payload away, also from its dead letters; the event stays. EventNotFoundError."""
        self._state.check_open()
        record = self._state.get(event_id)
        if record.purged_at is None:
            now = self._state.clock.now()
            record.strip(purger_id, now)
            for grave in self._state.graves.values():
                if grave.event.id == event_id:
                    grave.strip(purger_id, now)

    @property
    def known_head(self) -> GlobalSequence:
        """The head: there is no other process that could have moved it."""
        return GlobalSequence(self._state.last_sequence)

    def watch(self, on_append: Callable[[], None]) -> None:
        """Call this in the event loop when the log may have grown, or a retry may be wanted."""
        if on_append not in self._state.on_append:
            self._state.on_append.append(on_append)

    def unwatch(self, on_append: Callable[[], None]) -> None:
        """Do not call it any more. Idempotent."""
        if on_append in self._state.on_append:
            self._state.on_append.remove(on_append)
