"""Events in the caller's own transaction, and how other processes get to know of any event."""

import asyncio
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Literal

import asyncpg
import psycopg
import pytest
import sqlalchemy

from postbus import Event, InvalidConfigError, PgEventBus, ReliableDeliveryConfig, StoreUnavailableError
from postbus.stores.postgres.pool import is_gone
from tests.faults.steps import query
from tests.gaps.steps import ID, Seen, running, soon
from tests.postgres.binaries import find
from tests.postgres.steps import Session

# So far apart that no event is found by polling in a test.
NEVER = 600.0
# Far below a poll_interval of 60 s, on any machine.
SOON = 20.0

_GONE = r"lost, closed or given back to its pool; expected .*nothing was stored; .*again with another"

Publish = Callable[[PgEventBus, Session, int], Awaitable[object]]


async def publish_one(bus: PgEventBus, connection: Session, number: int) -> None:
    await bus.publish("test.done", number, connection=connection)


async def publish_many(bus: PgEventBus, connection: Session, number: int) -> None:
    await bus.publish_many([("test.done", number), ("test.done", number)], connection=connection)


async def append(bus: PgEventBus, connection: Session, number: int) -> None:
    await bus.store.append("orders-1", [("test.done", number)], connection=connection)


@asynccontextmanager
async def connected(dsn: str) -> AsyncIterator[Session]:
    """A connection of the application."""
    connection = await asyncpg.connect(dsn)
    try:
        yield connection
    finally:
        await connection.close()


def numbers_of(seen: Seen) -> list[Any]:
    """The payloads, each once."""
    return list(dict.fromkeys(event.payload for event in seen.events))


@pytest.mark.parametrize("publish", [publish_one, publish_many, append], ids=lambda each: each.__name__)
class TestAsyncpg:
    async def test_a_subscriber_gets_the_event_soon_after_the_callers_commit(
        self, postgres_dsn: str, publish: Publish
    ) -> None:
        """Not before it, and without polling: also in another process."""
        async with (
            running(postgres_dsn, poll_interval=NEVER) as (bus, [seen]),
            running(postgres_dsn, "elsewhere", poll_interval=NEVER) as (_, [elsewhere]),
            connected(postgres_dsn) as connection,
        ):
            await connection.execute("CREATE TABLE orders (number int)")
            async with connection.transaction():
                await connection.execute("INSERT INTO orders VALUES (1)")
                await publish(bus, connection, 1)

                assert await bus.store.head() == 0

            await soon(lambda: numbers_of(seen) == numbers_of(elsewhere) == [1], SOON)

        assert await query(postgres_dsn, "SELECT number FROM orders") == [(1,)]

    async def test_an_event_that_is_rolled_back_does_not_exist(
        self, postgres_dsn: str, publish: Publish
    ) -> None:
        """Nor does it hold up what comes after it."""
        async with (
            running(postgres_dsn, poll_interval=NEVER) as (bus, [seen]),
            connected(postgres_dsn) as connection,
        ):
            transaction = connection.transaction()
            await transaction.start()
            await publish(bus, connection, 1)
            await transaction.rollback()
            async with connection.transaction():
                await publish(bus, connection, 2)
            await soon(lambda: numbers_of(seen) == [2], SOON)
            head = await bus.store.head()
            await soon(lambda: bus.subscription(ID).checkpoint == head, SOON)

    async def test_a_savepoint_takes_its_events_along(self, postgres_dsn: str, publish: Publish) -> None:
        """What was published before and after it is there."""
        async with (
            running(postgres_dsn, poll_interval=NEVER) as (bus, [seen]),
            connected(postgres_dsn) as connection,
        ):
            async with connection.transaction():
                await publish(bus, connection, 1)
                savepoint = connection.transaction()
                await savepoint.start()
                await publish(bus, connection, 2)
                await savepoint.rollback()
                await publish(bus, connection, 3)
            await soon(lambda: numbers_of(seen) == [1, 3], SOON)

    async def test_a_connection_that_is_lost_before_the_commit_leaves_no_event(
        self, postgres_dsn: str, publish: Publish
    ) -> None:
        """It is the caller's transaction, and shares its fate."""
        async with running(postgres_dsn) as (bus, [seen]), connected(postgres_dsn) as connection:
            await connection.execute("BEGIN")
            await publish(bus, connection, 1)
            connection.terminate()
            await bus.publish("test.done", 2)
            await soon(lambda: numbers_of(seen) == [2])
            head = await bus.store.head()
            await soon(lambda: bus.subscription(ID).checkpoint == head)


