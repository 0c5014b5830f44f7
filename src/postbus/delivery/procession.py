"""Events that were published together: each begins when the one before has had its first attempt."""

import asyncio
import contextvars
from collections.abc import Callable, Sequence

from postbus.delivery.attempts import AbandonedError
from postbus.delivery.couriers import Couriers
from postbus.delivery.dispatcher import Dispatcher, Retry
from postbus.events import Event

# So many events at a stretch, then the event loop has its turn.
_MOST_AT_A_STRETCH = 128


class Procession:
    """Goes from event to event in one task for as long as no handler gets in the way of the next."""

    def __init__(
        self,
        dispatcher: Dispatcher,
        couriers: Couriers,
        events: Sequence[Event],
        context: contextvars.Context,
        on_settled: Callable[[], None],
    ) -> None:
        """*on_settled* is called with every event that is done, a dead letter, or back in the store."""
        self._dispatcher, self._couriers = dispatcher, couriers
        self._events, self._context = events, context
        self.on_settled = on_settled
        self._begun_count = 0
        self._attempted: Event | None = None
        self._cut_off: list[Event] = []

    def begin(self) -> None:
        """Take all events, and begin with the first of them soon."""
        for event in self._events:
            self._dispatcher.take(event, self)
        self._go_on_elsewhere()

    async def run(self) -> Retry | None:
        """Carried by a courier, and by another one from where this one can't go on."""
        if self._cut_off:
            # Others have gone on with the next event meanwhile: this one comes alone.
            return await self._dispatcher.attempt(self._cut_off.pop())
        while self._begun_count < len(self._events):
            self._attempted = event = self._events[self._begun_count]
            self._begun_count += 1
            try:
                rest = self._dispatcher.begin(event)
                retry = None if rest is None else await rest
            except AbandonedError:
                raise
            except asyncio.CancelledError:
                # Couriers run again what was cut off from outside.
                if self._attempted is event:
                    self._begun_count, self._attempted = self._begun_count - 1, None
                else:
                    self._cut_off.append(event)
                raise
            except Exception:
                if self._attempted is event:
                    self._go_on_elsewhere()
                raise
            if retry is not None:
                self._couriers.carry(retry, self._context.copy())
            if self._attempted is not event:
                # The attempt took so long that somebody else has gone on with the next event.
                return None
            self._attempted = None
            if self._begun_count % _MOST_AT_A_STRETCH == 0:
                await asyncio.sleep(0)
            if not _are_same(contextvars.copy_context(), self._context):
                # What a handler changed in its context is not for the next event.
                self._go_on_elsewhere()
                return None
        return None

    def behind(self, event: Event, /) -> Sequence[Event]:
        """The rest of the list, if this is the event that it waits for."""
        return self._events[self._begun_count :] if self._waits_for(event) else ()

    def on_attempted(self, event: Event, /) -> None:
        """The attempt of this event takes long; if the next event waits for it, it waits no longer."""
        if self._waits_for(event):
            self._attempted = None
            self._go_on_elsewhere()

    def _waits_for(self, event: Event) -> bool:
        return self._attempted is not None and self._attempted.global_sequence == event.global_sequence

    def _go_on_elsewhere(self) -> None:
        self._couriers.carry(self, self._context.copy())


def _are_same(one: contextvars.Context, other: contextvars.Context) -> bool:
    """Whether the same variables have the very same values: those of users may not like to be compared."""
    if not one and not other:
        return True
    return len(one) == len(other) and all(
        variable in other and other[variable] is value for variable, value in one.items()
    )
