"""Stored events that no publisher waits for, one after another in the order of their publishing.

They were published with wait=False or by another process, retried from the dead letters,
or left behind by a process that ended. They stay in the store until their turn comes,
so any number of them takes no more memory than a batch.
"""

import asyncio
import contextvars
import functools
import itertools
import logging
from collections.abc import Collection, Hashable, Sequence, Set

import msgspec

from postbus.delivery.couriers import Couriers
from postbus.delivery.dispatcher import Dispatcher
from postbus.delivery.interrupted import INTERRUPTED, INTERRUPTED_AMONG_OTHERS
from postbus.delivery.places import Places
from postbus.delivery.subscriptions import Subscriptions
from postbus.delivery.turns import Turn
from postbus.errors import StoreError
from postbus.events import Event, EventStatus, GlobalSequence, SubscriptionRow
from postbus.policy.patterns import matches
from postbus.policy.retry import is_exhausted
from postbus.ports import Backlog, Clock, DispatchLock, SubscriptionTable

logger = logging.getLogger("postbus")

_BATCH_SIZE = 256
# So many events of the same handlers may wait out a back-off or an open circuit breaker beside the lane.
_MOST_BEGUN = 1_000
# With more events than this that had to be passed, what was looked through is not read again each time.
_MANY_PASSED = 100
# Whoever looks back leaves out so many of their types; those with ids inside must not fill the memory.
_MOST_UNHANDLED_TYPES = 500
# At most this share of the time goes into counting what was passed, and into reading it again.
_SHARE_OF_LOOKING_BACK = 0.1
_SECONDS_AFTER_ERROR = 1.0


