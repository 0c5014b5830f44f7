"""A pool of our own: a few connections, kept open, lent in a moment.

asyncpg's pool starts a task for every release, which costs a fifth of a single small append.
"""

import asyncio
import contextlib
import time
from collections import deque
from typing import Any

from postbus.errors import StoreClosedError, StoreUnavailableError
from postbus.stores.postgres.pool import (
    ACQUIRE_SECONDS,
    CLOSE_SECONDS,
    Connect,
    Connection,
    break_off,
    close_gently,
    is_spoilt,
    keep,
    outlive_caller,
    reset,
    settle,
)

_IDLE_SECONDS = 300.0


class OwnPool:
    """At most *size* connections, opened when they are needed, the last one used lent first."""

    def __init__(self, connect: Connect, size: int) -> None:
        self._connect = connect
        self._size = size
        # With the moment since which each is idle, the longest first.
        self._idle: deque[tuple[Connection, float]] = deque()
        self._open_count = 0
        self._lent: set[Connection] = set()
        # A waiter is given a connection, or None: the right to open one.
        self._waiters: deque[asyncio.Future[Connection | None]] = deque()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._expiry: asyncio.TimerHandle | None = None
        self._is_closed = False
        self._quiet = asyncio.Event()

    async def acquire(self) -> Connection:
        """A connection that is idle, or new, or the next that is given back."""
        if self._is_closed:
            raise StoreClosedError("the store is closed; await store.open() first")
        connection = self.take_idle()
        if connection is None:
            connection = await self._open_or_wait()
            self._lent.add(connection)
        return connection

    def take_idle(self) -> Connection | None:
        """As acquire(), if that can be done without waiting: the one that was used last."""
        while self._idle and not self._is_closed:
            connection, _ = self._idle.pop()
            if not connection.is_closed():
                self._lent.add(connection)
                return connection
            self._free_place()
        return None

    def give_back(self, connection: Connection) -> bool:
        """As release() after a statement that has ended well; False: only that can do it."""
        if connection.is_closed() or connection.is_in_transaction():
            return False
        self._give_back(connection)
        return True

    async def release(self, connection: Connection, *, is_settled: bool, is_changed: bool = False) -> None:
        """Take it back at once, or as soon as it is what it was."""
        if connection.is_closed() or (is_changed and is_spoilt(connection)):
            self._discard(connection)
        elif not is_settled or is_changed or not self.give_back(connection):
            # Not for the user to wait for, who may have been cancelled.
            keep(self._tasks, self._restore(connection, is_changed))

    def drop_idle(self) -> None:
        """Close what nobody uses."""
        while self._idle:
            connection, _ = self._idle.popleft()
            self._discard(connection)

    async def close(self) -> None:
        """Wait a moment for what is lent, then close everything."""
        if self._is_closed:
            return
        self._is_closed = True
        if self._expiry is not None:
            self._expiry.cancel()
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_exception(
                    StoreClosedError("the store was closed while this waited for a connection")
                )
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(CLOSE_SECONDS):
                    await self._close_gently()
        finally:
            for connection in [*self._lent, *(connection for connection, _ in self._idle)]:
                break_off(connection)
            self._idle.clear()
            for task in self._tasks:
                task.cancel()

    async def _open_or_wait(self) -> Connection:
        if self._open_count < self._size:
            self._open_count += 1
            return await self._open()
        waiter: asyncio.Future[Connection | None] = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        try:
            async with asyncio.timeout(ACQUIRE_SECONDS):
                connection = await waiter
        except BaseException as error:
            self._step_back(waiter)
            if isinstance(error, TimeoutError):
                raise StoreUnavailableError(
                    f"all {self._size} connections were in use for {ACQUIRE_SECONDS:g} s; try again, end "
                    "transactions sooner, or give the store a larger pool_size"
                ) from None
            raise
        return await self._open() if connection is None else connection

    async def _open(self) -> Connection:
        return await outlive_caller(self._open_in_place(), self._tasks, self._give_back)

    async def _open_in_place(self) -> Connection:
        """Open one for a place in the pool that is taken already."""
        try:
            connection = await self._connect()
        except BaseException:
            self._free_place()
            raise
        if self._is_closed:
            break_off(connection)
            raise StoreClosedError("the store was closed while this opened a connection")
        return connection

    def _step_back(self, waiter: "asyncio.Future[Connection | None]") -> None:
        """Pass on what the waiter was given at the last moment."""
        with contextlib.suppress(ValueError):
            self._waiters.remove(waiter)
        if waiter.done() and not waiter.cancelled() and waiter.exception() is None:
            connection = waiter.result()
            if connection is None:
                self._free_place()
            else:
                self._give_back(connection)

    def _give_back(self, connection: Connection) -> None:
        self._lent.discard(connection)
        self._note_quiet()
        while self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(connection)
                return
        self._idle.append((connection, time.monotonic()))
        if self._expiry is None and not self._is_closed:
            self._expiry = asyncio.get_running_loop().call_later(_IDLE_SECONDS, self._drop_expired)

    def _free_place(self) -> None:
        while self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return
        self._open_count -= 1

    def _discard(self, connection: Connection) -> None:
        self._lent.discard(connection)
        self._note_quiet()
        break_off(connection)
        self._free_place()

    def _note_quiet(self) -> None:
        if self._is_closed and not self._lent:
            self._quiet.set()

    def _drop_expired(self) -> None:
        now = time.monotonic()
        while self._idle and self._idle[0][1] <= now - _IDLE_SECONDS:
            self._discard(self._idle.popleft()[0])
        self._expiry = None
        if self._idle:
            seconds_left = self._idle[0][1] + _IDLE_SECONDS - now
            self._expiry = asyncio.get_running_loop().call_later(seconds_left, self._drop_expired)

    async def _restore(self, connection: Connection, is_changed: bool) -> None:
        is_fit = False
        try:
            is_fit = await (reset(connection) if is_changed else settle(connection))
        finally:
            if is_fit:
                self._give_back(connection)
            else:
                self._discard(connection)

    async def _close_gently(self) -> None:
        if self._lent:
            await self._quiet.wait()
        if self._tasks:
            await asyncio.wait(self._tasks)
        await asyncio.gather(*(close_gently(connection) for connection, _ in self._idle))
