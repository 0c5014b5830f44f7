"""One event to every matching handler, attempt after attempt, until it is done or a dead letter."""

import asyncio
import contextvars
import logging
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, Protocol

import msgspec

from postbus.config import RetryPolicy
from postbus.delivery.attempts import Attempts, Failure, GivenBackError
from postbus.delivery.counters import CountersByType
from postbus.delivery.couriers import Couriers
from postbus.delivery.error_stories import warn_of
from postbus.delivery.interrupted import is_in_doubt
from postbus.delivery.subscriptions import Route, Subscriptions
from postbus.errors import StoreClosedError, StoreError
from postbus.events import Event, GlobalSequence, UndecodablePayload
from postbus.policy.retry import is_exhausted, is_used_up, retry_delay
from postbus.ports import Clock, EventQueue

logger = logging.getLogger("postbus")

# How we ask a store again that could not record what happened.
_STORE_RETRY = RetryPolicy(base_delay=0.1, max_delay=5.0)
# How long everything in flight may take to be put back at the end: recovery does it as well.
_SECONDS_TO_GIVE_BACK = 1.0


class Follower(Protocol):
    """Wants to know what becomes of an event in flight."""

    def on_attempted(self, event: Event, /) -> None:
        """An attempt has ended, or waits for a circuit breaker, or for a handler that will not end.

        May come more than once.
        """
        ...

    def on_settled(self) -> None:
        """The event is done, a dead letter, or back in the store for later."""
        ...

    def behind(self, event: Event, /) -> Sequence[Event]:
        """Events in flight that can't begin before the attempt of this one has ended."""
        ...


