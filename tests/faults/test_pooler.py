"""The pool behind a pooler in transaction mode: PgBouncer, or a small one where that can't be had.

Every transaction is on another connection than the one before; LISTEN, locks and prepared statements of a
session are gone with it.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator

import asyncpg
import pytest

from postbus import Event, PgEventBus, PgStateStore, Projection, ReliableDeliveryConfig, RetryPolicy
from tests.faults import pgbouncer
from tests.faults.pgbouncer import PgBouncer
from tests.faults.small_pooler import SmallPooler
from tests.faults.steps import query, until_live
from tests.gaps.steps import ID, Seen, soon, writer
from tests.postgres.existing import Postgres
from tests.postgres.steps import Session

CONFIG = ReliableDeliveryConfig(poll_interval=0.1, initial_retry_delay=0.01)
# So far apart that no event is found by polling in a test.
NEVER = 600.0


@pytest.fixture(scope="module")
def bouncer(postgres: Postgres) -> Iterator[PgBouncer | None]:
    """PgBouncer, if there is one for this machine."""
    program = pgbouncer.find()
    if program is None:
        yield None
        return
    with PgBouncer(program, postgres) as bouncer:
        yield bouncer


@pytest.fixture
async def pooled_dsn(bouncer: PgBouncer | None, postgres: Postgres, postgres_dsn: str) -> AsyncIterator[str]:
    """The database of the test, through a pooler."""
    if bouncer is not None:
        yield bouncer.through(postgres_dsn)
        return
    async with SmallPooler(postgres) as pooler:
        yield pooler.through(postgres_dsn)


@pytest.fixture
async def small_pooled_dsn(postgres: Postgres, postgres_dsn: str) -> AsyncIterator[str]:
    """The database of the test, through the small pooler."""
    async with SmallPooler(postgres) as pooler:
        yield pooler.through(postgres_dsn)


class Count(Projection[int]):
    """How many events there were."""

    subscriber_id = "count"

    def state_key(self, event: Event) -> str:
        return event.type

    def apply(self, state: int | None, event: Event) -> int:
        return (state or 0) + 1


async def exercise(bus: PgEventBus, dsn: str) -> None:
    """Publishers, subscribers of every kind, streams, states and dead letters, at once."""
    await query(dsn, "CREATE TABLE effects (number int)")
    all_seen = [Seen() for _ in range(5)]
    for number, seen in enumerate(all_seen):
        bus.subscribe("order.*", seen, id=f"subscriber-{number}")

    @bus.on("order.*", id="transactional")
    async def insert(event: Event, transaction: Session) -> None:
        await transaction.execute("INSERT INTO effects VALUES ($1)", event.payload)

    @bus.on("order.*", id="failing", retry=RetryPolicy(max_retries=1, base_delay=0.01))
    async def fail(event: Event) -> None:
        if event.payload == 7:
            raise ValueError("seven")

    count = Count(PgStateStore(bus.store, "counts", int))
    bus.subscribe(count)
    async with bus:
        await until_live(bus, "transactional", within=30)
        await asyncio.gather(
            *[bus.publish("order.placed", number) for number in range(50)],
            *[
                bus.publish("order.paid", number, stream_id=f"order-{number % 3}")
                for number in range(50, 100)
            ],
        )
        for subscriber_id in ("transactional", "failing", "count", *(f"subscriber-{n}" for n in range(5))):
            await bus.subscription(subscriber_id).caught_up(timeout=60)
        page = await bus.dlq.list()
        states = [await count.states.get("order.placed"), await count.states.get("order.paid")]

    for seen in all_seen:
        assert sorted(event.payload for event in seen.events) == list(range(100))
    assert sorted(await query(dsn, "SELECT number FROM effects")) == [(number,) for number in range(100)]
    assert [(letter.subscriber_id, letter.payload) for letter in page.events] == [("failing", 7)]
    assert states == [50, 50]


async def test_everything_works_through_a_pooler_with_a_session_of_its_own(
    postgres_dsn: str, pooled_dsn: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The pool goes through it, the one session that locks and listens does not."""
    caplog.set_level(logging.ERROR, "postbus")
    await exercise(PgEventBus(pooled_dsn, session_dsn=postgres_dsn, config=CONFIG), postgres_dsn)

    assert [
        record.getMessage() for record in caplog.records if "dead letter" not in record.getMessage()
    ] == []


async def test_everything_works_through_a_pool_of_the_users_own_without_prepared_statements(
    postgres_dsn: str, pooled_dsn: str
) -> None:
    """As asyncpg's documentation tells to make one for PgBouncer."""
    async with asyncpg.create_pool(pooled_dsn, min_size=0, max_size=5, statement_cache_size=0) as pool:
        await exercise(PgEventBus(pool, session_dsn=postgres_dsn, config=CONFIG), postgres_dsn)


