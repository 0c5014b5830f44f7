"""Appending in the caller's own transaction: the events exist exactly when it commits."""

import asyncio
import contextlib
import sqlite3
from collections.abc import AsyncIterator

import asyncpg
import msgspec
import psycopg
import pytest

from postbus.errors import (
    DuplicateEventIdError,
    InvalidConfigError,
    StoreBusyError,
    StoreUnavailableError,
    WrongExpectedVersionError,
)
from postbus.stores.postgres.answers import Stored
from postbus.stores.postgres.appending import Appending
from postbus.stores.postgres.inserts import LARGEST_STATEMENT
from tests.contracts.steps import make_draft
from tests.postgres.steps import Session, ask
from tests.stores.appending_steps import (
    large_draft,
    open_appending,
    open_session,
    stored_ids,
    until_waiting_for_lock,
)

VERSIONS = (
    "SELECT array_agg(stream_version ORDER BY global_sequence) FROM postbus.events WHERE stream_id = $1"
)
COUNT = "SELECT count(*) FROM postbus.events"


@pytest.fixture
async def appending(postgres_dsn: str) -> AsyncIterator[Appending]:
    async with open_appending(postgres_dsn) as appending:
        yield appending


@pytest.fixture
async def session(postgres_dsn: str, appending: Appending) -> AsyncIterator[Session]:
    """A connection of somebody else to the same tables."""
    async with open_session(postgres_dsn) as session:
        yield session


async def test_the_events_exist_exactly_when_the_callers_transaction_commits(
    postgres_dsn: str, appending: Appending, session: Session
) -> None:
    """Not before, and not if it is rolled back."""
    for is_committed in (False, True):
        transaction = session.transaction()
        await transaction.start()
        (stored,) = await appending.insert_within(session, [make_draft(stream_id="a")])
        before = await ask(postgres_dsn, COUNT)
        await (transaction.commit() if is_committed else transaction.rollback())

        assert stored.stream_version == 1
        assert before == 0
        assert await ask(postgres_dsn, COUNT) == is_committed


