"""PgMembers: instances are listed for as long as their sessions live, and no longer."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from postbus.errors import StoreUnavailableError
from postbus.events import SubscriberId
from postbus.stores.postgres.database import Database
from postbus.stores.postgres.members import PgMembers
from postbus.stores.postgres.subscriber_locks import PgSubscriberLocks
from tests.postgres.steps import ask
from tests.stores.postgres_steps import end_session, eventually, opened, session_pid

GROUP = "mail/8"
_COUNT = """
SELECT count(*) FROM pg_locks
WHERE locktype = 'advisory' AND objsubid = 1 AND classid = ($1::bigint & 4294967295)::oid
"""


@asynccontextmanager
async def member_on(target: Any, **options: Any) -> AsyncIterator[tuple[Database, PgMembers]]:
    """An instance that has not joined anything yet."""
    async with opened(target, **options) as database:
        yield database, PgMembers(database)


async def until_listed(members: PgMembers, *expected: int | None) -> None:
    """Wait until the group has just these members."""
    async with asyncio.timeout(10):
        while await members.list(GROUP) != sorted(filter(None, expected)):  # noqa: ASYNC110
            await asyncio.sleep(0.005)


async def test_each_instance_is_listed_under_a_number_of_its_own(postgres_dsn: str) -> None:
    """That of the server's process behind its session; whoever has not joined sees the others too."""
    async with member_on(postgres_dsn) as (database, first), member_on(postgres_dsn) as (_, second):
        assert first.number is None
        assert await second.list(GROUP) == []
        await first.join(GROUP)
        assert await second.list(GROUP) == [first.number] == [await session_pid(database)]
        await second.join(GROUP)

        listed = await first.list(GROUP)
        assert listed == await second.list(GROUP) == sorted([first.number or 0, second.number or 0])
        assert len(set(listed)) == 2


async def test_groups_do_not_mix(postgres_dsn: str) -> None:
    """Not with other groups, and not with those of another bus in the same database."""
    async with (
        member_on(postgres_dsn) as (_, mine),
        member_on(postgres_dsn, schema="other") as (_, stranger),
    ):
        await mine.join(GROUP)
        await mine.join("stock/8")
        await stranger.join(GROUP)

        assert await mine.list(GROUP) == await mine.list("stock/8") == [mine.number]
        assert await stranger.list(GROUP) == [stranger.number]
        assert await mine.list("mail/4") == []


async def test_whoever_leaves_is_listed_no_more(postgres_dsn: str) -> None:
    """However often it has joined; and leaving twice is leaving once."""
    async with member_on(postgres_dsn) as (_, first), member_on(postgres_dsn) as (_, second):
        for members in (first, first, second):
            await members.join(GROUP)
        first.leave(GROUP)
        first.leave(GROUP)

        await until_listed(second, second.number)
        assert not first.has_joined(GROUP)


async def test_who_leaves_and_joins_at_once_is_listed_once(postgres_dsn: str) -> None:
    """Nothing is left of the membership before: a lock that is held twice would have to be released twice."""
    async with member_on(postgres_dsn) as (_, members), member_on(postgres_dsn) as (_, other):
        for _ in range(5):
            await members.join(GROUP)
            members.leave(GROUP)
        await members.join(GROUP)

        assert await other.list(GROUP) == [members.number]
        assert await ask(postgres_dsn, _COUNT, members.key_of(GROUP)) == 1
        members.leave(GROUP)
        await until_listed(other)
        assert await ask(postgres_dsn, _COUNT, members.key_of(GROUP)) == 0


async def test_a_session_that_ends_takes_its_memberships_with_it(postgres_dsn: str) -> None:
    """And the one that replaces it joins again as soon as somebody looks, under another number."""
    async with member_on(postgres_dsn) as (database, members), member_on(postgres_dsn) as (_, other):
        await members.join(GROUP)
        before = members.number
        await end_session(postgres_dsn, database)
        assert members.number is None
        await until_listed(other)
        await eventually(lambda: database.session.is_up)

        assert await members.list(GROUP) == [members.number]
        assert members.number not in (None, before)


async def test_who_has_left_does_not_come_back_with_a_new_session(postgres_dsn: str) -> None:
    """Only what was wanted last counts."""
    async with member_on(postgres_dsn) as (database, members), member_on(postgres_dsn) as (_, other):
        await members.join(GROUP)
        await end_session(postgres_dsn, database)
        members.leave(GROUP)
        await eventually(lambda: database.session.is_up)

        assert await members.list(GROUP) == await other.list(GROUP) == []


async def test_who_is_cancelled_while_it_joins_may_leave(postgres_dsn: str) -> None:
    """It has joined or it has not; once it leaves it is gone."""
    async with member_on(postgres_dsn) as (_, members), member_on(postgres_dsn) as (_, other):
        joining = asyncio.ensure_future(members.join(GROUP))
        await asyncio.sleep(0)
        joining.cancel()
        await asyncio.wait([joining])
        members.leave(GROUP)

        await until_listed(other)
        assert await ask(postgres_dsn, _COUNT, members.key_of(GROUP)) == 0


async def test_without_a_session_nobody_joins(postgres_dsn: str) -> None:
    """It is said at once, and done when there is a session again."""
    async with member_on(postgres_dsn) as (database, members):
        await end_session(postgres_dsn, database)
        with pytest.raises(StoreUnavailableError):
            await members.join(GROUP)
        await eventually(lambda: database.session.is_up)

        assert await members.list(GROUP) == [members.number]


async def test_the_holder_of_a_lock_is_known_by_its_number(postgres_dsn: str) -> None:
    """In the order in which it is asked for; nobody has what is free."""
    parts = [SubscriberId(f"mail#{index}/4") for index in range(4)]
    async with (
        member_on(postgres_dsn) as (first_database, first),
        member_on(postgres_dsn) as (second_database, second),
    ):
        first_locks, second_locks = PgSubscriberLocks(first_database), PgSubscriberLocks(second_database)
        await first.join(GROUP)
        await second.join(GROUP)
        assert await first_locks.try_acquire(parts[2])
        assert await second_locks.try_acquire(parts[0])
        assert await second_locks.try_acquire(parts[3])

        expected = [second.number, None, first.number, second.number]
        assert await first.holders(parts) == await second.holders(parts) == expected
        await first_locks.close()
        await second_locks.close()
