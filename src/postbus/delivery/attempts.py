"""One event, one attempt: through its handlers one after another, each with its timeout."""

import asyncio
import inspect
from dataclasses import dataclass

from postbus.delivery.handler_threads import HandlerThreads
from postbus.delivery.subscriptions import Route, Subscription
from postbus.delivery.watchdog import Watchdog
from postbus.errors import EventBusShutdownError
from postbus.events import Event
from postbus.ports import Clock

_LONGEST_ERROR = 10_000


@dataclass(frozen=True, slots=True)
class Failure:
    """Why an attempt failed."""

    subscription_id: str
    error: str
    # The handler needed the bus, which takes no new work any more: not the event's fault.
    is_by_shutdown: bool = False


class Attempts:
    """Runs attempts. The only place where user code ends and ours begins."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._threads = HandlerThreads()
        self._watchdogs: dict[float, Watchdog] = {}
        self._is_stopping = False

    async def run(self, event: Event, route: Route) -> Failure | None:
        """Call every handler; stop at the first that fails.

        A handler behind an open circuit breaker is waited for, after those that are not:
        the event is not done before every handler has seen it.
        """
        waiting: list[Subscription] = []
        for subscription in route.subscriptions:
            if not subscription.gate.try_enter():
                waiting.append(subscription)
            elif (failure := await self._call(subscription, event)) is not None:
                return failure
        for subscription in waiting:
            await subscription.gate.enter()
            if (failure := await self._call(subscription, event)) is not None:
                return failure
        return None

    def begin_stopping(self) -> None:
        """The bus takes no new work: handlers that try to publish get to feel it."""
        self._is_stopping = True

    def stop(self) -> None:
        """No attempt will run any more."""
        self._threads.stop()
        for watchdog in self._watchdogs.values():
            watchdog.stop()

    async def _call(self, subscription: Subscription, event: Event) -> Failure | None:
        """Call one handler that its gate let in."""
        watchdog = self._watchdogs.get(subscription.timeout) or self._new_watchdog(subscription.timeout)
        task = asyncio.current_task()
        assert task is not None
        call = watchdog.begin(task)
        error: str | None = None
        is_by_shutdown = False
        try:
            if subscription.is_async:
                await subscription.handler(event)  # type: ignore[misc]
            else:
                await self._call_in_thread(subscription, event)
        except asyncio.CancelledError as raised:
            if not call.ended_by_timeout() and call.is_task_cancelled():
                subscription.gate.abandon()
                raise
            error = describe_error(raised)
        except Exception as raised:
            error = describe_error(raised)
            is_by_shutdown = self._is_stopping and isinstance(raised, EventBusShutdownError)
        finally:
            watchdog.end(call)
        if call.ended_by_timeout():
            error = f"TimeoutError: handler took longer than {subscription.timeout:g} s and was cancelled"
        subscription.gate.leave(error is None)
        return None if error is None else Failure(subscription.id, error, is_by_shutdown)

    async def _call_in_thread(self, subscription: Subscription, event: Event) -> None:
        result = await self._threads.run(lambda: subscription.handler(event))
        # A plain function may hand back a coroutine, as a lambda around an async function does.
        if inspect.isawaitable(result):
            await result

    def _new_watchdog(self, timeout: float) -> Watchdog:
        watchdog = self._watchdogs[timeout] = Watchdog(timeout, self._clock)
        return watchdog


def describe_error(error: BaseException) -> str:
    """The type and message of an error, as one string of the dead letter's story."""
    name = type(error).__qualname__
    try:
        message = str(error)
    except Exception:
        message = "(its message can't be shown: __str__ raised)"
    text = f"{name}: {message}" if message else name
    # Any store must be able to keep it: no lone surrogates, no NUL, no end without end.
    text = text.encode(errors="backslashreplace").decode().replace("\0", "\\0")
    return text if len(text) <= _LONGEST_ERROR else f"{text[:_LONGEST_ERROR]}… ({len(text)} characters)"
