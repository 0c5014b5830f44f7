"""SubscriptionHandle: what a durable subscriber is doing, and a word with it."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Literal, cast

from postbus.config import check_number
from postbus.delivery.filled_gaps import find_filled
from postbus.delivery.service import Service
from postbus.errors import SubscriptionStoppedError
from postbus.events import GlobalSequence
from postbus.policy.names import check_sequence
from postbus.ports import Clock, EventLog

SubscriptionState = Literal["starting", "catching_up", "live", "standby", "paused", "stopped", "failed"]


class SubscriptionHandle:
    """One durable subscriber of a bus."""

    def __init__(
        self,
        service: Service,
        log: EventLog,
        clock: Clock,
        start: Callable[[], Awaitable[None]],
    ) -> None:
        self._service, self._log, self._clock, self._start = service, log, clock, start

    @property
    def id(self) -> str:
        """The subscriber's id."""
        return self._service.subscriber.id

    @property
    def state(self) -> SubscriptionState:
        """What it is doing; "failed" means that the store fails it, and that it tries again by itself."""
        return cast(SubscriptionState, self._service.state)

    @property
    def reason(self) -> str | None:
        """Why it is "failed"."""
        return self._service.reason

    @property
    def checkpoint(self) -> int | None:
        """The global sequence up to which everything is processed and written; None before it is known."""
        return self._service.checkpoint

    @property
    def lag(self) -> int:
        """How many numbers of the log are still to be processed, as far as this process knows."""
        return max(0, self._log.known_head - self._service.position)

    async def pause(self) -> None:
        """Return when the event at hand is processed; nothing is delivered until resume().

        Called by the subscriber's own handler it returns at once: the pause begins when the handler ends.
        It is a pause of this instance: partitions and workers of others go on, and its partitions stay its.
        """
        self._service.pause()
        while not self._service.is_run_by(asyncio.current_task()) and not self._service.is_at_rest:
            await self._service.wait_for_change()

    async def resume(self) -> None:
        """Go on delivering."""
        self._service.resume()

    async def wait_for(self, global_sequence: int, timeout: float | None = None) -> None:
        """Return when everything up to this number is processed and written.

        With the number of your own event you read your own writes. TimeoutError,
        SubscriptionStoppedError; WaitsForItselfError if the subscriber's own handler asks.
        """
        self._service.check_waits_not_for_itself()
        target = GlobalSequence(check_sequence(global_sequence))
        await self._within(timeout, target, self._reach)

    async def caught_up(self, timeout: float | None = None) -> None:
        """Return when everything that is in the log now is processed and written. As wait_for()."""
        if self.state == "stopped":
            # With the bus its log is closed.
            raise SubscriptionStoppedError(self.id)
        await self._start_on_first_use()
        self._service.check_waits_not_for_itself()
        await self._within(timeout, await self._log.head(), self._catch_up)

    async def _within(
        self,
        timeout: float | None,
        target: GlobalSequence,
        get_to: Callable[[GlobalSequence], Coroutine[Any, Any, None]],
    ) -> None:
        if timeout is not None:
            check_number("timeout", timeout, at_least=0.0)
        await self._start_on_first_use()
        waiting = asyncio.ensure_future(get_to(target))
        limit = None
        if timeout is not None:
            limit = asyncio.ensure_future(self._clock.until(self._clock.monotonic() + timeout))
        try:
            await asyncio.wait(
                [waiting] if limit is None else [waiting, limit], return_when=asyncio.FIRST_COMPLETED
            )
            if not waiting.done():
                raise TimeoutError(
                    f"subscriber {self.id!r} is at {self._service.checkpoint} ({self.state}) "
                    f"and did not get to {target} within {timeout:g} s"
                )
            waiting.result()
        finally:
            waiting.cancel()
            if limit is not None:
                limit.cancel()

    async def _start_on_first_use(self) -> None:
        if not self._service.is_begun and self.state != "stopped":
            await self._start()

    async def _reach(self, target: GlobalSequence) -> None:
        while not self._service.has_written(target):
            if self._service.state == "stopped":
                raise SubscriptionStoppedError(self.id)
            self._service.want_written(target)
            await self._service.wait_for_change()

    async def _catch_up(self, head: GlobalSequence) -> None:
        await self._reach(head)
        while left := [
            number
            for number in await find_filled(self._log, self._service, head)
            if not self._service.has_written(number)
        ]:
            self._service.wake()
            for number in left:
                await self._reach(number)
