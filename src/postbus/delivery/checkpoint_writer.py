"""Holds what a durable subscriber has processed and not written yet, and writes it when it is due."""

import asyncio
import logging
import math
from collections.abc import Callable

from msgspec.structs import replace

from postbus.config import AnyCheckpointMode
from postbus.delivery.patience import Patience
from postbus.delivery.receivers import Effects
from postbus.errors import StoreError
from postbus.events import (
    Burial,
    Checkpoint,
    Event,
    GlobalSequence,
    Progress,
    RetryOutcome,
    StateWrite,
)
from postbus.policy.checkpoints import PendingCheckpoint, due_at, events_until_due
from postbus.ports import CheckpointStore, Clock

logger = logging.getLogger("postbus")

# A position that moved over unwanted events alone is written when it has moved this far.
_MOST_SKIPPED = 1_000


class CheckpointWriter:
    """The checkpoint of one ownership of a subscriber."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        mode: AnyCheckpointMode,
        store: CheckpointStore,
        patience: Patience,
        clock: Clock,
        on_written: Callable[[], None],
        on_alarm: Callable[[], None],
    ) -> None:
        self._subscriber_id, self.epoch = checkpoint.subscriber_id, checkpoint.epoch
        self._store, self._patience, self._clock = store, patience, clock
        self._on_written, self._on_alarm = on_written, on_alarm
        self.position = self.written = checkpoint.position
        self._event_id = checkpoint.event_id
        self._mode, self._count_due = mode, events_until_due(mode)
        self._count = 0
        self._due_at = math.inf
        self._states: dict[tuple[str, str], StateWrite] = {}
        # The position that somebody waits for to be written.
        self._wanted: GlobalSequence | None = None
        # A write was cancelled, and may come to its end all the same.
        self._is_uncertain = False
        self._alarm: asyncio.Task[None] | None = None

    @property
    def is_due(self) -> bool:
        """Whether it is time to write."""
        if self._count >= self._count_due:
            return True
        # Also where no alarm can ring, because no handler ever lets the event loop turn.
        if self._count and self._clock.monotonic() >= self._due_at:
            return True
        if self._wanted is not None and self.position >= self._wanted:
            return self.position > self.written
        return not self._count and self.position - self.written >= _MOST_SKIPPED

    def want(self, position: GlobalSequence) -> None:
        """Somebody waits for this position: write it as soon as it is reached."""
        self._wanted = position if self._wanted is None else min(self._wanted, position)

    def want_now(self) -> None:
        """Write the event at hand without waiting for others."""
        self.want(self.position)

    def note(self, event: Event, sequence: GlobalSequence) -> None:
        """The event was processed, and had no effects of ours."""
        self.position, self._event_id = sequence, event.id
        self._count += 1
        if self._count == 1 and self._count_due > 1:
            self._ring_later()

    def note_states(self, effects: Effects) -> None:
        """States that are written with the next checkpoint."""
        for state in effects.states:
            self._states[state.store_name, state.key] = state

    def note_saved(self, position: GlobalSequence) -> None:
        """Everything up to here is written, with all effects."""
        self.position, self.written = max(self.position, position), max(self.written, position)
        self._count = 0
        if self._wanted is not None and self._wanted <= self.written:
            # Whoever waits for more says so again.
            self._wanted = None
        self._states.clear()
        self._on_written()

    def skip_to(self, position: GlobalSequence) -> None:
        """Nothing else up to here is wanted."""
        if position > self.position:
            self.position = position

    async def write(self) -> None:
        """Write what was processed, if there is anything. StoppedError, SubscriberFencedError."""
        if (self.position > self.written or self._states) and not self._is_uncertain:
            await self._save(self._progress())

    async def write_attempt(self, sequence: GlobalSequence, attempt: int) -> None:
        """Write what was processed, and that an attempt begins: should it end the process, it counts."""
        await self._save(replace(self._progress(), attempt_sequence=sequence, attempt_count=attempt))

    async def write_burial(self, burial: Burial, sequence: GlobalSequence) -> None:
        """Write what was processed, and that the next event is a dead letter."""
        progress = self._progress()
        await self._save(replace(progress, position=sequence, event_id=burial.event.id, burials=(burial,)))
        self.position, self._event_id = sequence, burial.event.id

    async def write_effects(self, event: Event, sequence: GlobalSequence, effects: Effects) -> None:
        """Write the event's effects and all before it in one transaction; a refusal of them is raised."""
        progress = self._progress(effects)
        await self._save(replace(progress, position=sequence, event_id=event.id))
        self.position, self._event_id = sequence, event.id

    async def write_retry(self, outcome: RetryOutcome, effects: Effects | None) -> None:
        """Write what became of a dead letter's retry, with its effects."""
        await self._save(replace(self._progress(effects), retries=(outcome,)))

    def stop(self) -> None:
        """Ring no more."""
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None

    def _progress(self, effects: Effects | None = None) -> Progress:
        effects = effects or Effects()
        return Progress(
            subscriber_id=self._subscriber_id,
            epoch=self.epoch,
            position=self.position,
            event_id=self._event_id,
            states=[*self._states.values(), *effects.states],
            drafts=effects.drafts,
        )

    async def _save(self, progress: Progress) -> None:
        await self._patience.run(lambda: self._save_once(progress))
        self.note_saved(progress.position)
        logger.debug("checkpoint of %s is at %d", self._subscriber_id, self.written)

    async def _save_once(self, progress: Progress) -> None:
        # Cancelled here, it may have been written or not: then nothing older may be written after it.
        self._is_uncertain = True
        try:
            await self._store.save(progress)
        except StoreError:
            self._is_uncertain = False
            raise
        self._is_uncertain = False

    def _ring_later(self) -> None:
        self._due_at = due_at(PendingCheckpoint().add(1, self._clock.monotonic()), self._mode)
        if self._alarm is None:
            self._alarm = asyncio.get_running_loop().create_task(self._ring(), name="postbus checkpoint")

    async def _ring(self) -> None:
        # What it was set for may have been written meanwhile, and other events may be waiting.
        while self._count and self._clock.monotonic() < self._due_at:
            await self._clock.until(self._due_at)
        self._alarm = None
        if self._count:
            self.want_now()
            self._on_alarm()
