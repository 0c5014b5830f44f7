"""Which instances take part in what: advisory locks of their sessions, which anybody can look up."""

import asyncio
import logging
from collections.abc import Sequence
from typing import Any

from postbus.errors import StoreError
from postbus.events import SubscriberId
from postbus.stores.postgres.database import Database
from postbus.stores.postgres.lock_keys import lock_key
from postbus.stores.postgres.pool import Connection, keep

logger = logging.getLogger("postbus")


class PgMembers:
    """Fulfils ports.Members. An instance is listed as the server's process that its session talks to."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._queries = database.queries("members.sql")
        self._wanted: set[str] = set()
        # Those that the present session is listed in: asked twice, the server would hold a lock twice.
        self._joined: set[str] = set()
        self._number: int | None = None
        self._leaving: set[asyncio.Task[Any]] = set()
        database.session.on_lost(self._forget)

    @property
    def number(self) -> int | None:
        """The process of the server behind the session; None before the first join, and without a session."""
        return self._number

    def has_joined(self, group: str) -> bool:
        """Whether the present session is listed in this group."""
        return group in self._joined and group in self._wanted

    async def join(self, group: str) -> None:
        """Be listed, also by the sessions that replace this one. Idempotent."""
        self._wanted.add(group)
        if group not in self._joined:
            await self._database.ensure_open()
            await self._database.session.run(lambda session: self._settle(session, group))

    def leave(self, group: str) -> None:
        """Be listed no more, as soon as the session gets to it. Idempotent."""
        if group in self._wanted:
            self._wanted.discard(group)
            keep(self._leaving, self._leave(group))

    async def holders(self, subscriber_ids: Sequence[SubscriberId]) -> list[int | None]:
        """The number of the instance that has the lock of each of them; None: it is free."""
        keys = [lock_key(self._database.schema, subscriber_id) for subscriber_id in subscriber_ids]
        rows = await self._database.fetch(self._queries["list_holders"], *zip(*keys, strict=True))
        return [row[0] for row in rows]

    async def list(self, group: str) -> list[int]:
        """The numbers of all instances in the group, sorted; this one among them if it has joined."""
        if group in self._wanted:
            # The session may be another one.
            await self.join(group)
        rows = await self._database.fetch(self._queries["list_members"], self.key_of(group))
        return [row[0] for row in rows]

    def key_of(self, group: str) -> int:
        """The first half of the group's locks; the second is the number of the instance."""
        return lock_key(self._database.schema, f"members:{group}")[0]

    def close(self) -> None:
        """Be listed nowhere: the session ends. Idempotent."""
        self._wanted.clear()
        self._forget()

    async def _leave(self, group: str) -> None:
        try:
            await self._database.session.run(lambda session: self._settle(session, group))
        except StoreError as error:
            logger.debug("left group %s with the session: %s", group, error)

    async def _settle(self, session: Connection, group: str) -> None:
        """Be listed or not, as is wanted by now."""
        is_wanted, key = group in self._wanted, self.key_of(group)
        if is_wanted == (group in self._joined):
            return
        if is_wanted:
            number = await session.fetchval(self._queries["join_group"], key)
            if self._database.session.is_current(session):
                self._number = number
                self._joined.add(group)
        else:
            await session.fetchval(self._queries["leave_group"], key)
            self._joined.discard(group)

    def _forget(self) -> None:
        self._joined.clear()
        self._number = None
