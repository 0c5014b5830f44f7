"""A handler's own mistake in a transaction is an attempt that failed, also if bus.publish met it."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import asyncpg
import pytest

from postbus import Event, PgEventBus, ReliableDeliveryConfig, StoreError
from postbus.stores.postgres import transactions
from tests.gaps.steps import ID, soon

Handle = Callable[[PgEventBus, Event, Any], Awaitable[object]]

_CONFIG = ReliableDeliveryConfig(max_retries=1, initial_retry_delay=0.01)


async def go_on_after_a_violation(bus: PgEventBus, event: Event, connection: Any) -> None:
    """The transaction is spoilt by then."""
    try:
        await connection.execute("INSERT INTO numbers VALUES ($1)", event.payload)
    except asyncpg.UniqueViolationError:
        await bus.publish("test.rejected", event.payload, connection=connection)


async def do_two_things_at_once(bus: PgEventBus, event: Event, connection: Any) -> None:
    """A connection does one after the other."""
    if event.global_sequence == 2:
        sleeping = connection.execute("SELECT pg_sleep(0.01)")
        await asyncio.gather(sleeping, bus.publish("test.done", 1, connection=connection))


async def go_on_after_a_time_limit(bus: PgEventBus, event: Event, connection: Any) -> None:
    """Of its own."""
    if event.global_sequence == 2:
        await connection.execute("SET LOCAL statement_timeout = '10ms'")
        with pytest.raises(asyncpg.QueryCanceledError):
            await connection.execute("SELECT pg_sleep(60)")
        await bus.publish("test.done", 1, connection=connection)


async def publish_where_it_has_to_wait(bus: PgEventBus, event: Event, connection: Any) -> None:
    """The statement of the bus meets the handler's own time limit."""
    if event.global_sequence == 2:
        await connection.execute("SET LOCAL statement_timeout = '1ms'")
        await bus.publish_many([("test.done", "x" * 1000)] * 5000, connection=connection)


MISTAKES = [
    go_on_after_a_violation,
    do_two_things_at_once,
    go_on_after_a_time_limit,
    publish_where_it_has_to_wait,
]


@pytest.mark.parametrize("mode", ["ordered", "competing"])
@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda each: each.__name__)
async def test_an_event_with_a_mistake_becomes_a_dead_letter_and_others_go_on(
    postgres_dsn: str, mistake: Handle, mode: str
) -> None:
    """After as many calls as it has attempts, but for those with others in one transaction."""
    other = await asyncpg.connect(postgres_dsn)
    await other.execute("CREATE TABLE numbers (number int PRIMARY KEY)")
    bus, calls = PgEventBus(postgres_dsn, config=_CONFIG), list[int | None]()

    async def handle(event: Event, connection: Any) -> None:
        calls.append(event.global_sequence)
        await mistake(bus, event, connection)

    options: dict[str, Any] = {"mode": mode, "concurrency": 1} if mode == "competing" else {}
    bus.subscribe("test.given", handle, id=ID, **options)
    try:
        async with bus:
            await bus.publish_many([("test.given", 1), ("test.given", 1), ("test.given", 2)])
            await soon(lambda: 3 in calls)
            async with asyncio.timeout(20):
                await bus.subscription(ID).caught_up()
            (letter,) = (await bus.dlq.list()).events
            reason = bus.subscription(ID).reason
    finally:
        await other.close()

    assert letter.global_sequence == 2
    assert len(letter.errors) == 2
    # The first batch has several events, and those before one that fails are handled again.
    assert calls.count(2) <= 4
    assert reason is None


async def let_in(dsn: str, is_open: bool) -> None:
    """Have the database take connections, or end those that there are and take no more."""
    server, name = dsn.rsplit("/", 1)
    admin = await asyncpg.connect(f"{server}/postgres")
    try:
        await admin.execute(f'ALTER DATABASE "{name}" ALLOW_CONNECTIONS {is_open}')
        if not is_open:
            await admin.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = $1", name
            )
    finally:
        await admin.close()


