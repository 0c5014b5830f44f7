"""A store as a process sees it that may die at any call: from then on nothing reaches the database."""

import asyncio
import inspect
from collections.abc import Callable
from typing import Any, cast

from postbus.errors import StoreBusyError, StoreClosedError
from postbus.ports import DraftStream, Store

_PORTS = (
    "queue",
    "backlog",
    "dispatch_lock",
    "subscriptions",
    "dead_letters",
    "log",
    "checkpoints",
    "subscriber_locks",
    "states",
)
# What publishers call has to answer them; all else may be told to come again.
_MAY_BE_BUSY = {
    "checkpoints.load",
    "checkpoints.claim",
    "checkpoints.save",
    "checkpoints.process",
    "log.read",
    "dead_letters.wanted_retries",
    "states.get",
}


class DiedError(BaseException):
    """Raised in code that a dead process would not have run."""


class Fate:
    """When a process dies, and how often its database is busy."""

    def __init__(self) -> None:
        self.is_dead = False
        self._struck = asyncio.Event()
        self._calls_left: int | None = None
        self._is_after = False
        self._busy_left = 0
        self.was_busy = False
        """Whether any call was refused: what can't be written in the end comes again."""

    def strike(self) -> None:
        """Die here and now."""
        self.is_dead = True
        self._struck.set()

    def strike_at(self, call: int, *, after: bool) -> None:
        """Die at the so-manyth call from here, before or after it reached the database."""
        self._calls_left, self._is_after = call, after

    def spare(self) -> None:
        """Forget what was planned."""
        self._calls_left, self._busy_left = None, 0

    def be_busy(self, times: int) -> None:
        """Refuse the next calls."""
        self._busy_left = times

    async def wait(self) -> None:
        """Return when it has died."""
        await self._struck.wait()

    def begin_call(self, name: str) -> bool:
        """Whether the process dies once the call is done. DiedError, StoreBusyError: it is not done."""
        if self.is_dead:
            raise StoreClosedError("the process is dead")
        if self._busy_left and name in _MAY_BE_BUSY:
            self._busy_left -= 1
            self.was_busy = True
            raise StoreBusyError("another process holds the database")
        if self._calls_left is None:
            return False
        self._calls_left -= 1
        if self._calls_left > 0:
            return False
        self._calls_left = None
        if not self._is_after:
            self.strike()
            raise DiedError
        return True


class DyingPort:
    """One port of the store, with the same methods."""

    def __init__(self, name: str, inner: Any, fate: Fate, watch: Callable[..., Any]) -> None:
        self._name, self._inner, self._fate, self._watch = name, inner, fate, watch

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._inner, name)
        if inspect.iscoroutinefunction(value):
            return self._dying(f"{self._name}.{name}", value)
        if callable(value):
            return self._mute(f"{self._name}.{name}", value)
        return value

    def _dying(self, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        async def call(*arguments: Any, **options: Any) -> Any:
            dies_after = self._fate.begin_call(name)
            result = await self._watch(name, method, *arguments, **options)
            if dies_after:
                self._fate.strike()
                raise DiedError
            if self._fate.is_dead:
                raise StoreClosedError("the process is dead")
            return result

        return call

    def _mute(self, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            if self._fate.is_dead:
                return None
            if name != "queue.add":
                return method(*arguments)
            try:
                dies_after = self._fate.begin_call(name)
            except DiedError:
                return None
            method(*arguments)
            if dies_after:
                self._fate.strike()
            return None

        return call


class DyingStore:
    """Fulfils ports.Store; *watch* makes every call and may look at it."""

    def __init__(self, inner: Store, fate: Fate, watch: Callable[..., Any]) -> None:
        self._inner, self._fate = inner, fate
        self.has_handlers = inner.has_handlers
        self.has_async_transactions = inner.has_async_transactions
        # Not on the stores that the model runs on.
        self.members = self.outbox = self.layouts = None
        for name in _PORTS:
            setattr(self, name, DyingPort(name, getattr(inner, name), fate, watch))

    def append_as(self, draft: DraftStream | None) -> None:
        """What is behind it does."""
        self._inner.append_as(draft)

    async def open(self) -> None:
        """Open what is behind it."""
        await self._inner.open()

    async def close(self) -> None:
        """The files of a dead process are closed by whoever simulates its death."""
        if not self._fate.is_dead:
            await self._inner.close()


def dying(inner: Store, fate: Fate, watch: Callable[..., Any]) -> Store:
    """The store as the process with this fate sees it."""
    return cast(Store, DyingStore(inner, fate, watch))
