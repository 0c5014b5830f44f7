"""One event, one attempt: through its handlers one after another, each with its timeout."""

import asyncio
import inspect
import logging
import weakref
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from types import CoroutineType
from typing import Any

from postbus.closing import is_closing, is_within
from postbus.delivery.begun import Begun
from postbus.delivery.error_stories import describe_error, timeout_error
from postbus.delivery.gate import Gate
from postbus.delivery.handler_threads import HandlerThreads
from postbus.delivery.subscriptions import Route, Subscription
from postbus.delivery.watchdog import Call, Watchdog
from postbus.errors import EventBusShutdownError
from postbus.events import Event
from postbus.policy.circuit import OPEN_SECONDS
from postbus.ports import Clock

logger = logging.getLogger("postbus")


@dataclass(frozen=True, slots=True)
class Failure:
    """Why an attempt failed."""

    subscription_id: str
    error: str
    # What the handler has raised: the log shows where.
    cause: BaseException | None = None
    # The handler needed the bus, which takes no new work any more: not the event's fault.
    is_by_shutdown: bool = False


class AbandonedError(Exception):
    """The handler ended after all, but its event has long gone on without it."""


class GivenBackError(AbandonedError):
    """The handler ended, but a shutdown has put its event back before: the next start delivers it."""


class Attempts:
    """Runs attempts. The only place where user code ends and ours begins."""

    def __init__(self, clock: Clock, threads: HandlerThreads) -> None:
        self._clock, self._threads = clock, threads
        self._watchdogs: dict[float, Watchdog] = {}
        self._is_stopping = self._is_stopped = False
        # Weakly: a gate goes with its subscription.
        self._waited_at: weakref.WeakSet[Gate] = weakref.WeakSet()
        self._on_abandoned: Callable[[Event, Failure], None] | None = None
        self._on_waiting: Callable[[Event], None] | None = None

    def when_waiting(self, go_on: Callable[[Event], None]) -> None:
        """Call this for an event that waits for a circuit breaker, which may take long: others need not."""
        self._on_waiting = go_on

    def when_abandoned(self, go_on: Callable[[Event, Failure], None]) -> None:
        """Call this for an event that has to go on without its task, which is stuck in a handler or over."""
        self._on_abandoned = go_on

    def begin(self, event: Event, route: Route) -> "Failure | Coroutine[Any, Any, Failure | None] | None":
        """The attempt as far as it comes without waiting, within a task: how it ended, or what is left of it.

        Most handlers are alone and quick, and a coroutine around each of them costs more than they do.
        """
        subscription = route.lone
        if subscription is None or subscription.gate.is_retired or not subscription.gate.free_ticket:
            return self.run(event, route)
        began_at, ticket = self._clock.monotonic(), subscription.gate.free_ticket
        handling: Any = None
        try:
            handling = subscription.handler(subscription.delivered.of(event))
            if type(handling) is not CoroutineType:
                return self._see_through(subscription, event, ticket, began_at, handling)
            waits_for = handling.send(None)
        except StopIteration as raised:
            # From a coroutine this is how it returns, and nothing else.
            return self._end(subscription, ticket, raised if handling is None else None)
        except (SystemExit, KeyboardInterrupt):
            subscription.gate.abandon(ticket)
            raise
        except BaseException as raised:
            # CancelledError and GeneratorExit are the handler's own: those of others come to what waits.
            return self._end(subscription, ticket, raised)
        return self._see_through(subscription, event, ticket, began_at, Begun(handling, waits_for))

    async def run(self, event: Event, route: Route) -> Failure | None:
        """Call every handler; stop at the first that fails.

        A handler behind an open circuit breaker is waited for, after those that are not:
        the event is not done before every handler has seen it.
        """
        waiting: list[Subscription] = []
        for subscription in route.subscriptions:
            if self._is_stopped:
                # The handler before this one has shut the bus down.
                raise GivenBackError
            if subscription.gate.is_retired:
                continue
            ticket = subscription.gate.try_enter(self._clock.monotonic())
            if not ticket:
                waiting.append(subscription)
            elif (failure := await self._call(subscription, event, ticket)) is not None:
                return failure
        for subscription in waiting:
            if (failure := await self._call_when_open(subscription, event)) is not None:
                return failure
        return None

    async def _call_when_open(self, subscription: Subscription, event: Event) -> Failure | None:
        gate = subscription.gate
        self._waited_at.add(gate)
        if self._is_stopping:
            gate.stop_waiting()
        if self._on_waiting is not None:
            self._on_waiting(event)
        if ticket := await gate.enter():
            return await self._call(subscription, event, ticket)
        is_by_shutdown = self._is_stopping and not gate.is_retired
        return Failure(subscription.id, "shut down", is_by_shutdown=True) if is_by_shutdown else None

    def begin_stopping(self) -> None:
        """The bus takes no new work: handlers that publish get to feel it, and nobody waits at a gate."""
        self._is_stopping = True
        for gate in self._waited_at:
            gate.stop_waiting()

    def stop(self) -> None:
        """No attempt will run any more."""
        self._is_stopped = True
        self._threads.stop()
        for watchdog in self._watchdogs.values():
            watchdog.stop()

    def event_of(self, task: "asyncio.Task[object]") -> Event | None:
        """The event whose handler runs in this task and waits for something; None: there is none."""
        calls = (call for watchdog in self._watchdogs.values() for call in watchdog)
        return next((call.event for call in calls if call.task is task), None)

    def _call(
        self, subscription: Subscription, event: Event, ticket: int
    ) -> Coroutine[Any, Any, Failure | None]:
        """Call one handler that its gate let in."""
        call = self._call_now if subscription.is_async else self._call_in_turn
        return call(subscription, event, ticket)

    async def _call_in_turn(self, subscription: Subscription, event: Event, ticket: int) -> Failure | None:
        # Its time begins when there is a thread for it, not while others have them all.
        try:
            await self._threads.places.acquire()
        except asyncio.CancelledError:
            subscription.gate.abandon(ticket)
            raise
        try:
            return await self._call_now(subscription, event, ticket)
        finally:
            self._threads.places.release()

    async def _call_now(self, subscription: Subscription, event: Event, ticket: int) -> Failure | None:
        handling = _call_async if subscription.is_async else self._call_in_thread
        return await self._see_through(
            subscription, event, ticket, self._clock.monotonic(), handling(subscription, event)
        )

    async def _see_through(
        self,
        subscription: Subscription,
        event: Event,
        ticket: int,
        began_at: float,
        handling: Awaitable[object],
    ) -> Failure | None:
        """Wait for the handler, but not for longer than it may take."""
        watchdog = self._watchdogs.get(subscription.timeout) or self._new_watchdog(subscription.timeout)
        call = watchdog.begin(subscription, event, ticket, began_at)
        error: BaseException | None = None
        try:
            await handling
        except asyncio.CancelledError as raised:
            if not call.ended_by_timeout() and call.is_task_cancelled():
                subscription.gate.abandon(ticket)
                if call.is_abandoned:
                    # Its event has gone on without it: couriers must not run it again.
                    raise AbandonedError from None
                raise
            error = raised
        except (SystemExit, KeyboardInterrupt):
            subscription.gate.abandon(ticket)
            raise
        except BaseException as raised:
            if is_closing(raised):
                self._break_off(call, raised)
                raise
            error = raised
        finally:
            watchdog.end(call)
        if call.is_late:
            if call.ended_by_timeout():
                error = timeout_error(subscription.timeout, error)
            if call.is_abandoned:
                raise AbandonedError
        return self._end(subscription, ticket, error)

    def _end(self, subscription: Subscription, ticket: int, error: BaseException | None) -> Failure | None:
        """The handler has returned, or raised."""
        if subscription.gate.leave(ticket, error is None):
            _warn_of_opening(subscription)
        if error is None:
            return None
        is_by_shutdown = self._is_stopping and isinstance(error, EventBusShutdownError)
        return Failure(subscription.id, describe_error(error), error, is_by_shutdown)

    def _abandon(self, call: Call) -> None:
        """The handler took no notice of its cancellation: go on without it."""
        error = describe_error(timeout_error(call.subscription.timeout))
        self._go_on_without(call, f"{error}, and goes on nevertheless")

    def _break_off(self, call: Call, error: BaseException) -> None:
        """The task ends here, and its handler with it."""
        if is_within(call.task) and not call.is_abandoned:
            # What the handler waited for has failed with it, which closes the whole task.
            call.task.add_done_callback(_take_note)
            self._go_on_without(call, describe_error(error))
        else:
            # The event loop is gone.
            call.subscription.gate.abandon(call.ticket)

    def _go_on_without(self, call: Call, error: str) -> None:
        if call.subscription.gate.leave(call.ticket, succeeded=False):
            _warn_of_opening(call.subscription)
        if self._on_abandoned is not None:
            self._on_abandoned(call.event, Failure(call.subscription.id, error))

    async def _call_in_thread(self, subscription: Subscription, event: Event) -> None:
        argument = subscription.delivered.of(event)
        result = await self._threads.run(lambda: subscription.handler(argument))
        # A plain function may hand back a coroutine, as a lambda around an async function does.
        if inspect.isawaitable(result):
            await result

    def _new_watchdog(self, timeout: float) -> Watchdog:
        watchdog = self._watchdogs[timeout] = Watchdog(timeout, self._clock, self._abandon)
        return watchdog


def _take_note(task: "asyncio.Task[object]") -> None:
    """Nobody has to be told what a task ended with: the attempt has failed with it."""
    if not task.cancelled():
        task.exception()


def _warn_of_opening(subscription: Subscription) -> None:
    logger.warning(
        "handler of %s mostly fails: its circuit breaker is open, events wait for a probe in %g s",
        subscription.pattern,
        OPEN_SECONDS,
        extra={"subscription_id": subscription.id},
    )


async def _call_async(subscription: Subscription, event: Event) -> None:
    await subscription.handler(subscription.delivered.of(event))  # type: ignore[misc]
