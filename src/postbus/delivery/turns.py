"""First attempts one after another, so that order is kept; whatever has to wait does so beside them."""

import asyncio
import contextvars
from collections.abc import Callable, Sequence

from postbus.delivery.couriers import Couriers
from postbus.delivery.dispatcher import Dispatcher, Retry
from postbus.events import Event


class Turn:
    """One event's place in a row of events."""

    def __init__(self, dispatcher: Dispatcher, event: Event, on_settled: Callable[[], None]) -> None:
        self._dispatcher, self._event, self._then = dispatcher, event, on_settled
        self._is_over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        dispatcher.take(event, self)

    async def go(self, couriers: Couriers, context: contextvars.Context) -> None:
        """Return when the first attempt has ended: the next event may go."""
        couriers.carry(self, context)
        await self._is_over

    def go_beside(self, couriers: Couriers, context: contextvars.Context) -> None:
        """Let the next event go at once."""
        couriers.carry(self, context)

    async def run(self) -> Retry | None:
        """Carried by a courier."""
        try:
            return await self._dispatcher.attempt(self._event)
        finally:
            self.on_attempted(self._event)

    def on_attempted(self, _: Event, /) -> None:
        """The first attempt has ended."""
        if not self._is_over.done():
            self._is_over.set_result(None)

    def behind(self, _: Event, /) -> Sequence[Event]:
        """None: the lane itself gives back what it has not begun."""
        return ()

    def on_settled(self) -> None:
        """The event is done, a dead letter, or back in the store for later."""
        self.on_attempted(self._event)
        self._then()
