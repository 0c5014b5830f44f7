"""What all ports of one InMemoryStore share."""

import asyncio
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime

import msgspec

from postbus.errors import StoreClosedError
from postbus.events import Draft, Event, EventStatus, GlobalSequence, SubscriptionRow
from postbus.ports import Clock


@dataclass(slots=True)
class Record:
    """One stored event: its draft as it was given, and what became of it."""

    sequence: GlobalSequence
    draft: Draft
    status: EventStatus
    retry_count: int = 0
    last_error: str | None = None
    dlq_at: datetime | None = None


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
    subscriptions: list[SubscriptionRow] = field(default_factory=list)
    on_change: Callable[[], None] | None = None

    def check_open(self) -> None:
        """Refuse to work while the store is closed."""
        if self.is_closed:
            raise StoreClosedError(
                "this InMemoryStore was closed; await store.open() first; nothing was changed"
            )

    def insert(self, draft: Draft) -> Record:
        """Keep one more event under the next sequence number."""
        self.last_sequence += 1
        unrouted = EventStatus.PENDING if self.subscriptions else EventStatus.DONE
        status = unrouted if draft.status is None else draft.status
        record = Record(GlobalSequence(self.last_sequence), _detach(draft), status)
        self.records[record.sequence] = record
        self.by_id[draft.id] = record
        self.by_status[status].add(record.sequence)
        return record

    def delete(self, record: Record) -> None:
        """Forget an event; its sequence number is not used again."""
        del self.records[record.sequence]
        del self.by_id[record.draft.id]
        self.by_status[record.status].remove(record.sequence)

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
        self.by_status[record.status].remove(record.sequence)
        self.by_status[status].add(record.sequence)
        record.status = status

    def announce_pending(self) -> None:
        """Call the watcher in a later turn of the event loop."""
        if self.on_change is not None:
            asyncio.get_running_loop().call_soon(self._call_watcher)

    def _call_watcher(self) -> None:
        if self.on_change is not None:
            self.on_change()


def to_event(record: Record) -> Event:
    """A fresh Event: whoever changes its payload or metadata changes only a copy."""
    draft = record.draft
    return Event(
        id=draft.id,
        type=draft.type,
        payload=msgspec.json.decode(draft.payload_json),
        created_at=draft.created_at,
        status=record.status,
        retry_count=record.retry_count,
        last_error=record.last_error,
        metadata=None if draft.metadata is None else dict(draft.metadata),
        global_sequence=record.sequence,
        dlq_at=record.dlq_at,
    )


def _detach(draft: Draft) -> Draft:
    if draft.metadata is None:
        return draft
    return msgspec.structs.replace(draft, metadata=dict(draft.metadata))