class BacklogLane:
    """Delivers the backlog while this process owns the dispatch; stands by while another does."""

    def __init__(
        self,
        backlog: Backlog,
        lock: DispatchLock,
        table: SubscriptionTable,
        dispatcher: Dispatcher,
        couriers: Couriers,
        subscriptions: Subscriptions,
        clock: Clock,
    ) -> None:
        self._backlog, self._lock = backlog, lock
        self._dispatcher, self._couriers = dispatcher, couriers
        self._subscriptions, self._table, self._clock = subscriptions, table, clock
        self._written_rows: list[SubscriptionRow] | None = None
        self.is_owner = False
        self.is_owner_known = False
        self._asking = asyncio.Lock()
        self._is_stopping = False
        self._wake_up = asyncio.Event()
        self._at_rest = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._places = Places(_MOST_BEGUN, self.wake)
        # What was passed unwanted may be wanted now: always so until an owner has read with its handlers.
        self._is_all_unread = True
        self._seen_up_to = GlobalSequence(0)
        # Pending up to there as far as this lane knows: no handler matches, or there was no place for them.
        self._passed_count = 0
        self._unhandled_types: set[str] = set()
        # What was claimed when the lane was cut off, or may have been.
        self._left: list[Event] = []
        self._seconds_looking_back = 0.0
        self._check_at = 0.0
        self._alarm: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Become the owner if nobody is, recover what a crash left behind, and begin.

        A process without handlers does not stay the owner: it leaves that to one that has some.
        """
        if not await self._try_to_own() and self._subscriptions.is_empty:
            if self._lock.try_acquire():
                await self._recover()
            self._lock.release()
        self._backlog.watch(self.wake)
        # Whoever was cancelled while the bus was starting may have come so far already.
        if self._task is None:
            self._begin()
        self.wake()

    def _begin(self) -> None:
        # Without the context of whoever happens to start the bus: handlers run in it.
        self._task = asyncio.get_running_loop().create_task(
            self._run(), name="postbus backlog", context=contextvars.Context()
        )

    def wake(self) -> None:
        """Something may be pending: look again."""
        self._at_rest.clear()
        self._wake_up.set()

    def wake_for_new_handler(self) -> None:
        """What was left because no handler matched may be wanted now."""
        self.is_owner_known = self.is_owner
        self._look_at_all()

    @property
    def is_at_rest(self) -> bool:
        """Whether everything pending that has a handler was taken up."""
        return self._at_rest.is_set()

    async def cut_off(self) -> None:
        """End the lane in the middle of an attempt; after a second it is left behind."""
        self._is_stopping = True
        if self._task is not None and not self._task.done() and self._task is not asyncio.current_task():
            self._task.cancel()
            await asyncio.wait([self._task], timeout=1.0)

    async def wait_until_stopped(self) -> None:
        """Return when the event that the lane is at has had its attempt."""
        if self._task is not None and not self._task.done():
            await asyncio.wait([self._task])

    async def wait_until_at_rest(self) -> None:
        """Return when everything pending that has a handler was taken up."""
        await self._at_rest.wait()

    def stop(self) -> None:
        """Take up nothing more; what has been begun stays with the dispatcher."""
        self._is_stopping = True
        if self._alarm is not None:
            self._alarm.cancel()
        self._backlog.watch(None)
        self.wake()

    async def settle_unhandled(self, pattern: str) -> int:
        """Mark pending events done that match the pattern and no handler; how many."""
        settled, after = 0, GlobalSequence(0)
        while batch := await self._backlog.pending(after, _BATCH_SIZE):
            after = _sequence(batch[-1])
            unhandled = [
                _sequence(event)
                for event in batch
                if matches(pattern, event.type) and not self._subscriptions.route(event.type).subscriptions
            ]
            settled += await self._backlog.settle_pending(unhandled)
        return settled

    async def _run(self) -> None:
        try:
            while not self._is_stopping:
                await self._wake_up.wait()
                self._wake_up.clear()
                await self._look()
                if not self._wake_up.is_set() and not self._is_look_owed:
                    self._at_rest.set()
        except asyncio.CancelledError:
            if not self._is_stopping:
                # A program that cancels all tasks, say: others go on publishing. Not if its loop has ended.
                logger.warning("the task of the backlog was cancelled from outside; it starts again")
                asyncio.get_running_loop().call_later(_SECONDS_AFTER_ERROR, self._begin_again)
            raise
        finally:
            if self._is_stopping:
                self._at_rest.set()

    def _begin_again(self) -> None:
        if not self._is_stopping:
            self._is_all_unread = True
            self._begin()
            self.wake()

    @property
    def _is_look_owed(self) -> bool:
        return self._alarm is not None and not self._alarm.done()

    async def _look(self) -> None:
        try:
            await self._give_back_left()
            if await self._try_to_own():
                await self._write_subscriptions()
                await self._deliver_pending()
                self._step_down_without_handlers()
            elif self._subscriptions.is_empty:
                # Nor does a process become the owner any more that has waited for it while it had some.
                self._lock.release()
        except StoreError as error:
            # The store may be full or locked; nothing is lost by trying again.
            logger.error("can't work off the backlog, trying again: %s", error)
            await self._begin_anew_later()
        except Exception:
            # Ours to mend; the lane must not end in silence and leave everything pending.
            logger.exception("the backlog met an error that postbus did not expect, trying again")
            await self._begin_anew_later()

    async def _begin_anew_later(self) -> None:
        await self._clock.sleep(_SECONDS_AFTER_ERROR)
        # Nobody knows what the lane has come to.
        self._look_at_all()

    async def _give_back_left(self) -> None:
        if self._left:
            await self._dispatcher.give_back(self._left)
            self._left = []

    async def _write_subscriptions(self) -> None:
        rows = [subscription.as_row() for subscription in self._subscriptions]
        if rows != self._written_rows:
            await self._table.replace(rows)
            self._written_rows = rows

    async def find_owner(self) -> None:
        """Make sure of who dispatches: the first handler of a process may make it the owner."""
        await self._try_to_own()

    async def _try_to_own(self) -> bool:
        """Whether this process dispatches."""
        async with self._asking:
            if not self.is_owner and not self._subscriptions.is_empty and self._lock.try_acquire():
                try:
                    await self._recover()
                except StoreError:
                    self._lock.release()
                    raise
                # Before anything else: they tell processes without handlers that somebody wants their events.
                await self._write_subscriptions()
                self.is_owner = True
            # Not before: whoever publishes meanwhile has to wait for it as well.
            self.is_owner_known = True
        return self.is_owner

    def _step_down_without_handlers(self) -> None:
        """Leave the dispatch to a process that has handlers, once ours are gone and have ended."""
        if self._subscriptions.is_empty and self._dispatcher.is_idle:
            self.is_owner = False
            self._lock.release()

    async def _recover(self) -> None:
        recovered = await self._backlog.recover(INTERRUPTED, INTERRUPTED_AMONG_OTHERS)
        if recovered:
            logger.info("recovered %d events that an ended process left in processing", recovered)

    async def _deliver_pending(self) -> None:
        if self._is_all_unread or self._passed_count <= _MANY_PASSED:
            self._is_all_unread = False
            self._places.take_called()
            self._seen_up_to = GlobalSequence(0)
            self._passed_count, self._unhandled_types = 0, set()
        else:
            await self._look_back_if_due()
        while batch := await self._read(self._seen_up_to):
            self._passed_count += len(batch) - await self._deliver_batch(batch)
            self._seen_up_to = _sequence(batch[-1])

    async def _read(self, after: GlobalSequence, without: Collection[str] = ()) -> list[Event]:
        """The next events to look at; none if a new handler may want earlier ones, which come first."""
        batch = [] if self._is_stopping else await self._backlog.pending(after, _BATCH_SIZE, without)
        return [] if self._is_all_unread else batch

    async def _look_back_if_due(self) -> None:
        """Look for what was set back among the many that were passed, and for those who may come again."""
        called = self._places.take_called()
        seconds_left = self._check_at - self._clock.monotonic()
        if seconds_left > 0 and not called:
            self._wake_later(seconds_left)
            return
        started_at, self._seconds_looking_back = self._clock.monotonic(), 0.0
        present_count = await self._backlog.pending_count(self._seen_up_to)
        self._note_seconds(started_at)
        is_as_left = present_count == self._passed_count
        if called or not is_as_left:
            # Counted before: what is set back meanwhile makes a difference that the next count finds.
            self._passed_count = present_count - await self._look_back(called if is_as_left else None)
        self._check_at = self._clock.monotonic() + self._seconds_looking_back / _SHARE_OF_LOOKING_BACK

    async def _look_back(self, called: Set[Hashable] | None) -> int:
        """Deliver what is wanted of all that was passed, or until *called* have no place; how many events."""
        after, claimed_count = GlobalSequence(0), 0
        while after < self._seen_up_to and not (called and self._places.are_turned_away(called)):
            started_at = self._clock.monotonic()
            batch = await self._read(after, self._unhandled_types)
            self._note_seconds(started_at)
            if not batch:
                break
            after = _sequence(batch[-1])
            claimed_count += await self._deliver_batch(
                [event for event in batch if _sequence(event) <= self._seen_up_to]
            )
        return claimed_count

    def _note_seconds(self, started_at: float) -> None:
        self._seconds_looking_back += self._clock.monotonic() - started_at

    def _wake_later(self, seconds: float) -> None:
        """Look once more when it is time: something may have been set back among those that were passed."""
        if not self._is_look_owed:
            self._alarm = asyncio.get_running_loop().create_task(self._sleep_and_wake(seconds))

    async def _sleep_and_wake(self, seconds: float) -> None:
        await self._clock.sleep(seconds)
        # Whatever is left of it by the clock: a moment too small to sleep for would never pass.
        self._check_at = 0.0
        self.wake()

    async def _deliver_batch(self, batch: Sequence[Event]) -> int:
        """Those that are wanted and have a place; how many."""
        handled, claimed_count = [], 0
        for event in batch:
            if self._subscriptions.route(event.type).subscriptions:
                handled.append(event)
            elif len(self._unhandled_types) < _MOST_UNHANDLED_TYPES:
                self._unhandled_types.add(event.type)
        for is_alone, events in itertools.groupby(handled, self._must_be_alone):
            if is_alone:
                for event in events:
                    claimed_count += await self._deliver_in_order([event])
            else:
                claimed_count += await self._deliver_in_order(list(events))
        return claimed_count

    def _must_be_alone(self, event: Event) -> bool:
        """Whether one more crash would bury it.

        A crash counts against every event in processing, the guilty one and the others.
        On its last attempt an event is in processing alone, so that only the guilty one is buried.
        """
        return is_exhausted(self._subscriptions.route(event.type).retry, event.retry_count + 1)

    async def _deliver_in_order(self, events: Sequence[Event]) -> int:
        """The first attempts one after another; of how many events."""
        claimed = await self._claim(events)
        mine = [_as_processing(event) for event, _ in claimed]
        turns = [
            Turn(self._dispatcher, event, functools.partial(self._places.give_back, handlers))
            for event, (_, handlers) in zip(mine, claimed, strict=True)
        ]
        for index, (event, turn) in enumerate(zip(mine, turns, strict=True)):
            if self._is_stopping:
                await self._dispatcher.give_back(mine[index:])
                break
            if self._has_to_wait(event):
                turn.go_beside(self._couriers, contextvars.Context())
                continue
            try:
                await turn.go(self._couriers, contextvars.Context())
            except asyncio.CancelledError:
                self._left += mine[index + 1 :]
                raise
        return len(mine)

    async def _claim(self, events: Sequence[Event]) -> list[tuple[Event, tuple[str, ...]]]:
        """Those for which there is a place, and which are ours now; with their handlers."""
        routed = [(event, self._handlers_of(event)) for event in events]
        placed = [(event, handlers) for event, handlers in routed if self._places.take(handlers)]
        claimed: set[GlobalSequence] = set()
        try:
            if placed:
                claimed = await self._backlog.claim([_sequence(event) for event, _ in placed])
        except asyncio.CancelledError:
            # It may be written all the same.
            self._left += [event for event, _ in placed]
            raise
        finally:
            for event, handlers in placed:
                if event.global_sequence not in claimed:
                    self._places.give_back(handlers)
        return [each for each in placed if each[0].global_sequence in claimed]

    def _handlers_of(self, event: Event) -> tuple[str, ...]:
        return tuple(each.id for each in self._subscriptions.route(event.type).subscriptions)

    def _look_at_all(self) -> None:
        """Earlier events may come now."""
        self._is_all_unread = True
        self.wake()

    def _has_to_wait(self, event: Event) -> bool:
        route = self._subscriptions.route(event.type)
        return any(subscription.gate.state != "closed" for subscription in route.subscriptions)


def _sequence(event: Event) -> GlobalSequence:
    assert event.global_sequence is not None, "only stored events are in the backlog"
    return event.global_sequence


def _as_processing(event: Event) -> Event:
    return msgspec.structs.replace(event, status=EventStatus.PROCESSING)
