"""Failed attempts of a durable subscriber: told, waited out, and in the end a dead letter."""

import logging
from collections.abc import Callable
from dataclasses import dataclass

from postbus.config import Batched
from postbus.delivery.checkpoint_writer import CheckpointWriter
from postbus.delivery.error_stories import describe_error, warn_of
from postbus.delivery.interrupted import INTERRUPTED
from postbus.delivery.patience import Patience
from postbus.delivery.subscriber import Subscriber
from postbus.delivery.suspects import Suspects
from postbus.errors import PayloadTypeError
from postbus.events import Burial, Checkpoint, DeadLetter, Event, GlobalSequence
from postbus.policy.retry import is_exhausted, retry_delay

logger = logging.getLogger("postbus")

# After an owner that did not let go, so many events at least are taken with care.
_LEAST_CAREFUL = 100


@dataclass(frozen=True, slots=True)
class Failed:
    """Why an attempt failed; *is_final*: another one could only fail in the same way."""

    error: str
    is_final: bool = False
    cause: BaseException | None = None
    """What the handler has raised: the log shows where."""


def failed_by(error: BaseException) -> Failed:
    """The attempt that an error has ended."""
    return Failed(describe_error(error), is_final=isinstance(error, PayloadTypeError), cause=error)


class FailureMemory:
    """The errors of events that were not processed yet; outlives one ownership."""

    def __init__(self) -> None:
        self.errors: dict[GlobalSequence, list[str]] = {}
        # An attempt whose handler would not end, and which is still to be counted.
        self.left_behind: dict[GlobalSequence, Failed] = {}

    def forget(self, sequence: GlobalSequence) -> None:
        """It was processed."""
        if self.errors:
            self.errors.pop(sequence, None)


class Failures:
    """What follows a failed attempt, and what an attempt that ended the process left behind."""

    def __init__(
        self,
        subscriber: Subscriber,
        checkpoint: Checkpoint,
        writer: CheckpointWriter,
        patience: Patience,
        memory: FailureMemory,
        suspects: Suspects,
        noise: Callable[[], float],
    ) -> None:
        self._subscriber, self._writer, self._patience = subscriber, writer, patience
        self.memory, self._suspects, self._noise = memory, suspects, noise
        self._begun = (checkpoint.attempt_sequence, checkpoint.attempt_count)
        self._careful_left = _careful_count(subscriber) if checkpoint.was_interrupted else 0
        # What the owner before was at when it ended, if that was the retry of a dead letter.
        self._left_at = checkpoint.attempt_sequence if checkpoint.was_interrupted else None

    @property
    def is_careful(self) -> bool:
        """Whether attempts are written down before they begin.

        The owner before may have been ended by an event. Only a written attempt can count against
        it when this process ends as well; but a write for every event is dear, so it is not the rule.
        """
        return self._careful_left > 0

    async def may_begin(self, event: Event, sequence: GlobalSequence) -> bool:
        """Write down that an attempt begins; whether it has one left. Only while is_careful."""
        begun_sequence, begun_count = self._begun
        begun = begun_count if begun_sequence == sequence else 0
        errors = self.memory.errors.setdefault(sequence, [])
        # Attempts that failed in this process are among the begun ones; the rest ended a process.
        errors[:0] = [INTERRUPTED] * (begun - len(errors))
        if is_exhausted(self._subscriber.retry, len(errors)):
            await self.bury(event, sequence, errors)
            return False
        if INTERRUPTED in errors or is_exhausted(self._subscriber.retry, len(errors) + 1):
            await self._suspects.enter(self, self._patience)
        self._begun = (sequence, len(errors) + 1)
        await self._writer.write_attempt(*self._begun)
        return True

    async def may_retry(self, letter: DeadLetter, sequence: GlobalSequence) -> bool:
        """Whether a dead letter may be retried: not if that has just ended the process."""
        # A handler that was left behind has ended no process: its story is told as it is.
        if sequence in self.memory.left_behind:
            return True
        if self._left_at == sequence:
            self._left_at = None
            await self._writer.write_failed_retry(letter, INTERRUPTED)
            return False
        await self._writer.write_attempt(sequence, 1)
        return True

    def put_off(self, sequence: GlobalSequence) -> None:
        """The attempt that was written as begun has neither failed nor succeeded, and does not count."""
        self._suspects.leave(self)
        begun_sequence, begun_count = self._begun
        if begun_sequence == sequence:
            self._begun = (sequence, begun_count - 1)

    def stop(self) -> None:
        """No attempt goes on: keep nobody waiting."""
        self._suspects.leave(self)

    def note_success(self, sequence: GlobalSequence) -> None:
        """The event was processed."""
        self._suspects.leave(self)
        self.memory.forget(sequence)
        self._careful_left = max(0, self._careful_left - 1)

    async def take(self, event: Event, sequence: GlobalSequence, failed: Failed) -> bool:
        """Wait until it is time for the next attempt; whether there is none, because it is a dead letter."""
        self._suspects.leave(self)
        errors = self.memory.errors.setdefault(sequence, [])
        errors.append(failed.error)
        policy = self._subscriber.retry
        is_dead = failed.is_final or is_exhausted(policy, len(errors))
        delay = 0.0 if is_dead else retry_delay(policy, len(errors), self._noise())
        tell_failure(self._subscriber, event, failed, len(errors), delay)
        if is_dead:
            await self.bury(event, sequence, errors)
            return True
        # What was processed before must not come again should this process end in the meantime.
        await self._writer.write()
        await self._patience.sleep(delay)
        return False

    async def bury(self, event: Event, sequence: GlobalSequence, errors: list[str]) -> None:
        """Dead letter and checkpoint in one transaction: if it can't be written, the event is not passed."""
        await self._writer.write_burial(Burial(event, errors))
        self.note_success(sequence)
        tell_dead_letter(self._subscriber, event, len(errors))


def tell_failure(subscriber: Subscriber, event: Event, failed: Failed, attempt: int, delay: float) -> None:
    """Log that an attempt has failed, and when the next one comes."""
    max_attempts = subscriber.retry.max_retries + 1
    warn_of(
        failed.cause,
        "attempt %d of %d failed for event %s (%s) with %s: %s",
        attempt,
        max_attempts,
        event.id,
        event.type,
        subscriber.id,
        failed.error,
        extra={
            "event_id": event.id,
            "event_type": event.type,
            "subscription_id": subscriber.id,
            "attempt": attempt,
            "max_attempts": max_attempts,
            "delay_ms": round(delay * 1000),
            "error": failed.error,
        },
    )


def tell_dead_letter(subscriber: Subscriber, event: Event, attempt: int) -> None:
    """Log that there will be no attempt after so many."""
    logger.error(
        "event %s (%s) is a dead letter of %s after %d attempts",
        event.id,
        event.type,
        subscriber.id,
        attempt,
        extra={
            "event_id": event.id,
            "event_type": event.type,
            "subscription_id": subscriber.id,
            "attempt": attempt,
        },
    )


def _careful_count(subscriber: Subscriber) -> int:
    """At least as many as may have been in flight."""
    mode = subscriber.checkpoint_mode
    return max(_LEAST_CAREFUL, mode.batch_size if isinstance(mode, Batched) else 1)
