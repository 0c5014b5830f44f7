"""Saga: event + state → state and events."""

import inspect
import sys
import uuid
from abc import abstractmethod
from collections.abc import Awaitable, Callable, Mapping

import msgspec

from postbus.errors import PublishedTooLateError
from postbus.events import Event, NewEvent, Reaction
from postbus.observers.definition import Definition
from postbus.observers.states import S
from postbus.policy.names import check_event_id, check_event_type
from postbus.policy.payloads import check_metadata, encode_payload


class SagaContext:
    """What a saga has beside its state while it handles an event.

    >>> from datetime import UTC, datetime
    >>> ctx = SagaContext(Event(id="e-1", type="order.placed", created_at=datetime.now(UTC)))
    >>> ctx.publish("payment.requested", {"order": 42})
    >>> ctx.published[0].causation_id
    'e-1'
    """

    def __init__(self, event: Event) -> None:
        self._event = event
        self._published: list[NewEvent] = []
        self._is_over = False

    @property
    def event(self) -> Event:
        """The event that is handled."""
        return self._event

    @property
    def published(self) -> tuple[NewEvent, ...]:
        """What was published so far, in order."""
        return tuple(self._published)

    def publish(
        self,
        type: str,
        payload: object = None,
        metadata: Mapping[str, str] | None = None,
        *,
        stream_id: str | None = None,
        expected_version: int | None = None,
        event_id: str | uuid.UUID | None = None,
        actor_id: str | None = None,
        schema_version: int | None = None,
    ) -> None:
        """Publish an event together with the saga's state and checkpoint, or, if handle raises, not at all.

        It is stored after handle has returned, so there is nothing to await. It carries this event's
        id as its causation_id, and the correlation_id of this event (its id, if it has none).
        """
        if self._is_over:
            raise PublishedTooLateError(type)
        new_event = NewEvent(
            check_event_type(type),
            _copy_payload(payload),
            check_metadata(metadata),
            event_id=None if event_id is None else check_event_id(event_id),
            stream_id=stream_id,
            expected_version=expected_version,
            actor_id=actor_id,
            correlation_id=self._event.correlation_id or self._event.id,
            causation_id=self._event.id,
            schema_version=schema_version,
        )
        self._published.append(new_event)

    def _end(self) -> None:
        self._is_over = True


class Saga(Definition[S]):
    """A process of several steps, each of them the answer to an event: subclass it, then bus.subscribe(it).

    Its state, what it publishes and its checkpoint are written in one transaction if its state
    store is in the database of the bus: a step is taken wholly and once, or not at all.

    >>> import asyncio
    >>> from datetime import UTC, datetime
    >>> class Fulfilment(Saga[str]):
    ...     subscriber_id = "saga:fulfilment"
    ...     patterns = ("order.placed", "payment.received")
    ...
    ...     def saga_id(self, event):
    ...         return event.payload["order"]
    ...
    ...     def handle(self, state, event, ctx):
    ...         if event.type == "order.placed":
    ...             ctx.publish("payment.requested", event.payload)
    ...             return "waits for payment"
    ...         ctx.publish("shipment.requested", event.payload)
    ...         return None
    >>> placed = Event(id="e-1", type="order.placed", payload={"order": "42"}, created_at=datetime.now(UTC))
    >>> reaction = asyncio.run(Fulfilment().react(None, placed))
    >>> reaction.state, [event.type for event in reaction.publish]
    ('waits for payment', ['payment.requested'])
    """

    @abstractmethod
    def saga_id(self, event: Event) -> str | None:
        """Which instance of the saga the event belongs to; None: it is none of its business."""

    @abstractmethod
    def handle(self, state: S | None, event: Event, ctx: SagaContext) -> S | Awaitable[S | None] | None:
        """The state after the event; ctx.publish(…) publishes. None: this instance is over, its state goes.

        A plain function or an async one. A plain one runs in the event loop: it computes, it does
        not wait. The event may come again after an error or a crash, with the state as it was.
        Annotated with Event[OrderPlaced], its payload is an OrderPlaced.
        """

    def state_key(self, event: Event) -> str | None:
        """Called by the bus: the instance that the event belongs to."""
        return self.saga_id(event)

    async def react(self, state: S | None, event: Event) -> Reaction:
        """Called by the bus: the new state and what to publish."""
        context = SagaContext(event)
        try:
            new_state = self.handle(state, self._as_asked(event), context)
            if inspect.isawaitable(new_state):
                new_state = await new_state
        finally:
            context._end()
        return Reaction(new_state, context.published)

    @property
    def _receive(self) -> Callable[..., object]:
        return self.handle


def _copy_payload(payload: object) -> object:
    # Encoded here, as by bus.publish: the saga may go on to change what it gave, such as its
    # state. How large it may be is for the bus to say.
    return msgspec.json.decode(encode_payload(payload, sys.maxsize))
