"""Stored events that no publisher is waiting for, in memory."""

import heapq
from collections.abc import Callable, Sequence

import msgspec

from postbus.events import Event, EventStatus, GlobalSequence
from postbus.stores.memory.records import to_event
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

    async def pending(self, after: GlobalSequence, limit: int) -> list[Event]:
        """Pending events with a higher sequence number, in order."""
        self._state.check_open()
        waiting = (sequence for sequence in self._state.by_status[EventStatus.PENDING] if sequence > after)
        return [to_event(self._state.records[sequence]) for sequence in heapq.nsmallest(limit, waiting)]

    async def claim(self, sequences: Sequence[GlobalSequence]) -> set[GlobalSequence]:
        """Move pending events to processing; those that still were pending."""
        return self._move_pending(sequences, EventStatus.PROCESSING)

    async def settle_pending(self, sequences: Sequence[GlobalSequence]) -> int:
        """Mark pending events done unseen; how many."""
        return len(self._move_pending(sequences, EventStatus.DONE))

    def watch(self, on_change: Callable[[], None] | None) -> None:
        """Call *on_change* in the event loop when events may have become pending."""
        self._state.on_change = on_change

    def _move_pending(self, sequences: Sequence[GlobalSequence], status: EventStatus) -> set[GlobalSequence]:
        self._state.check_open()
        waiting = list(self._state.pick(sequences, EventStatus.PENDING))
        for record in waiting:
            self._state.move(record, status)
        return {record.sequence for record in waiting}


def _append_error(last_error: str | None, error: str) -> str:
    errors = [] if last_error is None else msgspec.json.decode(last_error, type=list[str])
    return msgspec.json.encode([*errors, error]).decode()
