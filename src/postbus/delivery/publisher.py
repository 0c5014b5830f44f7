"""Takes drafts to the store and what was stored to its handlers."""

import asyncio
import contextvars
from collections.abc import Sequence

import msgspec

from postbus.delivery.backlog_lane import BacklogLane
from postbus.delivery.dispatcher import Dispatcher
from postbus.delivery.subscriptions import Subscriptions
from postbus.errors import StoreError
from postbus.events import Draft, Event, EventStatus, GlobalSequence
from postbus.ports import EventQueue

_decode = msgspec.json.Decoder().decode


class Publication:
    """One call of publish or publish_many on its way; lives on when its caller is cancelled."""

    __slots__ = ("_publisher", "context", "drafts", "finished")

    def __init__(self, publisher: "Publisher", drafts: Sequence[Draft], finished: "asyncio.Future[None]") -> None:
        self._publisher, self.drafts, self.finished = publisher, drafts, finished
        # Handlers see the context variables of the publisher, such as a trace or a request id.
        self.context = contextvars.copy_context()

    def on_stored(self, sequences: Sequence[int | None], error: StoreError | None) -> None:
        """Called in the event loop when the drafts are durable, or can't be."""
        self._publisher.go_on(self, sequences, error)

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
        self, queue: EventQueue, subscriptions: Subscriptions, dispatcher: Dispatcher, lane: BacklogLane
    ) -> None:
        self._queue, self._subscriptions = queue, subscriptions
        self._dispatcher, self._lane = dispatcher, lane
        self._unstored_count = 0
        self._all_stored = asyncio.Event()
        self._all_stored.set()
        self._by_given_id: dict[str, asyncio.Future[None]] = {}

    def status_for(self, event_type: str, *, wait: bool) -> EventStatus:
        """The status with which an event is stored, so that no second write has to begin its processing."""
        if not self._lane.is_owner:
            return EventStatus.PENDING
        if not self._subscriptions.route(event_type).subscriptions:
            return EventStatus.DONE
        return EventStatus.PROCESSING if wait else EventStatus.PENDING

    async def publish(self, drafts: Sequence[Draft]) -> None:
        """Return when the drafts are durable and the handlers that are waited for have finished."""
        finished: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        publication = Publication(self, drafts, finished)
        self._unstored_count += 1
        self._all_stored.clear()
        self._queue.add(drafts, publication.on_stored)
        await finished

    async def wait_until_stored(self) -> None:
        """Return when every publication that was begun is stored or refused."""
        await self._all_stored.wait()

    def go_on(self, publication: Publication, sequences: Sequence[int | None], error: StoreError | None) -> None:
        """Deliver what was stored."""
        self._unstored_count -= 1
        if not self._unstored_count:
            self._all_stored.set()
        if error is not None:
            publication.finish(error)
            return
        events = [
            _event_from_draft(draft, sequence)
            for draft, sequence in zip(publication.drafts, sequences, strict=True)
            if sequence is not None and draft.status is EventStatus.PROCESSING
        ]
        if events:
            self._dispatcher.take(events)
            task = asyncio.get_running_loop().create_task(
                self._deliver(events, publication), name="postbus delivery", context=publication.context
            )
            self._dispatcher.track(task)
            return
        if any(draft.status is EventStatus.PENDING for draft in publication.drafts):
            self._lane.wake()
        self._finish_with_the_first(publication)

    def _finish_with_the_first(self, publication: Publication) -> None:
        """Let the caller go on; one who publishes a given id again waits for those who did so before."""
        for draft in publication.drafts:
            first = self._by_given_id.get(draft.id) if draft.is_idempotent else None
            if first is not None:
                first.add_done_callback(lambda _: publication.finish())
                return
        publication.finish()

    async def _deliver(self, events: list[Event], publication: Publication) -> None:
        given_ids = [draft.id for draft in publication.drafts if draft.is_idempotent]
        for given_id in given_ids:
            self._by_given_id[given_id] = publication.finished
        try:
            if len(events) == 1:
                await self._dispatcher.deliver(events[0])
            else:
                await self._dispatcher.deliver_in_order(events)
        finally:
            # Also when a shutdown cuts it off: the events are stored and will be delivered.
            publication.finish()
            for given_id in given_ids:
                del self._by_given_id[given_id]
            self._dispatcher.untrack()


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