async def test_a_handler_whose_own_database_is_away_loses_no_attempt(
    postgres_dsn: str,
) -> None:
    """It asks its own bus, which can't be reached; when it can, the event is handled."""
    bus = PgEventBus(postgres_dsn, config=ReliableDeliveryConfig(max_retries=0))
    calls, errors = list[int | None](), list[StoreError]()

    async def handle(event: Event) -> None:
        calls.append(event.global_sequence)
        if len(calls) == 1:
            await let_in(postgres_dsn, False)
        try:
            await bus.store.get(event.id)
        except StoreError as error:
            errors.append(error)
            raise

    bus.subscribe("*", handle, id=ID)
    async with bus:
        await bus.publish("test.given", 1)
        await soon(lambda: bool(errors))
        await let_in(postgres_dsn, True)
        async with asyncio.timeout(30):
            await bus.subscription(ID).caught_up()
        letters = await bus.dlq.list()

    assert len(calls) >= 2
    assert letters.total == 0


@pytest.mark.parametrize("mode", ["ordered", "competing"])
async def test_a_server_that_is_out_of_memory_costs_no_attempt(postgres_dsn: str, mode: str) -> None:
    """It is the transaction of the bus that it has refused; the next one works."""
    bus, calls = PgEventBus(postgres_dsn, config=ReliableDeliveryConfig(max_retries=0)), list[int]()

    async def handle(event: Event, connection: Any) -> None:
        calls.append(event.payload)
        if len(calls) == 1:
            await connection.execute("DO $$ BEGIN RAISE 'no memory' USING ERRCODE = '53200'; END $$")

    options: dict[str, Any] = {"mode": mode} if mode == "competing" else {}
    bus.subscribe("*", handle, id=ID, **options)
    async with bus:
        await bus.publish("test.given", 1)
        await soon(lambda: len(calls) == 2)
        async with asyncio.timeout(20):
            await bus.subscription(ID).caught_up()
        letters = await bus.dlq.list()

    assert letters.total == 0


async def test_a_worker_whose_handler_was_refused_something_by_a_store_counts_the_attempt(
    postgres_dsn: str,
) -> None:
    """A plain StoreError says nothing about whether the store can be reached."""
    bus, calls = PgEventBus(postgres_dsn, config=_CONFIG), list[int]()

    async def handle(event: Event) -> None:
        calls.append(event.payload)
        raise StoreError("the database refused")

    bus.subscribe("*", handle, id=ID, mode="competing")
    async with bus:
        await bus.publish("test.given", 1)
        async with asyncio.timeout(20):
            await bus.subscription(ID).caught_up()
        (letter,) = (await bus.dlq.list()).events

    assert calls == [1, 1]
    assert letter.errors == ["StoreError: the database refused"] * 2


@pytest.mark.parametrize("mode", ["ordered", "competing"])
async def test_a_constraint_that_takes_too_long_makes_a_dead_letter(
    postgres_dsn: str, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is checked when the handler has returned, and takes the handler's time; others go on."""
    monkeypatch.setattr(transactions, "_LEAST_SECONDS", 0.1)
    connection = await asyncpg.connect(postgres_dsn)
    await connection.execute(
        "CREATE TABLE slow (number int); "
        "CREATE FUNCTION take_long() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN IF NEW.number = 1 THEN PERFORM pg_sleep(60); END IF; RETURN NULL; END $$; "
        "CREATE CONSTRAINT TRIGGER slow AFTER INSERT ON slow DEFERRABLE INITIALLY DEFERRED "
        "FOR EACH ROW EXECUTE FUNCTION take_long()"
    )
    bus = PgEventBus(postgres_dsn, config=_CONFIG, handler_timeout=1.0)

    async def handle(event: Event, transaction: Any) -> None:
        await transaction.execute("INSERT INTO slow VALUES ($1)", event.payload)

    options: dict[str, Any] = {"mode": mode, "concurrency": 1} if mode == "competing" else {}
    bus.subscribe("*", handle, id=ID, **options)
    async with bus:
        await bus.publish_many([("test.given", number) for number in range(4)])
        async with asyncio.timeout(30):
            await bus.subscription(ID).caught_up()
        (letter,) = (await bus.dlq.list()).events
        reason = bus.subscription(ID).reason
    written = await connection.fetch("SELECT number FROM slow ORDER BY number")
    await connection.close()

    assert letter.payload == 1
    assert ["TimeoutError: handler took longer than 1 s" in error for error in letter.errors] == [True] * 2
    assert [row[0] for row in written] == [0, 2, 3]
    assert reason is None
