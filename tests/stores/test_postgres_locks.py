"""A durable subscriber is active in one bus: advisory locks that end with the session."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from postbus.errors import StoreUnavailableError
from postbus.events import SubscriberId
from postbus.stores.postgres.database import Database
from postbus.stores.postgres.pace import Pace
from postbus.stores.postgres.subscriber_locks import PgSubscriberLocks
from tests.patience import PATIENCE
from tests.postgres.proxy import Proxy
from tests.postgres.server import Server
from tests.postgres.steps import ask
from tests.stores.postgres_steps import end_session, eventually, listening, opened

MAIL = SubscriberId("mail")
STOCK = SubscriberId("stock")

# As the specification has it.
_HOLDERS = """
SELECT count(*) FROM pg_locks
WHERE locktype = 'advisory' AND objsubid = 2
  AND classid::bigint = (('x' || substr(md5($1), 1, 8))::bit(32)::bigint)
  AND objid::bigint = (('x' || substr(md5($1), 9, 8))::bit(32)::bigint)
"""


@asynccontextmanager
async def locks_on(target: Any, **options: Any) -> AsyncIterator[tuple[Database, PgSubscriberLocks]]:
    """The locks of a bus of its own."""
    async with opened(target, **options) as database:
        locks = PgSubscriberLocks(database)
        try:
            yield database, locks
        finally:
            await locks.close()


async def until_acquired(locks: PgSubscriberLocks, subscriber_id: SubscriberId = MAIL) -> float:
    """Try again and again, as a standby does; how many seconds it took."""
    loop = asyncio.get_running_loop()
    began_at = loop.time()
    async with asyncio.timeout(15):
        while True:
            try:
                if await locks.try_acquire(subscriber_id):
                    return loop.time() - began_at
            except StoreUnavailableError:
                pass
            await asyncio.sleep(0.005)


async def test_one_bus_at_a_time_is_the_holder(postgres_dsn: str) -> None:
    """The other one gets the lock when the first lets go, and not before."""
    async with locks_on(postgres_dsn) as (_, first), locks_on(postgres_dsn) as (_, second):
        assert await first.try_acquire(MAIL)
        assert not await second.try_acquire(MAIL)
        assert await second.try_acquire(STOCK)
        first.release(MAIL)
        first.release(MAIL)

        assert await until_acquired(second) < 1
        assert not await first.try_acquire(MAIL)


async def test_a_bus_does_not_get_a_lock_twice(postgres_dsn: str) -> None:
    """Not even when it asks twice at the same moment: the server would give it."""
    async with locks_on(postgres_dsn) as (_, locks), locks_on(postgres_dsn) as (_, other):
        answers = await asyncio.gather(*(locks.try_acquire(MAIL) for _ in range(5)))
        again = await locks.try_acquire(MAIL)
        locks.release(MAIL)

        assert sorted(answers) == [False, False, False, False, True]
        assert not again
        await until_acquired(other)


async def test_a_lock_let_go_and_taken_again_is_held_once(postgres_dsn: str) -> None:
    """The release is on its way while the same bus asks again; the next release frees it for all."""
    async with locks_on(postgres_dsn) as (_, locks), locks_on(postgres_dsn) as (_, other):
        for _ in range(20):
            assert await locks.try_acquire(MAIL)
            locks.release(MAIL)
        assert await until_acquired(locks) < 1
        assert not await other.try_acquire(MAIL)
        locks.release(MAIL)
        await until_acquired(other)


async def test_the_key_is_that_of_the_specification(postgres_dsn: str) -> None:
    """Two numbers of four bytes each from the MD5 of the bus's name and the subscriber's id."""
    async with locks_on(postgres_dsn) as (_, locks):
        assert await locks.try_acquire(SubscriberId("projection:bücher"))

        assert await ask(postgres_dsn, _HOLDERS, "postbus:projection:bücher") == 1


async def test_buses_in_two_schemas_have_nothing_to_do_with_each_other(postgres_dsn: str) -> None:
    """The same subscriber id is another subscriber there."""
    async with (
        locks_on(postgres_dsn) as (_, first),
        locks_on(postgres_dsn, schema="shop") as (_, second),
    ):
        assert await first.try_acquire(MAIL)
        assert await second.try_acquire(MAIL)


async def test_a_lock_that_becomes_free_is_announced(postgres_dsn: str) -> None:
    """So that standbys try at once."""
    async with locks_on(postgres_dsn) as (database, locks), listening(postgres_dsn, database.channel) as by:
        await locks.try_acquire(MAIL)
        locks.release(MAIL)
        await eventually(lambda: by.heard == [""])

        assert await ask(postgres_dsn, _HOLDERS, "postbus:mail") == 0


async def test_a_standby_takes_over_at_once_after_a_clean_exit(postgres_dsn: str) -> None:
    """close() lets everything go, and says so."""
    async with locks_on(postgres_dsn) as (database, standby):
        async with locks_on(postgres_dsn) as (_, holder):
            await holder.try_acquire(MAIL)
            heard = asyncio.Event()
            database.session.on_notification(lambda _: heard.set())
        await asyncio.wait_for(heard.wait(), PATIENCE)

        assert await standby.try_acquire(MAIL)


async def test_a_lock_ends_with_the_backend_of_its_holder(postgres_dsn: str) -> None:
    """The holder is told once and holds nothing any more; whoever asks next gets it."""
    lost: list[str] = []
    async with locks_on(postgres_dsn) as (database, holder), locks_on(postgres_dsn) as (_, standby):
        holder.watch(lambda: lost.append("all"), None, 10.0)
        assert await holder.try_acquire(MAIL)
        assert await holder.try_acquire(STOCK)
        await end_session(postgres_dsn, database)
        assert lost == ["all"]
        assert await until_acquired(standby, MAIL) < 1
        assert await until_acquired(holder, STOCK) < 1
        assert not await holder.try_acquire(MAIL)

        # Not a lock of the new session.
        holder.release(MAIL)
        await holder.try_acquire(SubscriberId("another"))
        assert not await holder.try_acquire(MAIL)
        assert lost == ["all"]


async def test_a_lock_is_free_again_after_a_half_open_network(
    postgres_dsn: str, postgres_proxy: Proxy
) -> None:
    """The server ends the session that it hears nothing of; the bus itself needs no longer than that."""
    lost: list[str] = []
    through = postgres_proxy.through(postgres_dsn)
    async with locks_on(through) as (database, holder), locks_on(postgres_dsn) as (_, standby):
        holder.watch(lambda: lost.append("all"), None, 5.0)
        assert await holder.try_acquire(MAIL)
        # The server knows how long it may be silent.
        await eventually(lambda: database.session._told_pace == Pace.within(5.0))
        postgres_proxy.swallow()
        seconds = await until_acquired(standby)
        await eventually(lambda: lost == ["all"])

    assert seconds < 8


async def test_locks_are_lost_with_the_server_and_come_back_with_it(own_postgres: Server) -> None:
    """After a crash nobody holds anything."""
    lost: list[str] = []
    async with locks_on(own_postgres.dsn()) as (_, locks):
        locks.watch(lambda: lost.append("all"), None, 10.0)
        assert await locks.try_acquire(MAIL)
        own_postgres.kill()
        await eventually(lambda: lost == ["all"])
        with pytest.raises(StoreUnavailableError):
            await locks.try_acquire(MAIL)
        await asyncio.to_thread(own_postgres.start)
        assert await until_acquired(locks) < 5

    assert lost == ["all"]


async def test_nobody_is_told_of_a_loss_any_more_after_closing(postgres_dsn: str) -> None:
    """What closes in good order loses nothing."""
    lost: list[str] = []
    async with locks_on(postgres_dsn) as (_, locks):
        locks.watch(lambda: lost.append("all"), None, 10.0)
        await locks.try_acquire(MAIL)

    assert lost == []


async def test_a_cancelled_attempt_leaves_no_lock(postgres_dsn: str) -> None:
    """At whatever moment it is cancelled, another can have it soon."""
    async with locks_on(postgres_dsn) as (_, locks), locks_on(postgres_dsn) as (_, other):
        for turns in range(25):
            attempt = asyncio.create_task(locks.try_acquire(MAIL))
            for _ in range(turns):
                await asyncio.sleep(0)
            was_cancelled = attempt.cancel()
            result = await asyncio.gather(attempt, return_exceptions=True)
            assert was_cancelled is isinstance(result[0], asyncio.CancelledError)
            if not was_cancelled:
                locks.release(MAIL)
            await until_acquired(other)
            other.release(MAIL)
            await until_acquired(locks)
            locks.release(MAIL)
        # The very moment of the answer.
        for wait in range(40):
            attempt = asyncio.create_task(locks.try_acquire(MAIL))
            await asyncio.sleep(wait * 0.00005)
            if not attempt.cancel():
                locks.release(MAIL)
            await asyncio.gather(attempt, return_exceptions=True)
            await until_acquired(other)
            other.release(MAIL)