class Dispatcher:
    """Sees events in processing through. Whatever it has in flight is counted, drained and given back."""

    def __init__(
        self,
        queue: EventQueue,
        subscriptions: Subscriptions,
        attempts: Attempts,
        couriers: Couriers,
        clock: Clock,
        noise: Callable[[], float],
    ) -> None:
        self._queue, self._subscriptions = queue, subscriptions
        self._attempts, self._couriers = attempts, couriers
        self._clock, self._noise = clock, noise
        self.counters = CountersByType()
        self._in_flight: dict[GlobalSequence, Follower] = {}
        self._idle: asyncio.Event | None = None
        attempts.when_abandoned(self._go_on_without)
        attempts.when_waiting(self._let_others_go_on)

    def take(self, event: Event, follower: Follower) -> None:
        """This event is in processing from now on, and ours to see through or to give back."""
        self._in_flight[event.global_sequence] = follower  # type: ignore[index]

    @property
    def is_idle(self) -> bool:
        """Whether nothing is in flight."""
        return not self._in_flight

    async def wait_until_idle(self) -> None:
        """Return when nothing is in flight."""
        if self._in_flight:
            # Made for those who wait, and not set with every event.
            self._idle = self._idle or asyncio.Event()
            await self._idle.wait()

    async def give_back(self, events: Sequence[Event]) -> None:
        """Put events that were taken back to pending, their attempts as they are."""
        await self._queue.release([_sequence(event) for event in events])
        for event in events:
            self._settle(_sequence(event))

    async def give_back_own(self, task: "asyncio.Task[object]") -> int:
        """Put the event whose handler runs in this task back to pending, and those behind it; how many."""
        event = self._attempts.event_of(task)
        follower = None if event is None else self._in_flight.get(_sequence(event))
        if event is None or follower is None:
            return 0
        return await self._give_back([_sequence(each) for each in (event, *follower.behind(event))])

    async def give_back_all(self) -> int:
        """Put whatever is still in flight back to pending; how many events. Nothing is in flight then.

        A StoreError tells of how many the store could not take that within a second.
        """
        left = list(self._in_flight)
        try:
            # Cancelled, it is written all the same if that can be done before the store is closed.
            async with asyncio.timeout(_SECONDS_TO_GIVE_BACK):
                return await self._give_back(left)
        except TimeoutError as error:
            raise _not_given_back(left, f"no answer within {_SECONDS_TO_GIVE_BACK:g} s") from error
        except StoreError as error:
            raise _not_given_back(left, error) from error
        finally:
            self._settle_all(left)

    async def _give_back(self, left: Sequence[GlobalSequence]) -> int:
        try:
            if left:
                await self._queue.release(left)
        except StoreError:
            self._settle_all(left)
            raise
        # Cut off meanwhile, they stay: whoever gives back all does so with them, or tells of them.
        self._settle_all(left)
        return len(left)

    def begin(self, event: Event) -> "Coroutine[Any, Any, Retry | None] | None":
        """One attempt as far as it comes without waiting, within a task; None: the event is done.

        What is left of it is to be awaited at once. It returns what is left to do after the attempt.
        """
        if event.retry_count or type(event.payload) is UndecodablePayload:
            return self._attempt_carefully(event)
        route = self._subscriptions.route(event.type)
        try:
            outcome = self._attempts.begin(event, route)
        except (SystemExit, KeyboardInterrupt):
            self._leave_in_processing(event)
            raise
        if outcome is None:
            self._succeed(event)
            return None
        if isinstance(outcome, Failure):
            return self._fail(event, route, outcome)
        return self._see_through(event, route, outcome)

    async def attempt(self, event: Event) -> "Retry | None":
        """One attempt; what is left to do, or None when the event is settled."""
        rest = self.begin(event)
        return None if rest is None else await rest

    async def _attempt_carefully(self, event: Event) -> "Retry | None":
        """An attempt that is not the first, or that no handler can get."""
        route = self._subscriptions.route(event.type)
        if (
            event.retry_count
            and route.subscriptions
            and is_used_up(route.retry, event.retry_count, is_in_doubt=is_in_doubt(event))
        ):
            # Its attempts ended with their processes: no failure is left to be seen here.
            await self._bury(event)
            return None
        if type(event.payload) is UndecodablePayload:
            await self._bury_undecodable(event, event.payload)
            return None
        if event.retry_count:
            self.counters.of(event.type).retry_count += 1
        return await self._see_through(event, route, self._attempts.run(event, route))

    async def _see_through(
        self, event: Event, route: Route, attempt: "Coroutine[Any, Any, Failure | None]"
    ) -> "Retry | None":
        try:
            failure = await attempt
        except (SystemExit, KeyboardInterrupt):
            self._leave_in_processing(event)
            raise
        if event.global_sequence not in self._in_flight:
            raise GivenBackError
        if failure is not None:
            return await self._fail(event, route, failure)
        self._succeed(event)
        return None

    def _succeed(self, event: Event) -> None:
        counters = self.counters.of(event.type)
        counters.event_count += 1
        if event.retry_count:
            counters.success_after_retry_count += 1
        sequence: GlobalSequence = event.global_sequence  # type: ignore[assignment]
        self._queue.finish(sequence)
        self._settle(sequence)

    async def retry(self, event: Event, delay: float) -> "Retry | None":
        """Wait out the back-off, then one more attempt."""
        await self._clock.sleep(delay)
        return await self.attempt(event)

    async def fail(self, event: Event, failure: Failure) -> "Retry | None":
        """Everything that follows a failed attempt."""
        return await self._fail(event, self._subscriptions.route(event.type), failure)

    async def _fail(self, event: Event, route: Route, failure: Failure) -> "Retry | None":
        if failure.is_by_shutdown:
            await self.give_back([event])
            return None
        attempt = event.retry_count + 1
        is_dead = is_exhausted(route.retry, attempt)
        delay = 0.0 if is_dead else retry_delay(route.retry, attempt, self._noise())
        _log_failure(event, failure, attempt, route.retry.max_retries + 1, delay)
        errors = msgspec.json.encode([*event.errors, failure.error]).decode()
        failed = msgspec.structs.replace(event, retry_count=attempt, last_error=errors)
        if is_dead:
            await self._bury(failed)
            return None
        await self._record(lambda: self._queue.fail(_sequence(event), attempt, errors))
        return Retry(self, failed, delay)

    def _go_on_without(self, event: Event, failure: Failure) -> None:
        """Somebody else carries the event on: its task is stuck in a handler that will not end."""
        follower = self._in_flight.get(_sequence(event))
        if follower is not None:
            self._couriers.carry(_Remainder(self, event, failure), contextvars.Context())
            follower.on_attempted(event)

    def _let_others_go_on(self, event: Event) -> None:
        """Nobody has to wait until this attempt has ended."""
        if (follower := self._in_flight.get(_sequence(event))) is not None:
            follower.on_attempted(event)

    async def _bury(self, event: Event) -> None:
        await self._record(lambda: self._queue.bury(_sequence(event), event.retry_count, event.last_error))
        counters = self.counters.of(event.type)
        counters.event_count += 1
        counters.dead_letter_count += 1
        logger.error(
            "event %s (%s) is a dead letter after %d attempts",
            event.id,
            event.type,
            event.retry_count,
            extra={"event_id": event.id, "event_type": event.type, "attempt": event.retry_count},
        )
        self._settle(_sequence(event))

    async def _bury_undecodable(self, event: Event, payload: UndecodablePayload) -> None:
        error = f"the stored payload is not JSON and no handler can get it: {payload.reason}"
        errors = msgspec.json.encode([*event.errors, error]).decode()
        await self._bury(msgspec.structs.replace(event, retry_count=event.retry_count + 1, last_error=errors))

    async def _record(self, write: Callable[[], Awaitable[None]]) -> None:
        """Write until the store takes it: what happened to an event must not be forgotten."""
        failure_count = 0
        while True:
            try:
                return await write()
            except StoreClosedError:
                raise
            except StoreError as error:
                failure_count += 1
                logger.error("can't record the outcome of an attempt, trying again: %s", error)
                await self._clock.sleep(retry_delay(_STORE_RETRY, failure_count, self._noise()))

    def _leave_in_processing(self, event: Event) -> None:
        """Its handler ends the program: to the next start that is a crash, so that it is not so for ever."""
        self._settle(_sequence(event))

    def _settle_all(self, sequences: Sequence[GlobalSequence]) -> None:
        for sequence in sequences:
            self._settle(sequence)

    def _settle(self, sequence: GlobalSequence) -> None:
        follower = self._in_flight.pop(sequence, None)
        if follower is not None:
            follower.on_settled()
        if not self._in_flight and self._idle is not None:
            self._idle.set()
            self._idle = None


