"""Events on their way through the in-process handlers, in memory."""

import asyncio
from collections.abc import Sequence

from postbus.errors import StoreError
from postbus.events import Draft, EventStatus, GlobalSequence
from postbus.ports import OnStored
from postbus.stores.memory.intake import check_drafts, store_drafts
from postbus.stores.memory.state import State


class InMemoryEventQueue:
    """Fulfils ports.EventQueue."""

    def __init__(self, state: State) -> None:
        self._state = state

    def add(self, drafts: Sequence[Draft], on_stored: OnStored) -> None:
        """Store the drafts, all or none, and call *on_stored* in a later turn of the event loop."""
        call_soon = asyncio.get_running_loop().call_soon
        try:
            self._state.check_open()
            check_drafts(self._state, drafts)
        except StoreError as error:
            call_soon(on_stored, [], [], error)
            return
        stored = store_drafts(self._state, drafts)
        versions = [None if record is None else record.stream_version for record in stored]
        has_streams = any(draft.stream_id is not None for draft in drafts)
        sequences = [None if record is None else record.sequence for record in stored]
        call_soon(on_stored, sequences, versions if has_streams else [], None)

    def finish(self, sequence: GlobalSequence) -> None:
        """Mark a processing event done."""
        self._state.check_open()
        for record in self._state.pick([sequence], EventStatus.PROCESSING):
            self._state.move(record, EventStatus.DONE)

    async def fail(self, sequence: GlobalSequence, retry_count: int, last_error: str) -> None:
        """Record one more failed attempt of a processing event."""
        self._state.check_open()
        for record in self._state.pick([sequence], EventStatus.PROCESSING):
            record.retry_count, record.last_error = retry_count, last_error

    async def bury(self, sequence: GlobalSequence, retry_count: int, last_error: str | None) -> None:
        """Make a processing event a dead letter."""
        self._state.check_open()
        for record in self._state.pick([sequence], EventStatus.PROCESSING):
            record.retry_count, record.last_error = retry_count, last_error
            record.dlq_at = self._state.clock.now()
            self._state.move(record, EventStatus.DLQ)

    async def release(self, sequences: Sequence[GlobalSequence]) -> None:
        """Put processing events back to pending, their attempts as they are."""
        self._state.check_open()
        released = list(self._state.pick(sequences, EventStatus.PROCESSING))
        for record in released:
            self._state.move(record, EventStatus.PENDING)
        if released:
            self._state.announce_pending()
