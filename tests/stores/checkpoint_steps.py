"""Steps that tests of checkpoints in PostgreSQL have in common."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import asyncpg

from postbus.events import Checkpoint, Event, GlobalSequence, LogPosition, Progress
from postbus.stores.postgres.appending import Appending
from postbus.stores.postgres.checkpoints import PgCheckpoints
from postbus.stores.postgres.database import Database
from postbus.stores.postgres.wake_ups import WakeUps
from postbus.testing import ManualClock
from tests.contracts.steps import NOON
from tests.postgres.databases import Databases
from tests.postgres.steps import Session

START = LogPosition(GlobalSequence(0))


@asynccontextmanager
async def make_database(databases: Databases) -> AsyncIterator[str]:
    """The DSN of a database of its own in which our tables are empty."""
    async with databases.make(await databases.template("postbus_tables", _make_tables)) as dsn:
        yield dsn


@asynccontextmanager
async def open_checkpoints(target: "str | asyncpg.Pool[asyncpg.Record]") -> AsyncIterator[PgCheckpoints]:
    """Checkpoints in a database, by its DSN or by a pool of the user's."""
    database = Database(target)
    wake_ups = WakeUps(database)
    await database.open()
    try:
        appending = Appending(database, wake_ups)
        yield PgCheckpoints(database, appending, wake_ups, ManualClock())
    finally:
        await wake_ups.close()
        await database.close()


@asynccontextmanager
async def open_session(dsn: str) -> AsyncIterator[Session]:
    """A connection of the test's own that finds our tables."""
    session = await asyncpg.connect(dsn, server_settings={"search_path": "postbus"})
    try:
        yield session
    finally:
        await session.close()


def progress(owner: Checkpoint, position: int, **more: Any) -> Progress:
    """What the owner writes."""
    return Progress(
        subscriber_id=owner.subscriber_id, epoch=owner.epoch, position=GlobalSequence(position), **more
    )


async def store_event(session: Session, event_id: str, payload: str = '{"n": 1}') -> Event:
    """Put an event into the log; the event as a reader has it."""
    sequence = await session.fetchval(
        "INSERT INTO events (id, event_type, data, created_at) "
        "VALUES ($1, 'order.placed', $2::text::json, $3) RETURNING global_sequence",
        event_id,
        payload,
        NOON,
    )
    return Event(
        id=event_id, type="order.placed", payload={"n": 1}, created_at=NOON, global_sequence=sequence
    )


async def no_transaction_is_open(session: Session) -> bool:
    """Whether, within a moment, no other session is in a transaction."""
    others = (
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() "
        "AND pid <> pg_backend_pid() AND xact_start IS NOT NULL AND backend_type = 'client backend'"
    )
    return await _becomes(session, others, 0)


async def until_waiting_for_lock(session: Session) -> None:
    """Return when some session waits for a lock."""
    waiting = (
        "SELECT count(*) FROM pg_stat_activity "
        "WHERE datname = current_database() AND wait_event_type = 'Lock'"
    )
    assert await _becomes(session, waiting, 1)


async def until_waiting_for_standby(session: Session) -> None:
    """Return when some commit waits for a standby."""
    assert await _becomes(session, "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'", 1)


async def wait_for_standby(session: Session, name: str) -> None:
    """From now on, every commit that waits for the disk waits for this standby too."""
    await session.execute(f"ALTER SYSTEM SET synchronous_standby_names = '{name}'")
    await session.execute("SELECT pg_reload_conf()")
    async with asyncio.timeout(30):
        while await session.fetchval("SHOW synchronous_standby_names") != name:
            pass
        # Commits wait as soon as another process of the server has taken note of it, which nothing shows.
        while name:
            try:
                await session.execute("SELECT pg_logical_emit_message(true, 'probe', '')", timeout=0.1)
            except TimeoutError:
                return


async def _make_tables(dsn: str) -> None:
    database = Database(dsn)
    await database.open()
    await database.close()


async def _becomes(session: Session, query: str, expected: object) -> bool:
    try:
        async with asyncio.timeout(10):
            while await session.fetchval(query) != expected:
                pass
    except TimeoutError:
        return False
    return True
