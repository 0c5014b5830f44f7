"""Opens connections by DSN, and tells where they lead without giving the password away."""

from typing import TYPE_CHECKING
from urllib.parse import parse_qs, urlsplit

import asyncpg

from postbus.errors import StoreError, StoreUnavailableError
from postbus.stores.named_queries import load_queries
from postbus.stores.postgres.translation import DRIVER_ERRORS

if TYPE_CHECKING:
    from postbus.stores.postgres.pool import Connection

_QUERIES = load_queries("postbus.stores.postgres", "connecting.sql")
CONNECT_SECONDS = 5.0
_DEFAULT_PORT = 5432


async def connect(dsn: str) -> "Connection":
    """A new connection; StoreUnavailableError that says where to, and why not."""
    try:
        connection = await _open(dsn)
        if await _is_direct(connection):
            return connection
        # A statement that is prepared on one connection of a pooler is unknown on the next.
        return await _open(dsn, statement_cache_size=0)
    except ValueError:
        # The words of this error, and the one itself, may hold parts of the password.
        raise StoreError(
            "the DSN can't be understood; expected postgresql://user:password@host:port/database, with "
            "special characters percent-encoded"
        ) from None
    except DRIVER_ERRORS as error:
        reason = str(error) or f"no answer within {CONNECT_SECONDS:g} s"
        raise StoreUnavailableError(f"can't connect to {describe(dsn)}: {reason}") from error


async def _open(dsn: str, statement_cache_size: int = 100) -> "Connection":
    # Whoever names it in the DSN has a reason.
    settings = None if "application_name=" in dsn else {"application_name": "postbus"}
    return await asyncpg.connect(
        dsn,
        timeout=CONNECT_SECONDS,
        server_settings=settings,
        statement_cache_size=statement_cache_size,
    )


async def _is_direct(connection: "Connection") -> bool:
    """Whether it leads to the server itself; one that leads to a pooler is broken off."""
    is_direct = False
    try:
        query = _QUERIES["find_own_process"].replace("{pid}", str(connection.get_server_pid()))
        is_direct = await connection.execute(query, timeout=CONNECT_SECONDS) == "SELECT 1"
    finally:
        if not is_direct:
            connection.terminate()
    return is_direct


def describe(dsn: str) -> str:
    """Which database, on which host and port.

    >>> describe("postgresql://me:secret@db.example.org/shop")
    "database 'shop' on db.example.org:5432"
    >>> describe("postgresql:///shop?host=/run/postgresql&password=secret")
    "database 'shop' on /run/postgresql:5432"
    """
    try:
        parts = urlsplit(dsn)
        options = {name: values[-1] for name, values in parse_qs(parts.query).items()}
    except ValueError:
        return "the database of the given DSN"
    place = options.get("host") or parts.netloc.rpartition("@")[2] or "localhost"
    # The colons of an IPv6 address are in brackets.
    if ":" not in place.rpartition("]")[2]:
        place += f":{options.get('port', _DEFAULT_PORT)}"
    name = options.get("dbname") or options.get("database") or parts.path.lstrip("/")
    return f"database {name!r} on {place}"
