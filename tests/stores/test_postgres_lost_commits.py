"""A server that comes back without its last commits: their numbers are drawn again, by other events."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import asyncpg
import pytest

from postbus import Event, PgEventBus, ReliableDeliveryConfig
from tests.faults.steps import until
from tests.gaps.steps import ID, checkpoint_row, soon, written
from tests.postgres.server import Server
from tests.postgres.steps import Session

_PUBLISH = "SELECT postbus.publish('order.placed', '{}', event_id => $1)"
# The server writes what nobody waits for every 10 s; so often it may do that between a commit and the crash.
_MOST_TRIES = 5


class _Subscriber:
    """A bus whose handler takes as long as the test likes."""

    def __init__(self, dsn: str, *, is_transactional: bool) -> None:
        self.bus = PgEventBus(dsn, config=ReliableDeliveryConfig(poll_interval=0.05))
        self.begun: list[str] = []
        self.may_end = asyncio.Event()
        self.may_end.set()
        if is_transactional:
            self.bus.subscribe("*", self._handle_in_transaction, id=ID)
        else:
            self.bus.subscribe("*", self._handle, id=ID)

    async def has_begun(self, event_id: str) -> None:
        """Return when the handler has been called for it."""
        await soon(lambda: event_id in self.begun, within=20)

    async def _handle(self, event: Event) -> None:
        self.begun.append(event.id)
        await self.may_end.wait()

    async def _handle_in_transaction(self, event: Event, transaction: Session) -> None:
        await self._handle(event)
        await transaction.execute("SELECT 1")


@pytest.fixture
def forgetful_postgres() -> Iterator[Server]:
    """A server that loses in a crash what did not wait for the disk."""
    with Server(settings={"wal_writer_delay": "10s"}) as server:
        yield server


@asynccontextmanager
async def _session(server: Server) -> AsyncIterator[Session]:
    session = await asyncpg.connect(server.dsn())
    try:
        yield session
    finally:
        session.terminate()


async def _publish(server: Server, event_id: str) -> int:
    async with _session(server) as session:
        number: int = await session.fetchval(_PUBLISH, event_id)
        return number


async def _crash_in_handler(server: Server, subscriber: _Subscriber, event_id: str) -> int | None:
    """Crash while an event is handled; its number, if the server knows nothing of either any more."""
    async with _session(server) as session:
        await session.execute("SET synchronous_commit = off")
        await _have_saved_once(session, event_id)
        # From here on the numbers that are drawn have to be written down anew, and are lost as well.
        await session.execute("CHECKPOINT")
        number: int = await session.fetchval(_PUBLISH, event_id)
        await subscriber.has_begun(event_id)
        server.kill()
    await asyncio.to_thread(server.start)
    async with _session(server) as session:
        is_kept = await session.fetchval("SELECT EXISTS (SELECT FROM postbus.events WHERE id = $1)", event_id)
        # Of what did not wait, the server has saved what happened to fill a page: perhaps the number alone.
        last = await session.fetchval("SELECT last_value FROM postbus.events_global_sequence_seq")
    return None if is_kept or last >= number else number


async def _have_saved_once(session: Session, name: str) -> None:
    """Of what does not wait, the first after a start is saved at once, and then something every 10 s."""
    before = await session.fetchval("SELECT pg_current_wal_insert_lsn()::text")
    await session.execute(
        f'CREATE TABLE "{name}" AS SELECT repeat(n::text, 500) FROM generate_series(1, 100) AS n'
    )
    saved = "SELECT pg_current_wal_flush_lsn() > $1::text::pg_lsn"
    await until(lambda: session.fetchval(saved, before), bool)


async def _lose_event(server: Server, subscriber: _Subscriber) -> int:
    """The number of an event that was lost while it was handled, and still is handled."""
    for attempt in range(_MOST_TRIES):
        subscriber.may_end.clear()
        number = await _crash_in_handler(server, subscriber, f"doomed-{attempt}")
        if number is not None:
            return number
        subscriber.may_end.set()
        await written(server.dsn(), await _publish(server, f"kept-{attempt}"), within=20)
    raise AssertionError(f"the server lost nothing in {_MOST_TRIES} crashes")


@pytest.mark.parametrize("is_transactional", [False, True])
async def test_an_event_is_delivered_under_the_number_of_one_that_was_lost(
    forgetful_postgres: Server, is_transactional: bool
) -> None:
    """What was handled before the crash does not count for what is in the log after it."""
    server = forgetful_postgres
    subscriber = _Subscriber(server.dsn(), is_transactional=is_transactional)
    async with subscriber.bus:
        await soon(lambda: subscriber.bus.subscription(ID).state == "live")
        await written(server.dsn(), await _publish(server, "first"))
        lost = await _lose_event(server, subscriber)
        before = await checkpoint_row(server.dsn())
        subscriber.may_end.set()
        after = await until(
            lambda: checkpoint_row(server.dsn()), lambda row: row["epoch"] > before["epoch"], within=20
        )
        assert after["last_global_sequence"] < lost

        assert await _publish(server, "second") == lost
        await subscriber.has_begun("second")
        await written(server.dsn(), lost)
