"""The two lives of a scenario: one that ends in a crash, and one that goes on after it."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable

from postbus.bus import EventBus
from postbus.ports import Store
from postbus.testing.doom import CrashPoint, Doom
from postbus.testing.doomed_handlers import doom_handlers
from postbus.testing.doomed_store import DoomedStore

MakeBus = Callable[[Store], EventBus]
Work = Callable[[EventBus], Awaitable[object]]


class DoomedLife:
    """A bus that dies when the point is reached for the n-th time."""

    def __init__(self, store: Store, make_bus: MakeBus, work: Work, point: CrashPoint, nth: int) -> None:
        self._doom, self._work = Doom(point, nth), work
        self._store = store
        self._bus = make_bus(DoomedStore(store, self._doom))
        doom_handlers(self._bus, self._doom)
        self.is_work_done = False

    @property
    def has_died(self) -> bool:
        """Whether the point was reached that often."""
        return self._doom.is_dead

    async def run(self, timeout: float) -> None:
        """Live to the end, this or the other."""
        life = asyncio.create_task(self._live())
        try:
            async with limited(timeout, self._bus):
                await asyncio.wait((life, self._doom.died), return_when=asyncio.FIRST_COMPLETED)
        finally:
            if self.has_died:
                await self._bury()
            elif not life.done():
                life.cancel()
                await asyncio.wait([life])
        if not self.has_died:
            life.result()

    async def _live(self) -> None:
        try:
            await self._bus.start()
            await self._work(self._bus)
            self.is_work_done = True
            await come_to_rest(self._bus)
        finally:
            if not self.has_died:
                await self._bus.shutdown()

    async def _bury(self) -> None:
        await self._doom.wait_until_ended()
        # Only to have its threads and timers end: there is nothing it could wait for.
        self._bus._shutdown_timeout = 0.0
        await self._bus.shutdown()
        # As the system does when a process has ended, its locks and files are let go.
        await self._store.close()


async def come_to_rest(bus: EventBus) -> None:
    """Return when every event is processed or a dead letter, and every checkpoint is written."""
    await bus.idle()
    for loop in bus._subscribers:
        await bus.subscription(loop.subscriber.id).caught_up()


@contextlib.asynccontextmanager
async def limited(timeout: float, bus: EventBus) -> AsyncIterator[None]:
    """Real seconds, whatever the clock of the bus says. TimeoutError tells what the subscribers did."""
    try:
        async with asyncio.timeout(timeout):
            yield
    except TimeoutError as error:
        # Its shutdown would only go on waiting.
        bus._shutdown_timeout = 0.0
        handles = [bus.subscription(loop.subscriber.id) for loop in bus._subscribers]
        states = [f"{handle.id} is {handle.state} at {handle.checkpoint}" for handle in handles]
        raise TimeoutError(
            f"the bus did not come to rest within {timeout:g} s: {'; '.join(states) or 'no subscribers'}"
        ) from error