async def test_everything_works_through_the_small_pooler_too(
    postgres_dsn: str, small_pooled_dsn: str
) -> None:
    """It stands in for PgBouncer where that can't be had, and so must be one."""
    await exercise(PgEventBus(small_pooled_dsn, session_dsn=postgres_dsn, config=CONFIG), postgres_dsn)


async def test_a_pooler_lends_its_connections_from_transaction_to_transaction(pooled_dsn: str) -> None:
    """Otherwise the tests of this file would show nothing."""
    await check_lends_by_transaction(pooled_dsn)


async def test_so_does_the_small_pooler(small_pooled_dsn: str) -> None:
    """In the same way."""
    await check_lends_by_transaction(small_pooled_dsn)


async def check_lends_by_transaction(dsn: str) -> None:
    # Two clients, so that there is more than one connection to lend.
    first, second = [await asyncpg.connect(dsn, statement_cache_size=0) for _ in range(2)]
    transaction = second.transaction()
    await transaction.start()
    held = await second.fetchval("SELECT pg_backend_pid()")
    before = {await first.fetchval("SELECT pg_backend_pid()") for _ in range(20)}
    held_at_last = await second.fetchval("SELECT pg_backend_pid()")
    await transaction.rollback()
    after = {await first.fetchval("SELECT pg_backend_pid()") for _ in range(20)}
    await first.close()
    await second.close()

    assert held == held_at_last
    assert held not in before
    assert held in after


async def test_wake_ups_come_by_the_session_that_is_direct(postgres_dsn: str, pooled_dsn: str) -> None:
    """Without polling, from a bus to another one."""
    seen = Seen()
    bus = PgEventBus(pooled_dsn, session_dsn=postgres_dsn, config=ReliableDeliveryConfig(poll_interval=NEVER))
    bus.subscribe("*", seen, id=ID)
    async with bus, PgEventBus(pooled_dsn, session_dsn=postgres_dsn) as other:
        await until_live(bus)
        event_id = await other.publish("test.done")
        await soon(lambda: [event.id for event in seen.events] == [event_id], 20)


async def test_gaps_are_closed_by_proof_through_a_pooler(postgres_dsn: str, pooled_dsn: str) -> None:
    """The sample and the page that is read after it are of one transaction, and so of one connection."""
    seen = Seen()
    bus = PgEventBus(pooled_dsn, session_dsn=postgres_dsn, config=CONFIG)
    bus.subscribe("*", seen, id=ID)
    async with bus, writer(postgres_dsn) as slow, writer(postgres_dsn) as other:
        await until_live(bus)
        await slow.run("BEGIN")
        gap = await slow.insert()
        beyond = await other.insert()
        await other.run("BEGIN")
        await other.draw()
        await other.run("ROLLBACK")
        last = await other.insert()
        await soon(lambda: seen.numbers == [beyond, last])

        assert bus.subscription(ID).checkpoint == gap - 1

        await slow.run("COMMIT")
        await soon(lambda: seen.numbers == [beyond, last, gap])
        await soon(lambda: bus.subscription(ID).checkpoint == last)


async def test_one_of_two_instances_behind_a_pooler_is_active_and_the_other_takes_over(
    postgres_dsn: str, pooled_dsn: str
) -> None:
    """The lock is held on the session."""
    first, second = (PgEventBus(pooled_dsn, session_dsn=postgres_dsn, config=CONFIG) for _ in range(2))
    seen = [Seen(), Seen()]
    first.subscribe("*", seen[0], id=ID)
    second.subscribe("*", seen[1], id=ID)
    async with second:
        async with first:
            await soon(
                lambda: {first.subscription(ID).state, second.subscription(ID).state} == {"live", "standby"}
            )
            active = seen[0] if first.subscription(ID).state == "live" else seen[1]
            await first.publish("test.done", 1)
            await soon(lambda: [event.payload for event in active.events] == [1])
        await second.publish("test.done", 2)
        await soon(lambda: [event.payload for event in seen[0].events + seen[1].events] == [1, 2])


async def test_without_a_direct_session_a_warning_says_so_and_polling_delivers(
    pooled_dsn: str, caplog: pytest.LogCaptureFixture
) -> None:
    """LISTEN has no effect there: once it is noticed, it is told, with what to do."""
    seen = Seen()
    bus = PgEventBus(pooled_dsn, config=CONFIG)
    bus.subscribe("*", seen, id=ID)
    async with bus, PgEventBus(pooled_dsn) as other:
        await until_live(bus)
        for number in range(20):
            await other.publish("test.done", number)
        await soon(lambda: [event.payload for event in seen.events] == list(range(20)), 30)
        await soon(lambda: "LISTEN has no effect" in caplog.text, 30)

    assert "session_dsn" in caplog.text
