"""What belongs to one ownership of a durable subscriber, from its claim until another one's."""

import asyncio
import contextlib
import math
from collections.abc import Callable
from dataclasses import dataclass

from postbus.config import ReliableDeliveryConfig
from postbus.delivery.catch_up import CatchUp
from postbus.delivery.checkpoint_writer import CheckpointWriter
from postbus.delivery.deliveries import (
    Deliveries,
    PutOffError,
    describe_timeout,
    describe_undecodable,
    sequence_of,
)
from postbus.delivery.failures import Failed, FailureMemory, Failures
from postbus.delivery.gap_watch import GapWatch
from postbus.delivery.halt import Halt
from postbus.delivery.handler_watch import HandlerWatch
from postbus.delivery.log_reader import LogReader
from postbus.delivery.outbox.feed import OutboxFeed
from postbus.delivery.patience import Patience, StoppedError
from postbus.delivery.receivers import TransactionalReceiver
from postbus.delivery.single_deliveries import SingleDeliveries
from postbus.delivery.subscriber import Subscriber
from postbus.delivery.suspects import Suspects
from postbus.delivery.transactional_deliveries import TransactionalDeliveries
from postbus.errors import StoreError
from postbus.events import Checkpoint, DeadLetter, GlobalSequence, UndecodablePayload
from postbus.policy.patterns import type_filter
from postbus.ports import Clock, Store