class Retry:
    """What is left of a delivery whose attempt has failed."""

    def __init__(self, dispatcher: Dispatcher, event: Event, delay: float) -> None:
        self._dispatcher, self._event, self._delay = dispatcher, event, delay

    def run(self) -> "Coroutine[Any, Any, Retry | None]":
        """Carried by a courier."""
        return self._dispatcher.retry(self._event, self._delay)


class _Remainder:
    """What is left of a delivery whose handler will not end."""

    def __init__(self, dispatcher: Dispatcher, event: Event, failure: Failure) -> None:
        self._dispatcher, self._event, self._failure = dispatcher, event, failure

    def run(self) -> Coroutine[Any, Any, Retry | None]:
        return self._dispatcher.fail(self._event, self._failure)


def _sequence(event: Event) -> GlobalSequence:
    sequence = event.global_sequence
    assert sequence is not None, "only stored events are dispatched"
    return sequence


def _not_given_back(left: Sequence[GlobalSequence], reason: object) -> StoreError:
    return StoreError(
        f"{len(left)} events were still in flight and could not be put back to pending ({reason}); unless "
        "that is done when the file is closed, the next start recovers them and counts an attempt for each"
    )


def _log_failure(event: Event, failure: Failure, attempt: int, max_attempts: int, delay: float) -> None:
    warn_of(
        failure.cause,
        "attempt %d of %d failed for event %s (%s): %s",
        attempt,
        max_attempts,
        event.id,
        event.type,
        failure.error,
        extra={
            "event_id": event.id,
            "event_type": event.type,
            "subscription_id": failure.subscription_id,
            "attempt": attempt,
            "max_attempts": max_attempts,
            "delay_ms": round(delay * 1000),
            "error": failure.error,
        },
    )
