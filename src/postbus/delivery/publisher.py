"""Takes drafts to the store and what was stored to its handlers."""

import asyncio
import contextvars
from collections.abc import Sequence

import msgspec

from postbus.delivery.backlog_lane import BacklogLane
from postbus.delivery.couriers import Couriers
from postbus.delivery.dispatcher import Dispatcher
from postbus.delivery.subscriptions import Subscriptions
from postbus.errors import StoreError
from postbus.events import Draft, Event, EventStatus, GlobalSequence
from postbus.ports import EventQueue

_decode = msgspec.json.Decoder().decode


class Publication:
    """One call of publish or publish_many on its way; lives on when its caller is cancelled."""

    __slots__ = ("_events", "_publisher", "context", "drafts", "finished")

    def __init__(
        self, publisher: "Publisher", drafts: Sequence[Draft], finished: "asyncio.Future[None]"
    ) -> None:
        self._publisher, self.drafts, self.finished = publisher, drafts, finished
        self.context = contextvars.copy_context()
        self._events: list[Event] = []

    def on_stored(self, sequences: Sequence[int | None], error: StoreError | None) -> None:
        """Called in the event loop when the drafts are durable, or can't be."""
        for draft, sequence in zip(self.drafts, sequences, strict=False):
            if sequence is not None and draft.status is EventStatus.PROCESSING:
                self._events.append(_event_from_draft(draft, sequence))
        self._publisher.go_on(self, self._events, error)

    async def run(self) -> None:
        """Deliver what has to be delivered at once."""
        try:
            await self._publisher.deliver(self._events)
        finally:
            # Also when a shutdown cuts it off: the events are stored and will be delivered.
            self._publisher.let_go(self)

    def finish(self, error: StoreError | None = None) -> None:
        """Let the caller go on, if it still waits."""
        if self.finished.done():
            return
        if error is None:
            self.finished.set_result(None)
        else:
            self.finished.set_exception(error)


class Publisher:
    """Stores and delivers publications."""

    def __init__(
        self,
        queue: EventQueue,
        subscriptions: Subscriptions,
        dispatcher: Dispatcher,
        couriers: Couriers,
        lane: BacklogLane,
    ) -> None:
        self._queue, self._subscriptions = queue, subscriptions
        self._dispatcher, self._couriers, self._lane = dispatcher, couriers, lane
        self._unstored_count = 0
        self._all_stored = asyncio.Event()
        self._all_stored.set()
        # Ids chosen by their publisher that are being delivered, and who published them again meanwhile.
        self._repeated: dict[str, list[Publication]] = {}

    def status_for(self, event_type: str, *, wait: bool) -> EventStatus:
        """The status with which an event is stored, so that no second write has to begin its processing."""
        if not self._lane.is_owner:
            return EventStatus.PENDING
        if not self._subscriptions.route(event_type).subscriptions:
            return EventStatus.DONE
        return EventStatus.PROCESSING if wait else EventStatus.PENDING

    def publish(self, drafts: Sequence[Draft]) -> "asyncio.Future[None]":
        """Done when the drafts are durable and the handlers that are waited for have finished."""
        finished: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        publication = Publication(self, drafts, finished)
        self._unstored_count += 1
        if self._unstored_count == 1:
            self._all_stored.clear()
        self._queue.add(drafts, publication.on_stored)
        return finished

    async def wait_until_stored(self) -> None:
        """Return when every publication that was begun is stored or refused."""
        await self._all_stored.wait()

    def go_on(self, publication: Publication, events: list[Event], error: StoreError | None) -> None:
        """Deliver the events that were stored for delivery at once; let the caller go if there are none."""
        self._unstored_count -= 1
        if not self._unstored_count:
            self._all_stored.set()
        if error is not None:
            publication.finish(error)
        elif events:
            self._dispatcher.take(events)
            for draft in publication.drafts:
                if draft.is_idempotent:
                    self._repeated[draft.id] = []
            self._couriers.carry(publication, publication.context)
        else:
            self._finish_with_the_first(publication)

    def let_go(self, publication: Publication) -> None:
        """The publication was delivered: its caller goes on, and so do those who repeated it."""
        publication.finish()
        if self._repeated:
            for draft in publication.drafts:
                for repeated in self._repeated.pop(draft.id, ()):
                    repeated.finish()

    async def deliver(self, events: list[Event]) -> None:
        """Return when the events are done or dead letters."""
        if len(events) == 1:
            await self._dispatcher.deliver(events[0])
        else:
            await self._dispatcher.deliver_in_order(events)

    def _finish_with_the_first(self, publication: Publication) -> None:
        """Let the caller go on; one who publishes a given id again waits for the one who did so first."""
        for draft in publication.drafts:
            if draft.is_idempotent and draft.id in self._repeated:
                self._repeated[draft.id].append(publication)
                return
        publication.finish()


def _event_from_draft(draft: Draft, sequence: int) -> Event:
    return Event(
        id=draft.id,
        type=draft.type,
        payload=_decode(draft.payload_json),
        created_at=draft.created_at,
        status=draft.status,
        metadata=draft.metadata,
        global_sequence=GlobalSequence(sequence),
    )
