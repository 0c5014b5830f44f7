"""EventBus: joins one store to delivery. Wiring only; the rules are in policy and delivery."""

import asyncio
import contextlib
import logging
import os
import random
import uuid
import weakref
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from types import TracebackType
from typing import Protocol, Self, TypeVar, overload

from postbus.clock import SystemClock
from postbus.config import (
    DEFAULT_HANDLER_TIMEOUT,
    DEFAULT_MAX_PAYLOAD_BYTES,
    DEFAULT_SHUTDOWN_TIMEOUT,
    RetryPolicy,
    check_timeout,
    check_whole_number,
)
from postbus.delivery.attempts import Attempts
from postbus.delivery.backlog_lane import BacklogLane
from postbus.delivery.counters import RetryCounters
from postbus.delivery.couriers import Couriers
from postbus.delivery.dispatcher import Dispatcher
from postbus.delivery.gate import Gate
from postbus.delivery.publisher import Publisher
from postbus.delivery.subscriptions import (
    Handler,
    RetryOverride,
    Subscription,
    Subscriptions,
    check_handler,
    is_async_handler,
)
from postbus.drafting import Drafts
from postbus.errors import (
    BusLoopError,
    EventBusShutdownError,
    InvalidHandlerError,
    InvalidTargetError,
    StoreError,
)
from postbus.events import NewEvent
from postbus.ids import new_event_id
from postbus.inspection import DLQInspector
from postbus.policy.patterns import check_pattern
from postbus.policy.retry import override_policy
from postbus.ports import Clock, Store
from postbus.targets import store_for

logger = logging.getLogger("postbus")

# Which bus is at work on which store.
_stores_in_use: "weakref.WeakKeyDictionary[Store, EventBus]" = weakref.WeakKeyDictionary()

H = TypeVar("H", bound=Handler)
EventItem = NewEvent | tuple[str] | tuple[str, object] | tuple[str, object, Mapping[str, str] | None]


class Decorator(Protocol):
    """What bus.on() returns: it registers a handler and gives it back unchanged."""

    def __call__(self, handler: H, /) -> H:
        """Register the handler."""
        ...


