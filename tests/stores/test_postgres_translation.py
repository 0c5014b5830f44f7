"""What the driver, the server and the network raise becomes an error that says what to do."""

import asyncio

import asyncpg
import pytest

from postbus.errors import (
    MigrationNeededError,
    StoreBusyError,
    StoreError,
    StoreFullError,
    StoreReadOnlyError,
    StoreUnavailableError,
)
from postbus.stores.postgres.translation import translate, translated


@pytest.fixture
async def connection(postgres_dsn: str) -> "asyncpg.Connection[asyncpg.Record]":
    """A connection of asyncpg, as it is."""
    return await asyncpg.connect(postgres_dsn)


@pytest.mark.parametrize(
    ("sqlstate", "kind"),
    [
        ("08006", StoreUnavailableError),
        ("57P01", StoreUnavailableError),
        ("57P02", StoreUnavailableError),
        ("57P03", StoreUnavailableError),
        ("57P05", StoreUnavailableError),
        ("53300", StoreUnavailableError),
        ("25P03", StoreUnavailableError),
        ("53100", StoreFullError),
        ("55P03", StoreBusyError),
        ("57014", StoreBusyError),
        ("40P01", StoreBusyError),
        ("40001", StoreBusyError),
        ("42501", StoreReadOnlyError),
        ("25006", StoreReadOnlyError),
        ("54000", StoreError),
        ("23505", StoreError),
        ("XX000", StoreError),
    ],
)
async def test_each_answer_of_the_server_has_its_error(
    connection: "asyncpg.Connection[asyncpg.Record]", sqlstate: str, kind: type[StoreError]
) -> None:
    """The server's words are in it, and the driver's error is its cause."""
    with pytest.raises(kind, match="the words of the server") as raised, translated():
        await connection.execute(
            f"DO $$ BEGIN RAISE EXCEPTION 'the words of the server' USING ERRCODE = '{sqlstate}'; END $$"
        )
    await connection.close()

    assert type(raised.value) is kind
    assert isinstance(raised.value.__cause__, asyncpg.PostgresError)


@pytest.mark.parametrize(
    "statement",
    [
        "SELECT id FROM nowhere.events",
        "SELECT id FROM events",
        "CREATE TABLE nowhere.events ()",
        "SELECT nothing()",
        "SELECT nothing",
    ],
)
async def test_missing_tables_ask_for_a_migration(
    connection: "asyncpg.Connection[asyncpg.Record]", statement: str
) -> None:
    """Whatever is missing, the message tells the command."""
    with pytest.raises(MigrationNeededError, match="postbus migrate"), translated():
        await connection.execute(statement)
    await connection.close()


async def test_a_closed_connection_is_unavailable(connection: "asyncpg.Connection[asyncpg.Record]") -> None:
    """The driver raises another error for it than for one that breaks."""
    await connection.close()
    with pytest.raises(StoreUnavailableError), translated():
        await connection.execute("SELECT 1")


async def test_a_connection_that_breaks_is_unavailable(
    connection: "asyncpg.Connection[asyncpg.Record]",
) -> None:
    """In the middle of a statement."""
    with pytest.raises(StoreUnavailableError), translated():
        await connection.execute("SELECT pg_terminate_backend(pg_backend_pid())")


async def test_a_refused_connection_is_unavailable() -> None:
    """Nobody listens there."""
    with pytest.raises(StoreUnavailableError), translated():
        await asyncpg.connect("postgresql://127.0.0.1:1/nothing")


async def test_a_timeout_is_unavailable_and_says_so(
    connection: "asyncpg.Connection[asyncpg.Record]",
) -> None:
    """The driver's error has no words at all."""
    with pytest.raises(StoreUnavailableError, match="no answer within the time limit"), translated():
        await connection.fetch("SELECT pg_sleep(60)", timeout=0.05)
    await connection.close()


async def test_a_wrong_use_of_the_driver_is_no_outage(
    connection: "asyncpg.Connection[asyncpg.Record]",
) -> None:
    """Trying again would not help."""
    kinds = []
    for arguments in (("closed",), ()):
        with pytest.raises(StoreError, match="refused") as raised, translated():
            await connection.fetch("SELECT $1::int", *arguments)
        kinds.append(type(raised.value))
    await connection.close()

    assert kinds == [StoreError, StoreError]


@pytest.mark.parametrize(
    "error", [asyncio.CancelledError(), KeyboardInterrupt(), LookupError("mine"), StoreFullError("ours")]
)
def test_what_is_not_of_the_driver_stays_as_it_is(error: BaseException) -> None:
    """A cancellation above all."""
    with pytest.raises(type(error)) as raised, translated():
        raise error

    assert raised.value is error
    assert translate(error) is None
