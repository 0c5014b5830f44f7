"""The two ends of a way that is timed: a process that sends moments, and one that receives them."""

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import Protocol

Send = Callable[[float], Awaitable[None]]
Receive = Callable[[float], None]


class Ends(Protocol):
    """A module that has both."""

    def sender(self, dsn: str) -> AbstractAsyncContextManager[Send]:
        """What publishes a moment."""
        ...

    def receiver(self, dsn: str, receive: Receive) -> AbstractAsyncContextManager[None]:
        """While it is open, *receive* is called with every moment that is published."""
        ...
