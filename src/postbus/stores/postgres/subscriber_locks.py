"""A durable subscriber is active in one process: advisory locks that end with the session."""

import asyncio
import logging
from collections.abc import Callable
from typing import Any

from postbus.errors import StoreError
from postbus.events import SubscriberId
from postbus.stores.postgres.database import Database
from postbus.stores.postgres.lock_keys import lock_key
from postbus.stores.postgres.pool import CLOSE_SECONDS, Connection, keep

logger = logging.getLogger("postbus")


class PgSubscriberLocks:
    """Advisory locks on the bus's one session. PostgreSQL would give them to the same session twice."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._queries = database.queries("session.sql")
        self._held: set[SubscriberId] = set()
        # Who is asking for a lock at this moment; taken out when the answer is no longer wanted.
        self._asking: dict[SubscriberId, object] = {}
        self._releases: set[asyncio.Task[Any]] = set()
        self._on_lost: Callable[[], None] | None = None
        self._on_free: Callable[[], None] | None = None
        database.session.on_lost(self._forget)
        database.session.on_notification(self._hear)

    async def try_acquire(self, subscriber_id: SubscriberId) -> bool:
        """Become the holder without waiting; False if anybody is, this bus included."""
        if subscriber_id in self._held or subscriber_id in self._asking:
            return False
        asking = self._asking[subscriber_id] = object()

        async def acquire(connection: Connection) -> bool:
            is_locked = await connection.fetchval(
                self._queries["lock"], *lock_key(self._database.schema, subscriber_id)
            )
            if not is_locked or not self._database.session.is_current(connection):
                return False
            if self._asking.get(subscriber_id) is asking:
                self._held.add(subscriber_id)
                return True
            await self._unlock(connection, subscriber_id)
            return False

        try:
            await self._database.ensure_open()
            await self._database.session.run(acquire)
        except asyncio.CancelledError:
            # It may have got the lock in this very moment.
            self.release(subscriber_id)
            raise
        finally:
            if self._asking.get(subscriber_id) is asking:
                del self._asking[subscriber_id]
        return subscriber_id in self._held

    def release(self, subscriber_id: SubscriberId) -> None:
        """Let another become the holder, as soon as the session gets to it. Idempotent."""
        if subscriber_id in self._held:
            self._held.discard(subscriber_id)
            keep(self._releases, self._release(subscriber_id))

    def watch(
        self,
        on_lost: Callable[[], None] | None,
        on_free: Callable[[], None] | None,
        failover_timeout: float,
    ) -> None:
        """Call these in the event loop when all locks are lost with the session, or one may be free.

        The server ends a silent session early enough for another bus to have them in *failover_timeout*.
        """
        self._on_lost, self._on_free = on_lost, on_free
        self._database.session.set_failover_timeout(failover_timeout)

    async def close(self) -> None:
        """Let go of everything. Idempotent; before the database closes."""
        self._on_lost = self._on_free = None
        for subscriber_id in list(self._held):
            self.release(subscriber_id)
        if self._releases:
            await asyncio.wait(self._releases, timeout=CLOSE_SECONDS)

    async def _release(self, subscriber_id: SubscriberId) -> None:
        try:
            await self._database.session.run(lambda session: self._unlock(session, subscriber_id))
        except StoreError as error:
            # Either it went with the session, or only the notification was refused.
            logger.debug("the lock of subscriber %s was not released in good order: %s", subscriber_id, error)

    async def _unlock(self, connection: Connection, subscriber_id: SubscriberId) -> None:
        await connection.fetchrow(
            self._queries["unlock"], *lock_key(self._database.schema, subscriber_id), self._database.channel
        )

    def _hear(self, sequence: int | None) -> None:
        # Whoever releases a lock sends a notification without a number.
        if sequence is None and self._on_free is not None:
            self._on_free()

    def _forget(self) -> None:
        self._held.clear()
        if self._on_lost is not None:
            self._on_lost()
