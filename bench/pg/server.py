"""The PostgreSQL server of a run."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.postgres.server import Server

# PostgreSQL's own defaults, where the tests have smaller ones; fsync and synchronous_commit are on.
_SETTINGS = {"shared_buffers": "128MB", "max_wal_size": "1GB"}


@contextmanager
def server_in(base: Path, dsn: str | None) -> Iterator[str]:
    """The DSN of a running server, or of one of our own whose files are in *base*. LookupError."""
    if dsn is not None:
        yield dsn
        return
    with Server(base=base, settings=_SETTINGS) as server:
        yield server.dsn("postgres")
