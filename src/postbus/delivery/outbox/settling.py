"""Writes what became of the rows that a worker has claimed. A row that was lost meanwhile is left alone."""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Sequence

from postbus.config import Batched
from postbus.delivery.failures import Failed, tell_dead_letter, tell_failure
from postbus.delivery.interrupted import INTERRUPTED
from postbus.delivery.outbox.hand import Hand
from postbus.delivery.patience import Patience, StoppedError
from postbus.delivery.subscriber import Subscriber
from postbus.errors import StoreError
from postbus.events import Claimed, Event
from postbus.policy.checkpoints import events_until_due, seconds_until_due
from postbus.policy.retry import is_exhausted, retry_delay
from postbus.ports import Clock, OutboxRows

logger = logging.getLogger("postbus")


class Settling:
    """Deletes rows in groups: of those who wait for it, or as large as the checkpoint mode says."""

    def __init__(
        self,
        subscriber: Subscriber,
        outbox: OutboxRows,
        hand: Hand,
        patience: Patience,
        clock: Clock,
        noise: Callable[[], float],
        on_change: Callable[[], None],
    ) -> None:
        self._subscriber, self._outbox, self._hand = subscriber, outbox, hand
        self._patience, self._clock, self._noise = patience, clock, noise
        self._on_change = on_change
        mode = subscriber.checkpoint_mode
        self.is_batched = isinstance(mode, Batched)
        """Whether runners go on before their rows are deleted."""
        self._group_size, self._max_delay = events_until_due(mode), seconds_until_due(mode)
        self._processed: list[Claimed] = []
        self._written: asyncio.Future[None] | None = None
        self._is_wanted = False
        self._writer: asyncio.Task[None] | None = None
        self._alarm: asyncio.Task[None] | None = None

    @property
    def unwritten_count(self) -> int:
        """How many rows were processed and are not deleted yet, nor about to be."""
        return len(self._processed)

    def note(self, claimed: Claimed) -> None:
        """It was processed: delete it with others."""
        self._processed.append(claimed)
        if len(self._processed) >= self._group_size:
            self._write_soon()
        elif self._alarm is None:
            self._alarm = asyncio.get_running_loop().create_task(self._ring(), name="postbus outbox")

    async def finish(self, claimed: Claimed) -> None:
        """It was processed: return when it is deleted. StoppedError, StoreError."""
        self._processed.append(claimed)
        if self._written is None:
            self._written = asyncio.get_running_loop().create_future()
        written = self._written
        self._write_soon()
        # Others wait for it as well.
        await asyncio.shield(written)

    def want(self) -> None:
        """Somebody waits for what was processed: delete it now."""
        if self._processed:
            self._is_wanted = True
            self._write_soon()

    async def drain(self) -> None:
        """Return when all that was processed is deleted, or can't be."""
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        self.want()
        if self._writer is not None:
            await asyncio.wait([self._writer])

    async def fail(self, claimed: Claimed, event: Event, failed: Failed) -> None:
        """An attempt has failed: the row is due again later, or a dead letter. StoppedError, StoreError."""
        errors = [*errors_of(claimed), failed.error]
        policy = self._subscriber.retry
        is_dead = failed.is_final or claimed.dead_letter_id is not None or is_exhausted(policy, len(errors))
        delay = 0.0 if is_dead else retry_delay(policy, len(errors), self._noise())
        tell_failure(self._subscriber, event, failed, len(errors), delay)
        if is_dead:
            await self.bury(claimed, event, errors)
            return
        await self._patience.run(lambda: self._outbox.put_off(self._subscriber.id, claimed, errors, delay))
        self.forget(claimed)

    async def bury(self, claimed: Claimed, event: Event, errors: Sequence[str]) -> None:
        """Dead letter and row in one transaction. StoppedError, StoreError."""
        await self._patience.run(lambda: self._outbox.bury(self._subscriber.id, claimed, errors))
        self.forget(claimed)
        tell_dead_letter(self._subscriber, event, len(errors))

    async def give_back(self, claimed: Sequence[Claimed]) -> None:
        """Let others have them; if that can't be written, they get them when the lease is over."""
        with contextlib.suppress(StoreError):
            await self._outbox.give_back(self._subscriber.id, claimed)
        for each in claimed:
            self.forget(each)

    def forget(self, claimed: Claimed) -> None:
        """It is written what became of the row, or it is not ours any more."""
        self._hand.drop(claimed)
        self._on_change()

    def _write_soon(self) -> None:
        if self._writer is None or self._writer.done():
            self._writer = asyncio.get_running_loop().create_task(self._write(), name="postbus outbox")

    async def _write(self) -> None:
        while self._processed and (self._is_wanted or len(self._processed) >= self._group_size):
            group, self._processed, self._is_wanted = self._processed, [], False
            written, self._written = self._written, None
            try:
                error = await self._delete(group)
            except BaseException:
                _answer(written, asyncio.CancelledError())
                raise
            _answer(written, error)
            # Those who were answered just now have the next turn: what they finish in it comes along.
            await asyncio.sleep(0)
        if self._processed and self._alarm is None:
            self._alarm = asyncio.get_running_loop().create_task(self._ring(), name="postbus outbox")

    async def _delete(self, group: list[Claimed]) -> BaseException | None:
        pool = self._subscriber.id
        try:
            await self._patience.run(lambda: self._outbox.finish(pool, group, is_repeatable=self.is_batched))
        except (StoppedError, StoreError) as error:
            # They were processed and come again: at least once.
            logger.debug("rows of %s could not be deleted: %s", pool, error)
            return error
        finally:
            for claimed in group:
                self._hand.drop(claimed)
            self._on_change()
        return None

    async def _ring(self) -> None:
        await self._clock.until(self._clock.monotonic() + self._max_delay)
        self._alarm = None
        self.want()


def _answer(written: "asyncio.Future[None] | None", error: BaseException | None) -> None:
    """Tell those who wait for a group, if anybody does."""
    if written is None or written.done():
        return
    if isinstance(error, asyncio.CancelledError):
        written.cancel()
    elif error is not None:
        written.set_exception(error)
        written.exception()  # nobody may be left to ask for it
    else:
        written.set_result(None)


def errors_of(claimed: Claimed) -> list[str]:
    """One for each attempt before this one; those of which nothing was written have ended the process."""
    return [INTERRUPTED] * (claimed.attempt_count - len(claimed.errors)) + claimed.errors