@pytest.mark.parametrize("is_large", [False, True])
@pytest.mark.parametrize(
    ("flaw", "error"),
    [
        ({"expected_version": 9}, WrongExpectedVersionError),
        ({"id": "taken", "stream_id": None}, DuplicateEventIdError),
    ],
)
async def test_a_refusal_leaves_the_transaction_usable(
    appending: Appending,
    session: Session,
    is_large: bool,
    flaw: dict[str, object],
    error: type[Exception],
) -> None:
    """The caller may decide anew and commit; nothing of what was refused is stored."""
    await appending.append([make_draft(id="taken")])
    refused = [msgspec.structs.replace(make_draft(stream_id="a"), **flaw)]
    if is_large:
        refused = [large_draft(LARGEST_STATEMENT // 2, stream_id="a") for _ in range(3)] + refused
    async with session.transaction():
        await appending.insert_within(session, [make_draft(id="before")])
        with pytest.raises(error):
            await appending.insert_within(session, refused)
        await appending.insert_within(session, [make_draft(id="after")])

    assert await stored_ids(session) == ["taken", "before", "after"]


async def test_a_transaction_begun_by_a_statement_is_as_good_as_any(
    appending: Appending, session: Session
) -> None:
    """For a call of several statements too; one that is refused is undone alone."""
    large = [large_draft(LARGEST_STATEMENT // 2, stream_id="a") for _ in range(3)]
    await session.execute("BEGIN")
    with pytest.raises(WrongExpectedVersionError):
        await appending.insert_within(session, [*large, make_draft(stream_id="a", expected_version=9)])
    await appending.insert_within(session, large)
    await session.execute("COMMIT")

    assert await session.fetchval(VERSIONS, "a") == [1, 2, 3]


async def test_a_savepoint_takes_its_events_along(appending: Appending, session: Session) -> None:
    """Those of the transaction around it stay, and versions have no hole."""
    async with session.transaction():
        await appending.insert_within(session, [make_draft(stream_id="a")])
        with contextlib.suppress(ZeroDivisionError):
            async with session.transaction():
                await appending.insert_within(session, [make_draft(stream_id="a")])
                raise ZeroDivisionError
        await appending.insert_within(session, [make_draft(stream_id="a", expected_version=1)])

    assert await session.fetchval(VERSIONS, "a") == [1, 2]


async def test_a_given_id_that_is_there_is_no_error(appending: Appending, session: Session) -> None:
    """It is stored once, in whichever transaction."""
    given = make_draft(id="given", is_idempotent=True)
    async with session.transaction():
        first = await appending.insert_within(session, [given, make_draft()])
        again = await appending.insert_within(session, [given])

    assert first[0].sequence is not None
    assert again == [Stored(None, None)]


async def test_without_a_transaction_it_commits_by_itself(appending: Appending, session: Session) -> None:
    """A large call too, whole."""
    await appending.insert_within(session, [make_draft()])
    await appending.insert_within(session, [large_draft(LARGEST_STATEMENT // 2) for _ in range(3)])

    assert await session.fetchval(COUNT) == 4
    assert await appending.insert_within(session, []) == []


async def test_a_connection_of_a_pool_is_welcome(postgres_dsn: str, appending: Appending) -> None:
    """That is what most programs have."""
    async with (
        asyncpg.create_pool(postgres_dsn, min_size=0, max_size=1) as pool,
        pool.acquire() as connection,
        connection.transaction(),
    ):
        await appending.insert_within(connection, [make_draft()])

    assert await ask(postgres_dsn, COUNT) == 1


async def test_the_session_settings_of_the_caller_stay_as_they_are(
    postgres_dsn: str, appending: Appending, session: Session
) -> None:
    """Also when it has to wait; and its own lock_timeout counts."""
    settings = (
        "SELECT current_setting('lock_timeout') || current_setting('search_path') "
        "|| current_setting('enable_seqscan')"
    )
    await session.execute("SET lock_timeout = '300ms'")
    before = await session.fetchval(settings)
    async with open_session(postgres_dsn) as other:
        transaction = other.transaction()
        await transaction.start()
        await appending.insert_within(other, [make_draft(stream_id="a")])
        with pytest.raises(StoreBusyError, match="another transaction holds stream 'a', or one that shares"):
            await appending.insert_within(session, [make_draft(stream_id="free"), make_draft(stream_id="a")])
        async with session.transaction():
            waiting = asyncio.create_task(appending.insert_within(session, [make_draft(stream_id="a")]))
            await until_waiting_for_lock(postgres_dsn)
            await transaction.commit()
            await waiting

            assert await session.fetchval(settings) == before


async def test_a_transaction_that_sees_an_old_stream_is_told_to_run_again(
    appending: Appending, session: Session
) -> None:
    """Its version would be one that another has taken since."""
    transaction = session.transaction(isolation="repeatable_read")
    await transaction.start()
    await session.fetchval(COUNT)
    await appending.append([make_draft(stream_id="a")])
    with pytest.raises(StoreBusyError, match="run the transaction again"):
        await appending.insert_within(session, [make_draft(stream_id="a")])
    await transaction.rollback()

    assert await session.fetchval(VERSIONS, "a") == [1]


async def test_connections_of_other_drivers_are_refused_with_the_way_out(
    postgres_dsn: str, appending: Appending
) -> None:
    """The SQL function does the same for them."""
    async with await psycopg.AsyncConnection.connect(postgres_dsn) as connection:
        with contextlib.closing(sqlite3.connect(":memory:")) as embedded:
            wrong_ones = (connection, embedded, None, postgres_dsn)
        for wrong in wrong_ones:
            with pytest.raises(InvalidConfigError, match=r"asyncpg.*publish\(type, payload, …\).*'postbus'"):
                await appending.insert_within(wrong, [make_draft()])  # type: ignore[arg-type]

    assert await ask(postgres_dsn, COUNT) == 0


async def test_a_closed_connection_is_unavailable(postgres_dsn: str, appending: Appending) -> None:
    """A typed error, and nothing of ours is harmed."""
    connection = await asyncpg.connect(postgres_dsn)
    await connection.close()
    with pytest.raises(StoreUnavailableError):
        await appending.insert_within(connection, [make_draft()])
