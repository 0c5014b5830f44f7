"""Where a save has left the row of a checkpoint: the next one goes there, and nothing else is different."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from postbus.errors import SubscriberFencedError
from postbus.events import Gap, GlobalSequence, SubscriberId
from postbus.stores.postgres.checkpoints import PgCheckpoints
from tests.contracts.steps import MAIL
from tests.postgres.databases import Databases
from tests.postgres.server import Server
from tests.postgres.steps import Session
from tests.stores.checkpoint_steps import (
    START,
    make_database,
    open_checkpoints,
    open_session,
    progress,
    until_waiting_for_lock,
    until_waiting_for_standby,
    wait_for_standby,
)

_PLACE = "SELECT ctid FROM event_bus_checkpoints WHERE subscriber_id = $1"


@pytest.fixture
async def postgres_dsn(databases: Databases) -> AsyncIterator[str]:
    async with make_database(databases) as dsn:
        yield dsn


@pytest.fixture
async def checkpoints(postgres_dsn: str) -> AsyncIterator[PgCheckpoints]:
    async with open_checkpoints(postgres_dsn) as checkpoints:
        yield checkpoints


@pytest.fixture
async def session(postgres_dsn: str) -> AsyncIterator[Session]:
    """A connection of the test's own, which finds our tables."""
    async with open_session(postgres_dsn) as session:
        yield session


async def _position(checkpoints: PgCheckpoints, subscriber_id: SubscriberId = MAIL) -> int:
    found = await checkpoints.load(subscriber_id)
    assert found is not None
    return found.position


class TestFinding:
    @pytest.mark.parametrize("has_gap", [False, True])
    async def test_a_row_is_looked_for_once(
        self, postgres_dsn: str, session: Session, *, has_gap: bool
    ) -> None:
        """By its key the server would go through all the versions that it keeps for a long transaction."""
        async with open_checkpoints(postgres_dsn) as checkpoints:
            owner = await checkpoints.claim(MAIL, START)
            for number in range(10, 60):
                more = {"head": number, "open": (Gap(2, 2),)} if has_gap else {}
                await checkpoints.save(progress(owner, 1 if has_gap else number, **more))
        # What a connection has counted is known when it has ended.
        async with asyncio.timeout(10):
            counts = (0, 0)
            while counts[0] < 50:
                row = await session.fetchrow(
                    "SELECT n_tup_upd, idx_scan FROM pg_stat_user_tables "
                    "WHERE schemaname = 'postbus' AND relname = 'event_bus_checkpoints'"
                )
                assert row is not None
                counts = (row[0], row[1])

        # The claim, and the first save.
        assert counts[1] <= 3

    async def test_a_row_that_was_moved_is_found_again(
        self, checkpoints: PgCheckpoints, session: Session
    ) -> None:
        """By whatever means."""
        owner = await checkpoints.claim(MAIL, START)
        for number, statement in enumerate(
            [
                "VACUUM FULL event_bus_checkpoints",
                "UPDATE event_bus_checkpoints SET updated_at = now()",
                "WITH gone AS (DELETE FROM event_bus_checkpoints RETURNING *) "
                "INSERT INTO event_bus_checkpoints SELECT * FROM gone",
            ]
        ):
            await checkpoints.save(progress(owner, 10 * number + 1))
            before = await session.fetchval(_PLACE, MAIL)
            await session.execute(statement)
            assert await session.fetchval(_PLACE, MAIL) != before
            await checkpoints.save(progress(owner, 10 * number + 2))

            assert await _position(checkpoints) == 10 * number + 2


class TestAttempts:
    async def test_one_that_begins_is_written_and_forgotten_by_the_next_save(
        self, checkpoints: PgCheckpoints
    ) -> None:
        """Wherever the row is: what has ended the process is known to the next owner."""
        owner = await checkpoints.claim(MAIL, START)
        attempt = {"attempt_sequence": GlobalSequence(3), "attempt_count": 1}
        found = []
        for position, more in ((1, {}), (2, attempt), (3, {})):
            await checkpoints.save(progress(owner, position, **more))
            found.append(await checkpoints.load(MAIL))

        assert [each and (each.position, each.attempt_sequence, each.attempt_count) for each in found] == [
            (1, None, 0),
            (2, 3, 1),
            (3, None, 0),
        ]


