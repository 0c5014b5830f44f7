"""How far each durable subscriber has come, in memory."""

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from postbus.errors import SubscriberFencedError
from postbus.events import (
    BatchOutcome,
    Burial,
    Checkpoint,
    Event,
    GlobalSequence,
    LogPosition,
    Progress,
    RetryOutcome,
    SubscriberId,
)
from postbus.ids import new_event_id
from postbus.stores.memory.intake import check_drafts, store_drafts
from postbus.stores.memory.records import Grave, encode_payload
from postbus.stores.memory.state import State
from postbus.stores.memory.states import put_state
from postbus.stores.memory.transactions import EffectsDatabase, run_batch
from postbus.stores.wishes import wish_of

_START = GlobalSequence(0)


class InMemoryCheckpoints:
    """Fulfils ports.CheckpointStore; *effects* is where transactional subscribers write."""

    def __init__(self, state: State, effects: EffectsDatabase) -> None:
        self._state, self._effects = state, effects

    async def load(self, subscriber_id: SubscriberId) -> Checkpoint | None:
        """Its checkpoint, if it has one."""
        self._state.check_open()
        return self._state.checkpoints.get(subscriber_id)

    async def list(self) -> list[Checkpoint]:
        """All, by subscriber id."""
        self._state.check_open()
        return [checkpoint for _, checkpoint in sorted(self._state.checkpoints.items())]

    async def claim(self, subscriber_id: SubscriberId, start: LogPosition) -> Checkpoint:
        """Become the owner under a new, higher epoch; *start* counts if there is no checkpoint yet."""
        self._state.check_open()
        now = self._state.clock.now()
        present = self._state.checkpoints.get(
            subscriber_id, Checkpoint(subscriber_id=subscriber_id, position=start.contiguous, updated_at=now)
        )
        claimed = msgspec.structs.replace(
            present,
            epoch=present.epoch + 1,
            was_interrupted=subscriber_id in self._state.owned,
            updated_at=now,
        )
        self._state.checkpoints[subscriber_id] = claimed
        self._state.owned.add(subscriber_id)
        return claimed

    async def save(self, progress: Progress) -> None:
        """Write all of it, or nothing. SubscriberFencedError, and the errors of its drafts."""
        self._state.check_open()
        self._check_owner(progress.subscriber_id, progress.epoch)
        check_drafts(self._state, progress.drafts)
        graves = [self._dig(progress.subscriber_id, burial) for burial in progress.burials]
        # Nothing can fail from here on.
        self._state.graves.update((grave.id, grave) for grave in graves)
        for retry in progress.retries:
            self._note_retry(progress.subscriber_id, retry)
        for write in progress.states:
            put_state(self._state, write.store_name, write.key, write.state_json)
        store_drafts(self._state, progress.drafts)
        self._move(progress.subscriber_id, progress.position, progress.event_id)
        self._state.checkpoints[progress.subscriber_id] = msgspec.structs.replace(
            self._state.checkpoints[progress.subscriber_id],
            attempt_sequence=progress.attempt_sequence,
            attempt_count=progress.attempt_count,
        )

    async def process(
        self,
        subscriber_id: SubscriberId,
        epoch: int,
        events: Sequence[Event],
        handle: Callable[[Event, Any], Any],
        reached: Callable[[int], LogPosition],  # noqa: ARG002
        *,
        timeout: float,
        time_budget: float,
        retried: str | None = None,
        server: str | None = None,  # noqa: ARG002
        dead_letters_of: SubscriberId | None = None,  # noqa: ARG002
    ) -> BatchOutcome:
        """Call handle(event, transaction) for one event after the other and move the checkpoint along."""
        self._state.check_open()
        self._check_owner(subscriber_id, epoch)
        outcome = run_batch(self._effects.connect(), subscriber_id, events, handle, timeout, time_budget)
        if outcome.done_count and retried is not None:
            self._note_retry(subscriber_id, RetryOutcome(retried, None))
        elif outcome.done_count:
            last = events[outcome.done_count - 1]
            self._move(subscriber_id, last.global_sequence or _START, last.id)
        return outcome

    async def release(
        self,
        subscriber_id: SubscriberId,
        epoch: int,
        server: str | None = None,  # noqa: ARG002
    ) -> None:
        """Let go in good order. Nothing happens if the epoch is not the present one."""
        self._state.check_open()
        checkpoint = self._state.checkpoints.get(subscriber_id)
        if checkpoint is not None and checkpoint.epoch == epoch:
            self._state.owned.discard(subscriber_id)

    def _check_owner(self, subscriber_id: SubscriberId, epoch: int) -> None:
        checkpoint = self._state.checkpoints.get(subscriber_id)
        if checkpoint is None or checkpoint.epoch != epoch:
            raise SubscriberFencedError(subscriber_id, epoch)

    def _move(self, subscriber_id: SubscriberId, position: GlobalSequence, event_id: str | None) -> None:
        present = self._state.checkpoints[subscriber_id]
        if position <= present.position:
            position, event_id = present.position, present.event_id
        self._state.checkpoints[subscriber_id] = msgspec.structs.replace(
            present,
            position=position,
            # Events that were not wanted move the position on and leave no id of their own.
            event_id=event_id or present.event_id,
            updated_at=self._state.clock.now(),
        )

    def _dig(self, subscriber_id: SubscriberId, burial: Burial) -> Grave:
        """A dead letter as if it were the first of its event, under the id of one that is there."""
        present = (
            grave.id
            for grave in self._state.graves.values()
            if grave.subscriber_id == subscriber_id and grave.event.id == burial.event.id
        )
        metadata = burial.event.metadata
        grave = Grave(
            id=next(present, None) or new_event_id(),
            subscriber_id=subscriber_id,
            event=msgspec.structs.replace(
                burial.event, payload=None, metadata=None if metadata is None else dict(metadata)
            ),
            payload_json=encode_payload(burial.event.payload),
            errors=[*burial.errors],
            dlq_at=self._state.clock.now(),
        )
        record = self._state.by_id.get(burial.event.id)
        if record is not None and record.purger_id is not None and record.purged_at is not None:
            # It was purged after the subscriber had read it: the payload must not come back.
            grave.strip(record.purger_id, record.purged_at)
        return grave

    def _note_retry(self, subscriber_id: SubscriberId, retry: RetryOutcome) -> None:
        grave = self._state.graves.get(retry.dead_letter_id)
        if grave is None or grave.subscriber_id != subscriber_id or grave.resolved_at is not None:
            return  # purged or resolved meanwhile
        answered, grave.last_retry_at = wish_of(retry.dead_letter_id), self._state.clock.now()
        if retry.error is None or answered is None or answered is grave.wish:
            grave.wish = None
        if retry.error is None:
            grave.resolved_at, grave.resolved_by = grave.last_retry_at, subscriber_id
        else:
            grave.errors.append(retry.error)
