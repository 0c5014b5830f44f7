"""A handler that takes the transaction: its row is deleted in it, so its effects are there exactly once."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import asyncpg
import pytest

from postbus import Event, RetryPolicy
from postbus.stores.postgres.pool import is_gone
from tests.competing.steps import (
    ID,
    Holding,
    MakeBus,
    compete,
    publish_numbers,
    query,
    rows_of,
    until,
    until_rows,
    within,
)

TABLE = "CREATE TABLE effects (number int, attempt int)"


class Inserting:
    """Inserts a row for each event; fails after that as often as it is told."""

    def __init__(self, failure_count: int = 0) -> None:
        self.calls: list[Any] = []
        self.failure_count = failure_count

    async def __call__(self, event: Event, connection: "asyncpg.Connection[asyncpg.Record]") -> None:
        self.calls.append(event.payload)
        attempt = self.calls.count(event.payload)
        await connection.execute("INSERT INTO effects VALUES ($1, $2)", event.payload, attempt)
        if attempt <= self.failure_count:
            raise ValueError(f"no {attempt}")


async def test_effects_of_every_event_are_there_once(make_bus: MakeBus, dsn: str) -> None:
    """Two instances, and no row is left."""
    await query(dsn, TABLE)
    buses, inserting = [make_bus(), make_bus()], Inserting()
    for bus in buses:
        compete(bus, inserting)
        await bus.start()
    await publish_numbers(buses[0], *range(100))
    for bus in buses:
        await within(20, bus.subscription(ID).caught_up())

    assert await query(dsn, "SELECT number, attempt FROM effects ORDER BY number") == [
        (number, 1) for number in range(100)
    ]
    assert await rows_of(dsn) == []


async def test_effects_of_failed_attempts_are_undone(make_bus: MakeBus, dsn: str) -> None:
    """Also of those of a dead letter, whose retry takes effect with the letter's resolution."""
    await query(dsn, TABLE)
    bus, inserting = make_bus(), Inserting(failure_count=2)
    compete(bus, inserting, retry=RetryPolicy(max_retries=1, base_delay=0.0))
    await publish_numbers(bus, 1, 2)
    await within(10, bus.idle())
    before = await query(dsn, "SELECT * FROM effects")
    letters = (await bus.dlq.list()).events
    for letter in letters:
        await bus.dlq.retry(letter.dead_letter_id)
    await until(lambda: len(inserting.calls) == 6)
    await until_rows(dsn, lambda rows: rows == [])

    assert before == []
    assert [letter.errors for letter in letters] == [["ValueError: no 1", "ValueError: no 2"]] * 2
    assert sorted(await query(dsn, "SELECT number, attempt FROM effects")) == [(1, 3), (2, 3)]
    assert (await bus.dlq.list()).total == 0


async def test_effects_of_a_handler_that_has_lost_its_row_are_undone(make_bus: MakeBus, dsn: str) -> None:
    """Another has claimed it: only what that one does counts."""
    await query(dsn, TABLE)
    bus, ends, calls = make_bus(), asyncio.Event(), []

    async def handle(event: Event, connection: "asyncpg.Connection[asyncpg.Record]") -> None:
        calls.append(event.payload)
        await connection.execute("INSERT INTO effects VALUES ($1, $2)", event.payload, len(calls))
        if len(calls) == 1:
            await ends.wait()

    compete(bus, handle)
    await publish_numbers(bus, 1)
    await until(lambda: calls == [1])
    # As a reaper would do.
    await query(
        dsn, "UPDATE postbus.event_bus_outbox SET status = 'pending', claim = claim + 1, worker = NULL"
    )
    await until(lambda: calls == [1, 1])
    ends.set()
    await within(10, bus.idle())

    assert await query(dsn, "SELECT number, attempt FROM effects") == [(1, 2)]


