"""Works off what competing workers have left in the outbox, before their subscriber goes on in order."""

import asyncio
import logging
from collections.abc import Callable

from postbus.delivery.failures import Failed, failed_by
from postbus.delivery.outbox.worker import Worker, Workplace
from postbus.delivery.patience import Patience
from postbus.delivery.receivers import Effects
from postbus.delivery.subscriber import Subscriber
from postbus.errors import DuplicateEventIdError, WrongExpectedVersionError
from postbus.events import Checkpoint, Event, GlobalSequence, Progress
from postbus.ids import new_event_id
from postbus.ports import CheckpointStore

logger = logging.getLogger("postbus")

_SECONDS_BETWEEN_LOOKS = 0.1


class OutboxDrain:
    """A worker for a while, with the subscriber's own handler: one event after the other, oldest first."""

    def __init__(self, workplace: Workplace, checkpoints: CheckpointStore) -> None:
        self._workplace, self._checkpoints = workplace, checkpoints
        self._worker: Worker | None = None
        self._has_changed = asyncio.Event()

    def is_run_by(self, task: "asyncio.Task[object] | None") -> bool:
        """Whether it is a handler of this worker that asks."""
        return self._worker is not None and self._worker.is_run_by(task)

    async def run(
        self, subscriber: Subscriber, claim: Checkpoint, patience: Patience, has_changed: Callable[[], bool]
    ) -> bool:
        """Return when nothing is left there, also of what others are at; False: has_changed came first."""
        outbox, pool = self._workplace.outbox, subscriber.id
        if await patience.run(lambda: outbox.is_empty(pool)):
            return True
        logger.info("subscriber %s first processes what competing workers have left", pool)
        effects = _EffectsOfDrain(self._checkpoints, claim, patience)
        worker = self._worker = Worker(
            subscriber,
            self._workplace,
            self._note_change,
            concurrency=1,
            take_effects=effects.take,
            is_to_halt=has_changed,
        )
        worker.start()
        try:
            while not has_changed():
                self._has_changed.clear()
                if await patience.run(lambda: outbox.is_empty(pool)):
                    return True
                # What waits for its next attempt becomes due without a word.
                worker.wake()
                worker.want_written()
                await patience.sleep(_SECONDS_BETWEEN_LOOKS, self._has_changed)
            return False
        except asyncio.CancelledError:
            await worker.cut_off(None)
            raise
        finally:
            await self._end(worker)

    async def _end(self, worker: Worker) -> None:
        worker.stop()
        while not worker.is_stopped:
            self._has_changed.clear()
            await self._has_changed.wait()
        self._worker = None

    def _note_change(self) -> None:
        self._has_changed.set()


class _EffectsOfDrain:
    """States and events of an observer that was a handler when its workers competed."""

    def __init__(self, checkpoints: CheckpointStore, claim: Checkpoint, patience: Patience) -> None:
        self._checkpoints, self._claim, self._patience = checkpoints, claim, patience

    async def take(self, _event: Event, effects: Effects) -> Failed | None:
        """Write them; the checkpoint stays where it is. StoppedError, SubscriberFencedError."""
        progress = Progress(
            subscriber_id=self._claim.subscriber_id,
            epoch=self._claim.epoch,
            server=self._claim.server,
            position=GlobalSequence(0),
            states=effects.states,
            drafts=effects.drafts,
            write_id=new_event_id(),
        )
        try:
            await self._patience.run(lambda: self._checkpoints.save(progress))
        except (WrongExpectedVersionError, DuplicateEventIdError) as error:
            return failed_by(error)
        return None
