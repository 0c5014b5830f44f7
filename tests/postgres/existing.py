"""What every PostgreSQL server has for the tests, and one that somebody else runs."""

from typing import Protocol
from urllib.parse import urlsplit


class Postgres(Protocol):
    """A server that has databases."""

    def dsn(self, database: str) -> str:
        """How to reach one of its databases."""
        ...


class ExistingServer:
    """A server that somebody else runs; it is used as it is."""

    def __init__(self, dsn: str) -> None:
        self._parts = urlsplit(dsn)
        if self._parts.scheme not in ("postgresql", "postgres"):
            raise ValueError(
                f"POSTBUS_TEST_DSN is {dsn!r}, expected postgresql://user:password@host:port/database"
            )

    def dsn(self, database: str) -> str:
        """How to reach one of its databases."""
        query = f"?{self._parts.query}" if self._parts.query else ""
        return f"{self._parts.scheme}://{self._parts.netloc}/{database}{query}"
