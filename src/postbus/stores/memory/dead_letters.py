"""Events that used up their attempts, in memory."""

from datetime import datetime

from postbus.errors import EventNotFoundError, NotADeadLetterError
from postbus.events import DeadLetterPage, EventStatus
from postbus.stores.memory.state import Record, State, to_event


class InMemoryDeadLetters:
    """Fulfils ports.DeadLetterStore."""

    def __init__(self, state: State) -> None:
        self._state = state

    async def page(self, limit: int, offset: int) -> DeadLetterPage:
        """The newest first."""
        self._state.check_open()
        dead = sorted(self._state.with_status(EventStatus.DLQ), key=_age, reverse=True)
        return DeadLetterPage(
            events=[to_event(record) for record in dead[offset : offset + limit]], total=len(dead)
        )

    async def revive(self, event_id: str) -> None:
        """Back to pending with no attempts and no errors. EventNotFoundError, NotADeadLetterError."""
        self._state.check_open()
        record = self._state.by_id.get(event_id)
        if record is None:
            raise EventNotFoundError(event_id)
        if record.status is not EventStatus.DLQ:
            raise NotADeadLetterError(event_id, record.status.value)
        self._revive([record])

    async def revive_all(self, event_type: str | None) -> int:
        """Revive every dead letter, or those of one type; how many."""
        self._state.check_open()
        dead = [
            record
            for record in self._state.with_status(EventStatus.DLQ)
            if event_type is None or record.draft.type == event_type
        ]
        self._revive(dead)
        return len(dead)

    async def purge(self, cutoff: datetime) -> int:
        """Delete dead letters with created_at <= cutoff; how many."""
        self._state.check_open()
        old = [
            record for record in self._state.with_status(EventStatus.DLQ) if record.draft.created_at <= cutoff
        ]
        for record in old:
            self._state.delete(record)
        return len(old)

    def _revive(self, dead: list[Record]) -> None:
        for record in dead:
            record.retry_count, record.last_error, record.dlq_at = 0, None, None
            self._state.move(record, EventStatus.PENDING)
        if dead:
            self._state.announce_pending()


def _age(record: Record) -> tuple[datetime, int]:
    return record.draft.created_at, record.sequence
