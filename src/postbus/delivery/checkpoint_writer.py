"""Holds what a durable subscriber has processed and not written yet, and writes it when it is due."""

import asyncio
import contextlib
import logging
import math
from collections.abc import Callable

from msgspec.structs import replace

from postbus.config import AnyCheckpointMode
from postbus.delivery.patience import Patience, StoppedError
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
        wake: Callable[[], None],
    ) -> None:
        self._subscriber_id, self.epoch = checkpoint.subscriber_id, checkpoint.epoch
        self._store, self._patience, self._clock = store, patience, clock
        self._on_written, self._wake = on_written, wake
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
        self._beside: asyncio.Task[None] | None = None
        self._saving = asyncio.Lock()

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

    @property
    def has_states(self) -> bool:
        """Whether there are states that are not written."""
        return bool(self._states)

    def want(self, position: GlobalSequence) -> None:
        """Somebody waits for this position: write it as soon as it is reached, also beside a handler."""
        self._wanted = position if self._wanted is None else min(self._wanted, position)
        if self.position >= self._wanted:
            self._write_beside()

    def want_now(self) -> None:
        """Write the event at hand without waiting for others."""
        self._wanted = self.position

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
        """Everything up to here is written."""
        self.position, self.written = max(self.position, position), max(self.written, position)
        if self._wanted is not None and self._wanted <= self.written:
            # Whoever waits for more says so again.
            self._wanted = None
        self._on_written()

    def skip_to(self, position: GlobalSequence) -> None:
        """Nothing else up to here is wanted."""
        if position > self.position:
            self.position = position

    async def write(self) -> None:
        """Write what was processed, if there is anything. StoppedError, SubscriberFencedError."""
        if (self.position > self.written or self._states) and not self._is_uncertain:
            await self._save(self._plain_progress)

    async def write_attempt(self, sequence: GlobalSequence, attempt: int) -> None:
        """Write what was processed, and that an attempt begins: should it end the process, it counts."""
        await self._save(lambda: replace(self._progress(), attempt_sequence=sequence, attempt_count=attempt))

    async def write_burial(self, burial: Burial, sequence: GlobalSequence) -> None:
        """Write what was processed, and that the next event is a dead letter."""
        event_id = burial.event.id
        await self._save(
            lambda: replace(self._progress(), position=sequence, event_id=event_id, burials=(burial,))
        )
        self.position, self._event_id = sequence, event_id

    async def write_effects(self, event: Event, sequence: GlobalSequence, effects: Effects) -> None:
        """Write the event's effects and all before it in one transaction; a refusal of them is raised."""
        await self._save(lambda: replace(self._progress(effects), position=sequence, event_id=event.id))
        self.position, self._event_id = sequence, event.id

    async def write_retry(self, outcome: RetryOutcome, effects: Effects | None) -> None:
        """Write what became of a dead letter's retry, with its effects."""
        if outcome.error is not None:
            logger.warning(
                "the retry of dead letter %s of %s failed: %s",
                outcome.dead_letter_id,
                self._subscriber_id,
                outcome.error,
                extra={"subscription_id": self._subscriber_id, "error": outcome.error},
            )
        await self._save(lambda: replace(self._progress(effects), retries=(outcome,)))

    async def finish(self) -> None:
        """Ring no more, and return when nothing is being written beside a handler."""
        self.stop()
        if self._beside is not None:
            await asyncio.wait([self._beside])

    def stop(self) -> None:
        """Ring no more."""
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None

    def _plain_progress(self) -> Progress:
        # Who asked for synchronous checkpoints wants each of them on disk.
        return replace(self._progress(), is_repeatable=self._count_due > 1 and not self._states)

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

    async def _save(self, make_progress: Callable[[], Progress]) -> None:
        """Write one after the other; events that are processed meanwhile wait for the next time."""
        async with self._saving:
            progress, count, states = make_progress(), self._count, dict(self._states)
            began_at = self._clock.monotonic()
            await self._patience.run(lambda: self._save_once(progress))
            self._count -= count
            for key, state in states.items():
                if self._states.get(key) is state:
                    del self._states[key]
            if self._count:
                self._due_at = due_at(PendingCheckpoint().add(1, began_at), self._mode)
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
            self._write_beside()

    def _write_beside(self) -> None:
        """Write in a task of its own: a handler may be under way for long."""
        if self._beside is None or self._beside.done():
            self._beside = asyncio.get_running_loop().create_task(
                self._write_quietly(), name="postbus checkpoint"
            )

    async def _write_quietly(self) -> None:
        with contextlib.suppress(StoppedError):
            try:
                await self.write()
            except StoreError:
                # Not ours any more, or closed: the subscriber itself has to meet it, in its own write.
                self.want_now()
                self._wake()
