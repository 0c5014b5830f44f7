"""What all ports of one InMemoryStore share."""

import asyncio
import bisect
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

import msgspec

from postbus.errors import EventNotFoundError, StoreClosedError
from postbus.events import Checkpoint, Draft, EventStatus, GlobalSequence, SubscriberId, SubscriptionRow
from postbus.ports import Clock
from postbus.stores.memory.records import Grave, Record


@dataclass(slots=True)
class State:
    """The tables of the store, as plain collections."""

    clock: Clock
    is_closed: bool = False
    last_sequence: int = 0
    records: dict[int, Record] = field(default_factory=dict)
    by_id: dict[str, Record] = field(default_factory=dict)
    # What is asked for by status is found without looking at every finished event.
    by_status: dict[EventStatus, set[int]] = field(
        default_factory=lambda: {status: set() for status in EventStatus}
    )
    # The pending ones in order: whoever reads on must not go through all that nobody wants.
    waiting: list[int] = field(default_factory=list)
    # Versions and their numbers.
    streams: dict[str, dict[int, int]] = field(default_factory=dict)
    stream_versions: dict[str, int] = field(default_factory=dict)
    subscriptions: list[SubscriptionRow] = field(default_factory=list)
    checkpoints: dict[SubscriberId, Checkpoint] = field(default_factory=dict)
    # Subscribers whose owner has not let go.
    owned: set[SubscriberId] = field(default_factory=set)
    graves: dict[str, Grave] = field(default_factory=dict)
    states: dict[str, dict[str, bytes]] = field(default_factory=dict)
    on_change: Callable[[], None] | None = None
    on_append: list[Callable[[], None]] = field(default_factory=list)

    def check_open(self) -> None:
        """Refuse to work while the store is closed."""
        if self.is_closed:
            raise StoreClosedError(
                "this InMemoryStore was closed; await store.open() first; nothing was changed"
            )

    def get(self, event_id: str) -> Record:
        """The event with this id. EventNotFoundError."""
        record = self.by_id.get(event_id)
        if record is None:
            raise EventNotFoundError(event_id)
        return record

    def insert(self, draft: Draft) -> Record:
        """Keep one more event under the next sequence number and the next version of its stream."""
        self.last_sequence += 1
        unrouted = EventStatus.PENDING if self.subscriptions else EventStatus.DONE
        status = unrouted if draft.status is None else draft.status
        record = Record(GlobalSequence(self.last_sequence), _detach(draft), status)
        if draft.stream_id is not None:
            record.stream_version = self.stream_versions.get(draft.stream_id, 0) + 1
            self.stream_versions[draft.stream_id] = record.stream_version
            self.streams.setdefault(draft.stream_id, {})[record.stream_version] = record.sequence
        self.records[record.sequence] = record
        self.by_id[draft.id] = record
        self._enter(record)
        return record

    def delete(self, record: Record) -> None:
        """Forget an event that is in no stream; its sequence number is not used again."""
        del self.records[record.sequence]
        del self.by_id[record.draft.id]
        self._leave(record)

    def with_status(self, status: EventStatus) -> list[Record]:
        """The events in this status, in no order."""
        return [self.records[sequence] for sequence in self.by_status[status]]

    def pick(self, sequences: Iterable[GlobalSequence], status: EventStatus) -> Iterator[Record]:
        """Those of the events that are in this status now."""
        for sequence in sequences:
            record = self.records.get(sequence)
            if record is not None and record.status is status:
                yield record

    def move(self, record: Record, status: EventStatus) -> None:
        """Change the status of an event."""
        self._leave(record)
        record.status = status
        self._enter(record)

    def _enter(self, record: Record) -> None:
        self.by_status[record.status].add(record.sequence)
        if record.status is EventStatus.PENDING:
            bisect.insort(self.waiting, record.sequence)

    def _leave(self, record: Record) -> None:
        self.by_status[record.status].remove(record.sequence)
        if record.status is EventStatus.PENDING:
            del self.waiting[bisect.bisect_left(self.waiting, record.sequence)]

    def announce_pending(self) -> None:
        """Call the watcher of the backlog in a later turn of the event loop."""
        if self.on_change is not None:
            asyncio.get_running_loop().call_soon(self._call_watcher)

    def announce_append(self) -> None:
        """Call the watchers of the log in a later turn of the event loop."""
        for watcher in self.on_append:
            asyncio.get_running_loop().call_soon(self._call_log_watcher, watcher)

    def _call_watcher(self) -> None:
        if self.on_change is not None:
            self.on_change()

    def _call_log_watcher(self, watcher: Callable[[], None]) -> None:
        if watcher in self.on_append:
            watcher()


def _detach(draft: Draft) -> Draft:
    if draft.metadata is None:
        return draft
    return msgspec.structs.replace(draft, metadata=dict(draft.metadata))
