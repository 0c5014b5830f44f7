"""Into how many parts each durable subscriber is split, in PostgreSQL."""

from postbus.errors import LayoutChangedError, UnsoundLogError
from postbus.events import Checkpoint, Layout, SubscriberId
from postbus.ports import Clock
from postbus.stores.postgres.checkpoints import PgCheckpoints, checkpoint_from_row
from postbus.stores.postgres.database import Database
from postbus.stores.postgres.pool import Connection
from postbus.stores.postgres.query_parts import fill_parts


class PgLayouts:
    """Fulfils ports.Layouts."""

    def __init__(self, database: Database, checkpoints: PgCheckpoints, clock: Clock) -> None:
        self._database, self._checkpoints, self._clock = database, checkpoints, clock
        self._queries = fill_parts(database.queries("layouts.sql"))

    async def load(self, subscriber_id: SubscriberId) -> Layout | None:
        """The present layout, and how far its parts have come; None: the subscriber has no checkpoint yet."""
        rows = await self._database.fetch(self._queries["read_layout"], subscriber_id)
        if not rows:
            return None
        partitions = rows[0]["partitions"]
        if len(rows) != partitions:
            raise UnsoundLogError(
                f"subscriber {subscriber_id!r} is split into {partitions} parts, of which only {len(rows)} "
                "have rows in event_bus_checkpoints: somebody has deleted the others, and how far they were "
                "is not known; delete the subscriber's own row to begin anew"
            )
        return Layout(partitions, [checkpoint_from_row(row) for row in rows])

    async def claim(self, part_id: SubscriberId) -> Checkpoint:
        """Become the owner of a part. LayoutChangedError: there is none."""
        return await self._checkpoints.claim(part_id, None)

    async def switch(self, subscriber_id: SubscriberId, found: int, wanted: int) -> bool:
        """Split it into *wanted* parts instead of *found*; False: not all are equally far."""
        async with self._database.transaction() as connection:
            partitions = await connection.fetchval(self._queries["lock_layout"], subscriber_id)
            if partitions == wanted:
                # It was done, and the answer got lost; or by another.
                return True
            if partitions != found:
                raise LayoutChangedError(subscriber_id)
            rows = await connection.fetch(self._queries["lock_parts"], subscriber_id)
            if any(row != rows[0] for row in rows):
                return False
            await self._replace_parts(connection, subscriber_id, found, wanted)
        return True

    async def _replace_parts(
        self, connection: Connection, subscriber_id: SubscriberId, found: int, wanted: int
    ) -> None:
        now = self._clock.now()
        if wanted > 1:
            await connection.execute(self._queries["make_parts"], subscriber_id, wanted, now)
        await connection.execute(self._queries["set_layout"], subscriber_id, wanted, now)
        if found > 1:
            await connection.execute(self._queries["delete_parts"], subscriber_id, found)
