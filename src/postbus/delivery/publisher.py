"""Takes drafts to the store and what was stored to its handlers."""

import asyncio
import contextvars
from collections.abc import Sequence

import msgspec

from postbus.delivery.backlog_lane import BacklogLane
from postbus.delivery.couriers import Couriers
from postbus.delivery.dispatcher import Dispatcher
from postbus.delivery.subscriptions import Subscriptions
from postbus.delivery.turns import Turn
from postbus.errors import StoreError
from postbus.events import Draft, Event, EventStatus, GlobalSequence
from postbus.ports import EventQueue

_decode = msgspec.json.Decoder().decode


class Publication:
    """One call of publish or publish_many on its way; lives on when its caller is cancelled."""

    __slots__ = ("_finished", "_publisher", "_unsettled_count", "context", "drafts", "events", "given_ids")

    def __init__(
        self, publisher: "Publisher", drafts: Sequence[Draft], finished: "asyncio.Future[None]"
    ) -> None:
        self._publisher, self.drafts, self._finished = publisher, drafts, finished
        # Handlers see the context variables of the publisher, such as a trace or a request id.
        self.context = contextvars.copy_context()
        self.events: list[Event] = []
        self.given_ids: list[str] = []
        self._unsettled_count = 0

    def on_stored(
        self,
        sequences: Sequence[int | None],
        stream_versions: Sequence[int | None],
        error: StoreError | None,
    ) -> None:
        """Called in the event loop when the drafts are durable, or can't be."""
        for index, sequence in enumerate(sequences):
            draft = self.drafts[index]
            if sequence is not None and draft.status is EventStatus.PROCESSING:
                event = _event_from_draft(draft, sequence)
                if draft.stream_id is not None:
                    event = msgspec.structs.replace(event, stream_version=stream_versions[index])
                self.events.append(event)
                if draft.is_idempotent:
                    self.given_ids.append(draft.id)
        self._unsettled_count = len(self.events)
        self._publisher.go_on(self, error)

    async def run(self) -> None:
        """Carried by a courier."""
        if len(self.events) == 1:
            await self._publisher.dispatcher.deliver(self.events[0])
        else:
            await self._publisher.deliver_in_order(self)

    def on_attempted(self) -> None:
        """The publisher waits for the last attempt, not for the first."""

    def on_settled(self) -> None:
        """One of the events is done, a dead letter, or left to the next start by a shutdown."""
        self._unsettled_count -= 1
        if not self._unsettled_count:
            self._publisher.let_go(self)

    def finish(self, error: StoreError | None = None) -> None:
        """Let the caller go on, if it still waits."""
        if self._finished.done():
            return
        if error is None:
            self._finished.set_result(None)
        else:
            self._finished.set_exception(error)


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
        self.dispatcher, self._couriers, self._lane = dispatcher, couriers, lane
        self._unstored_count = 0
        self._is_stopped = False
        self._all_stored = asyncio.Event()
        self._all_stored.set()
        # Ids chosen by their publisher that are being delivered, and who published them again meanwhile.
        self._repeated: dict[str, list[Publication]] = {}

    def status_for(self, event_type: str, *, wait: bool) -> EventStatus | None:
        """The status with which an event is stored, so that no second write has to begin its processing."""
        if self._lane.is_owner:
            if not self._subscriptions.route(event_type).subscriptions:
                return EventStatus.DONE
            return EventStatus.PROCESSING if wait else EventStatus.PENDING
        # A process that only publishes leaves it to the store: somebody else may have handlers.
        return None if self._subscriptions.is_empty else EventStatus.PENDING

    def publish(self, drafts: Sequence[Draft], finished: "asyncio.Future[None]") -> None:
        """Set *finished* when the drafts are durable and the handlers that are waited for have finished."""
        publication = Publication(self, drafts, finished)
        self._unstored_count += 1
        if self._unstored_count == 1:
            self._all_stored.clear()
        self._queue.add(drafts, publication.on_stored)

    def stop(self) -> None:
        """Deliver nothing more."""
        self._is_stopped = True

    async def wait_until_stored(self) -> None:
        """Return when every publication that was begun is stored or refused."""
        await self._all_stored.wait()

    def go_on(self, publication: Publication, error: StoreError | None) -> None:
        """Deliver the events that were stored for delivery at once; let the caller go if there are none."""
        self._unstored_count -= 1
        if not self._unstored_count:
            self._all_stored.set()
        if error is not None or self._is_stopped:
            # Stored too late to be delivered by this bus: the next start recovers it.
            publication.finish(error)
        elif publication.events:
            for given_id in publication.given_ids:
                self._repeated[given_id] = []
            if len(publication.events) == 1:
                self.dispatcher.take(publication.events[0], publication)
            self._couriers.carry(publication, publication.context)
        else:
            self._finish_with_the_first(publication)

    async def deliver_in_order(self, publication: Publication) -> None:
        """Begin with each event when the one before has had its first attempt."""
        turns = [Turn(self.dispatcher, event, publication.on_settled) for event in publication.events]
        for turn in turns:
            await turn.go(self._couriers, publication.context.copy())

    def let_go(self, publication: Publication) -> None:
        """The publication was delivered: its caller goes on, and so do those who repeated it."""
        publication.finish()
        for given_id in publication.given_ids:
            for repeated in self._repeated.pop(given_id, ()):
                repeated.finish()

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
        status=EventStatus.PROCESSING,
        metadata=draft.metadata,
        stream_id=draft.stream_id,
        global_sequence=GlobalSequence(sequence),
        actor_id=draft.actor_id,
        correlation_id=draft.correlation_id,
        causation_id=draft.causation_id,
        schema_version=draft.schema_version,
    )
