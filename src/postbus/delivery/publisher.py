"""Takes drafts to the store and what was stored to its handlers."""

import asyncio
import contextvars
from collections import deque
from collections.abc import Coroutine, Sequence
from typing import Any

import msgspec

from postbus.delivery.backlog_lane import BacklogLane
from postbus.delivery.couriers import Couriers
from postbus.delivery.dispatcher import Dispatcher, Retry
from postbus.delivery.procession import Procession
from postbus.delivery.prompt_future import PromptFuture
from postbus.delivery.subscriptions import Subscriptions
from postbus.errors import StoreError
from postbus.events import Draft, Event, EventStatus
from postbus.ports import EventQueue

_decode = msgspec.json.Decoder().decode
# Reading a member through its class takes longer than comparing with it, and each event is asked four times.
_PROCESSING, _PENDING, _DONE = EventStatus.PROCESSING, EventStatus.PENDING, EventStatus.DONE
# Set in the context of handlers whose event has an id chosen by its publisher, and so in that of everything
# they bring about, however indirectly.
_delivers_given_id = contextvars.ContextVar[bool]("postbus delivers a given id")


class Publication:
    """One call of publish or publish_many on its way; lives on when its caller is cancelled."""

    __slots__ = ("_finished", "_publisher", "context", "drafts", "events", "given_ids", "is_beginning",
                 "unsettled_count")  # fmt: skip

    def __init__(self, publisher: "Publisher", drafts: Sequence[Draft], finished: PromptFuture) -> None:
        self._publisher, self.drafts, self._finished = publisher, drafts, finished
        # Handlers see the context variables of the publisher, such as a trace or a request id.
        self.context = contextvars.copy_context()
        self.events: list[Event] = []
        self.given_ids: list[str] = []
        self.unsettled_count = 0
        self.is_beginning = False
        """While the first step runs within another's call, which finishes it if no more steps are needed."""

    def on_stored(
        self,
        sequences: Sequence[int | None],
        stream_versions: Sequence[int | None],
        error: StoreError | None,
    ) -> None:
        """Called in the event loop when the drafts are durable, or can't be."""
        for index, sequence in enumerate(sequences):
            draft = self.drafts[index]
            if sequence is not None and draft.status is _PROCESSING:
                version = stream_versions[index] if stream_versions else None
                self.events.append(_event_from_draft(draft, sequence, version))
                if draft.is_idempotent:
                    self.given_ids.append(draft.id)
        self.unsettled_count = len(self.events)
        self._publisher.go_on(self, error)

    def run(self) -> Coroutine[Any, Any, Retry | None] | None:
        """Carried by a courier."""
        if self.given_ids:
            return self._run_given()
        return self._publisher.dispatcher.begin(self.events[0])

    def _run_given(self) -> Coroutine[Any, Any, Retry | None] | None:
        # Not in the context that the courier is given: one of its own would take a task for every event.
        before = _delivers_given_id.set(True)
        rest = self._publisher.dispatcher.begin(self.events[0])
        if rest is not None:
            return _see_through_given(rest, before)
        _delivers_given_id.reset(before)
        return None

    def on_attempted(self, _: Event, /) -> None:
        """The publisher waits for the last attempt, not for the first."""

    def behind(self, _: Event, /) -> Sequence[Event]:
        """None: it is alone."""
        return ()

    def on_settled(self) -> None:
        """One of the events is done, a dead letter, or left to the next start by a shutdown."""
        self.unsettled_count -= 1
        if not self.unsettled_count:
            self.finish()
            if self.given_ids:
                self._publisher.let_repeated_go(self.given_ids)

    def finish(self, error: StoreError | None = None) -> None:
        """Let the caller go on, if it still waits."""
        if not self.is_beginning and self._finished.settle(error):
            self._publisher.let_go(self._finished)

    def finish_at_once(self) -> None:
        """Let the caller go on before this returns; not within a task."""
        self._finished.finish_at_once()


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
        self._all_stored: asyncio.Event | None = None
        # Their callers go on together: a turn of the event loop for each is a part of what an event costs.
        self._finished: deque[PromptFuture] = deque()
        # Ids chosen by their publisher that are being delivered, and who published them again meanwhile.
        self._repeated: dict[str, list[Publication]] = {}

    def status_for(self, event_type: str, *, wait: bool) -> EventStatus | None:
        """The status with which an event is stored, so that no second write has to begin its processing."""
        if self._lane.is_owner:
            if not self._subscriptions.route(event_type).subscriptions:
                return _DONE
            return _PROCESSING if wait else _PENDING
        # A process that only publishes leaves it to the store: somebody else may have handlers.
        return None if self._subscriptions.is_empty else _PENDING

    def publish(self, drafts: Sequence[Draft], loop: asyncio.AbstractEventLoop) -> PromptFuture:
        """Done when the drafts are durable and the handlers that are waited for have finished."""
        finished = PromptFuture(loop)
        self._unstored_count += 1
        self._queue.add(drafts, Publication(self, drafts, finished).on_stored)
        return finished

    def stop(self) -> None:
        """Deliver nothing more."""
        self._is_stopped = True

    async def wait_until_stored(self) -> None:
        """Return when every publication that was begun is stored or refused."""
        if self._unstored_count:
            # Made for those who wait, and not set with every event.
            self._all_stored = self._all_stored or asyncio.Event()
            await self._all_stored.wait()

    def go_on(self, publication: Publication, error: StoreError | None) -> None:
        """Deliver the events that were stored for delivery at once; let the caller go if there are none."""
        self._unstored_count -= 1
        if not self._unstored_count and self._all_stored is not None:
            self._all_stored.set()
            self._all_stored = None
        if error is not None or self._is_stopped:
            # Stored too late to be delivered by this bus: the next start recovers it.
            publication.finish(error)
        elif publication.events:
            if publication.given_ids:
                self._note_given_ids(publication)
            self._begin(publication)
        else:
            self._finish_with_the_first(publication)

    def _note_given_ids(self, publication: Publication) -> None:
        for given_id in publication.given_ids:
            self._repeated[given_id] = []
        if len(publication.events) > 1:
            publication.context.run(_delivers_given_id.set, True)

    def _begin(self, publication: Publication) -> None:
        if len(publication.events) > 1:
            events, context = publication.events, publication.context
            Procession(self.dispatcher, self._couriers, events, context, publication.on_settled).begin()
            return
        self.dispatcher.take(publication.events[0], publication)
        # With others on their way, one courier does for all of them. A task can't wait for another's step.
        is_alone = not self._unstored_count and asyncio.current_task() is None
        publication.is_beginning = is_alone
        try:
            self._couriers.carry(publication, publication.context, begins_at_once=is_alone)
        except BaseException:
            # Its handler ends the program, which may go on with its loop for a while.
            publication.is_beginning = False
            if not publication.unsettled_count:
                publication.finish()
            raise
        publication.is_beginning = False
        if is_alone and not publication.unsettled_count:
            publication.finish_at_once()

    def let_go(self, finished: PromptFuture) -> None:
        """Let the caller go on soon."""
        self._finished.append(finished)
        if len(self._finished) == 1:
            self._wake_soon()

    def _wake_soon(self) -> None:
        asyncio.get_running_loop().call_soon(self._wake_callers, context=contextvars.Context())

    def _wake_callers(self) -> None:
        count = len(self._finished)
        if count > 1:
            # One may end the program, or run the event loop within itself: the others go on all the same.
            self._wake_soon()
        for _ in range(count):
            if self._finished:
                self._finished.popleft().wake()

    def let_repeated_go(self, given_ids: Sequence[str]) -> None:
        """The events with these ids were delivered: whoever has published them again goes on."""
        for given_id in given_ids:
            for repeated in self._repeated.pop(given_id, ()):
                repeated.finish()

    def _finish_with_the_first(self, publication: Publication) -> None:
        """Let the caller go on; one who publishes a given id again waits for the one who did so first.

        Unless the delivery of a given id has led to this: it could be that one which waits for the caller.
        """
        for draft in publication.drafts:
            if (
                draft.is_idempotent
                and draft.id in self._repeated
                and _delivers_given_id not in publication.context
            ):
                self._repeated[draft.id].append(publication)
                return
        publication.finish()


async def _see_through_given(
    rest: Coroutine[Any, Any, Retry | None], before: contextvars.Token[bool]
) -> Retry | None:
    retry = await rest
    # What is left to do belongs to the delivery as well, and is done by the same task.
    if retry is None:
        _delivers_given_id.reset(before)
    return retry


def _event_from_draft(draft: Draft, sequence: int, version: int | None) -> Event:
    return Event(
        id=draft.id,
        type=draft.type,
        payload=_decode(draft.payload_json),
        created_at=draft.created_at,
        status=_PROCESSING,
        metadata=draft.metadata,
        stream_id=draft.stream_id,
        stream_version=version,
        global_sequence=sequence,  # type: ignore[arg-type]  # to call the NewType would take time
        actor_id=draft.actor_id,
        correlation_id=draft.correlation_id,
        causation_id=draft.causation_id,
        schema_version=draft.schema_version,
    )
