"""One of the handlers that a worker runs at once: takes a row, calls the handler, says how it ended."""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from postbus.delivery.deliveries import LeftBehindError, PutOffError, describe_timeout, describe_undecodable
from postbus.delivery.error_stories import describe_error
from postbus.delivery.failures import Failed
from postbus.delivery.handler_calls import HandlerCalls
from postbus.delivery.handler_watch import HandlerWatch
from postbus.delivery.outbox.hand import Hand
from postbus.delivery.outbox.settling import Settling, errors_of
from postbus.delivery.patience import Patience, StoppedError
from postbus.delivery.receivers import Effects, TransactionalReceiver
from postbus.delivery.subscriber import Subscriber
from postbus.delivery.suspects import Suspects
from postbus.errors import StoreError
from postbus.events import Claimed, Event, UndecodablePayload
from postbus.ports import Clock, OutboxRows

logger = logging.getLogger("postbus")

# Handlers that never wait keep everything else from running for no longer than this, or so many events.
_LONGEST_STRETCH = 0.005
_MOST_AT_A_STRETCH = 100
# A transactional handler is cut off by its transaction; if that was of no use from outside, so much later.
_GRACE = 1.0

TakeEffects = Callable[[Event, Effects], Awaitable[Failed | None]]


class LostError(Exception):
    """Another worker has the row: whatever became of it here counts for nothing."""


class Runner:
    """Runs one handler at a time, until the worker stops."""

    def __init__(
        self,
        subscriber: Subscriber,
        outbox: OutboxRows,
        hand: Hand,
        settling: Settling,
        patience: Patience,
        suspects: Suspects,
        clock: Clock,
        may_begin: Callable[[], bool],
        on_stubborn: "Callable[[Runner], None]",
        take_effects: TakeEffects | None,
    ) -> None:
        self._subscriber, self._outbox, self._hand = subscriber, outbox, hand
        self._settling, self._patience, self._suspects = settling, patience, suspects
        self._may_begin, self._take_effects = may_begin, take_effects
        self._is_transactional = isinstance(subscriber.receiver, TransactionalReceiver)
        timeout = subscriber.timeout + (_GRACE if self._is_transactional else 0.0)
        self._watch = HandlerWatch(timeout, clock, lambda: on_stubborn(self))
        self._calls = HandlerCalls(self._watch, patience)
        self.current: Claimed | None = None
        """The row whose handler runs."""

    async def run(self) -> None:
        """Until the worker stops, or the handler had to be left behind."""
        hand, watch, count, began_at = self._hand, self._watch, 0, self._watch.now()
        try:
            while not self._patience.is_stopping:
                self.current = claimed = hand.take() if self._may_begin() else None
                if claimed is None:
                    await hand.wait()
                    count, began_at = 0, watch.now()
                    continue
                await self._serve(claimed)
                count += 1
                if count >= _MOST_AT_A_STRETCH or watch.began_at - began_at > _LONGEST_STRETCH:
                    await asyncio.sleep(0)
                    count, began_at = 0, watch.now()
            self.current = None
        except LeftBehindError:
            logger.warning("a handler of %s ended that was given up before", self._subscriber.id)
        except StoppedError:
            pass
        except (SystemExit, KeyboardInterrupt) as error:
            # It counts, so that no event ends the program for ever.
            if self.current is not None:
                await self._fail(describe_error(error))
                self.current = None
            raise
        except GeneratorExit as error:
            if not watch.is_within_task or self.current is None:
                raise
            # What the handler waited for has failed with it, which closes the whole task up to here.
            await self._fail(describe_error(error))
            self.current = None
        finally:
            self._suspects.leave(self)
            watch.stop()

    async def give_up(self) -> None:
        """Write that the handler which runs has failed, although it goes on."""
        await self._fail(f"{describe_timeout(self._subscriber.timeout)}, and goes on nevertheless")

    async def _fail(self, error: str) -> None:
        claimed = self.current
        assert claimed is not None
        assert claimed.event is not None
        self._suspects.leave(self)
        with contextlib.suppress(StoppedError, StoreError):
            await self._settling.fail(claimed, claimed.event, Failed(error))

    async def _serve(self, claimed: Claimed) -> None:
        try:
            event = claimed.event
            if event is None:
                logger.warning("event %d is not in the log any more: nobody can process it", claimed.sequence)
                await self._settling.finish(claimed)
            elif type(event.payload) is UndecodablePayload:
                await self._settling.bury(claimed, event, [describe_undecodable(event.payload)])
            elif claimed.is_suspect:
                await self._serve_suspect(claimed, event)
            else:
                await self._deliver(claimed, event)
        except (StoppedError, PutOffError) as error:
            await self._settling.give_back([claimed])
            if isinstance(error, StoppedError):
                raise
        except LostError:
            logger.warning(
                "event %d was taken from this worker of %s, and its handler took no effect here",
                claimed.sequence,
                self._subscriber.id,
            )
            self._settling.forget(claimed)

    async def _serve_suspect(self, claimed: Claimed, event: Event) -> None:
        """It may have ended a process: it has as many attempts as any other, and alone among suspects."""
        errors = errors_of(claimed)
        most = 1 if claimed.dead_letter_id is not None else self._subscriber.retry.max_retries + 1
        if len(errors) >= most:
            await self._settling.bury(claimed, event, errors)
            return
        await self._suspects.enter(self, self._patience)
        try:
            # Not before: one that only waits must not lose an attempt to one that ends the process.
            if not await self._patience.run(lambda: self._outbox.begin_attempt(claimed)):
                raise LostError
            await self._deliver(claimed, event)
        finally:
            self._suspects.leave(self)

    async def _deliver(self, claimed: Claimed, event: Event) -> None:
        outcome = await self._attempt(claimed, event)
        if isinstance(outcome, Effects):
            assert self._take_effects is not None, "only an ordered subscriber has states"
            outcome = await self._take_effects(event, outcome)
        if outcome is not None:
            await self._settling.fail(claimed, event, outcome)
        elif self._is_transactional:
            self._settling.forget(claimed)
        elif self._settling.is_batched:
            self._settling.note(claimed)
        else:
            await self._settling.finish(claimed)

    async def _attempt(self, claimed: Claimed, event: Event) -> Effects | Failed | None:
        """One attempt that counts: those that only the store spoils do not. StoppedError, PutOffError."""
        failure_count = 0
        while True:
            outcome = await self._call(claimed, event)
            if not isinstance(outcome, StoreError):
                if failure_count:
                    self._patience.recover()
                return outcome
            failure_count += 1
            await self._patience.wait_after(outcome, failure_count)
            if not self._may_begin():
                self._patience.recover()
                raise PutOffError

    async def _call(self, claimed: Claimed, event: Event) -> Effects | Failed | StoreError | None:
        receiver = self._subscriber.receiver
        if isinstance(receiver, TransactionalReceiver):
            return await self._process(receiver, claimed)
        return await self._calls.call(receiver, event)

    async def _process(self, receiver: TransactionalReceiver, claimed: Claimed) -> Failed | StoreError | None:
        async def handle(event: Event, transaction: Any) -> None:
            self._watch.begin()
            try:
                await receiver.handle(event, transaction)
            finally:
                self._watch.end()

        pool, timeout = self._subscriber.id, self._subscriber.timeout
        error: BaseException | None = None
        try:
            outcome = await self._outbox.process(pool, claimed, handle, timeout=timeout)
        except (StoreError, asyncio.CancelledError) as raised:
            error = raised
        else:
            error = outcome.error
            if error is None and not outcome.done_count:
                raise LostError
        return self._calls.judge(error)
