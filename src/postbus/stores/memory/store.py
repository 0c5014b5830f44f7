"""One database in memory, seen through its ports."""

import asyncio
import sqlite3

from postbus.clock import SystemClock
from postbus.ports import Clock
from postbus.stores.memory.backlog import InMemoryBacklog
from postbus.stores.memory.checkpoints import InMemoryCheckpoints
from postbus.stores.memory.dead_letters import InMemoryDeadLetters
from postbus.stores.memory.dispatch_lock import InMemoryDispatchLock
from postbus.stores.memory.event_queue import InMemoryEventQueue
from postbus.stores.memory.log import InMemoryEventLog
from postbus.stores.memory.state import State
from postbus.stores.memory.states import InMemoryStateTable
from postbus.stores.memory.subscriber_locks import InMemorySubscriberLocks
from postbus.stores.memory.subscriptions import InMemorySubscriptions
from postbus.stores.memory.transactions import EffectsDatabase
from postbus.stores.user_calls import UserCalls

_SYSTEM_CLOCK = SystemClock()


class InMemoryStore(UserCalls):
    """Fulfils ports.Store, for tests; closed and opened again it has the same events, as a file would.

    >>> import asyncio
    >>> async def main() -> list[int | None]:
    ...     store = InMemoryStore()
    ...     await store.append("order-42", [("order.placed", {"total": 7}), ("order.paid",)])
    ...     return [event.stream_version for event in await store.read_stream("order-42")]
    >>> asyncio.run(main())
    [1, 2]
    """

    has_handlers = True
    has_async_transactions = False
    # One process at a time runs a subscriber.
    layouts = members = outbox = None

    def __init__(self, *, clock: Clock = _SYSTEM_CLOCK) -> None:
        super().__init__(clock)
        self._state = State(clock)
        self._effects = EffectsDatabase()
        self.queue = InMemoryEventQueue(self._state)
        self.backlog = InMemoryBacklog(self._state)
        self.dispatch_lock = InMemoryDispatchLock()
        self.subscriptions = InMemorySubscriptions(self._state)
        self.dead_letters = InMemoryDeadLetters(self._state)
        self.log: InMemoryEventLog = InMemoryEventLog(self._state)
        self.checkpoints = InMemoryCheckpoints(self._state, self._effects)
        self.subscriber_locks = InMemorySubscriberLocks()
        self.states = InMemoryStateTable(self._state)

    @property
    def connection(self) -> sqlite3.Connection:
        """The database of transactional subscribers: make their tables here, and look at their effects."""
        return self._effects.connect()

    async def open(self) -> None:
        """Allow the ports to work again. Idempotent."""
        self._state.is_closed = False

    async def close(self) -> None:
        """Make every port refuse to work, and let go of every lock. Idempotent."""
        self._state.is_closed = True
        self._state.on_change = None
        self._state.on_append.clear()
        self.subscriber_locks.release_all()
        # Whoever added events before learns of it first.
        await asyncio.sleep(0)
