"""Reads the log after a subscriber's position, page after page, and has every page delivered."""

import asyncio
from collections.abc import Callable
from dataclasses import replace

from postbus.delivery.checkpoint_writer import CheckpointWriter
from postbus.delivery.deliveries import Deliveries, numbers_of, sequence_of
from postbus.delivery.log_reader import LogReader, Page
from postbus.delivery.patience import Patience
from postbus.events import Gap, GlobalSequence
from postbus.policy.gaps import SubscriberState
from postbus.ports import WantedEvents

# Pages grow while there is much to read, from the configured size up to this one.
_LARGEST_PAGE = 1_000
# From this share of wanted events on they need not be chosen by the store.
_DENSE = 0.8


class CatchUp:
    """Takes a subscriber to the end of the log."""

    def __init__(
        self,
        reader: LogReader,
        wanted: WantedEvents | None,
        page_size: int,
        writer: CheckpointWriter,
        deliveries: Deliveries,
        patience: Patience,
        has_changed: Callable[[], bool],
        on_page: Callable[[], None],
        *,
        is_strict: bool,
        last: GlobalSequence | None = None,
    ) -> None:
        self._reader, self._wanted, self._smallest_page = reader, wanted, page_size
        self._writer, self._deliveries, self._patience = writer, deliveries, patience
        self._has_changed, self._on_page, self._is_strict = has_changed, on_page, is_strict
        # Nothing beyond it is delivered.
        self._last = last
        self.blocked_by: tuple[Gap, ...] = ()
        """The gaps that hold up a subscriber in global order, and of which the first has to be closed."""
        self.may_have_retries = True
        """Whether somebody may want a dead letter retried, as far as the last page tells."""
        # Whether nearly everything that was read last was wanted.
        self._is_dense = False

    async def run(self) -> int:
        """Deliver up to the end of the log, or until has_changed; how many events. StoppedError."""
        count, limit = 0, self._smallest_page
        reading = self._writer.state
        if self._last is not None and reading.head >= self._last and not reading.is_waiting_for_gap:
            return 0
        page, before_it = await self._read(reading, limit), None
        while True:
            before = reading.head
            _note_read(reading, page)
            is_last = self._is_last(page, before, limit)
            # The next page is read while this one is delivered.
            limit = min(limit * 2, max(_LARGEST_PAGE, self._smallest_page))
            following = None if is_last else asyncio.ensure_future(self._read(reading, limit))
            try:
                if following is not None:
                    # Handlers that never wait would let it begin no sooner than they have ended.
                    await asyncio.sleep(0)
                # Not before: so many events take their time to go, and the store need not wait for that.
                del before_it
                delivered = await self._deliver(page)
                count += delivered
                # A page that was broken off is read again from there: asking whether to go on a second
                # time could get another answer, and the rest of the page would be passed over.
                if following is None or delivered < len(page.events):
                    return count
                page, before_it = await following, page
            except GeneratorExit:
                # Whoever is being closed can't wait for anything.
                if following is not None:
                    following.cancel()
                following = None
                raise
            finally:
                if following is not None:
                    await _put_away(following)

    def _is_last(self, page: Page, before: GlobalSequence, limit: int) -> bool:
        if page.is_cut:
            return False
        # After a full page there may be more than this process has noticed.
        is_at_end = page.up_to >= self._reader.known_head and page.up_to - before < limit
        return is_at_end or page.up_to == before or bool(self.blocked_by)

    async def _deliver(self, page: Page) -> int:
        # What has not been decoded yet is decoded now, while the next page is read and the checkpoint of the
        # page before is written. Not until that is written are there more events that would come again.
        events, count = list(page.events), 0
        if self._writer.is_due:
            await self._writer.write()
        self._writer.begin_page(page.missing)
        while count < len(events):
            if self._has_changed():
                return count
            count += await self._deliveries.deliver(events[count:] if count else events)
        self._writer.end_page(page.up_to, 0 if page.is_cut else page.settled, page.passed)
        self._on_page()
        if self._writer.is_due:
            self._writer.write_beside()
        return count

    def _up_to_gap(self, reading: SubscriberState, page: Page) -> Page:
        """In global order nothing beyond a gap is delivered."""
        after = reading.copy()
        _note_read(after, page)
        self.blocked_by = after.open
        if not after.open:
            return page
        last = after.contiguous
        events = [event for event in page.events if sequence_of(event) <= last]
        # What is held back was found in a gap as well: it is not to be taken for dead.
        settled = 0 if page.is_cut else min(page.settled, last)
        return Page(events, max(reading.head, last), (), settled)

    async def _read(self, reading: SubscriberState, limit: int) -> Page:
        page = await self._reader.read(
            reading.position,
            limit,
            self._wanted,
            self._patience,
            is_waiting=bool(self.blocked_by),
            was_reached=self._writer.has_processed,
            is_thorough=self._last is not None and reading.head >= self._last,
            is_dense=self._is_dense,
        )
        if page.up_to > reading.head:
            self._is_dense = len(page.events) > _DENSE * (page.up_to - reading.head)
        self.may_have_retries = page.may_have_retries
        if self._last is not None and page.up_to > self._last:
            page = _up_to(page, max(self._last, reading.head))
        if self._is_strict:
            return self._up_to_gap(reading, page)
        return _within_gaps(page, reading.head) if reading.is_full else page


def _note_read(reading: SubscriberState, page: Page) -> None:
    if reading.is_waiting_for_gap:
        for number in numbers_of(page.events):
            if number > reading.head:
                break
            reading.deliver(number)
        for number in page.passed:
            reading.deliver(number)
    reading.pass_to(page.up_to, page.missing)
    if not page.is_cut:
        reading.settle(page.settled)


def _within_gaps(page: Page, head: GlobalSequence) -> Page:
    """With too many gaps open, only what fills them is taken."""
    return _up_to(replace(page, missing=()), head)


def _up_to(page: Page, last: GlobalSequence) -> Page:
    """What of the page is not beyond a number."""
    events = [event for event in page.events if sequence_of(event) <= last]
    missing = tuple(Gap(gap.first, min(gap.last, last)) for gap in page.missing if gap.first <= last)
    return Page(events, last, missing, page.settled, page.is_cut, passed=page.passed)


async def _put_away(following: "asyncio.Future[Page]") -> None:
    """Whatever became of a page that may not be needed any more: its error is nobody's."""
    if not following.done():
        following.cancel()
        await asyncio.wait([following])
    if not following.cancelled():
        following.exception()
