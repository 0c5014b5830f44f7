"""PgEventStore: one schema of a PostgreSQL database, seen through the ports."""

from typing import Self, get_args

import asyncpg

from postbus.clock import SystemClock
from postbus.config import check_choice
from postbus.ports import Clock
from postbus.stores.postgres.appending import Appending
from postbus.stores.postgres.checkpoints import PgCheckpoints
from postbus.stores.postgres.database import Database
from postbus.stores.postgres.dead_letters import PgDeadLetters
from postbus.stores.postgres.event_log import PgEventLog
from postbus.stores.postgres.event_queue import NoBacklog, NoDispatchLock, NoSubscriptions, PgEventQueue
from postbus.stores.postgres.layouts import PgLayouts
from postbus.stores.postgres.members import PgMembers
from postbus.stores.postgres.outbox import PgOutbox
from postbus.stores.postgres.states import PgStateTable
from postbus.stores.postgres.subscriber_locks import PgSubscriberLocks
from postbus.stores.postgres.wake_ups import NotifyMode, WakeUps
from postbus.stores.user_calls import UserCalls


class PgEventStore(UserCalls):
    """Events in a schema of a PostgreSQL database.

    *target* is a DSN such as "postgresql://localhost/shop" or a pool of asyncpg's. With *session_dsn* the one
    connection that must not go through a pooler in transaction mode goes there directly. *notify* says who
    tells other processes of new events: "after_commit" (this process, the default), "trigger" (the database,
    for writers in other languages) or "off" (nobody: they poll). *pool_size* counts the connections for
    statements.
    """

    has_handlers = False
    has_async_transactions = True

    def __init__(
        self,
        target: "str | asyncpg.Pool[asyncpg.Record]",
        *,
        schema: str = "postbus",
        session_dsn: str | None = None,
        notify: NotifyMode = "after_commit",
        pool_size: int = 5,
        clock: Clock | None = None,
    ) -> None:
        check_choice("notify", notify, *get_args(NotifyMode))
        self._clock: Clock = clock or SystemClock()
        super().__init__(self._clock)
        self._database = Database(target, schema=schema, session_dsn=session_dsn, pool_size=pool_size)
        self._wake_ups = WakeUps(self._database, notify)
        self._appending = Appending(self._database, self._wake_ups)
        self.queue = PgEventQueue(self._appending)
        self.backlog = NoBacklog()
        self.dispatch_lock = NoDispatchLock()
        self.subscriptions = NoSubscriptions()
        self.log: PgEventLog = PgEventLog(self._database, self._appending, self._wake_ups, self._clock)
        self.dead_letters = PgDeadLetters(self._database, self._wake_ups, self._clock)
        self.checkpoints = PgCheckpoints(self._database, self._appending, self._wake_ups, self._clock)
        self.subscriber_locks = PgSubscriberLocks(self._database)
        self.members = PgMembers(self._database)
        self.outbox = PgOutbox(self._database, self.members, self._wake_ups, self._clock)
        self.layouts = PgLayouts(self._database, self.checkpoints, self._clock)
        self.states = PgStateTable(self._database, self._clock)

    @property
    def schema(self) -> str:
        """The schema that has the tables."""
        return self._database.schema

    async def open(self) -> None:
        """Connect and bring the schema up to date. Idempotent."""
        await self._database.open()

    async def close(self) -> None:
        """Write what is waiting, let all locks go and close. Idempotent."""
        await self._appending.drain()
        await self.checkpoints.drain()
        await self.subscriber_locks.close()
        self.members.close()
        await self._wake_ups.close()
        await self._database.close()

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.close()
