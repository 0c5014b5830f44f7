"""Projection: event + state → state."""

import inspect
from abc import abstractmethod
from collections.abc import Awaitable, Callable

from postbus.events import Event, Reaction
from postbus.observers.definition import Definition
from postbus.observers.states import S


class Projection(Definition[S]):
    """A view of the events that is kept up to date: subclass it, then bus.subscribe(it).

    Its state and its checkpoint are written in one transaction if its state store is in the
    database of the bus: then every event counts once, however often the process dies.

    >>> import asyncio
    >>> from datetime import UTC, datetime
    >>> class OrderCount(Projection[int]):
    ...     subscriber_id = "projection:order-count"
    ...     patterns = ("order.placed",)
    ...
    ...     def state_key(self, event):
    ...         return "all"
    ...
    ...     def apply(self, state, event):
    ...         return (state or 0) + 1
    >>> placed = Event(id="e-1", type="order.placed", created_at=datetime.now(UTC))
    >>> asyncio.run(OrderCount().react(41, placed)).state
    42
    """

    @abstractmethod
    def apply(self, state: S | None, event: Event) -> S | Awaitable[S | None] | None:
        """The state after the event; *state* is None if there is none yet, and None deletes it.

        A plain function or an async one. A plain one runs in the event loop: it computes, it does
        not wait. The event may come again after an error or a crash, with the state as it was.
        Annotated with Event[OrderPlaced], its payload is an OrderPlaced.
        """

    def state_key(self, event: Event) -> str | None:
        """Which state the event belongs to, one for each stream unless overridden; None: ignore the event.

        Events without a stream share one state, under the subscriber's id.
        """
        return self.subscriber_id if event.stream_id is None else event.stream_id

    async def react(self, state: S | None, event: Event) -> Reaction:
        """Called by the bus: the new state."""
        new_state = self.apply(state, self._as_asked(event))
        if inspect.isawaitable(new_state):
            new_state = await new_state
        return Reaction(new_state)

    @property
    def _receive(self) -> Callable[..., object]:
        return self.apply