@pytest.mark.parametrize("is_used_after", [False, True])
async def test_a_transaction_that_was_cut_off_costs_no_attempt(
    make_bus: MakeBus, dsn: str, is_used_after: bool
) -> None:
    """The connection went, and it was not the event's fault: it comes again by itself."""
    await query(dsn, TABLE)
    bus, calls = make_bus(), []

    async def handle(event: Event, connection: "asyncpg.Connection[asyncpg.Record]") -> None:
        calls.append(event.payload)
        call_count = len(calls)
        await connection.execute("INSERT INTO effects VALUES ($1, $2)", event.payload, call_count)
        if call_count == 1:
            pid = await connection.fetchval("SELECT pg_backend_pid()")
            await query(dsn, "SELECT pg_terminate_backend($1)", pid)
            await until(lambda: is_gone(connection))
            if is_used_after:
                await connection.execute("SELECT 1")

    compete(bus, handle, retry=RetryPolicy(max_retries=0))
    await publish_numbers(bus, 1)
    await until(lambda: len(calls) >= 2)
    # Not until the bus is idle: the pool may lend the connection that went once more, and a subscriber that
    # waits for the store is not waited for.
    await until_rows(dsn, lambda rows: not rows)

    assert await query(dsn, "SELECT number, attempt FROM effects") == [(1, len(calls))]
    assert (await bus.dlq.list()).total == 0


async def test_a_limit_of_the_database_on_transactions_is_not_for_those_of_handlers(
    make_bus: MakeBus, dsn: str
) -> None:
    """They have a time limit of their own. Before PostgreSQL 17 there is none on transactions."""
    await query(dsn, TABLE)
    if (await query(dsn, "SELECT current_setting('transaction_timeout', true)"))[0][0] is not None:
        ((database,),) = await query(dsn, "SELECT quote_ident(current_database())")
        await query(dsn, f"ALTER DATABASE {database} SET transaction_timeout = '1s'")
    bus, calls = make_bus(), []

    async def handle(event: Event, connection: "asyncpg.Connection[asyncpg.Record]") -> None:
        calls.append(event.payload)
        while not await connection.fetchval("SELECT now() + interval '1.5 s' < clock_timestamp()"):
            pass
        await connection.execute("INSERT INTO effects VALUES ($1, $2)", event.payload, len(calls))

    compete(bus, handle, retry=RetryPolicy(max_retries=0))
    await publish_numbers(bus, 1)
    await within(20, bus.idle())

    assert await query(dsn, "SELECT number, attempt FROM effects") == [(1, 1)]
    assert (await bus.dlq.list()).total == 0


async def test_a_handler_can_not_end_the_transaction_itself(make_bus: MakeBus, dsn: str) -> None:
    """Its effects would be there although the row is not deleted."""
    await query(dsn, TABLE)
    bus = make_bus()

    async def handle(event: Event, connection: "asyncpg.Connection[asyncpg.Record]") -> None:
        await connection.execute("INSERT INTO effects VALUES ($1, 1)", event.payload)
        await connection.execute("COMMIT")

    compete(bus, handle, retry=RetryPolicy(max_retries=0))
    await publish_numbers(bus, 1)
    await within(10, bus.idle())

    assert await query(dsn, "SELECT * FROM effects") == []
    assert (await bus.dlq.list()).total == 1


async def test_no_more_rows_are_claimed_than_there_are_connections_for_handlers(make_bus: MakeBus) -> None:
    """They would wait for one here while other instances have connections to spare."""
    first, second = make_bus(bus={"pool_size": 4}), make_bus(bus={"pool_size": 4})
    holding: dict[str, Holding] = {"first": Holding(), "second": Holding()}

    def hold(name: str) -> Callable[[Event, Any], Awaitable[None]]:
        async def handle(event: Event, _: Any) -> None:
            await holding[name](event)

        return handle

    compete(first, hold("first"), concurrency=10)
    compete(second, hold("second"), concurrency=10)
    await first.start()
    await publish_numbers(first, *range(10))
    await until(lambda: holding["first"].running == 2)
    await second.start()
    await until(lambda: holding["second"].running == 2)
    for each in holding.values():
        each.released.set()
    await within(10, first.subscription(ID).caught_up())

    assert [each.most_at_once for each in holding.values()] == [2, 2]


async def test_a_shutdown_begins_with_no_other_event(make_bus: MakeBus, dsn: str) -> None:
    """Only handlers that run are waited for."""
    bus, holding = make_bus(bus={"pool_size": 3}), Holding()

    async def handle(event: Event, _: Any) -> None:
        await holding(event)

    compete(bus, handle, concurrency=5)
    await bus.start()
    await publish_numbers(bus, *range(5))
    await until(lambda: holding.running == 1)
    ending = asyncio.ensure_future(bus.shutdown())
    await until_rows(dsn, lambda rows: sum(row["status"] == "pending" for row in rows) == 4)
    holding.released.set()
    await within(10, ending)

    assert len(holding.ended) == 1
    assert len(await rows_of(dsn)) == 4
