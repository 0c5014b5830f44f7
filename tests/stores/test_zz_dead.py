import asyncio, asyncpg, time
from tests.stores.test_postgres_outbox import POOL, append, claim, feed, dsn, store, other, shared_database
async def test_dead(store, other, dsn):
    bad = 0
    for i in range(15):
        await feed(store, 400)
        cl = await claim(store, 400)
        t=time.perf_counter()
        r = await asyncio.gather(store.outbox.renew(POOL, cl), store.outbox.finish(POOL, cl[::-1], is_repeatable=True), return_exceptions=True)
        print(len(cl), time.perf_counter()-t, [repr(x)[:150] for x in r])
    assert 0
