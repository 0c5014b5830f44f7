"""What a projection and a saga have in common: who it is, what it wants, where its state is."""

import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic

from postbus.errors import InvalidObserverError
from postbus.events import Event, Reaction
from postbus.observers.states import S, StateStore
from postbus.policy.names import check_subscriber_id
from postbus.policy.patterns import check_pattern
from postbus.policy.payload_types import PayloadType, payload_type_of


class _Required:
    """Stands for an attribute that a subclass has to give: reading it says how."""

    def __init__(self, expected: str) -> None:
        self._expected = expected

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, observer: object, owner: type) -> "_Required":
        if observer is None:
            return self
        raise InvalidObserverError(owner.__qualname__, f"has no {self._name}", self._expected)


def _required(expected: str) -> Any:
    return _Required(expected)


class Definition(ABC, Generic[S]):
    """A stateful observer, but for what it makes of an event."""

    subscriber_id: str = _required('an id that stays the same, such as subscriber_id = "projection:orders"')
    """Who it is: unique, and the same from start to start, for its checkpoint goes by it."""

    patterns: Sequence[str] = ("*",)
    """Which events it wants: every event, unless it says otherwise."""

    states: StateStore[S] = _required('a state store, such as SQLiteStateStore(bus.store, "orders")')
    """Where its state is kept."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        _check(cls.__qualname__, vars(cls))

    def __init__(self, states: StateStore[S] | None = None) -> None:
        if states is not None:
            self.states = states
        _check(type(self).__qualname__, vars(self))

    @functools.cached_property
    def _payload_type(self) -> PayloadType | None:
        # When the first event comes: by then every name in the annotation is defined.
        return payload_type_of(functools.partial(self._receive, None))

    def _as_asked(self, event: Event) -> Event:
        """The event with its payload in the type that the annotation of the event's parameter names."""
        payload_type = self._payload_type
        return event if payload_type is None else payload_type.convert(event)  # type: ignore[return-value]

    @property
    @abstractmethod
    def _receive(self) -> Callable[..., object]:
        """What the user wrote: a function of the state, the event and perhaps more."""

    @abstractmethod
    def state_key(self, event: Event) -> str | None:
        """Which state the event belongs to; None: the event is none of its business."""

    @abstractmethod
    async def react(self, state: S | None, event: Event) -> Reaction:
        """Called by the bus: the new state and what to publish."""


def check_patterns(owner: str, patterns: object) -> tuple[str, ...]:
    """The patterns of an observer; InvalidObserverError, InvalidPatternError.

    >>> check_patterns("OrderList", ["order.*", "payment.received"])
    ('order.*', 'payment.received')
    >>> check_patterns("OrderList", "order.*")
    Traceback (most recent call last):
    ...
    postbus.errors.InvalidObserverError: OrderList has the patterns 'order.*', which is a str; expected ...
    """
    expected = 'a sequence of at least one pattern, such as patterns = ("order.*",)'
    if isinstance(patterns, str) or not isinstance(patterns, Sequence | set | frozenset):
        found = f"has the patterns {patterns!r}, which is a {type(patterns).__qualname__}"
        raise InvalidObserverError(owner, found, expected)
    if not patterns:
        raise InvalidObserverError(owner, "has no patterns, so it would never get an event", expected)
    return tuple(check_pattern(pattern) for pattern in patterns)


def _check(owner: str, attributes: Mapping[str, Any]) -> None:
    """Refuse what a class or an object says of itself, as far as it says it in plain values."""
    subscriber_id = attributes.get("subscriber_id")
    # A property speaks when it is asked.
    if "subscriber_id" in attributes and not hasattr(type(subscriber_id), "__get__"):
        check_subscriber_id(subscriber_id)
    patterns = attributes.get("patterns")
    if "patterns" in attributes and not hasattr(type(patterns), "__get__"):
        check_patterns(owner, patterns)
