"""Reads the log for all durable subscribers of a bus: what several of them ask for is read once.

A page is a fact: these numbers were visible, those were missing. So it holds for everybody who asks for
the same, also a little later. Subscribers at the head of the log ask for the same all the time.
"""

import asyncio
import functools
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from weakref import WeakKeyDictionary

from postbus.delivery.deliveries import numbers_of
from postbus.delivery.own_copies import own_copies
from postbus.delivery.patience import Patience
from postbus.errors import UnsoundLogError
from postbus.events import Event, Gap, GlobalSequence, LogPage, LogPosition, Part
from postbus.late_events import types_of
from postbus.policy.horizon import WriterHorizon
from postbus.policy.partitions import part_of_event
from postbus.ports import Clock, EventLog, WantedEvents

# Whoever is this near to the head reads what all read, and filters for itself.
_NEAR_THE_HEAD = 1_000
_MOST_PAGES_KEPT = 4
# What is read for one subscriber is still there for another who is no further behind.
_NEAR_EACH_OTHER = _MOST_PAGES_KEPT * _NEAR_THE_HEAD
_SECONDS_KEPT = 1.0
# A sample of the writers costs the server about a millisecond; whoever is far behind has enough else to do.
_SECONDS_BETWEEN_SAMPLES = 0.05
_SECONDS_BETWEEN_SAMPLES_BEHIND = 0.25
# How long to wait before a gap is looked into again: longer and longer for a writer that takes its time.
_LONGEST_WAIT = 0.5
_WAIT_GROWTH = 1.5

_Key = tuple[LogPosition, int, tuple[tuple[str, ...], Part | None] | None]


@dataclass(frozen=True, slots=True)
class Page:
    """What a subscriber reads: events in order, and what is known of the numbers without one."""

    events: Sequence[Event]
    up_to: GlobalSequence
    missing: tuple[Gap, ...] = ()
    # Every open number up to this one that is not in the page is dead.
    settled: int = 0
    is_cut: bool = False
    is_beyond: bool = False
    may_have_retries: bool = True
    # Numbers in the open gaps that turned out to be of events which are not wanted.
    passed: tuple[GlobalSequence, ...] = ()
    # Its events by part, for each number of parts that was asked for: all parts read the same page.
    _split: dict[int, list[list[Event]]] = field(default_factory=dict, compare=False)

    def events_for(self, wanted: WantedEvents | None) -> Sequence[Event]:
        """Those that are wanted."""
        if wanted is None:
            return self.events
        events: Sequence[Event] = self.events if wanted.part is None else self._events_in(wanted.part)
        if all(map(wanted, types_of(events))):
            return events
        return [event for event in events if wanted(event.type)]

    def _events_in(self, part: Part) -> list[Event]:
        split = self._split.get(part.count)
        if split is None:
            split = self._split[part.count] = [[] for _ in range(part.count)]
            for event in self.events:
                split[part_of_event(event, part.count)].append(event)
        return split[part.index]


