"""Wakes the workers of a pool when there may be rows in the outbox: here by a call, elsewhere by NOTIFY."""

import asyncio
import contextlib
import logging
import math
import secrets
from collections.abc import Callable

from postbus.errors import StoreError
from postbus.events import SubscriberId
from postbus.stores.postgres.database import Database
from postbus.stores.postgres.pool import CLOSE_SECONDS

logger = logging.getLogger("postbus")

_SIGN = "work"
# Rows that come one after the other share a notification.
_SECONDS_BETWEEN = 0.002
# Rows that become due at about the same time share an alarm.
_GRAIN = 0.05


class WorkWakeUps:
    """Nothing raises: workers look for rows by themselves as well, only later."""

    def __init__(self, database: Database, *, is_silent: bool) -> None:
        self._database, self._is_silent = database, is_silent
        self._queries = database.queries("wake_ups.sql")
        self._me = secrets.token_hex(4)
        self._watchers: dict[SubscriberId, list[Callable[[], None]]] = {}
        self._unsent: set[SubscriberId] = set()
        self._sender: asyncio.Task[None] | None = None
        self._alarms: dict[tuple[SubscriberId, int], asyncio.TimerHandle] = {}
        database.session.on_words(self._hear)
        database.session.on_notification(self._hear_of_loss)

    def watch(self, pool: SubscriberId, on_work: Callable[[], None]) -> None:
        """Call this in the event loop when there may be rows for the pool."""
        self._watchers.setdefault(pool, []).append(on_work)

    def unwatch(self, pool: SubscriberId, on_work: Callable[[], None]) -> None:
        """Do not call it any more. Idempotent."""
        with contextlib.suppress(ValueError):
            self._watchers.get(pool, []).remove(on_work)

    def is_watched(self, pool: SubscriberId) -> bool:
        """Whether anybody is to be called."""
        return bool(self._watchers.get(pool))

    def wake(self, pool: SubscriberId) -> None:
        """There may be rows for the workers of this process."""
        for on_work in self._watchers.get(pool, ()):
            on_work()

    def wake_later(self, pool: SubscriberId, seconds: float) -> None:
        """There will be a row for the workers of this process, so many seconds from now."""
        loop = asyncio.get_running_loop()
        key = (pool, math.ceil((loop.time() + seconds) / _GRAIN))
        if key not in self._alarms:
            self._alarms[key] = loop.call_at(key[1] * _GRAIN, self._ring, key)

    def announce(self, pool: SubscriberId) -> None:
        """There are rows for all workers of the pool."""
        self.wake(pool)
        if not self._is_silent:
            self._unsent.add(pool)
            if self._sender is None:
                self._sender = asyncio.create_task(self._send())

    async def close(self) -> None:
        """Send what is waiting, wake nobody any more. Idempotent; before the database closes."""
        self._watchers.clear()
        for alarm in self._alarms.values():
            alarm.cancel()
        self._alarms.clear()
        if (sender := self._sender) is not None:
            await asyncio.wait([sender], timeout=CLOSE_SECONDS)
            sender.cancel()
            await asyncio.wait([sender])

    def _ring(self, key: tuple[SubscriberId, int]) -> None:
        del self._alarms[key]
        self.wake(key[0])

    def _hear(self, words: str) -> None:
        sign, _, rest = words.partition(" ")
        sender, _, pool = rest.partition(" ")
        if sign == _SIGN and sender != self._me:
            self.wake(SubscriberId(pool))

    def _hear_of_loss(self, sequence: int | None) -> None:
        if sequence is None:
            for pool in self._watchers:
                self.wake(pool)

    async def _send(self) -> None:
        try:
            while self._unsent:
                await self._notify(self._unsent.pop())
                if not self._unsent:
                    await asyncio.sleep(_SECONDS_BETWEEN)
        finally:
            self._sender = None

    async def _notify(self, pool: SubscriberId) -> None:
        words = f"{_SIGN} {self._me} {pool}"
        try:
            await self._database.execute(self._queries["notify"], self._database.channel, words)
        except StoreError as error:
            logger.debug("workers elsewhere can't be notified, they look by themselves: %s", error)
