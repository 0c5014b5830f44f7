"""Steps that tests of the log in PostgreSQL have in common."""

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager

import asyncpg

from postbus.events import Event, Gap, GlobalSequence, LogPage, LogPosition
from postbus.stores.postgres import PgEventStore
from postbus.testing import ManualClock
from tests.contracts.steps import NOON
from tests.postgres.steps import Session

_INSERT = (
    "INSERT INTO events (global_sequence, id, event_type, data, created_at) "
    "SELECT number, 'event-' || number, $2, to_json(number), $3 FROM unnest($1::bigint[]) AS number"
)


@asynccontextmanager
async def open_log(dsn: str, clock: ManualClock) -> AsyncIterator[PgEventStore]:
    """A store on the database."""
    async with PgEventStore(dsn, clock=clock) as store:
        yield store


@asynccontextmanager
async def open_writer(dsn: str, application_name: str = "a writer") -> AsyncIterator[Session]:
    """Another program, which writes events as it likes; whatever it leaves open ends with the block."""
    writer = await asyncpg.connect(
        dsn, server_settings={"search_path": "postbus", "application_name": application_name}
    )
    try:
        yield writer
    finally:
        writer.terminate()


async def insert(session: Session, numbers: Iterable[int], event_type: str = "order.placed") -> None:
    """Events at these numbers, which are drawn from the sequence as far as it has not come yet."""
    wanted = sorted(numbers)
    last = await session.fetchval(
        "SELECT CASE WHEN is_called THEN last_value ELSE 0 END FROM events_global_sequence_seq"
    )
    await session.execute(
        "SELECT nextval('events_global_sequence_seq') FROM generate_series($1::bigint, $2)",
        last + 1,
        wanted[-1],
    )
    await session.execute(_INSERT, wanted, event_type, NOON)


def position(head: int, *gaps: tuple[int, int]) -> LogPosition:
    """Read up to *head*, but for the gaps."""
    return LogPosition(GlobalSequence(head), tuple(Gap(*gap) for gap in gaps))


def numbers_of(page: LogPage | list[Event]) -> list[int | None]:
    """The numbers of the events, in the order in which they came."""
    events = page.events if isinstance(page, LogPage) else page
    return [event.global_sequence for event in events]


async def until_ended(session: Session, pid: int) -> None:
    """Return when a server process is gone."""
    async with asyncio.timeout(10):
        while await session.fetchval("SELECT count(*) FROM pg_stat_activity WHERE pid = $1", pid):
            pass
