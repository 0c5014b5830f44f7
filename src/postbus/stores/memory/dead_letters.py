"""Dead letters of the in-process handlers and of durable subscribers, in memory."""

from collections.abc import Sequence
from datetime import datetime

from postbus.errors import NotADeadLetterError
from postbus.events import DeadLetter, DeadLetterPage, Event, EventStatus, FencedOwner, Part, SubscriberId
from postbus.ports import WantedEvents
from postbus.stores.memory.records import Grave, Record, to_dead_letter
from postbus.stores.memory.state import State
from postbus.stores.wishes import as_wanted

_Dead = Record | Grave


class InMemoryDeadLetters:
    """Fulfils ports.DeadLetterStore."""

    def __init__(self, state: State) -> None:
        self._state = state

    async def page(self, limit: int, offset: int, subscriber_id: SubscriberId | None) -> DeadLetterPage:
        """The unresolved ones of both kinds, or of one subscriber, newest first."""
        self._state.check_open()
        dead = sorted(self._unresolved(subscriber_id), key=_age, reverse=True)
        return DeadLetterPage(
            events=[to_dead_letter(each) for each in dead[offset : offset + limit]], total=len(dead)
        )

    async def get(self, dead_letter_id: str) -> DeadLetter:
        """One, resolved or not. EventNotFoundError, NotADeadLetterError (an event that is none)."""
        self._state.check_open()
        return to_dead_letter(self._find(dead_letter_id)[0])

    async def revive(self, dead_letter_id: str) -> None:
        """Give it another chance; an event's id stands for all its dead letters."""
        self._state.check_open()
        self._revive(self._find_unresolved(dead_letter_id))

    async def revive_all(self, event_type: str | None, subscriber_id: SubscriberId | None) -> int:
        """Revive every unresolved dead letter, or those of one type, of one subscriber; how many."""
        self._state.check_open()
        dead = [each for each in self._unresolved(subscriber_id) if event_type in (None, _type(each))]
        self._revive(dead)
        return len(dead)

    async def resolve(self, dead_letter_id: str, by: str, notes: str | None) -> None:
        """Somebody has seen to it: it leaves the list and stays on record."""
        self._state.check_open()
        for each in self._find_unresolved(dead_letter_id):
            each.resolved_at, each.resolved_by, each.notes = self._state.clock.now(), by, notes
            if isinstance(each, Grave):
                each.wish = None

    async def purge(self, cutoff: datetime) -> int:
        """Delete dead letters with created_at <= cutoff, resolved ones too; how many."""
        self._state.check_open()
        old = [each for each in self._all() if _age(each)[0] <= cutoff]
        for each in old:
            if isinstance(each, Record):
                self._purge_event(each)
            else:
                del self._state.graves[each.id]
        return len(old)

    def _purge_event(self, record: Record) -> None:
        """Delete it, unless a stream would have a hole, or a durable subscriber has not come to it yet."""
        positions = [checkpoint.position for checkpoint in self._state.checkpoints.values()]
        if record.draft.stream_id is None and record.sequence <= min(positions, default=record.sequence):
            self._state.delete(record)
        else:
            record.dlq_at = None
            self._state.move(record, EventStatus.DONE)

    async def wanted_retries(
        self,
        subscriber_id: SubscriberId,
        limit: int,
        part: Part | None = None,  # noqa: ARG002
    ) -> list[DeadLetter]:
        """Dead letters of this subscriber that are marked for one more attempt, oldest first."""
        self._state.check_open()
        wanted = [
            grave
            for grave in self._state.graves.values()
            if grave.subscriber_id == subscriber_id and grave.wish is not None
        ]
        return [as_wanted(to_dead_letter(grave), grave.wish) for grave in sorted(wanted, key=_age)[:limit]]

    async def bury_late(
        self,
        subscriber_id: SubscriberId,  # noqa: ARG002
        wanted: WantedEvents | None,  # noqa: ARG002
        error: str,  # noqa: ARG002
        owner: FencedOwner,  # noqa: ARG002
    ) -> list[Event]:
        """None: numbers commit in order, so no number is ever given up."""
        return []

    def _unresolved(self, subscriber_id: SubscriberId | None) -> list[_Dead]:
        return [
            each
            for each in self._all()
            if each.resolved_at is None
            and (subscriber_id is None or (isinstance(each, Grave) and each.subscriber_id == subscriber_id))
        ]

    def _all(self) -> list[_Dead]:
        return [*self._state.with_status(EventStatus.DLQ), *self._state.graves.values()]

    def _find_unresolved(self, dead_letter_id: str) -> list[_Dead]:
        dead = [each for each in self._find(dead_letter_id) if each.resolved_at is None]
        if not dead:
            raise NotADeadLetterError(dead_letter_id, "resolved")
        return dead

    def _find(self, dead_letter_id: str) -> Sequence[_Dead]:
        """What an id stands for, at least one: the handlers' first, then the newest."""
        if dead_letter_id in self._state.graves:
            return [self._state.graves[dead_letter_id]]
        graves = [grave for grave in self._state.graves.values() if grave.event.id == dead_letter_id]
        graves.sort(key=_age, reverse=True)
        record = self._state.by_id.get(dead_letter_id) if graves else self._state.get(dead_letter_id)
        if record is not None and record.status is EventStatus.DLQ:
            return [record, *graves]
        if record is not None and not graves:
            raise NotADeadLetterError(dead_letter_id, record.status.value)
        return graves

    def _revive(self, dead: Sequence[_Dead]) -> None:
        for each in dead:
            if isinstance(each, Record):
                each.retry_count, each.last_error, each.dlq_at = 0, None, None
                self._state.move(each, EventStatus.PENDING)
            else:
                each.wish = object()
        if any(isinstance(each, Record) for each in dead):
            self._state.announce_pending()
        if any(isinstance(each, Grave) for each in dead):
            self._state.announce_append()


def _age(dead: _Dead) -> tuple[datetime, int]:
    """The moment and number by which dead letters are sorted: a subscriber's is as old as its death."""
    if isinstance(dead, Record):
        return dead.draft.created_at, dead.sequence
    return dead.dlq_at, dead.event.global_sequence or 0


def _type(dead: _Dead) -> str:
    return dead.draft.type if isinstance(dead, Record) else dead.event.type
