"""One event of a durable subscriber, attempt after attempt until it is processed or a dead letter."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from postbus.closing import is_closing
from postbus.delivery.checkpoint_writer import CheckpointWriter
from postbus.delivery.deliveries import (
    PutOffError,
    describe_undecodable,
    sequence_of,
)
from postbus.delivery.error_stories import describe_error
from postbus.delivery.failures import Failed, Failures, failed_by
from postbus.delivery.halt import Halt
from postbus.delivery.handler_calls import HandlerCalls
from postbus.delivery.handler_watch import HandlerWatch
from postbus.delivery.patience import Patience
from postbus.delivery.receivers import Effects, Receiver
from postbus.delivery.stretch import Stretch
from postbus.errors import (
    DuplicateEventIdError,
    StoreError,
    WrongExpectedVersionError,
)
from postbus.events import DeadLetter, Event, GlobalSequence, UndecodablePayload

# Handlers that never wait keep everything else from running for no longer than this, or so many events.
_LONGEST_STRETCH = 0.005
_MOST_AT_A_STRETCH = 1_000


class SingleDeliveries:
    """Events one by one to a handler or a stateful observer."""

    def __init__(
        self,
        receiver: Receiver,
        writer: CheckpointWriter,
        failures: Failures,
        patience: Patience,
        watch: HandlerWatch,
        halt: Halt,
    ) -> None:
        self._receiver, self._writer = receiver, writer
        self._failures, self._patience, self._watch = failures, patience, watch
        self._calls, self._halt = HandlerCalls(watch, patience), halt
        self.current: Event | None = None
        """The event whose handler runs, or ran last."""

    @property
    def is_handling(self) -> bool:
        """Whether the handler runs at this moment."""
        return self._watch.is_watching

    async def deliver(self, events: Sequence[Event]) -> int:
        """Until all are processed, or somebody wants the subscriber to pause or stop.

        Before it is called again, the checkpoint has to be written if it is due.
        """
        writer, watch, index, rested_at = self._writer, self._watch, 0, 0
        began_at = watch.now()
        while index < len(events):
            if index - rested_at >= _MOST_AT_A_STRETCH or watch.now() - began_at > _LONGEST_STRETCH:
                await asyncio.sleep(0)
                began_at, rested_at = watch.now(), index
            handler, outcome = self._easy_handler, None
            if handler is not None:
                end = min(len(events), rested_at + _MOST_AT_A_STRETCH, index + writer.count_until_due)
                stretch = Stretch(events, index, end)
                outcome = await self._deliver_easily(handler, stretch, began_at + _LONGEST_STRETCH)
                index = stretch.index
            if handler is None or outcome is not None:
                try:
                    await self._deliver_one(events[index], outcome)
                except PutOffError:
                    self._failures.put_off(sequence_of(events[index]))
                    return index
                index += 1
            # What the last of them make due is for whoever reads on to write.
            if writer.is_due and index < len(events):
                await writer.write()
            if self._halt.is_due:
                break
        return index

    async def retry(self, letter: DeadLetter) -> None:
        """One attempt; its effects and what became of it are written together."""
        left_behind = self._failures.memory.left_behind.pop(sequence_of(letter), None)
        outcome = left_behind or await self._attempt(letter)
        if isinstance(outcome, Failed):
            await self._writer.write_failed_retry(letter, outcome.error, outcome.cause)
            return
        try:
            await self._writer.write_retry(letter, outcome)
        except (WrongExpectedVersionError, DuplicateEventIdError) as error:
            self._receiver.forget_unwritten()
            await self._writer.write_failed_retry(letter, describe_error(error), error)

    @property
    def _easy_handler(self) -> "Callable[[Event], Awaitable[object]] | None":
        """The handler, if there is nothing else to be done for an event than to call it."""
        memory = self._failures.memory
        if self._failures.is_careful or memory.left_behind or memory.errors:
            return None
        return self._receiver.easy_handler

    async def _deliver_easily(
        self, handler: Callable[[Event], Awaitable[object]], stretch: Stretch, until: float
    ) -> Failed | StoreError | None:
        """Call the handler for one event after the other until it is time for something else.

        The outcome of the first attempt for the event at which it stopped, if that has failed already.
        This loop is what catching up costs.
        """
        watch, now, halt = self._watch, self._watch.now, self._halt
        until = min(until, self._writer.begin_stretch(stretch))
        watch.begin()
        try:
            for event in stretch.events[stretch.index : stretch.end]:
                if type(event.payload) is UndecodablePayload:
                    return Failed(describe_undecodable(event.payload), is_final=True)
                self.current, error = event, None
                try:
                    await handler(event)
                except (SystemExit, KeyboardInterrupt):
                    raise
                except BaseException as raised:
                    if is_closing(raised):
                        raise
                    error = raised
                if error is not None or watch.is_late:
                    outcome = self._calls.judge(error)
                    if outcome is not None:
                        return outcome
                stretch.index += 1
                # The end of one handler is the beginning of the next.
                watch.began_at = moment = now()
                if moment >= until or halt.is_due:
                    break
        finally:
            watch.end()
            self._writer.end_stretch()
        return None

    async def _deliver_one(self, event: Event, outcome: Failed | StoreError | None) -> None:
        """One event with all that may have to be done for it; *outcome* is that of its first attempt."""
        sequence, failures = sequence_of(event), self._failures
        if failures.is_careful or type(event.payload) is UndecodablePayload:
            await self._deliver_carefully(event, sequence)
            return
        effects: Effects | Failed | None = failures.memory.left_behind.pop(sequence, None)
        if effects is None:
            effects = await self._attempt(event, outcome)
        if effects is None:
            self._writer.note(event, sequence)
            failures.memory.forget(sequence)
        else:
            await self._go_on(event, sequence, effects)

    async def _deliver_carefully(self, event: Event, sequence: GlobalSequence) -> None:
        if isinstance(event.payload, UndecodablePayload):
            await self._failures.bury(event, sequence, [describe_undecodable(event.payload)])
        elif (left_behind := self._failures.memory.left_behind.pop(sequence, None)) is not None:
            await self._go_on(event, sequence, left_behind)
        elif await self._failures.may_begin(event, sequence):
            await self._go_on(event, sequence, await self._attempt(event))
            # As long as an attempt is written as begun, the end of the process counts against its event.
            self._writer.want_now()

    async def _go_on(self, event: Event, sequence: GlobalSequence, outcome: Effects | Failed | None) -> None:
        """Attempt after attempt."""
        while True:
            if not isinstance(outcome, Failed):
                outcome = await self._take_effect(event, sequence, outcome)
                if outcome is None:
                    self._failures.note_success(sequence)
                    return
            if await self._failures.take(event, sequence, outcome):
                return
            if self._failures.is_careful and not await self._failures.may_begin(event, sequence):
                return
            outcome = await self._attempt(event)

    async def _take_effect(
        self, event: Event, sequence: GlobalSequence, effects: Effects | None
    ) -> Failed | None:
        if effects is not None and effects.drafts:
            try:
                await self._writer.write_effects(event, effects)
            except (WrongExpectedVersionError, DuplicateEventIdError) as error:
                # Nothing of it was written, nor of the events before it.
                await self._writer.write()
                self._receiver.forget_unwritten()
                return failed_by(error)
            return None
        if effects is not None:
            self._writer.note_states(effects)
            self._receiver.note_unwritten(effects)
        self._writer.note(event, sequence)
        return None

    async def _attempt(
        self, event: Event, first: Failed | StoreError | None = None
    ) -> Effects | Failed | None:
        """One attempt that counts: those that only the store spoils do not. StoppedError.

        *first*: how the first call has ended, if there was one.
        """
        failure_count = 0
        while True:
            outcome = await self._call(event) if first is None or failure_count else first
            if not isinstance(outcome, StoreError):
                if failure_count:
                    self._patience.recover()
                return outcome
            failure_count += 1
            await self._patience.wait_after(outcome, failure_count)
            if self._halt.is_due:
                self._patience.recover()
                raise PutOffError

    async def _call(self, event: Event) -> Effects | Failed | StoreError | None:
        self.current = event
        return await self._calls.call(self._receiver, event)
