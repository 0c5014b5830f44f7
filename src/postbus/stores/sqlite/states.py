"""States of projections and sagas, in SQLite."""

import sqlite3

from postbus.ports import Clock
from postbus.stores.named_queries import load_queries
from postbus.stores.sqlite.access import FileAccess
from postbus.stores.sqlite.rows import moment_to_text

_QUERIES = load_queries("postbus.stores.sqlite", "queries.sql")


class SQLiteStateTable:
    """The StateTable port."""

    def __init__(self, file: FileAccess, clock: Clock) -> None:
        self._file, self._clock = file, clock

    async def get(self, store_name: str, key: str) -> bytes | None:
        """The state, as JSON."""
        row = await self._file.read_committed(
            lambda connection: connection.execute(_QUERIES["read_state"], (store_name, key)).fetchone()
        )
        return None if row is None else row[0]

    async def put(self, store_name: str, key: str, state_json: bytes | None) -> None:
        """Replace it; None deletes it."""
        now = moment_to_text(self._clock.now())
        await self._file.write(lambda connection: put_state(connection, store_name, key, state_json, now))

    async def items(self, store_name: str, after: str, limit: int) -> list[tuple[str, bytes]]:
        """At most *limit* keys above *after* with their states, in the order of the keys."""
        values = (store_name, after, limit)
        return await self._file.read_committed(
            lambda connection: connection.execute(_QUERIES["read_states"], values).fetchall()
        )


def put_state(
    connection: sqlite3.Connection, store_name: str, key: str, state_json: bytes | None, now: str
) -> None:
    """Replace a state inside a transaction; None deletes it."""
    if state_json is None:
        connection.execute(_QUERIES["delete_state"], (store_name, key))
    else:
        connection.execute(_QUERIES["put_state"], (store_name, key, state_json.decode(), now))
