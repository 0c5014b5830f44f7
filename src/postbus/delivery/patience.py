"""Asks a store again that can't do its work at the moment, for as long as it takes, and says so."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from postbus.config import RetryPolicy
from postbus.errors import (
    DuplicateEventIdError,
    LayoutChangedError,
    StoreClosedError,
    StoreError,
    SubscriberFencedError,
    WrongExpectedVersionError,
)
from postbus.policy.retry import retry_delay
from postbus.ports import Clock

logger = logging.getLogger("postbus")

_STORE_RETRY = RetryPolicy(base_delay=0.1, max_delay=2.0)

T = TypeVar("T")


class StoppedError(Exception):
    """The subscriber is to stop: whatever waits for better times ends here."""


def is_infrastructure(error: BaseException) -> bool:
    """Whether nobody's event is at fault, but the store."""
    return isinstance(error, StoreError) and not isinstance(
        error, WrongExpectedVersionError | DuplicateEventIdError
    )


def is_outage(error: BaseException) -> bool:
    """Whether a handler has met a store that can't do its work: its event is not at fault, and waits.

    A plain StoreError is the answer to something that the handler has asked for.
    """
    return is_infrastructure(error) and type(error) is not StoreError


class Patience:
    """Waits that end when the subscriber is to stop, and what the store fails with meanwhile."""

    def __init__(
        self,
        subscriber_id: str,
        clock: Clock,
        noise: Callable[[], float],
        on_change: Callable[[], None],
    ) -> None:
        self._subscriber_id, self._clock, self._noise = subscriber_id, clock, noise
        self._on_change = on_change
        self._stopping = asyncio.Event()
        self.is_stopping = False
        """Whether the subscriber is to stop."""
        self.reason: str | None = None
        """Why nothing goes on at the moment, if so."""

    def stop(self) -> None:
        """End every wait."""
        self.is_stopping = True
        self._stopping.set()

    async def run(self, operation: Callable[[], Awaitable[T]]) -> T:
        """The result of the operation, which is tried again while the store fails. StoppedError."""
        failure_count = 0
        while True:
            try:
                result = await operation()
            except (SubscriberFencedError, LayoutChangedError, StoreClosedError):
                raise
            except StoreError as error:
                if not is_infrastructure(error):
                    raise
                failure_count += 1
                await self.wait_after(error, failure_count)
            else:
                # Not if it did not fail: something else may still be waited for.
                if failure_count:
                    self.recover()
                return result

    async def wait_after(self, error: BaseException, failure_count: int) -> None:
        """Let the store come to itself. StoppedError."""
        self.fail(error)
        if failure_count == 1:
            logger.error(
                "subscriber %s waits for the store, trying again: %s",
                self._subscriber_id,
                error,
                extra={"subscriber_id": self._subscriber_id},
            )
        await self.sleep(retry_delay(_STORE_RETRY, failure_count, self._noise()))

    def fail(self, error: BaseException) -> None:
        """Nothing goes on at the moment, for this reason."""
        self.reason = f"{type(error).__qualname__}: {error}"
        self._on_change()

    def recover(self) -> None:
        """The store works again."""
        if self.reason is not None:
            self.reason = None
            self._on_change()
            logger.info(
                "subscriber %s goes on", self._subscriber_id, extra={"subscriber_id": self._subscriber_id}
            )

    async def sleep(self, seconds: float, waker: asyncio.Event | None = None) -> None:
        """Return after so many seconds, or when the waker is set. StoppedError."""
        waiting: list[asyncio.Future[Any]] = [asyncio.ensure_future(self._clock.sleep(seconds))]
        if waker is not None:
            waiting.append(asyncio.ensure_future(waker.wait()))
        await self.race(*waiting)

    async def race(self, *waiting: "asyncio.Future[Any]") -> None:
        """Return when one of the futures is done. StoppedError."""
        stopping = asyncio.ensure_future(self._stopping.wait())
        try:
            await asyncio.wait((*waiting, stopping), return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in (*waiting, stopping):
                each.cancel()
        if self.is_stopping:
            raise StoppedError
