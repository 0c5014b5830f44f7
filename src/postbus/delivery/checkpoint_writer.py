"""Holds what a durable subscriber has processed and not written yet, and writes it when it is due."""

import asyncio
import contextlib
import functools
import logging
import math
from collections.abc import Awaitable, Callable, Sequence

from msgspec.structs import replace

from postbus.config import AnyCheckpointMode
from postbus.delivery.advance import Advance
from postbus.delivery.error_stories import warn_of
from postbus.delivery.patience import Patience, StoppedError
from postbus.delivery.receivers import Effects
from postbus.delivery.stretch import Stretch
from postbus.errors import StoreError
from postbus.events import (
    Burial,
    Checkpoint,
    DeadLetter,
    Event,
    FencedOwner,
    Gap,
    GlobalSequence,
    LogPosition,
    OutboxEntry,
    Part,
    Progress,
    RetryOutcome,
    StateWrite,
    SubscriberId,
)
from postbus.ids import new_event_id
from postbus.policy.checkpoints import events_until_due, seconds_until_due
from postbus.policy.gaps import SubscriberState
from postbus.ports import CheckpointStore, Clock

logger = logging.getLogger("postbus")

# A position that moved over unwanted events alone is written when it has moved this far.
_MOST_SKIPPED = 1_000
# That of a part soon: so much of what it sees is for other parts.
_SECONDS_SKIPPED = 0.25
_NO_EFFECTS = Effects()


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
        on_reached: Callable[[], None],
        wake: Callable[[], None],
        *,
        part: Part | None = None,
        dead_letters_of: SubscriberId | None = None,
    ) -> None:
        self._subscriber_id, self.epoch = checkpoint.subscriber_id, checkpoint.epoch
        self._part, self._dead_letters_of = part, dead_letters_of
        self._store, self._patience, self._clock = store, patience, clock
        # What to do after every write, and after one that somebody waits for: not with each of them, because
        # whoever is woken takes a turn of the event loop.
        self._on_written, self._on_reached, self._wake = on_written, on_reached, wake
        self.server = checkpoint.server
        """Where the subscriber was claimed."""
        self._noted = Advance(checkpoint)
        self._written = self._noted.position
        self._given_up: tuple[Gap, ...] = ()
        self._event_id = checkpoint.event_id
        self._count_due, self._max_delay = events_until_due(mode), seconds_until_due(mode)
        self._count = 0
        # What is delivered at the moment: its events are taken note of when somebody wants to know.
        self._stretch: Stretch | None = None
        self._due_at = math.inf
        # When a part began to pass over what is in others.
        self._skipped_at = -math.inf
        self._states: dict[tuple[str, str], StateWrite] = {}
        # The position that somebody waits for to be written, and one that is to be written for our own sake.
        self._wanted: GlobalSequence | None = None
        self._urgent: GlobalSequence | None = None
        # A write was cancelled, and may come to its end all the same.
        self._is_uncertain = False
        self._alarm: asyncio.Task[None] | None = None
        self._is_stopped = False
        self._beside: asyncio.Task[None] | None = None
        self._saving = asyncio.Lock()

    @property
    def owner(self) -> FencedOwner:
        """For whom it writes, and under which epoch."""
        return FencedOwner(self._subscriber_id, self.epoch)

    @property
    def _advance(self) -> Advance:
        """How far it has come by now."""
        self._note_stretch()
        return self._noted

    @property
    def position(self) -> GlobalSequence:
        """Everything up to here was processed, is a dead letter, dead or not wanted."""
        return self._advance.contiguous

    @property
    def head(self) -> GlobalSequence:
        """The highest number that was processed, with or without gaps below it."""
        return self._advance.head

    @property
    def missing(self) -> tuple[Gap, ...]:
        """The open gaps below the head."""
        return self._advance.position.open

    @property
    def has_processed(self) -> bool:
        """Whether any event was ever processed."""
        self._note_stretch()
        return self._event_id is not None

    @property
    def state(self) -> SubscriberState:
        """A copy of how far it has come, to read on from."""
        return self._advance.state

    @property
    def written(self) -> GlobalSequence:
        """The position that is written."""
        return self._written.contiguous

    def is_written(self, sequence: GlobalSequence) -> bool:
        """Whether this number is processed, and that is written."""
        return self._written.has_passed(sequence)

    @property
    def count_until_due(self) -> int:
        """After so many more events it is time to write: at least one."""
        return max(1, self._count_due - self._count)

    @property
    def is_due(self) -> bool:
        """Whether it is time to write."""
        if self._count >= self._count_due:
            return True
        # Also where no alarm can ring, because no handler ever lets the event loop turn.
        if self._count and self._clock.monotonic() >= self._due_at:
            return True
        if self._urgent is not None or (
            self._wanted is not None and self._advance.is_processed(self._wanted)
        ):
            return self._has_unwritten
        return not self._count and self._has_skipped_much

    @property
    def _has_skipped_much(self) -> bool:
        skipped = self.head - self._written.head
        if self._part is not None and skipped:
            # Whoever waits for the subscriber waits for all its parts, and may be another instance.
            return self._clock.monotonic() >= self._skipped_at + _SECONDS_SKIPPED
        return skipped >= _MOST_SKIPPED

    @property
    def has_states(self) -> bool:
        """Whether there are states that are not written."""
        return bool(self._states)

    def want(self, position: GlobalSequence) -> None:
        """Somebody waits for this position: write it as soon as it is reached, also beside a handler."""
        self._wanted = position if self._wanted is None else min(self._wanted, position)
        if self._advance.is_processed(self._wanted):
            self.write_beside()

    def want_now(self) -> None:
        """Write the event at hand without waiting for others."""
        self._urgent = self.position

    def begin_page(self, missing: Sequence[Gap]) -> None:
        """The next events come from a page in which these numbers are missing."""
        self._advance.begin_page(missing)

    def begin_stretch(self, stretch: Stretch) -> float:
        """Its events are processed one after the other, without effects of ours; when to write them."""
        self._stretch = stretch
        if not self._count:
            self._ring_later(self._clock.monotonic())
        return self._due_at

    def end_stretch(self) -> None:
        """Whatever else happens comes after what is processed now."""
        self._note_stretch()
        self._stretch = None

    def note(self, event: Event, sequence: GlobalSequence) -> None:
        """The event was processed, and had no effects of ours."""
        self._advance.take(sequence)
        self._event_id = event.id
        self._note_one()

    def end_page(self, up_to: GlobalSequence, settled: int, passed: Sequence[GlobalSequence] = ()) -> None:
        """Nothing else of the page is wanted, *passed* numbers neither; open ones up to *settled* dead."""
        if self._part is not None and self._advance.head == self._written.head < up_to:
            self._skipped_at = self._clock.monotonic()
        self._advance.pass_over(passed)
        if self._advance.end_page(up_to, settled) or passed:
            # A checkpoint that a gap held up is to move on as if the last number had been an event.
            self._note_one()

    def give_up(self, gaps: Sequence[Gap]) -> None:
        """Pass over these gaps, and put that on record with the next checkpoint."""
        self._advance.give_up(gaps)
        self._given_up += tuple(gaps)
        self.want_now()

    def reached(self, events: Sequence[Event]) -> LogPosition:
        """Where the checkpoint is to be once these events are processed too."""
        return self._advance.after(events).position

    def note_states(self, effects: Effects) -> None:
        """States that are written with the next checkpoint."""
        for state in effects.states:
            self._states[state.store_name, state.key] = state

    def note_saved(self, events: Sequence[Event]) -> None:
        """These events were processed, and that is written."""
        self._advance.take_all(events)
        self._event_id = events[-1].id
        self._note_written(self._advance.position)

    def write(self) -> Awaitable[None]:
        """Write what was processed, if there is anything. StoppedError, SubscriberFencedError."""
        return self._save(self._plain_progress)

    def write_beside(self) -> None:
        """Write in a task of its own, if none is at it already. An error is met by the next write."""
        if self._beside is None or self._beside.done():
            self._beside = asyncio.get_running_loop().create_task(
                self._write_quietly(), name="postbus checkpoint"
            )

    async def write_once(self) -> None:
        """Write what was processed, without patience. StoreError."""
        progress = None if self._saving.locked() else self._plain_progress(self._advance.position)
        if progress is not None:
            await self._store.save(progress)

    async def write_attempt(self, sequence: GlobalSequence, attempt: int) -> None:
        """Write what was processed, and that an attempt begins: should it end the process, it counts."""
        await self._save(
            lambda reached: replace(self._progress(reached), attempt_sequence=sequence, attempt_count=attempt)
        )

    async def write_burial(self, burial: Burial) -> None:
        """Write what was processed, and that the next event is a dead letter."""
        await self._save(lambda reached: replace(self._progress(reached), burials=(burial,)), burial.event)

    async def write_fed(self, events: Sequence[Event], entries: Sequence[OutboxEntry]) -> None:
        """Write that the workers of the subscriber's pool have these events, with what they are given."""
        if self._given_up:
            await self.write()
        await self._save(lambda reached: replace(self._progress(reached), outbox=entries), *events)

    async def write_effects(self, event: Event, effects: Effects) -> None:
        """Write the event's effects and all before it in one transaction; a refusal of them is raised."""
        await self._save(lambda reached: self._progress(reached, effects), event)

    async def write_retry(self, letter: DeadLetter, effects: Effects | None) -> None:
        """Write that a dead letter's retry was a success, with its effects."""
        await self._write_retry(RetryOutcome(letter.dead_letter_id, None), effects)

    async def write_failed_retry(
        self, letter: DeadLetter, error: str, cause: BaseException | None = None
    ) -> None:
        """Write that a dead letter's retry has failed."""
        warn_of(
            cause,
            "the retry of dead letter %s of %s failed: %s",
            letter.dead_letter_id,
            self._subscriber_id,
            error,
            extra={"subscription_id": self._subscriber_id, "error": error},
        )
        await self._write_retry(RetryOutcome(letter.dead_letter_id, error), None)

    async def finish(self) -> None:
        """Ring no more, and return when nothing is being written beside a handler."""
        self.stop()
        if self._beside is not None:
            await asyncio.wait([self._beside])

    def stop(self) -> None:
        """Ring no more."""
        self.end_stretch()
        # What is being written beside a handler may end later, and must not set the alarm again.
        self._is_stopped = True
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None

    def _plain_progress(self, reached: LogPosition) -> Progress | None:
        """What was processed; None if there is nothing to write, or something newer may be on its way."""
        if self._is_uncertain or not (reached != self._written or self._states):
            return None
        # Who asked for synchronous checkpoints wants each of them on disk.
        has_events = self._count > 0 and self._count_due == 1
        is_repeatable = not has_events and not self._states and not self._given_up
        return self._progress(reached, is_repeatable=is_repeatable)

    def _progress(
        self, reached: LogPosition, effects: Effects | None = None, *, is_repeatable: bool = False
    ) -> Progress:
        effects = effects or _NO_EFFECTS
        return Progress(
            subscriber_id=self._subscriber_id,
            epoch=self.epoch,
            server=self.server,
            position=reached.contiguous,
            event_id=self._event_id,
            head=reached.head if reached.open else None,
            open=reached.open,
            given_up=self._given_up,
            dead_letters_of=self._dead_letters_of,
            part=self._part,
            states=[*self._states.values(), *effects.states],
            drafts=effects.drafts,
            is_repeatable=is_repeatable,
        )

    async def _write_retry(self, outcome: RetryOutcome, effects: Effects | None) -> None:
        await self._save(lambda reached: replace(self._progress(reached, effects), retries=(outcome,)))

    async def _save(self, make_progress: Callable[[LogPosition], Progress | None], *events: Event) -> None:
        """Write one after the other; events that are processed meanwhile wait for the next time.

        With *events*, which are processed as soon as it is written.
        """
        async with self._saving:
            reached = self._advance.position
            progress, count, states = make_progress(reached), self._count, dict(self._states)
            if progress is None:
                return
            if events:
                reached = self.reached(events)
                progress = _moved(progress, reached, events[-1].id)
            if not _is_plain(progress):
                progress = replace(progress, write_id=new_event_id())
            began_at = self._clock.monotonic()
            await self._patience.run(functools.partial(self._save_once, progress))
            self._count -= count
            if progress.given_up:
                self._given_up = self._given_up[len(progress.given_up) :]
            if events:
                self._advance.take_all(events)
                self._event_id = events[-1].id
            for key, state in states.items():
                if self._states.get(key) is state:
                    del self._states[key]
            if self._is_at_work:
                self._ring_later(began_at)
            self._note_written(reached)
        if logger.isEnabledFor(logging.DEBUG):
            logger.debug("checkpoint of %s is at %d", self._subscriber_id, self.written)

    async def _save_once(self, progress: Progress) -> None:
        self._is_uncertain = False
        try:
            await self._store.save(progress)
        except StoreError:
            raise
        except BaseException:
            # Cancelled here, it may have been written or not: then nothing older may be written after it.
            self._is_uncertain = True
            raise

    @property
    def _has_unwritten(self) -> bool:
        return self._advance.position != self._written

    def _note_one(self) -> None:
        self._count += 1
        if self._count == 1:
            self._ring_later(self._clock.monotonic())

    def _note_stretch(self) -> None:
        if self._stretch is not None and (events := self._stretch.take_new()):
            self._noted.take_all(events)
            self._event_id = events[-1].id
            self._count += len(events)

    def _note_written(self, reached: LogPosition) -> None:
        # One that was begun earlier may end later.
        if (reached.head, reached.contiguous) >= (self._written.head, self._written.contiguous):
            self._written = reached
        self._on_written()
        if self._urgent is not None and self.is_written(self._urgent):
            self._urgent = None
        if self._wanted is not None and self.is_written(self._wanted):
            # Whoever waits for more says so again.
            self._wanted = None
            self._on_reached()

    def _ring_later(self, first_event_at: float) -> None:
        if self._count_due == 1 or self._is_stopped:
            return
        self._due_at = first_event_at + self._max_delay
        if self._alarm is None:
            self._alarm = asyncio.get_running_loop().create_task(self._ring(), name="postbus checkpoint")

    async def _ring(self) -> None:
        # Where tasks begin at once (asyncio.eager_task_factory) whoever sets the alarm has to know it first.
        await asyncio.sleep(0)
        # What it was set for may have been written meanwhile, and other events may be waiting.
        while self._is_at_work and self._clock.monotonic() < self._due_at:
            await self._clock.until(self._due_at)
        self._alarm = None
        self._note_stretch()
        if self._count:
            self.write_beside()

    @property
    def _is_at_work(self) -> bool:
        return self._count > 0 or self._stretch is not None

    async def _write_quietly(self) -> None:
        with contextlib.suppress(StoppedError):
            try:
                await self.write()
            except Exception:
                # Not ours any more, or closed: the subscriber itself has to meet it, in its own write.
                self.want_now()
                self._wake()


def _is_plain(progress: Progress) -> bool:
    """Whether writing it a second time would change nothing."""
    return not (
        progress.drafts or progress.burials or progress.retries or progress.given_up or progress.outbox
    )


def _moved(progress: Progress, reached: LogPosition, event_id: str) -> Progress:
    return replace(
        progress,
        position=reached.contiguous,
        head=reached.head if reached.open else None,
        open=reached.open,
        event_id=event_id,
    )