_SECONDS_BETWEEN_RETRY_LOOKS = 1.0
_RETRIES_AT_ONCE = 10
_SECONDS_TO_ABANDON = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What an ownership needs of its loop and its bus."""

    store: Store
    reader: LogReader
    config: ReliableDeliveryConfig
    clock: Clock
    noise: Callable[[], float]
    patience: Patience
    memory: FailureMemory
    suspects: Suspects
    transactions: asyncio.Lock
    """One batch of a transactional subscriber at a time."""
    halt: Halt
    has_changed: Callable[[], bool]
    """Whether the halt is due, for whoever need not know it after every event."""
    wake: Callable[[], None]
    on_page: Callable[[], None]
    """A page of the log was delivered."""
    on_reached: Callable[[], None]
    """A position that somebody waits for is written."""
    on_stubborn: Callable[[], None]
    """The handler will not end: go on with another ownership."""
    up_to: GlobalSequence | None = None
    """Nothing beyond this number is delivered."""


class Ownership:
    """Delivers to the subscriber and moves its checkpoint, under one epoch."""

    def __init__(self, subscriber: Subscriber, checkpoint: Checkpoint, around: Surroundings) -> None:
        self._subscriber, self._around = subscriber, around
        # A part that is run to its end has no workers.
        self._is_feeder = subscriber.mode == "competing" and subscriber.part is None
        self.writer = CheckpointWriter(
            checkpoint,
            subscriber.checkpoint_mode,
            around.store.checkpoints,
            around.patience,
            around.clock,
            self._forget_written,
            around.on_reached,
            around.wake,
            part=subscriber.part,
            dead_letters_of=subscriber.whole_id,
        )
        self._failures = Failures(
            subscriber, checkpoint, self.writer, around.patience, around.memory, around.suspects, around.noise
        )
        self._watch = HandlerWatch(subscriber.timeout, around.clock, self._leave_handler)
        self._deliveries = self._make_deliveries()
        wanted = type_filter(subscriber.patterns, subscriber.part)
        self._catch_up = CatchUp(
            around.reader,
            wanted,
            around.config.catch_up_batch_size,
            self.writer,
            self._deliveries,
            around.patience,
            self._has_to_break_off,
            around.on_page,
            is_strict=around.config.ordering == "global",
            last=around.up_to,
        )
        self._gap_watch = GapWatch(
            subscriber.known_as,
            wanted,
            self.writer,
            self._catch_up,
            around.store,
            around.config,
            around.clock,
        )
        self._looked_for_retries_at = -math.inf
        # What the ownership before could not write comes again.
        self._forget_unwritten()

    @property
    def is_handling(self) -> bool:
        """Whether a handler runs at this moment."""
        return self._deliveries.is_handling

    async def look(self) -> int:
        """Deliver what is new in the log, then retry what somebody wants retried; how many events."""
        count = await self._deliver()
        now = self._around.clock.monotonic()
        is_time = not count or now - self._looked_for_retries_at >= _SECONDS_BETWEEN_RETRY_LOOKS
        if is_time and self._catch_up.may_have_retries:
            self._looked_for_retries_at = now
            with contextlib.suppress(PutOffError):
                # Many may be wanted, and each may take its time: what is new comes between them.
                while await self._retry_dead_letters():
                    count += await self._deliver()
        return count

    async def look_at_gaps(self) -> None:
        """Tell of gaps that are open for long, also while handlers are at work."""
        # Asked again soon.
        with contextlib.suppress(StoreError):
            await self._gap_watch.watch()

    async def let_go(self, *, ends_program: bool = False) -> None:
        """Write what was processed and leave the subscriber to the next owner in good order.

        Not if a handler *ends_program*: to the next owner that is a crash, so that it is not so for ever.
        """
        self.stop()
        # What can't be written now comes again: nothing is lost.
        with contextlib.suppress(StoreError, StoppedError):
            await self.writer.finish()
            await self.writer.write()
            if not ends_program:
                await self._release()

    async def abandon(self) -> None:
        """The locks are lost: write what was processed if that can still be done, and ask no second time."""
        self.stop()
        with contextlib.suppress(StoreError, TimeoutError):
            async with asyncio.timeout(_SECONDS_TO_ABANDON):
                await self.writer.write_once()
                await self._release()

    def stop(self) -> None:
        """Watch and ring no more, and keep nobody waiting."""
        self._failures.stop()
        self._watch.stop()
        self.writer.stop()

    async def _deliver(self) -> int:
        """Up to the end of the log, with a look into the gaps whenever one is due."""
        count = 0
        while True:
            count += await self._catch_up.run()
            was_broken_off, position = self._gap_watch.is_due, self.writer.position
            if await self._around.patience.run(self._gap_watch.look):
                self._around.reader.look_again_later()
            has_given_up = self.writer.position > position
            if has_given_up:
                # At once: a write that is on its way lacks it, and would be taken for the one that is wanted.
                await self.writer.write()
            # In global order a gap that is given up has held up what is beyond it.
            if not (was_broken_off or has_given_up) or self._around.has_changed():
                return count

    def _has_to_break_off(self) -> bool:
        return self._around.has_changed() or self._gap_watch.is_due

    async def _release(self) -> None:
        checkpoints, writer = self._around.store.checkpoints, self.writer
        await checkpoints.release(self._subscriber.id, writer.epoch, writer.server)

    async def _retry_dead_letters(self) -> bool:
        """Until there may be something new in the log; whether more may be wanted."""
        store, patience = self._around.store, self._around.patience
        while not self._around.has_changed():
            letters = await patience.run(
                lambda: store.dead_letters.wanted_retries(
                    self._subscriber.known_as, _RETRIES_AT_ONCE, self._subscriber.part
                )
            )
            for letter in letters:
                if self._around.has_changed():
                    return False
                await self._retry(letter)
                # After one at least: what is beyond the head may be out of reach.
                if store.log.known_head > self.writer.head:
                    return True
            if len(letters) < _RETRIES_AT_ONCE:
                break
        return False

    async def _retry(self, letter: DeadLetter) -> None:
        if isinstance(letter.payload, UndecodablePayload):
            await self.writer.write_failed_retry(letter, describe_undecodable(letter.payload))
        elif self._is_feeder or await self._failures.may_retry(letter, sequence_of(letter)):
            await self._deliveries.retry(letter)

    def _make_deliveries(self) -> Deliveries:
        subscriber, around = self._subscriber, self._around
        receiver = subscriber.receiver
        if self._is_feeder:
            assert around.store.outbox is not None, "checked when it was registered"
            return OutboxFeed(
                subscriber.id, self.writer, around.store.outbox, around.patience, self._has_to_break_off
            )
        if isinstance(receiver, TransactionalReceiver):
            return TransactionalDeliveries(
                subscriber,
                receiver,
                self.writer,
                self._failures,
                around.patience,
                around.store.checkpoints,
                around.transactions,
                around.clock,
                around.has_changed,
            )
        return SingleDeliveries(
            receiver, self.writer, self._failures, around.patience, self._watch, around.halt
        )

    def _forget_written(self) -> None:
        if not self.writer.has_states:
            self._forget_unwritten()

    def _forget_unwritten(self) -> None:
        receiver = self._subscriber.receiver
        if not isinstance(receiver, TransactionalReceiver):
            receiver.forget_unwritten()

    def note_broken_off(self, error: str) -> None:
        """The task ends with the handler that runs, or ran last: that attempt has failed."""
        deliveries = self._deliveries
        if isinstance(deliveries, SingleDeliveries) and deliveries.current is not None:
            self._around.memory.left_behind[sequence_of(deliveries.current)] = Failed(error)

    def _leave_handler(self) -> None:
        self.note_broken_off(f"{describe_timeout(self._subscriber.timeout)}, and goes on nevertheless")
        self._around.on_stubborn()
