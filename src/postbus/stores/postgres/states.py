"""States of projections and sagas, in PostgreSQL."""

from postbus.ports import Clock
from postbus.stores.postgres.database import Database


class PgStateTable:
    """The StateTable port."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database, self._clock = database, clock
        self._queries = database.queries("states.sql")

    async def get(self, store_name: str, key: str) -> bytes | None:
        """The state, as JSON."""
        row = await self._database.fetch_row(self._queries["read_state"], store_name, key)
        return None if row is None else row[0].encode()

    async def put(self, store_name: str, key: str, state_json: bytes | None) -> None:
        """Replace it; None deletes it."""
        if state_json is None:
            await self._database.execute(self._queries["delete_state"], store_name, key)
        else:
            values = (store_name, key, state_json.decode(), self._clock.now())
            await self._database.execute(self._queries["put_state"], *values)

    async def items(self, store_name: str, after: str, limit: int) -> list[tuple[str, bytes]]:
        """At most *limit* keys above *after* with their states, in the order of the keys."""
        rows = await self._database.fetch(self._queries["read_states"], store_name, after, limit)
        return [(row[0], row[1].encode()) for row in rows]