@pytest.mark.parametrize("publish", [publish_one, publish_many, append], ids=lambda each: each.__name__)
class TestUnusable:
    """Connections without a transaction for the events: nothing is stored, and the error says what to do."""

    @pytest.mark.parametrize("is_begun", [False, True])
    async def test_one_that_is_closed_has_the_transaction_run_again_on_another(
        self, postgres_dsn: str, publish: Publish, is_begun: bool
    ) -> None:
        """Whoever has closed it; also if it was inside a transaction."""
        async with PgEventBus(postgres_dsn) as bus, connected(postgres_dsn) as connection:
            if is_begun:
                await connection.execute("BEGIN")
            connection.terminate()
            with pytest.raises(StoreUnavailableError, match=_GONE):
                await publish(bus, connection, 1)

            assert await bus.store.head() == 0

    async def test_so_has_one_that_the_server_has_ended(self, postgres_dsn: str, publish: Publish) -> None:
        """A pool has taken it back by itself then."""
        async with (
            PgEventBus(postgres_dsn) as bus,
            asyncpg.create_pool(postgres_dsn, min_size=1, max_size=1) as pool,
        ):
            connection = await pool.acquire()
            await connection.execute("BEGIN")
            await query(postgres_dsn, "SELECT pg_terminate_backend($1)", connection.get_server_pid())
            await soon(lambda: is_gone(connection))
            with pytest.raises(StoreUnavailableError, match=_GONE):
                await publish(bus, connection, 1)  # type: ignore[arg-type]

            assert await bus.store.head() == 0

    async def test_one_that_was_given_back_to_its_pool_is_told_the_same(
        self, postgres_dsn: str, publish: Publish
    ) -> None:
        """The driver does not tell the two apart."""
        async with (
            PgEventBus(postgres_dsn) as bus,
            asyncpg.create_pool(postgres_dsn, min_size=1, max_size=1) as pool,
        ):
            async with pool.acquire() as connection:
                await connection.execute("SELECT 1")
            with pytest.raises(StoreUnavailableError, match=_GONE):
                await publish(bus, connection, 1)  # type: ignore[arg-type]

            assert await bus.store.head() == 0

    async def test_one_outside_a_transaction_is_refused(self, postgres_dsn: str, publish: Publish) -> None:
        """The events would be stored at once, whatever becomes of what they tell."""
        async with PgEventBus(postgres_dsn) as bus, connected(postgres_dsn) as connection:
            with pytest.raises(
                InvalidConfigError, match=r"expected one inside a transaction .*nothing was stored"
            ):
                await publish(bus, connection, 1)

            assert await bus.store.head() == 0

    async def test_that_of_a_handler_that_has_returned_is_refused(
        self, postgres_dsn: str, publish: Publish
    ) -> None:
        """By then it is somebody else's."""
        bus, lent = PgEventBus(postgres_dsn), []

        async def keep(_: Event, connection: Any) -> None:
            lent.append(connection)

        bus.subscribe("*", keep, id=ID)
        async with bus:
            await bus.publish("test.done", 1)
            await bus.idle()
            with pytest.raises(InvalidConfigError, match=r"is over when it returns.*nothing was stored"):
                await publish(bus, lent[0], 2)

            assert await bus.store.head() == 1


