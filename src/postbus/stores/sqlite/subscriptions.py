"""The subscriptions of the owner, in SQLite, for people who look into the file."""

import sqlite3
from collections.abc import Sequence

from postbus.events import SubscriptionRow
from postbus.stores.named_queries import load_queries
from postbus.stores.sqlite.access import FileAccess
from postbus.stores.sqlite.rows import moment_to_text, subscription_from_row

_QUERIES = load_queries("postbus.stores.sqlite", "queries.sql")


class SQLiteSubscriptionTable:
    """The SubscriptionTable port."""

    def __init__(self, file: FileAccess) -> None:
        self._file = file

    async def replace(self, rows: Sequence[SubscriptionRow]) -> None:
        """Make these the only rows."""
        values = [(row.id, row.event_type, moment_to_text(row.created_at)) for row in rows]

        def replace(connection: sqlite3.Connection) -> None:
            connection.execute(_QUERIES["delete_subscriptions"])
            connection.executemany(_QUERIES["insert_subscription"], values)

        await self._file.write(replace)

    async def list(self) -> list[SubscriptionRow]:
        """All rows, oldest first."""
        rows = await self._file.read(
            lambda connection: connection.execute(_QUERIES["read_subscriptions"]).fetchall()
        )
        return [subscription_from_row(row) for row in rows]
