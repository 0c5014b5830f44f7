"""Events of a durable subscriber in batches, each in one transaction with the checkpoint."""

import asyncio
import logging
from collections.abc import Callable, Sequence

from postbus.delivery.checkpoint_writer import CheckpointWriter
from postbus.delivery.deliveries import PutOffError, describe_undecodable, sequence_of
from postbus.delivery.error_stories import describe_error
from postbus.delivery.failures import Failures, failed_by
from postbus.delivery.patience import Patience, is_outage
from postbus.delivery.receivers import TransactionalReceiver
from postbus.delivery.subscriber import Subscriber
from postbus.events import BatchOutcome, DeadLetter, Event, UndecodablePayload
from postbus.ports import CheckpointStore, Clock

logger = logging.getLogger("postbus")

# A batch holds up the publishers of this process for no longer, where they share its connection; where it
# has one of its own, the more events share a commit, the better.
_TIME_BUDGET = 0.005
_TIME_BUDGET_OF_ITS_OWN = 0.1
# A handler that goes on for so long after its timeout is told of.
_GRACE = 1.0


class TransactionalDeliveries:
    """Events in batches to a function that shares the checkpoint's transaction."""

    def __init__(
        self,
        subscriber: Subscriber,
        receiver: TransactionalReceiver,
        writer: CheckpointWriter,
        failures: Failures,
        patience: Patience,
        store: CheckpointStore,
        one_at_a_time: asyncio.Lock,
        clock: Clock,
        has_changed: Callable[[], bool],
    ) -> None:
        self._subscriber, self._receiver, self._writer = subscriber, receiver, writer
        self._failures, self._patience, self._store = failures, patience, store
        # The batches of several subscribers in one transaction would add up for the publishers.
        self._one_at_a_time, self._clock, self._has_changed = one_at_a_time, clock, has_changed
        self._time_budget = _TIME_BUDGET_OF_ITS_OWN if receiver.is_async else _TIME_BUDGET
        self.is_handling = False
        """Whether a batch is on its way through the handler."""

    async def deliver(self, events: Sequence[Event]) -> int:
        """As many as fit into one transaction; the first alone while care is needed."""
        first, sequence = events[0], sequence_of(events[0])
        if isinstance(first.payload, UndecodablePayload):
            await self._failures.bury(first, sequence, [describe_undecodable(first.payload)])
            return 1
        if self._failures.is_careful:
            if not await self._failures.may_begin(first, sequence):
                return 1
            events = events[:1]
        try:
            outcome = await self._process(_decodable(events))
        except PutOffError:
            self._failures.put_off(sequence)
            return 0
        count = outcome.done_count
        if count:
            self._note(events[:count])
        if outcome.error is None or is_outage(outcome.error):
            return count
        is_dead = await self._failures.take(
            events[count], sequence_of(events[count]), failed_by(outcome.error)
        )
        return count + 1 if is_dead else count

    async def retry(self, letter: DeadLetter) -> None:
        """One attempt, which resolves the dead letter in its own transaction."""
        outcome = await self._process([letter], retried=letter.dead_letter_id)
        if outcome.error is not None:
            await self._writer.write_failed_retry(letter, describe_error(outcome.error), outcome.error)

    def _note(self, events: Sequence[Event]) -> None:
        for event in events:
            self._failures.note_success(sequence_of(event))
        self._writer.note_saved(events)

    async def _process(self, events: Sequence[Event], retried: str | None = None) -> BatchOutcome:
        """One batch; one that only the store spoils is tried again. StoppedError, PutOffError."""
        failure_count = 0
        while True:
            outcome = await self._patience.run(lambda: self._process_once(events, retried))
            error = outcome.error
            if error is None or outcome.done_count or not is_outage(error):
                if failure_count:
                    self._patience.recover()
                return outcome
            failure_count += 1
            await self._patience.wait_after(error, failure_count)
            if self._has_changed():
                self._patience.recover()
                raise PutOffError

    async def _process_once(self, events: Sequence[Event], retried: str | None) -> BatchOutcome:
        async with self._one_at_a_time:
            watching = asyncio.ensure_future(self._watch())
            self.is_handling = True
            try:
                return await self._store.process(
                    self._subscriber.id,
                    self._writer.epoch,
                    events,
                    self._receiver.handle,
                    lambda count: self._writer.reached(events[:count]),
                    timeout=self._subscriber.timeout,
                    time_budget=self._time_budget,
                    retried=retried,
                    server=self._writer.server,
                    dead_letters_of=self._subscriber.whole_id,
                )
            finally:
                self.is_handling = False
                if not watching.cancel():
                    # It has ended after all.
                    self._patience.recover()

    async def _watch(self) -> None:
        """Only its SQL can be interrupted: that the handler itself does not end can just be told."""
        limit = self._subscriber.timeout + self._time_budget + _GRACE
        await self._clock.until(self._clock.monotonic() + limit)
        self._patience.fail(
            TimeoutError(
                f"the transactional handler of {self._subscriber.id!r} does not end; "
                "nothing can be written to this store by this process until it does"
            )
        )
        logger.error("%s", self._patience.reason, extra={"subscriber_id": self._subscriber.id})


def _decodable(events: Sequence[Event]) -> Sequence[Event]:
    """The events before the first that can't be decoded."""
    for index, event in enumerate(events):
        if isinstance(event.payload, UndecodablePayload):
            return events[:index]
    return events
