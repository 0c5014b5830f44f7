"""Reads the log after a subscriber's position, page after page, and has every page delivered."""

import asyncio
from collections.abc import Callable

from postbus.delivery.checkpoint_writer import CheckpointWriter
from postbus.delivery.deliveries import Deliveries
from postbus.delivery.patience import Patience
from postbus.events import GlobalSequence, LogPage
from postbus.ports import EventLog

# Pages grow while there is much to read, from the configured size up to this one.
_LARGEST_PAGE = 1_000


class CatchUp:
    """Takes a subscriber to the end of the log."""

    def __init__(
        self,
        log: EventLog,
        is_wanted: Callable[[str], bool] | None,
        page_size: int,
        writer: CheckpointWriter,
        deliveries: Deliveries,
        patience: Patience,
        has_changed: Callable[[], bool],
        on_page: Callable[[], None],
    ) -> None:
        self._log, self._is_wanted, self._smallest_page = log, is_wanted, page_size
        self._writer, self._deliveries, self._patience = writer, deliveries, patience
        self._has_changed, self._on_page = has_changed, on_page

    async def run(self) -> int:
        """Deliver up to the end of the log, or until has_changed; how many events. StoppedError."""
        count, limit = 0, self._smallest_page
        after = self._writer.position
        page = await self._read(after, limit)
        while page.up_to > after:
            # The next page is read while this one is delivered.
            limit = min(limit * 2, max(_LARGEST_PAGE, self._smallest_page))
            is_last = page.up_to >= self._log.known_head
            following = None if is_last else asyncio.ensure_future(self._read(page.up_to, limit))
            try:
                delivered = await self._deliver(page)
                count += delivered
                # A page that was broken off is read again from there: asking whether to go on a second
                # time could get another answer, and the rest of the page would be passed over.
                if is_last or delivered < len(page.events):
                    break
                after = page.up_to
                page = await following if following is not None else page
            finally:
                if following is not None:
                    await _put_away(following)
        return count

    async def _deliver(self, page: LogPage) -> int:
        events, count = page.events, 0
        while count < len(events):
            if self._has_changed():
                return count
            count += await self._deliveries.deliver(events[count:] if count else events)
        self._writer.skip_to(page.up_to)
        self._on_page()
        if self._writer.is_due:
            await self._writer.write()
        return count

    async def _read(self, after: GlobalSequence, limit: int) -> LogPage:
        return await self._patience.run(lambda: self._log.read(after, limit, self._is_wanted))


async def _put_away(following: "asyncio.Future[LogPage]") -> None:
    """Whatever became of a page that may not be needed any more: its error is nobody's."""
    if not following.done():
        following.cancel()
        await asyncio.wait([following])
    if not following.cancelled():
        following.exception()
