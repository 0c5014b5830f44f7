"""Events on their way through the in-process handlers, in memory."""

import asyncio
from collections.abc import Sequence

from postbus.errors import DuplicateEventIdError, StoreError
from postbus.events import Draft, EventStatus, GlobalSequence
from postbus.ports import OnStored
from postbus.stores.memory.state import State


class InMemoryEventQueue:
    """Fulfils ports.EventQueue."""

    def __init__(self, state: State) -> None:
        self._state = state

    def add(self, drafts: Sequence[Draft], on_stored: OnStored) -> None:
        """Store the drafts, all or none, and call *on_stored* in a later turn of the event loop."""
        sequences: list[int | None] = []
        failure: StoreError | None = None
        try:
            self._state.check_open()
            self._check_ids(drafts)
            sequences = [self._insert(draft) for draft in drafts]
        except StoreError as error:
            failure = error
        asyncio.get_running_loop().call_soon(on_stored, sequences, failure)
        if any(
            sequence is not None and self._state.by_id[draft.id].status is EventStatus.PENDING
            for sequence, draft in zip(sequences, drafts, strict=False)
        ):
            self._state.announce_pending()

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

    def _check_ids(self, drafts: Sequence[Draft]) -> None:
        """Refuse them all if one has an id that is taken and was not given by the publisher."""
        taken: set[str] = set()
        for draft in drafts:
            if not draft.is_idempotent and (draft.id in taken or draft.id in self._state.by_id):
                raise DuplicateEventIdError(
                    f"an event with the id {draft.id!r} is stored already; nothing was stored; "
                    "give an id_factory whose ids are unique"
                )
            taken.add(draft.id)

    def _insert(self, draft: Draft) -> int | None:
        if draft.id in self._state.by_id:
            return None
        return self._state.insert(draft).sequence