class EventBus:
    """A durable event bus on one SQLite file.

    >>> async def main() -> str:
    ...     bus = EventBus("memory:")
    ...     @bus.on("order.*")
    ...     async def audit(event):
    ...         print(event.type, event.payload)
    ...     async with bus:
    ...         return await bus.publish("order.placed", {"order": 42})
    >>> event_id = asyncio.run(main())
    order.placed {'order': 42}
    """

    def __init__(
        self,
        target: "str | os.PathLike[str] | Store",
        *,
        retry: RetryPolicy | None = None,
        handler_timeout: float = DEFAULT_HANDLER_TIMEOUT,
        shutdown_timeout: float = DEFAULT_SHUTDOWN_TIMEOUT,
        max_payload_bytes: int = DEFAULT_MAX_PAYLOAD_BYTES,
        id_factory: Callable[[], object] = new_event_id,
        clock: Clock | None = None,
        noise: Callable[[], float] = lambda: random.uniform(-1.0, 1.0),
    ) -> None:
        check_timeout("handler_timeout", handler_timeout)
        check_timeout("shutdown_timeout", shutdown_timeout)
        check_whole_number("max_payload_bytes", max_payload_bytes, at_least=1)
        self._clock: Clock = clock or SystemClock()
        self._retry = override_policy(RetryPolicy(), retry)
        self._handler_timeout, self._shutdown_timeout = handler_timeout, shutdown_timeout
        self._store = store_for(target, self._clock)
        self._subscriptions = Subscriptions(self._retry)
        self._attempts = Attempts(self._clock)
        self._couriers = Couriers()
        self._dispatcher = Dispatcher(
            self._store.queue, self._subscriptions, self._attempts, self._couriers, self._clock, noise
        )
        self._lane = BacklogLane(
            self._store.backlog,
            self._store.dispatch_lock,
            self._store.subscriptions,
            self._dispatcher,
            self._couriers,
            self._subscriptions,
            self._clock,
        )
        self._publisher = Publisher(
            self._store.queue, self._subscriptions, self._dispatcher, self._couriers, self._lane
        )
        self._drafts = Drafts(self._publisher.status_for, self._clock, id_factory, max_payload_bytes)
        self._dlq = DLQInspector(self._store, clock=self._clock)
        self._changing = asyncio.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_shut_down = False

    @property
    def store(self) -> Store:
        """The store, for reading events by id."""
        return self._store

    @property
    def dlq(self) -> DLQInspector:
        """The dead letters."""
        if self._is_shut_down:
            raise EventBusShutdownError("look at dead letters")
        return self._dlq

    @property
    def counters(self) -> Mapping[str, RetryCounters]:
        """Events, retries, successes after a retry, dead letters: by event type, since this bus was made."""
        return self._dispatcher.counters.snapshot()

    async def start(self) -> None:
        """Open the store, take up what a crash left behind, and begin. Idempotent."""
        async with self._changing:
            if self._is_shut_down:
                raise EventBusShutdownError("start")
            if self._loop is None:
                self._take_store()
                await self._store.open()
                await self._lane.start()
                self._loop = asyncio.get_running_loop()

    async def shutdown(self) -> None:
        """Refuse new work, finish what is in flight within shutdown_timeout, and close. Idempotent.

        What is still in flight then is cut off and put back to pending: the next start delivers it.
        """
        if self._loop is not None and not self._loop.is_closed():
            self._check_loop("shut down")
        self._is_shut_down = True
        async with self._changing:
            loop, self._loop = self._loop, None
            if loop is not None and loop.is_closed():
                # With its loop everything of ours has ended; the next start recovers what was in flight.
                await self._store.close()
                return
            try:
                if loop is not None:
                    self._attempts.begin_stopping()
                    self._lane.stop()
                    if not await self._drain():
                        await self._give_back()
            finally:
                # Also when whoever shuts down loses patience and cancels it; and, should
                # the cancellation come here, when shutdown is called once more.
                await self._lane.cut_off()
                await self._couriers.cancel_all()
                self._publisher.stop()
                with contextlib.suppress(StoreError):
                    await self._dispatcher.give_back_all()
                self._attempts.stop()
                await self._store.close()
                _stores_in_use.pop(self._store, None)

    async def publish(
        self,
        type: str,
        payload: object = None,
        metadata: Mapping[str, str] | None = None,
        *,
        event_id: str | uuid.UUID | None = None,
        wait: bool = True,
    ) -> str:
        """Store an event and run its handlers; its id.

        Returns after the event is durable and, unless *wait* is false, its handlers have finished
        (in success or as a dead letter). Publishing the same *event_id* again stores nothing.
        """
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            await self._ready("publish")
        if not self._lane.is_owner_known:
            await self._lane.find_owner()
        draft = self._drafts.draft(type, payload, metadata, event_id, wait=wait)
        finished: asyncio.Future[None] = loop.create_future()
        self._publisher.publish((draft,), finished)
        await finished
        return draft.id

    async def publish_many(self, events: Iterable[EventItem], *, wait: bool = True) -> list[str]:
        """Store all events in one transaction, or none, and run their handlers in order; their ids.

        An item is (type, payload), (type, payload, metadata) or a NewEvent.
        """
        await self._ready("publish")
        await self._lane.find_owner()
        drafts = self._drafts.draft_many(events, wait=wait)
        if drafts:
            finished: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._publisher.publish(drafts, finished)
            await finished
        return [draft.id for draft in drafts]

    @overload
    def subscribe(
        self, pattern: str, handler: Handler, *, timeout: float | None = None, retry: RetryOverride = None
    ) -> str: ...

    @overload
    def subscribe(
        self, pattern: Handler, *, timeout: float | None = None, retry: RetryOverride = None
    ) -> str: ...

    def subscribe(
        self,
        pattern: str | Handler,
        handler: Handler | None = None,
        *,
        timeout: float | None = None,
        retry: RetryOverride = None,
    ) -> str:
        """Call the handler for every event that matches; the subscription's id.

        subscribe(handler) means every event. A plain function runs in a thread.
        *timeout* and *retry* override the bus's own; *retry* may be a dict of the fields to override.
        """
        if self._is_shut_down:
            raise EventBusShutdownError("subscribe")
        if not isinstance(pattern, str) and handler is None:
            handler, pattern = pattern, "*"
        if handler is None:
            raise InvalidHandlerError(
                f"no handler was given for {pattern!r}; expected subscribe(pattern, handler)"
            )
        subscription = self._make_subscription(check_pattern(pattern), handler, timeout, retry)
        self._subscriptions.add(subscription)
        self._lane.wake_for_new_handler()
        return subscription.id

    def unsubscribe(self, subscription_id: str) -> None:
        """Call its handler no more. Idempotent; what runs at this moment ends by itself."""
        self._subscriptions.remove(subscription_id)
        self._lane.wake()

    def on(self, pattern: str, *, timeout: float | None = None, retry: RetryOverride = None) -> Decorator:
        """The decorator form of subscribe; the function stays as it is."""
        # Here already: @bus.on without a pattern would take the handler for one and never call it.
        check_pattern(pattern)

        def register(handler: H) -> H:
            self.subscribe(pattern, handler, timeout=timeout, retry=retry)
            return handler

        return register

    async def idle(self) -> None:
        """Return when every stored event that has a handler here is done or a dead letter."""
        await self._ready("wait")
        while True:
            await self._publisher.wait_until_stored()
            await self._lane.wait_until_at_rest()
            await self._dispatcher.wait_until_idle()
            if self._lane.is_at_rest:
                return

    async def settle_unhandled(self, pattern: str = "*") -> int:
        """Mark pending events done that match the pattern and have no handler here; how many."""
        await self._ready("settle events")
        return await self._lane.settle_unhandled(check_pattern(pattern))

    @contextlib.asynccontextmanager
    async def lifespan(self, _app: object) -> AsyncIterator[None]:
        """Start and shut down with an application: FastAPI(lifespan=bus.lifespan), Litestar(lifespan=[…])."""
        async with self:
            yield

    async def __aenter__(self) -> Self:
        try:
            await self.start()
        except BaseException:
            # Nobody will call __aexit__.
            await self.shutdown()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.shutdown()

    async def _ready(self, action: str) -> None:
        if self._is_shut_down:
            raise EventBusShutdownError(action)
        if self._loop is None:
            await self.start()
        else:
            self._check_loop(action)

    def _check_loop(self, action: str) -> None:
        if self._loop is not asyncio.get_running_loop():
            raise BusLoopError(
                f"cannot {action}: this bus was started in another event loop; make a bus for each event loop"
            )

    def _take_store(self) -> None:
        if _stores_in_use.setdefault(self._store, self) is not self:
            raise InvalidTargetError(
                self._store, "is in use by another bus: give each bus a store of its own"
            )

    def _make_subscription(
        self, pattern: str, handler: Handler, timeout: float | None, retry: RetryOverride
    ) -> Subscription:
        if timeout is not None:
            check_timeout("timeout", timeout)
        return Subscription(
            id=str(uuid.uuid4()),
            pattern=pattern,
            handler=check_handler(handler),
            is_async=is_async_handler(handler),
            timeout=self._handler_timeout if timeout is None else timeout,
            retry=override_policy(self._retry, retry),
            gate=Gate(self._clock),
            created_at=self._clock.now(),
        )

    async def _drain(self) -> bool:
        """Whether everything in flight came to its end within shutdown_timeout."""
        draining = asyncio.ensure_future(self._finish_in_flight())
        limit = asyncio.ensure_future(self._clock.until(self._clock.monotonic() + self._shutdown_timeout))
        try:
            await asyncio.wait((draining, limit), return_when=asyncio.FIRST_COMPLETED)
            return draining.done()
        finally:
            draining.cancel()
            limit.cancel()

    async def _finish_in_flight(self) -> None:
        await self._publisher.wait_until_stored()
        await self._lane.wait_until_stopped()
        await self._dispatcher.wait_until_idle()

    async def _give_back(self) -> None:
        await self._lane.cut_off()
        await self._couriers.cancel_all()
        # A store that can't take it now has the events in processing: the next start recovers them.
        with contextlib.suppress(StoreError):
            count = await self._dispatcher.give_back_all()
            logger.warning("shutdown: %d events were still in flight and are pending again", count)
