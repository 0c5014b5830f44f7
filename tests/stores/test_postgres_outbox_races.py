"""Rows of the outbox that change hands at an unlucky moment: none is taken for another, nor for gone."""

import asyncio
from collections.abc import AsyncIterator

import asyncpg
import pytest

from postbus import PgEventStore
from postbus.events import GlobalSequence, LogPosition, SubscriberId
from tests.stores.test_postgres_outbox import (
    POOL,
    append,
    claim,
    dsn,
    feed,
    other,
    progress,
    rows,
    shared_database,
    store,
)

__all__ = ["dsn", "other", "shared_database", "store"]

_SLOW_CLAIM = """
    ALTER FUNCTION postbus.claim_outbox RENAME TO claim_outbox_at_last;
    CREATE FUNCTION postbus.claim_outbox(text, integer, text, integer, bigint, integer, timestamptz, bigint)
    RETURNS TABLE (
        row_id bigint, row_claim bigint, number bigint, attempts integer, row_errors text,
        was_suspect boolean, letter text, due_at timestamptz, is_cut boolean
    ) LANGUAGE plpgsql AS $$ BEGIN
        PERFORM pg_advisory_xact_lock_shared(42);
        RETURN QUERY SELECT * FROM postbus.claim_outbox_at_last($1, $2, $3, $4, $5, $6, $7, $8);
    END $$
"""
_CLAIM_AS_EVER = """
    DROP FUNCTION postbus.claim_outbox;
    ALTER FUNCTION postbus.claim_outbox_at_last RENAME TO claim_outbox
"""


@pytest.fixture
async def slowness(store: PgEventStore, dsn: str) -> "AsyncIterator[asyncpg.Connection[asyncpg.Record]]":
    """As long as this connection has the lock 42, a claim that has begun does not look for rows yet."""
    connection = await asyncpg.connect(dsn)
    await store.outbox.join(POOL)
    await connection.execute(_SLOW_CLAIM)
    yield connection
    await connection.execute(_CLAIM_AS_EVER)
    await connection.close()


async def until_one_waits(connection: "asyncpg.Connection[asyncpg.Record]") -> None:
    waiting = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted AND objid = 42"
    async with asyncio.timeout(10):
        while not await connection.fetchval(waiting):  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_what_is_fed_while_a_claim_is_under_way_is_left_for_the_next_one(
    store: PgEventStore, other: PgEventStore, slowness: "asyncpg.Connection[asyncpg.Record]"
) -> None:
    """The claim sees the log as it was when it began: the event would be taken for one that is gone."""
    await slowness.execute("SELECT pg_advisory_lock(42)")
    claiming = asyncio.create_task(claim(store))
    await until_one_waits(slowness)
    (event,) = await feed(other, 1)
    await slowness.execute("SELECT pg_advisory_unlock(42)")

    assert await claiming == []
    assert [each.event for each in await claim(store)] == [event]


async def test_a_row_that_has_the_number_of_a_lost_one_is_another(store: PgEventStore, dsn: str) -> None:
    """A server that went down forgets what was not on its disk, and gives the same numbers again."""
    await feed(store, 1)
    (lost,) = await claim(store)
    connection = await asyncpg.connect(dsn)
    await connection.execute("TRUNCATE postbus.event_bus_outbox RESTART IDENTITY")
    await connection.close()
    (event,) = await append(store, 1)
    owner = await store.checkpoints.claim(POOL, LogPosition(GlobalSequence(0)))
    await store.checkpoints.save(progress(owner, [event]))
    (present,) = await claim(store)
    await store.outbox.finish(POOL, [lost], is_repeatable=False)

    assert present.row_id == lost.row_id
    assert [row["event_id"] for row in await rows(dsn)] == [event.id]


async def test_a_worker_that_ends_takes_nothing_from_its_successor_in_the_same_process(
    store: PgEventStore, other: PgEventStore
) -> None:
    """One that was unsubscribed may end late, and both have their rows under one number."""
    ending, staying = (lambda: None), (lambda: None)
    store.outbox.watch(POOL, ending)
    store.outbox.watch(POOL, staying)
    await feed(store, 1)
    assert len(await claim(store)) == 1
    await other.outbox.join(POOL)
    store.outbox.unwatch(POOL, ending)
    store.outbox.leave(POOL)
    await _let_it_leave(store, "others")
    assert await other.outbox.reap(POOL, 10.0) == 0

    store.outbox.unwatch(POOL, staying)
    store.outbox.leave(POOL)
    await _let_it_leave(store, "more")
    assert await other.outbox.reap(POOL, 10.0) == 1


async def _let_it_leave(store: PgEventStore, another_pool: str) -> None:
    # It begins with the next turn of the event loop; then the session does one thing after the other.
    await asyncio.sleep(0)
    await store.outbox.join(SubscriberId(another_pool))


@pytest.mark.parametrize("write", ["finish", "give_back"])
async def test_a_lease_that_is_renewed_meanwhile_holds_up_nothing(store: PgEventStore, write: str) -> None:
    """Rows end in another order than they were claimed in: two who wait for each other lose a second."""
    for _ in range(10):
        await feed(store, 400)
        claimed = await claim(store, 400)
        ended = claimed[::-1]
        outbox = store.outbox
        writing = (
            outbox.finish(POOL, ended, is_repeatable=True)
            if write == "finish"
            else outbox.give_back(POOL, ended)
        )
        await asyncio.gather(outbox.renew(POOL, claimed), writing)
        await outbox.finish(POOL, claimed, is_repeatable=True)
