"""Which handlers match an event, and under which retry policy."""

import functools
import inspect
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from postbus.config import RetryPolicy
from postbus.delivery.delivered import Delivered
from postbus.delivery.gate import Gate
from postbus.errors import InvalidHandlerError
from postbus.events import SubscriptionRow
from postbus.policy.patterns import matches
from postbus.policy.retry import most_permissive

Handler = Callable[[Any], Awaitable[object] | object]

# Types with ids inside ("order.123.shipped") must not fill the memory.
_MOST_ROUTES = 10_000


@dataclass(frozen=True, slots=True, eq=False)
class Subscription:
    """A handler that lives with this process."""

    id: str
    pattern: str
    handler: Handler
    is_async: bool
    timeout: float
    retry: RetryPolicy
    gate: Gate
    created_at: datetime
    delivered: Delivered

    def as_row(self) -> SubscriptionRow:
        """What a store keeps of it."""
        return SubscriptionRow(id=self.id, event_type=self.pattern, created_at=self.created_at)


@dataclass(frozen=True, slots=True)
class Route:
    """The handlers of one event type, in the order of their subscription."""

    subscriptions: tuple[Subscription, ...]
    retry: RetryPolicy
    lone: Subscription | None = None
    """The only handler, if there is no other and it is async: most types have just that."""


class Subscriptions:
    """All handlers of a bus."""

    def __init__(self, retry: RetryPolicy) -> None:
        self._retry = retry
        self._by_id: dict[str, Subscription] = {}
        self._routes: dict[str, Route] = {}

    def __iter__(self) -> Iterator[Subscription]:
        return iter(tuple(self._by_id.values()))

    @property
    def is_empty(self) -> bool:
        """Whether there is no handler at all."""
        return not self._by_id

    def add(self, subscription: Subscription) -> None:
        """From now on its handler gets what matches."""
        self._by_id[subscription.id] = subscription
        self._routes = {}

    def remove(self, subscription_id: str) -> None:
        """The handler gets nothing more, not even of events under way. Idempotent."""
        subscription = self._by_id.pop(subscription_id, None)
        if subscription is not None:
            subscription.gate.retire()
            self._routes = {}

    def route(self, event_type: str) -> Route:
        """The handlers that match, and the most permissive of their policies."""
        route = self._routes.get(event_type)
        return route if route is not None else self._find_route(event_type)

    def _find_route(self, event_type: str) -> Route:
        found = tuple(s for s in self._by_id.values() if matches(s.pattern, event_type))
        retry = most_permissive([s.retry for s in found]) if found else self._retry
        route = Route(found, retry, found[0] if len(found) == 1 and found[0].is_async else None)
        if len(self._routes) >= _MOST_ROUTES:
            self._routes = {}
        self._routes[event_type] = route
        return route


def is_async_handler(handler: Handler) -> bool:
    """Whether calling it gives a coroutine; anything else runs in a thread."""
    while isinstance(handler, functools.partial):
        handler = handler.func
    # An object with an async __call__ is one as well.
    return inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(type(handler).__call__)


def check_handler(handler: object) -> Handler:
    """Refuse what can't be called with one event."""
    if not callable(handler):
        expected = "a function that takes one event"
        if hasattr(handler, "on_event"):
            expected += ", or an observer, which has a subscriber_id too"
        raise InvalidHandlerError(f"handler {handler!r} can't be called; expected {expected}")
    if inspect.isgeneratorfunction(handler) or inspect.isasyncgenfunction(handler):
        raise InvalidHandlerError(
            f"handler {getattr(handler, '__qualname__', handler)!s} is a generator, whose body never runs; "
            "expected a function without yield"
        )
    try:
        signature = inspect.signature(handler)
    except (TypeError, ValueError):
        return handler  # some built-ins have no signature to check
    try:
        signature.bind(object())
    except TypeError:
        raise InvalidHandlerError(
            f"handler {getattr(handler, '__qualname__', handler)!s}{signature} can't take an event; "
            "expected a function of one event"
        ) from None
    return handler


RetryOverride = RetryPolicy | Mapping[str, float] | None
