"""Connections as their users get them: with a time limit for us, with an end for a handler."""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import asyncpg

# What makes isinstance(connection, asyncpg.Connection) true.
from asyncpg.connection import _ConnectionProxy

from postbus.stores.postgres.pool import is_gone, note_spoilt

if TYPE_CHECKING:
    from postbus.stores.postgres.pool import Connection

# How long a statement of ours may take.
COMMAND_SECONDS = 10.0
_STATEMENTS = frozenset({"execute", "executemany", "fetch", "fetchmany", "fetchrow", "fetchval"})
_CLOSINGS = frozenset({"close", "terminate"})
# Codecs are the driver's: no statement brings them back.
_CODEC_SETTERS = frozenset({"set_type_codec", "set_builtin_type_codec", "reset_type_codec"})


class TimedConnection(_ConnectionProxy):
    """Ends every statement after a while; asyncpg would wait for ever for a network that is silent.

    The limit is not the connection's own: handlers, whose statements may take longer, use the same ones,
    and those of a user's pool have the user's settings.
    """

    __slots__ = ("_connection",)

    def __init__(self, connection: "Connection") -> None:
        self._connection = connection

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self._connection, name)
        return partial(attribute, timeout=COMMAND_SECONDS) if name in _STATEMENTS else attribute


class LentConnection(_ConnectionProxy):
    """Passes everything on until it is taken back: later use would meddle with somebody else's work."""

    __slots__ = ("_connection", "was_closed")

    def __init__(self, connection: "Connection") -> None:
        self._connection: Connection | None = connection
        self.was_closed = False
        """Whether it was open until its user closed it."""

    @property
    def is_over(self) -> bool:
        """Whether it was taken back."""
        return self._connection is None

    def take_back(self) -> None:
        """The transaction is over."""
        self._connection = None

    def __getattr__(self, name: str) -> Any:
        if self._connection is None:
            raise asyncpg.InterfaceError(
                f"connection.{name} is used after the handler's transaction was over; await everything "
                "before the handler returns"
            )
        if name in _CODEC_SETTERS:
            note_spoilt(self._connection)
        attribute = getattr(self._connection, name)
        return partial(self._close, attribute) if name in _CLOSINGS else attribute

    def _close(self, close: Callable[..., Any], *args: Any, **options: Any) -> Any:
        # What is lost already nobody closes.
        if self._connection is not None and not is_gone(self._connection):
            self.was_closed = True
        return close(*args, **options)


def was_closed(connection: object) -> bool:
    """Whether its user has closed it; if it is gone without that, it was lost."""
    return isinstance(connection, LentConnection) and connection.was_closed


def is_over(connection: object) -> bool:
    """Whether it was lent and is taken back."""
    return isinstance(connection, LentConnection) and connection.is_over