class TestSafety:
    async def test_a_former_owner_moves_nothing(self, checkpoints: PgCheckpoints) -> None:
        """Though the row is where the present one has left it."""
        former = await checkpoints.claim(MAIL, START)
        present = await checkpoints.claim(MAIL, START)
        await checkpoints.save(progress(present, 5))
        with pytest.raises(SubscriberFencedError):
            await checkpoints.save(progress(former, 9))

        assert await _position(checkpoints) == 5

    async def test_what_was_read_on_another_server_is_not_written(self, checkpoints: PgCheckpoints) -> None:
        """A copy of the database has the same rows at the same places."""
        owner = await checkpoints.claim(MAIL, START)
        await checkpoints.save(progress(owner, 5, server=owner.server))
        with pytest.raises(SubscriberFencedError):
            await checkpoints.save(progress(owner, 9, server="another"))

        assert await _position(checkpoints) == 5

    async def test_the_row_of_another_at_that_place_stays_as_it_is(
        self, checkpoints: PgCheckpoints, session: Session
    ) -> None:
        """The server gives a place to another row when the one that was there is gone."""
        owner = await checkpoints.claim(MAIL, START)
        await checkpoints.save(progress(owner, 5))
        place = await session.fetchval(_PLACE, MAIL)
        await session.execute("CREATE TEMPORARY TABLE kept AS SELECT * FROM event_bus_checkpoints")
        await session.execute("DELETE FROM event_bus_checkpoints")
        await session.execute("VACUUM event_bus_checkpoints")
        await session.execute(
            "INSERT INTO event_bus_checkpoints (subscriber_id, last_global_sequence, epoch) "
            "SELECT 'other ' || number, 5, $1 FROM generate_series(1, 9) AS number",
            owner.epoch,
        )
        other = await session.fetchval(
            "SELECT subscriber_id FROM event_bus_checkpoints WHERE ctid = $1", place
        )
        assert other is not None
        await session.execute("INSERT INTO event_bus_checkpoints SELECT * FROM kept")
        await checkpoints.save(progress(owner, 9))

        assert (await _position(checkpoints), await _position(checkpoints, other)) == (9, 5)


class TestRaces:
    @pytest.mark.parametrize(
        ("change", "expected"),
        [("updated_at = now()", 9), ("last_global_sequence = 20, head = 20", 20)],
    )
    async def test_whoever_changes_the_row_at_the_same_time_comes_first(
        self, checkpoints: PgCheckpoints, session: Session, change: str, expected: int
    ) -> None:
        """The save waits, and then goes by what the row is like: it never moves back."""
        owner = await checkpoints.claim(MAIL, START)
        await checkpoints.save(progress(owner, 5))
        async with session.transaction():
            await session.execute(f"UPDATE event_bus_checkpoints SET {change}")
            save = asyncio.ensure_future(checkpoints.save(progress(owner, 9)))
            await until_waiting_for_lock(session)
        await save

        assert await _position(checkpoints) == expected

    async def test_who_is_fenced_at_the_same_time_moves_nothing(
        self, checkpoints: PgCheckpoints, session: Session
    ) -> None:
        """The next owner has the row already, and commits in a moment."""
        owner = await checkpoints.claim(MAIL, START)
        await checkpoints.save(progress(owner, 5))
        async with session.transaction():
            await session.execute("UPDATE event_bus_checkpoints SET epoch = epoch + 1")
            save = asyncio.ensure_future(checkpoints.save(progress(owner, 9)))
            await until_waiting_for_lock(session)
        with pytest.raises(SubscriberFencedError):
            await save

        assert await _position(checkpoints) == 5


async def test_what_has_to_be_on_disk_is_waited_for(own_postgres: Server) -> None:
    """Only a save that can be repeated does not wait: here for a standby that never comes."""
    async with (
        open_checkpoints(own_postgres.dsn()) as checkpoints,
        open_session(own_postgres.dsn()) as session,
    ):
        owner = await checkpoints.claim(MAIL, START)
        await checkpoints.save(progress(owner, 1))
        await wait_for_standby(session, "nobody")
        async with asyncio.timeout(30):
            await checkpoints.save(progress(owner, 2, is_repeatable=True))
        save = asyncio.ensure_future(checkpoints.save(progress(owner, 3)))
        await until_waiting_for_standby(session)

        assert not save.done()
        await wait_for_standby(session, "")
        await save
