"""Sees who can still fill a gap: the transactions that hold the lock which drawing a number takes."""

from collections.abc import Mapping

import asyncpg

from postbus.errors import UnsoundLogError
from postbus.events import OpenWriter, WriterSample
from postbus.stores.postgres.pool import Connection
from postbus.stores.postgres.schema_name import quoted_schema


class Samples:
    """Looks at the sequence of one schema's log."""

    def __init__(self, queries: Mapping[str, str], schema: str) -> None:
        self._queries = queries
        self._sequence = f"{quoted_schema(schema)}.events_global_sequence_seq"

    async def take(self, connection: Connection) -> WriterSample:
        """Who holds it at this moment. UnsoundLogError: what is seen would prove nothing."""
        row = await connection.fetchrow(self._queries["sample_writers"], self._sequence)
        assert row is not None
        fault = _find_fault(row, self._sequence)
        if fault is not None:
            raise UnsoundLogError(f"an event could be passed over: {fault}")
        return WriterSample(server=row["server"], high=row["high"], holders=tuple(row["holders"]))

    async def open_writers(self, connection: Connection) -> list[OpenWriter]:
        """The transactions behind it, the oldest first; not our own."""
        rows = await connection.fetch(self._queries["read_open_writers"], self._sequence)
        return [
            OpenWriter(
                pid=row["pid"],
                application_name=row["application_name"],
                gid=row["gid"],
                age_seconds=row["age_seconds"],
            )
            for row in rows
        ]


def _find_fault(row: asyncpg.Record, sequence: str) -> str | None:
    """Checked every time: what was true when the store was opened may have been changed since."""
    if row["is_standby"]:
        return (
            "this server is a standby, where events arrive without drawing a number; connect to the primary "
            "(target_session_attrs=read-write)"
        )
    if row["seqcache"] is None:
        return f"the sequence {sequence} is gone; restore it and run `postbus migrate`"
    if row["seqcache"] != 1:
        return (
            f"the sequence has CACHE {row['seqcache']}, so that a session keeps numbers and uses them later "
            f"without a lock: ALTER SEQUENCE {sequence} CACHE 1, then end the sessions that wrote events"
        )
    if row["seqincrement"] != 1 or row["seqcycle"]:
        return f"the sequence does not count up by one: ALTER SEQUENCE {sequence} INCREMENT 1 NO CYCLE"
    if row["hides_rows"]:
        return (
            "row-level security may hide events from this role, and a hidden event looks like a number that "
            "nobody used: ALTER TABLE events DISABLE ROW LEVEL SECURITY, or use a role with BYPASSRLS"
        )
    return None
