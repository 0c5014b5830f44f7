"""Stored events that no publisher is waiting for, in memory."""

import bisect
import itertools
from collections.abc import Callable, Collection, Iterator, Sequence

import msgspec

from postbus.events import Event, EventStatus, GlobalSequence
from postbus.stores.memory.records import Record, to_event
from postbus.stores.memory.state import State


class InMemoryBacklog:
    """Fulfils ports.Backlog."""

    def __init__(self, state: State) -> None:
        self._state = state

    async def recover(self, error: str, error_of_several: str) -> int:
        """Put every processing event back to pending, as a failed attempt; how many."""
        self._state.check_open()
        left_behind = self._state.with_status(EventStatus.PROCESSING)
        found = error if len(left_behind) == 1 else error_of_several
        for record in left_behind:
            record.retry_count += 1
            record.last_error = _append_error(record.last_error, found)
            self._state.move(record, EventStatus.PENDING)
        if left_behind:
            self._state.announce_pending()
        return len(left_behind)

    async def pending(self, after: GlobalSequence, limit: int, without: Collection[str] = ()) -> list[Event]:
        """Pending events with a higher sequence number, in order, but none of the types in *without*."""
        self._state.check_open()
        wanted = (record for record in self._waiting(after) if record.draft.type not in without)
        return [to_event(record) for record in itertools.islice(wanted, limit)]

    async def pending_count(self, up_to: GlobalSequence) -> int:
        """How many are pending up to this sequence number."""
        self._state.check_open()
        return bisect.bisect_right(self._state.waiting, up_to)

    async def claim(self, sequences: Sequence[GlobalSequence]) -> set[GlobalSequence]:
        """Move pending events to processing; those that still were pending."""
        return self._move_pending(sequences, EventStatus.PROCESSING)

    async def settle_pending(self, sequences: Sequence[GlobalSequence]) -> int:
        """Mark pending events done unseen; how many."""
        return len(self._move_pending(sequences, EventStatus.DONE))

    def watch(self, on_change: Callable[[], None] | None) -> None:
        """Call *on_change* in the event loop when events may have become pending."""
        self._state.on_change = on_change

    def _waiting(self, after: GlobalSequence) -> Iterator[Record]:
        waiting = self._state.waiting
        for index in range(bisect.bisect_right(waiting, after), len(waiting)):
            yield self._state.records[waiting[index]]

    def _move_pending(self, sequences: Sequence[GlobalSequence], status: EventStatus) -> set[GlobalSequence]:
        self._state.check_open()
        waiting = list(self._state.pick(sequences, EventStatus.PENDING))
        for record in waiting:
            self._state.move(record, status)
        return {record.sequence for record in waiting}


def _append_error(last_error: str | None, error: str) -> str:
    errors = [] if last_error is None else msgspec.json.decode(last_error, type=list[str])
    return msgspec.json.encode([*errors, error]).decode()
