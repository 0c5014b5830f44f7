"""New connections begin at once: in catch-up the driver need not ask how lists are written or read."""

import asyncio
from collections.abc import AsyncIterator

import asyncpg
import pytest

from postbus.events import Gap, GlobalSequence, SubscriberId
from postbus.policy.patterns import TypeFilter
from postbus.stores.postgres.number_lists import to_literal
from postbus.stores.postgres.store import PgEventStore
from tests.postgres.databases import Databases
from tests.stores.checkpoint_steps import START, make_database, progress
from tests.stores.log_steps import insert, open_writer, position

_POOL_SIZE = 3
_ASKED = "SELECT count(*) FROM pg_prepared_statements WHERE statement LIKE 'WITH RECURSIVE typeinfo_tree%'"
_GAP = Gap(GlobalSequence(2), GlobalSequence(3))


@pytest.fixture
async def postgres_dsn(databases: Databases) -> AsyncIterator[str]:
    async with make_database(databases) as dsn:
        yield dsn


async def test_catching_up_asks_for_no_types(postgres_dsn: str) -> None:
    """Which takes longer than a page of a thousand events, on each connection."""
    async with PgEventStore(postgres_dsn) as other:
        claims = [await other.checkpoints.claim(SubscriberId(name), START) for name in "ab"]
    async with (
        asyncpg.create_pool(postgres_dsn, min_size=_POOL_SIZE, max_size=_POOL_SIZE) as pool,
        PgEventStore(pool, session_dsn=postgres_dsn) as store,
        open_writer(postgres_dsn) as writer,
    ):
        await insert(writer, [1, 4, 6])
        for wanted in (None, TypeFilter(["a"]), TypeFilter(["b"])):
            await store.log.read(START, 100, wanted)
            await store.log.read(position(4, (2, 3)), 100, wanted)
        await asyncio.gather(
            *(store.checkpoints.save(progress(each, 1, head=4, open=(_GAP,))) for each in claims)
        )
        await store.checkpoints.save(progress(claims[0], 1, head=6, open=(_GAP,)))
        async with pool.acquire() as one, pool.acquire() as two, pool.acquire() as three:
            asked = [await connection.fetchval(_ASKED) for connection in (one, two, three)]
        saved = [await store.checkpoints.load(each.subscriber_id) for each in claims]

    assert asked == [0, 0, 0]
    assert [each and (each.position, each.head, each.open) for each in saved] == [
        (1, 6, (_GAP,)),
        (1, 4, (_GAP,)),
    ]


def test_a_list_is_written_as_postgresql_does() -> None:
    """Also an empty one; no number is zero."""
    assert (to_literal([]), to_literal([7]), to_literal(iter([1, None, 3]))) == ("{}", "{7}", "{1,0,3}")
