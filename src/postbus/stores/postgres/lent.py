"""Connections as their users get them: with a time limit for us, with an end for a handler."""

from functools import partial
from typing import TYPE_CHECKING, Any

import asyncpg

# What makes isinstance(connection, asyncpg.Connection) true.
from asyncpg.connection import _ConnectionProxy

if TYPE_CHECKING:
    from postbus.stores.postgres.pool import Connection

# How long a statement of ours may take.
COMMAND_SECONDS = 10.0
_STATEMENTS = frozenset({"execute", "executemany", "fetch", "fetchmany", "fetchrow", "fetchval"})


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

    __slots__ = ("_connection",)

    def __init__(self, connection: "Connection") -> None:
        self._connection: Connection | None = connection

    def take_back(self) -> None:
        """The transaction is over."""
        self._connection = None

    def __getattr__(self, name: str) -> Any:
        if self._connection is None:
            raise asyncpg.InterfaceError(
                f"connection.{name} is used after the handler's transaction was over; await everything "
                "before the handler returns"
            )
        return getattr(self._connection, name)