class TestAnyClient:
    """The SQL function, from whatever speaks SQL; a bus that runs gets the event without polling."""

    async def test_psycopg(self, postgres_dsn: str) -> None:
        """In its transaction, after its commit."""
        async with running(postgres_dsn, poll_interval=NEVER) as (_, [seen]):
            async with await psycopg.AsyncConnection.connect(postgres_dsn) as connection:
                await connection.execute("SELECT postbus.publish('test.done', '1')")
                await connection.rollback()
                await connection.execute("SELECT postbus.publish('test.done', '2')")
                await connection.commit()
            await soon(lambda: numbers_of(seen) == [2], SOON)

    async def test_sqlalchemy(self, postgres_dsn: str) -> None:
        """In engine.begin()."""

        def publish() -> None:
            engine = sqlalchemy.create_engine(postgres_dsn.replace("postgresql://", "postgresql+psycopg://"))
            with engine.begin() as connection:
                connection.execute(sqlalchemy.text("SELECT postbus.publish('test.done', '2')"))
            engine.dispose()

        async with running(postgres_dsn, poll_interval=NEVER) as (_, [seen]):
            await asyncio.to_thread(publish)
            await soon(lambda: numbers_of(seen) == [2], SOON)

    async def test_psql(self, postgres_dsn: str) -> None:
        """From a shell."""
        async with running(postgres_dsn, poll_interval=NEVER) as (_, [seen]):
            psql: list[str | Path] = [
                find() / "psql",
                "--no-psqlrc",
                "-c",
                "SELECT postbus.publish('test.done', '2')",
                postgres_dsn,
            ]
            await asyncio.to_thread(lambda: subprocess.run(psql, check=True, capture_output=True))
            await soon(lambda: numbers_of(seen) == [2], SOON)


class TestNotifyModes:
    @pytest.mark.parametrize("notify", ["after_commit", "trigger"])
    async def test_another_process_is_woken_without_polling_also_by_300_kb(
        self, postgres_dsn: str, notify: Literal["after_commit", "trigger"]
    ) -> None:
        """A notification has at most 8000 bytes: it carries a number and never the data."""
        large = "x" * 300_000
        async with (
            running(postgres_dsn, poll_interval=NEVER, notify=notify) as (_, [seen]),
            PgEventBus(postgres_dsn, notify=notify) as other,
        ):
            await other.publish("test.done", large)
            await soon(lambda: numbers_of(seen) == [large], SOON)

    async def test_switched_off_another_process_gets_the_event_by_polling(self, postgres_dsn: str) -> None:
        """Within poll_interval."""
        async with (
            running(postgres_dsn, poll_interval=0.1, notify="off") as (_, [seen]),
            PgEventBus(postgres_dsn, notify="off") as other,
        ):
            await other.publish("test.done", 1)
            await soon(lambda: numbers_of(seen) == [1])

    async def test_the_trigger_tells_of_writers_that_know_nothing_of_postbus(self, postgres_dsn: str) -> None:
        """A plain INSERT is enough."""
        async with running(postgres_dsn, poll_interval=NEVER, notify="trigger") as (_, [seen]):
            await query(
                postgres_dsn,
                "INSERT INTO postbus.events (id, event_type, data) VALUES ('a', 'test.done', '1')",
            )
            await soon(lambda: numbers_of(seen) == [1], SOON)

    async def test_after_commit_a_transaction_with_events_can_be_prepared(self, postgres_dsn: str) -> None:
        """PostgreSQL refuses that for one that has notified; so nothing notifies inside it."""
        async with (
            running(postgres_dsn, poll_interval=NEVER) as (bus, [seen]),
            connected(postgres_dsn) as connection,
        ):
            await connection.execute("BEGIN")
            await bus.publish("test.done", 1, connection=connection)
            await connection.execute("PREPARE TRANSACTION 'a postbus test'")
            await bus.publish("test.done", 2)
            await soon(lambda: numbers_of(seen) == [2])
            await connection.execute("COMMIT PREPARED 'a postbus test'")
            await soon(lambda: numbers_of(seen) == [2, 1], SOON)


async def test_what_is_announced_to_nobody_is_found_by_polling(postgres_dsn: str) -> None:
    """A writer that notifies nobody is noticed after poll_interval at the latest."""
    bus, seen = PgEventBus(postgres_dsn, config=ReliableDeliveryConfig(poll_interval=0.2)), Seen()
    bus.subscribe("*", seen, id=ID)
    async with bus:
        await soon(lambda: bus.subscription(ID).state == "live")
        await query(
            postgres_dsn, "INSERT INTO postbus.events (id, event_type, data) VALUES ('a', 'test.done', '1')"
        )
        await soon(lambda: numbers_of(seen) == [1])