class LogReader:
    """The log as the subscribers of one bus see it."""

    def __init__(self, log: EventLog, clock: Clock, wake: Callable[[], None]) -> None:
        self._log, self._clock, self._wake = log, clock, wake
        self._horizon = WriterHorizon()
        self._sampling = asyncio.Lock()
        self._sampled_at = -_SECONDS_BETWEEN_SAMPLES_BEHIND
        # Goes up whenever everything is forgotten: what was read before then is of another server.
        self._generation = 0
        self._reader_count = 0
        # Where each of them has last read: those who are far from each other share nothing.
        self._places: WeakKeyDictionary[Patience, GlobalSequence] = WeakKeyDictionary()
        self._reading: dict[_Key, asyncio.Task[Page]] = {}
        self._kept: OrderedDict[_Key, Page] = OrderedDict()
        self._kept_until = 0.0
        self._wait = _SECONDS_BETWEEN_SAMPLES
        self._alarm: asyncio.Task[None] | None = None

    @property
    def known_head(self) -> GlobalSequence:
        """How far the log goes, as far as this process has noticed."""
        return self._log.known_head

    def share(self, reader_count: int) -> None:
        """So many subscribers read: for a single one nothing is kept."""
        self._reader_count = reader_count
        if reader_count <= 1:
            self._kept.clear()

    def drop_old(self) -> None:
        """Keep no page for longer than others may need it: a payload may be purged meanwhile."""
        if self._kept and self._clock.monotonic() > self._kept_until:
            self._kept.clear()

    def forget(self) -> None:
        """The connection was lost: nothing that was known of the writers counts any more."""
        self._horizon.forget()
        self._generation += 1
        self._kept.clear()

    async def read(
        self,
        after: LogPosition,
        limit: int,
        wanted: WantedEvents | None,
        patience: Patience,
        *,
        is_waiting: bool = False,
        was_reached: bool = True,
        is_thorough: bool = False,
        is_dense: bool = False,
    ) -> Page:
        """The next page after a position; *is_waiting*: for a gap right after it. StoppedError.

        *was_reached*: it is no place ahead of the log that somebody chose to start from. *is_thorough*: see
        to it that no gap stays open which an event that is not wanted has filled. *is_dense*: nearly all
        events here are wanted, so that it costs less to read them all than to have the store choose.
        """
        # Asked once: others may come and go while the page is read.
        is_shared = self._has_others_near(after.head, patience)
        is_near = is_shared and self.known_head - after.head <= _NEAR_THE_HEAD
        asked = None if is_near or is_thorough or is_dense else wanted
        read = self._read_shared if is_shared else self._read_now
        page = await patience.run(lambda: _checked(read(after, limit, asked, is_waiting), after, was_reached))
        if page.is_cut and asked is not wanted:
            # What this one does not want fills the page, and would fill it again.
            page = await patience.run(lambda: read(after, limit, wanted, is_waiting))
        events = page.events_for(wanted)
        passed = _passed(page, events, after) if after.open else ()
        if not is_shared and events is page.events and not passed:
            return page
        return replace(page, events=own_copies(events) if is_shared else events, passed=passed, _split={})

    def look_again_later(self) -> None:
        """Wake everybody when it is time to look into the open gaps again."""
        if self._alarm is None or self._alarm.done():
            self._alarm = asyncio.get_running_loop().create_task(self._ring(), name="postbus gaps")

    def stop(self) -> None:
        """Wake nobody any more."""
        for task in (self._alarm, *self._reading.values()):
            if task is not None:
                task.cancel()

    async def _ring(self) -> None:
        # At once, if nobody has looked at the writers for that long.
        await self._clock.until(self._sampled_at + self._wait)
        self._wait = min(self._wait * _WAIT_GROWTH, _LONGEST_WAIT)
        self._alarm = None
        self._wake()

    def _has_others_near(self, head: GlobalSequence, patience: Patience) -> bool:
        """Whether what is read there may serve another subscriber as well."""
        self._places[patience] = head
        if self._reader_count <= 1:
            return False
        if len(self._places) < self._reader_count:
            # Somebody has only begun, and may be anywhere.
            return True
        return any(
            abs(place - head) <= _NEAR_EACH_OTHER
            for other, place in self._places.items()
            if other is not patience
        )

    async def _read_shared(
        self, after: LogPosition, limit: int, wanted: WantedEvents | None, is_waiting: bool
    ) -> Page:
        key = (after, limit, None if wanted is None else (tuple(wanted.patterns), wanted.part))
        # What is kept has the gap that is waited for.
        page = None if is_waiting else self._find_kept(key)
        if page is not None:
            return page
        is_begun_before = self._find_reading(key) is not None
        page = await self._read_together(key, wanted, is_waiting)
        if is_begun_before and not page.events and page.up_to == after.head:
            # Begun before we asked, it may have missed what we were woken for.
            page = await self._read_together(key, wanted, is_waiting)
        return page

    async def _read_together(self, key: _Key, wanted: WantedEvents | None, is_waiting: bool) -> Page:
        """What others who ask the same at this moment get as well."""
        task = self._find_reading(key)
        if task is None:
            task = asyncio.get_running_loop().create_task(self._read_and_keep(key, wanted, is_waiting))
            self._reading[key] = task
            task.add_done_callback(functools.partial(self._end_reading, key))
        # Whoever loses patience leaves the others their page.
        return await asyncio.shield(task)

    async def _read_and_keep(self, key: _Key, wanted: WantedEvents | None, is_waiting: bool) -> Page:
        after, limit, _ = key
        generation = self._generation
        page = await self._read_now(after, limit, wanted, is_waiting)
        # Before it is over: whoever asks while others are still on their way to it finds it.
        if page.up_to > after.head and generation == self._generation:
            self._keep(key, page)
        return page

    def _find_reading(self, key: _Key) -> "asyncio.Task[Page] | None":
        # One that has its answer is still listed until the event loop turns.
        task = self._reading.get(key)
        return None if task is None or task.done() else task

    def _end_reading(self, key: _Key, task: "asyncio.Task[Page]") -> None:
        if self._reading.get(key) is task:
            del self._reading[key]
        # Everybody who waited for it may have lost patience.
        if not task.cancelled():
            task.exception()

    def _find_kept(self, key: _Key) -> Page | None:
        self.drop_old()
        after, _, asked = key
        for (kept_after, _, kept_asked), page in self._kept.items():
            if asked != kept_asked:
                continue
            if after == kept_after:
                return page
            # The rest of a page serves those who come from elsewhere: so they get into step.
            if not (after.open or kept_after.open or page.missing) and (
                kept_after.head < after.head < page.up_to
            ):
                rest = bisect_right(numbers_of(page.events), after.head)
                return replace(page, events=page.events[rest:], _split={})
        return None

    def _keep(self, key: _Key, page: Page) -> None:
        self._kept[key] = page
        self._kept_until = self._clock.monotonic() + _SECONDS_KEPT
        if len(self._kept) > _MOST_PAGES_KEPT:
            self._kept.popitem(last=False)

    async def _read_now(
        self, after: LogPosition, limit: int, wanted: WantedEvents | None, is_waiting: bool
    ) -> Page:
        is_behind = not is_waiting and self.known_head - after.head > _NEAR_THE_HEAD
        age = _SECONDS_BETWEEN_SAMPLES_BEHIND if is_behind else _SECONDS_BETWEEN_SAMPLES
        if (is_waiting or after.open) and self._is_sample_older(age):
            # One at a time: samples count in the order in which they were taken.
            async with self._sampling:
                if self._is_sample_older(age):
                    return await self._read_with_horizon(after, limit, wanted, True)
        return await self._read_with_horizon(after, limit, wanted, False)

    async def _read_with_horizon(
        self, after: LogPosition, limit: int, wanted: WantedEvents | None, with_sample: bool
    ) -> Page:
        # What is settled was so before the page is read: only then is a number that it lacks dead.
        generation, settled, server = self._generation, self._horizon.settled, self._horizon.server
        page = await self._log.read(after, limit, wanted, with_sample=with_sample)
        if generation != self._generation:
            settled = GlobalSequence(0)
        elif page.sample is not None:
            settled = self._observe(page)
        elif page.server != server:
            settled = GlobalSequence(0)
        missing = _above(page.missing, settled) if page.missing else ()
        return Page(
            page.events,
            page.up_to,
            missing,
            settled,
            page.is_cut,
            page.is_beyond,
            page.may_have_retries,
        )

    def _is_sample_older(self, seconds: float) -> bool:
        return self._clock.monotonic() - self._sampled_at >= seconds

    def _observe(self, page: LogPage) -> GlobalSequence:
        assert page.sample is not None, "only a sample can be observed"
        before = self._horizon.settled
        settled = self._horizon.observe(page.sample)
        self._sampled_at = self._clock.monotonic()
        if settled > before:
            self._wait = _SECONDS_BETWEEN_SAMPLES
        return settled


async def _checked(reading: Awaitable[Page], after: LogPosition, was_reached: bool) -> Page:
    page = await reading
    if page.is_beyond and was_reached:
        raise UnsoundLogError(
            f"the checkpoint is at {after.head}, beyond every number that the log has given: it was "
            "truncated, or restored from an older copy, and new events would be passed over; delete "
            "the subscriber's row of event_bus_checkpoints to begin anew"
        )
    return page


def _passed(page: Page, wanted: Sequence[Event], after: LogPosition) -> tuple[GlobalSequence, ...]:
    """Which events of the page were in the open gaps and are not wanted."""
    numbers = numbers_of(page.events)
    # They come before all others.
    in_gaps = numbers[: bisect_right(numbers, after.head)]
    return tuple(sorted(set(in_gaps).difference(numbers_of(wanted)))) if in_gaps else ()


def _above(gaps: tuple[Gap, ...], settled: int) -> tuple[Gap, ...]:
    """What is left of the gaps when every number up to here is decided."""
    return tuple(Gap(max(gap.first, settled + 1), gap.last) for gap in gaps if gap.last > settled)
