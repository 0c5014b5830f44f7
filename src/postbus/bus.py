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
from typing import Any, Protocol, Self, TypeVar

from postbus.clock import SystemClock
from postbus.config import (
    DEFAULT_HANDLER_TIMEOUT,
    DEFAULT_MAX_PAYLOAD_BYTES,
    DEFAULT_SHUTDOWN_TIMEOUT,
    AnyCheckpointMode,
    ReliableDeliveryConfig,
    RetryPolicy,
    check_timeout,
    check_whole_number,
)
from postbus.delivery.attempts import Attempts
from postbus.delivery.backlog_lane import BacklogLane
from postbus.delivery.counters import RetryCounters
from postbus.delivery.couriers import Couriers
from postbus.delivery.dispatcher import Dispatcher
from postbus.delivery.handle import SubscriptionHandle
from postbus.delivery.handler_threads import HandlerThreads
from postbus.delivery.publisher import Publisher
from postbus.delivery.registration import Registration, check_durable_only, is_observer, is_stateful
from postbus.delivery.subscriber import Mode, StartFrom
from postbus.delivery.subscribers import Subscribers
from postbus.delivery.subscriptions import Handler, RetryOverride, Subscriptions
from postbus.drafting import Drafts
from postbus.errors import (
    BusLoopError,
    EventBusShutdownError,
    InvalidConfigError,
    InvalidHandlerError,
    InvalidSubscriberIdError,
    InvalidTargetError,
    StoreError,
    WaitsForItselfError,
)
from postbus.events import NewEvent
from postbus.ids import new_event_id
from postbus.inspection import DLQInspector
from postbus.observers.definition import check_patterns
from postbus.policy.patterns import check_pattern
from postbus.policy.retry import override_policy
from postbus.ports import Clock, EventObserver, StatefulObserver, Store
from postbus.targets import store_for

logger = logging.getLogger("postbus")

# Which bus is at work on which store.
_stores_in_use: "weakref.WeakKeyDictionary[Store, EventBus]" = weakref.WeakKeyDictionary()

