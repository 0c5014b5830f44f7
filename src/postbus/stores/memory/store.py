"""One database in memory, seen through its ports."""

import asyncio

from postbus.clock import SystemClock
from postbus.errors import EventNotFoundError
from postbus.events import Event
from postbus.ports import Clock
from postbus.stores.memory.backlog import InMemoryBacklog
from postbus.stores.memory.dead_letters import InMemoryDeadLetters
from postbus.stores.memory.dispatch_lock import InMemoryDispatchLock
from postbus.stores.memory.event_queue import InMemoryEventQueue
from postbus.stores.memory.state import State, to_event
from postbus.stores.memory.subscriptions import InMemorySubscriptions

_SYSTEM_CLOCK = SystemClock()


class InMemoryStore:
    """Fulfils ports.Store, for tests; closed and opened again it has the same events, as a file would.

    >>> import asyncio
    >>> async def main() -> int:
    ...     return (await InMemoryStore().dead_letters.page(limit=10, offset=0)).total
    >>> asyncio.run(main())
    0
    """

    def __init__(self, *, clock: Clock = _SYSTEM_CLOCK) -> None:
        self._state = State(clock)
        self.queue = InMemoryEventQueue(self._state)
        self.backlog = InMemoryBacklog(self._state)
        self.dispatch_lock = InMemoryDispatchLock()
        self.subscriptions = InMemorySubscriptions(self._state)
        self.dead_letters = InMemoryDeadLetters(self._state)

    async def open(self) -> None:
        """Allow the ports to work again. Idempotent."""
        self._state.is_closed = False

    async def close(self) -> None:
        """Make every port refuse to work. Idempotent."""
        self._state.is_closed = True
        self._state.on_change = None
        # Whoever added events before learns of it first.
        await asyncio.sleep(0)

    async def get(self, event_id: str) -> Event:
        """The event with this id. EventNotFoundError."""
        self._state.check_open()
        record = self._state.by_id.get(event_id)
        if record is None:
            raise EventNotFoundError(event_id)
        return to_event(record)
