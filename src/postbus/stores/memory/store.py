"""One database in memory, seen through its ports."""

import asyncio
import sqlite3
from collections.abc import Iterable
from typing import Any

from postbus.clock import SystemClock
from postbus.events import Event, GlobalSequence
from postbus.ports import Clock
from postbus.stores import user_calls
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

_SYSTEM_CLOCK = SystemClock()


class InMemoryStore:
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

    def __init__(self, *, clock: Clock = _SYSTEM_CLOCK) -> None:
        self._state = State(clock)
        self._effects = EffectsDatabase()
        self._drafts = user_calls.make_drafts(clock)
        self.queue = InMemoryEventQueue(self._state)
        self.backlog = InMemoryBacklog(self._state)
        self.dispatch_lock = InMemoryDispatchLock()
        self.subscriptions = InMemorySubscriptions(self._state)
        self.dead_letters = InMemoryDeadLetters(self._state)
        self.log = InMemoryEventLog(self._state)
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

    async def append(
        self,
        stream_id: str,
        events: Iterable[object],
        *,
        expected_version: int | None = None,
        connection: Any = None,
    ) -> list[Event]:
        """Store events at the end of a stream, all or none; the stored events, in order.

        *expected_version* is where the stream must be: 0 if it must not exist yet, None for anywhere.
        An event is (type, payload), (type, payload, metadata) or a NewEvent. WrongExpectedVersionError.
        """
        drafts = self._drafts.draft_stream(stream_id, events, expected_version)
        return await user_calls.append(self.log, drafts, connection)

    async def read_stream(
        self, stream_id: str, from_version: int = 1, to_version: int | None = None
    ) -> list[Event]:
        """The events of a stream in the order of their versions, both bounds included."""
        return await user_calls.read_stream(self.log, stream_id, from_version, to_version)

    async def read_all(self, after: int = 0, limit: int = 100) -> list[Event]:
        """At most *limit* events with a higher global sequence, in order."""
        return await user_calls.read_all(self.log, after, limit)

    async def get(self, event_id: str) -> Event:
        """The event with this id. EventNotFoundError."""
        return await self.log.get(event_id)

    async def head(self) -> GlobalSequence:
        """The highest number in the log; 0 if there is none."""
        return await self.log.head()

    async def purge(self, event_id: str, purger_id: str) -> None:
        """Take the payload of an event away; that it happened stays. EventNotFoundError."""
        await user_calls.purge(self.log, event_id, purger_id)