TransactionalHandler = Callable[[Any, Any], object]
H = TypeVar("H", bound="Handler | TransactionalHandler")
U = TypeVar("U", bound=Callable[[Any], object])
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
        config: ReliableDeliveryConfig | None = None,
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
        if not callable(id_factory):
            raise InvalidConfigError("id_factory", id_factory, "a function that takes nothing")
        if not callable(noise):
            raise InvalidConfigError("noise", noise, "a function that returns a number from -1 to 1")
        self._clock: Clock = SystemClock() if clock is None else _checked_clock(clock)
        self._retry = override_policy(RetryPolicy(), retry)
        self._handler_timeout, self._shutdown_timeout = handler_timeout, shutdown_timeout
        self._store = store_for(target, self._clock)
        self._subscriptions = Subscriptions(self._retry)
        threads = HandlerThreads()
        self._attempts = Attempts(self._clock, threads)
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
        # For what is appended, too: the store knows only of handlers that are written down already.
        self._store.append_as(self._drafts.draft_stream)
        config = ReliableDeliveryConfig() if config is None else config
        if not isinstance(config, ReliableDeliveryConfig):
            raise InvalidConfigError("config", config, "a ReliableDeliveryConfig")
        self._registration = Registration(
            self._retry, config, handler_timeout, threads, self._drafts, self._store, self._clock
        )
        self._subscribers = Subscribers(self._store, config, self._clock, noise, self.start)
        self._dlq = DLQInspector(self._store, clock=self._clock)
        self._changing = asyncio.Lock()
        self._ending: asyncio.Future[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_shut_down = self._is_draining = self._is_closed = False
        # Calls of shutdown() at present; when their time is up.
        self._stopper_count, self._drain_until = 0, 0.0

    @property
    def store(self) -> Store:
        """The store, for reading events by id."""
        return self._store

    @property
    def shutdown_timeout(self) -> float:
        """How many seconds shutdown() waits for what is in flight."""
        return self._shutdown_timeout

    @property
    def dlq(self) -> DLQInspector:
        """The dead letters."""
        if self._is_shut_down:
            raise EventBusShutdownError("look at dead letters")
        return self._dlq

    @property
    def subscriptions(self) -> tuple[SubscriptionHandle, ...]:
        """The handles of all durable subscribers, in the order of their subscription."""
        return tuple(self._subscribers.handle(service.subscriber.id) for service in self._subscribers)

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
                await self._subscribers.start()
                self._loop = asyncio.get_running_loop()

    async def shutdown(self) -> None:
        """Refuse new work, finish what is in flight within shutdown_timeout, and close. Idempotent.

        What is still in flight then is cut off and put back to pending: the next start delivers it.
        So it is when the task that calls this is cancelled, unless others call it at the same time.
        """
        if self._loop is not None and not self._loop.is_closed():
            self._check_loop("shut down")
        self._is_shut_down = True
        self._stopper_count += 1
        try:
            async with self._changing:
                await self._stop()
        finally:
            self._stopper_count -= 1
            # Whoever loses patience and is cancelled leaves it to those who still wait; the last one ends it.
            if self._is_draining and not self._stopper_count:
                async with self._changing:
                    if self._is_draining:
                        await self._end(is_drained=False)

    async def publish(
        self,
        type: str,
        payload: object = None,
        metadata: Mapping[str, str] | None = None,
        *,
        stream_id: str | uuid.UUID | None = None,
        expected_version: int | None = None,
        event_id: str | uuid.UUID | None = None,
        actor_id: str | uuid.UUID | None = None,
        correlation_id: str | uuid.UUID | None = None,
        causation_id: str | uuid.UUID | None = None,
        schema_version: int | None = None,
        wait: bool = True,
        connection: Any = None,
    ) -> str:
        """Store an event and run its handlers; its id.

        Returns after the event is durable and, unless *wait* is false, its handlers have finished
        (in success or as a dead letter); durable subscribers get it in their own time. When the bus is
        shut down meanwhile, it returns as well: the event is stored, and the next start delivers it.
        Publishing the same *event_id* again stores nothing. With *expected_version* it is stored only
        if its stream is at that version, else WrongExpectedVersionError; 0 means that the stream must
        not exist.
        With *connection* (of asyncpg, on PostgreSQL) it is stored in the caller's own transaction: it
        exists exactly when that commits.
        """
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            await self._ready("publish")
        if not self._lane.is_owner_known:
            await self._lane.find_owner()
        # One by one: to compare them as a tuple takes three times as long, with every event.
        if (
            stream_id is None
            and expected_version is None
            and actor_id is None
            and correlation_id is None
            and causation_id is None
            and schema_version is None
        ):
            draft = self._drafts.draft(type, payload, metadata, event_id, wait=wait)
        else:
            new = NewEvent(
                type,
                payload,
                metadata,  # type: ignore[arg-type]
                event_id,  # type: ignore[arg-type]
                stream_id,  # type: ignore[arg-type]
                expected_version,
                actor_id,  # type: ignore[arg-type]
                correlation_id,  # type: ignore[arg-type]
                causation_id,  # type: ignore[arg-type]
                schema_version,
            )
            draft = self._drafts.draft_new(new, wait=wait)
        if connection is not None:
            await self._store.log.append_within(connection, (draft,))
        elif self._store.has_handlers:
            await self._publisher.publish((draft,), loop)
        else:
            # Nothing has to be done once it is stored, and so no more than the caller's own task is needed.
            await self._store.log.store((draft,))
        return draft.id

    async def publish_many(
        self, events: Iterable[EventItem], *, wait: bool = True, connection: Any = None
    ) -> list[str]:
        """Store all events in one transaction, or none, and run their handlers in order; their ids.

        An item is (type, payload), (type, payload, metadata) or a NewEvent. With *connection* they are
        stored in the caller's own transaction, as by publish.
        """
        await self._ready("publish")
        await self._lane.find_owner()
        drafts = self._drafts.draft_many(events, wait=wait)
        if drafts and connection is not None:
            await self._store.log.append_within(connection, drafts)
        elif drafts and self._store.has_handlers:
            await self._publisher.publish(drafts, asyncio.get_running_loop())
        elif drafts:
            await self._store.log.store(drafts)
        return [draft.id for draft in drafts]

    def subscribe(
        self,
        pattern: "str | Handler | TransactionalHandler | EventObserver | StatefulObserver",
        handler: "Handler | TransactionalHandler | EventObserver | StatefulObserver | None" = None,
        *,
        id: str | None = None,
        timeout: float | None = None,
        retry: RetryOverride = None,
        start_from: StartFrom = "beginning",
        checkpoint_mode: AnyCheckpointMode | None = None,
        mode: Mode = "ordered",
        partitions: int = 1,
        concurrency: int | None = None,
    ) -> str:
        """Call the handler for every event that matches; the subscription's id.

        subscribe(handler) means every event; subscribe(observer) takes an EventObserver, a Projection
        or a Saga. A plain function runs in a thread. *timeout* and *retry* override the bus's own;
        *retry* may be a dict of the fields to override.

        With an *id* (an observer has its own) the subscription is durable: it goes on where it was
        after a restart, one process at a time. A new one begins where *start_from* says: "beginning"
        (the default), "now", after a global sequence, or at an aware datetime. A handler with a second
        parameter gets the transaction in which its checkpoint is written.

        On PostgreSQL several instances can share the work: mode="competing" in no order, *concurrency*
        events at once in each instance; *partitions* in the order of each stream, and as many of them at
        once. A projection or saga can be split only if it has one state for each stream, under the
        stream's id: two partitions must not write the same one. The number of partitions may be changed
        with every deploy: instances with the new one stand by until the last of the old ones is gone.
        """
        if self._is_shut_down:
            raise EventBusShutdownError("subscribe")
        given_pattern: object = pattern
        if not isinstance(pattern, str) and handler is None:
            handler, given_pattern = pattern, None
        if handler is None:
            raise InvalidHandlerError(
                f"no handler was given for {pattern!r}; expected subscribe(pattern, handler)"
            )
        if isinstance(handler, type) and hasattr(handler, "subscriber_id"):
            raise InvalidHandlerError(
                f"{handler.__qualname__} is a class; expected an instance, {handler.__qualname__}(…)"
            )
        if is_stateful(handler) or is_observer(handler):
            id = _only_id(id, handler.subscriber_id)
        elif given_pattern is None and handler is not pattern:
            # Only subscribe(handler) means every event: here a pattern was meant, and is not there.
            check_pattern(given_pattern)
        if id is None:
            given_start = None if start_from == "beginning" else start_from
            check_durable_only(
                start_from=given_start,
                checkpoint_mode=checkpoint_mode,
                mode=None if mode == "ordered" else mode,
                partitions=None if partitions == 1 else partitions,
                concurrency=concurrency,
            )
            (only_pattern,) = _patterns_of(given_pattern, handler)
            return self._subscribe_handler(only_pattern, handler, timeout, retry)
        subscriber = self._registration.subscriber(
            id,
            _patterns_of(given_pattern, handler),
            handler,
            timeout=timeout,
            retry=retry,
            start_from=start_from,
            checkpoint_mode=checkpoint_mode,
            mode=mode,
            partitions=partitions,
            concurrency=concurrency,
        )
        if self._loop is not None:
            self._check_loop("subscribe")
        self._subscribers.add(subscriber)
        return subscriber.id

    def unsubscribe(self, subscription_id: str) -> None:
        """Call its handler no more. Idempotent; what runs at this moment ends by itself."""
        given: object = subscription_id
        if not isinstance(given, str):
            # Perhaps the handler itself, which would go on being called.
            raise InvalidSubscriberIdError(given, f"is of type {type(given).__qualname__}")
        self._subscribers.remove(subscription_id)
        self._subscriptions.remove(subscription_id)
        self._lane.wake()

    def subscription(self, subscriber_id: str) -> SubscriptionHandle:
        """The handle of a durable subscriber. SubscriptionNotFoundError."""
        return self._subscribers.handle(subscriber_id)

    def on(
        self,
        pattern: str,
        *,
        id: str | None = None,
        timeout: float | None = None,
        retry: RetryOverride = None,
        start_from: StartFrom = "beginning",
        checkpoint_mode: AnyCheckpointMode | None = None,
        mode: Mode = "ordered",
        partitions: int = 1,
        concurrency: int | None = None,
    ) -> Decorator:
        """The decorator form of subscribe; the function stays as it is."""
        # Here already: @bus.on without a pattern would take the handler for one and never call it.
        check_pattern(pattern)

        def register(handler: H) -> H:
            self.subscribe(
                pattern,
                handler,
                id=id,
                timeout=timeout,
                retry=retry,
                start_from=start_from,
                checkpoint_mode=checkpoint_mode,
                mode=mode,
                partitions=partitions,
                concurrency=concurrency,
            )
            return handler

        return register

    def upcaster(self, event_type: str, *, from_version: int) -> "Callable[[U], U]":
        """A decorator for a function that takes the payload of an old version to the next one.

        Handlers and subscribers get every event in the last version that upcasters lead to;
        what is stored stays as it is. An event without a schema_version is of version 1.
        """

        def register(function: U) -> U:
            self._registration.upcasters.register(event_type, from_version, function)
            return function

        return register

    async def idle(self) -> None:
        """Return when every stored event that is wanted here was processed or is a dead letter.

        A durable subscriber that is paused, fails or is active in another process is not waited for.
        WaitsForItselfError if a handler asks, which would not end before that.
        """
        await self._ready("wait")
        await self._check_waits_not_for_itself()
        while True:
            await self._publisher.wait_until_stored()
            await self._lane.wait_until_at_rest()
            await self._dispatcher.wait_until_idle()
            if not await self._subscribers.wait_until_idle() and self._lane.is_at_rest:
                return

    async def _check_waits_not_for_itself(self) -> None:
        # A handler in its first step is not known before that has ended.
        await asyncio.sleep(0)
        by = asyncio.current_task()
        event = None if by is None else self._attempts.event_of(by)
        if event is not None:
            raise WaitsForItselfError("", event.id)

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
        try:
            is_ours = self._loop is asyncio.get_running_loop()
        except RuntimeError:
            is_ours = False  # a thread, such as that of a plain handler
        if not is_ours:
            raise BusLoopError(
                f"cannot {action}: this bus was started in another event loop; make a bus for each event "
                "loop, and call it in that loop and not in another thread"
            )

    def _take_store(self) -> None:
        if _stores_in_use.setdefault(self._store, self) is not self:
            raise InvalidTargetError(
                self._store, "is in use by another bus: give each bus a store of its own"
            )

    def _subscribe_handler(
        self, pattern: str, handler: object, timeout: float | None, retry: RetryOverride
    ) -> str:
        subscription = self._registration.handler(pattern, handler, timeout, retry)
        self._subscriptions.add(subscription)
        self._lane.wake_for_new_handler()
        return subscription.id

    async def _stop(self) -> None:
        loop, self._loop = self._loop, None
        if self._is_closed:
            return
        if loop is not None and loop.is_closed():
            # With its loop everything of ours has ended; the next start recovers what was in flight.
            await self._close_store()
            return
        if loop is not None:
            self._is_draining, self._drain_until = True, self._clock.monotonic() + self._shutdown_timeout
            self._attempts.begin_stopping()
            self._lane.stop()
            self._subscribers.begin_stopping()
        await self._end(is_drained=not self._is_draining or await self._drain())

    async def _end(self, *, is_drained: bool) -> None:
        self._is_draining = False
        by = asyncio.current_task()
        if by is not None and (self._attempts.event_of(by) is not None or self._subscribers.are_run_by(by)):
            # Here, so that the handler who shuts down is not cut off.
            await self._cut_off(is_drained=is_drained)
            return
        if self._ending is None or self._ending.done():
            self._ending = asyncio.ensure_future(self._cut_off(is_drained=is_drained))
        # Shielded: a handler that is cut off may be waiting for this very task, and cancels it in turn.
        # Should somebody lose patience here, it goes on, and whoever shuts down next waits for it.
        await asyncio.shield(self._ending)

    async def _cut_off(self, *, is_drained: bool) -> None:
        if not is_drained:
            await self._give_back()
        await self._subscribers.cut_off()
        await self._lane.cut_off()
        await self._couriers.cancel_all()
        self._publisher.stop()
        with contextlib.suppress(StoreError):
            await self._dispatcher.give_back_all()
        self._attempts.stop()
        await self._close_store()

    async def _close_store(self) -> None:
        self._store.append_as(None)
        await self._store.close()
        self._is_closed = True
        _stores_in_use.pop(self._store, None)

    async def _drain(self) -> bool:
        """Whether everything in flight came to its end within shutdown_timeout."""
        draining = asyncio.ensure_future(self._finish_in_flight(asyncio.current_task()))
        limit = asyncio.ensure_future(self._clock.until(self._drain_until))
        try:
            await asyncio.wait((draining, limit), return_when=asyncio.FIRST_COMPLETED)
            return draining.done()
        finally:
            draining.cancel()
            limit.cancel()

    async def _finish_in_flight(self, by: "asyncio.Task[object] | None") -> None:
        # A handler may be the one who shuts down: it is not waited for, with an id or without. If it is in
        # its first step, nobody knows of it before that has ended.
        await asyncio.sleep(0)
        if by is not None:
            # Before all else: the lane, or whoever has published the event, may wait for it.
            await self._give_back_own(by)
        await self._publisher.wait_until_stored()
        await self._lane.wait_until_stopped()
        await self._dispatcher.wait_until_idle()
        await self._subscribers.wait_until_stopped(by)

    async def _give_back_own(self, by: "asyncio.Task[object]") -> None:
        # As below: what the store can't take now is recovered by the next start.
        with contextlib.suppress(StoreError):
            if count := await self._dispatcher.give_back_own(by):
                logger.info("shutdown by a handler: %d events, its own first, are pending again", count)

    async def _give_back(self) -> None:
        await self._lane.cut_off()
        await self._couriers.cancel_all()
        # A store that can't take it now has the events in processing: the next start recovers them.
        try:
            count = await self._dispatcher.give_back_all()
            logger.warning("shutdown: %d events were still in flight and are pending again", count)
        except StoreError as error:
            logger.warning("shutdown: %s", error)


def _checked_clock(clock: Clock) -> Clock:
    has_all = all(callable(getattr(clock, name, None)) for name in ("now", "monotonic", "sleep", "until"))
    if not has_all or isinstance(clock, type):
        raise InvalidConfigError("clock", clock, "an object with now(), monotonic(), sleep() and until()")
    return clock


def _only_id(given: str | None, own: str) -> str:
    if given is not None and given != own:
        raise InvalidConfigError("id", given, f"none, or the observer's own, which is {own!r}")
    return own


def _patterns_of(pattern: object, handler: object) -> tuple[str, ...]:
    """The pattern that was given; else those of the observer; else every event."""
    if pattern is not None:
        return (check_pattern(pattern),)
    patterns = getattr(handler, "patterns", None)
    return ("*",) if patterns is None else check_patterns(type(handler).__qualname__, patterns)
