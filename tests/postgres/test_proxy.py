"""The network that other tests break fails in the way it was told to."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import pytest

from tests.postgres.proxy import Direction, Proxy
from tests.postgres.server import Server
from tests.postgres.steps import Session, ask, until_executing

# asyncpg has several names for a lost connection.
LOST = (asyncpg.PostgresConnectionError, asyncpg.InterfaceError, OSError)
INSERT = "INSERT INTO rows VALUES ($1)"
COUNT = "SELECT count(*) FROM rows"


@pytest.fixture(autouse=True)
async def no_error_is_lost() -> AsyncIterator[None]:
    """What the proxy does to a connection is no error of the proxy."""
    unseen: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: unseen.append(context))
    yield

    assert not unseen, unseen


@pytest.fixture
async def dsn(postgres_dsn: str) -> str:
    """Straight to the server, past the proxy."""
    await ask(postgres_dsn, "CREATE TABLE rows (id int)")
    return postgres_dsn


@pytest.fixture
async def client(dsn: str, postgres_proxy: Proxy) -> AsyncIterator[Session]:
    """A connection through the proxy."""
    client = await asyncpg.connect(postgres_proxy.through(dsn))
    yield client
    client.terminate()


async def test_what_goes_in_comes_out(client: Session) -> None:
    """Also more than fits into any buffer, in both directions."""
    large = "x" * 3_000_000

    assert await client.fetchval("SELECT $1::text || '!'", large) == large + "!"


async def test_a_name_leads_to_a_database_through_the_proxy(postgres_proxy: Proxy) -> None:
    """The proxy knows how many are connected."""
    client = await asyncpg.connect(postgres_proxy.dsn("postgres"))

    assert postgres_proxy.connection_count == 1
    await client.close()


async def test_a_cut_ends_connections_and_lets_new_ones_through(
    client: Session, dsn: str, postgres_proxy: Proxy
) -> None:
    """The client learns of it at once, in the middle of a query."""
    query = asyncio.create_task(client.fetch("SELECT pg_sleep(60)"))
    await until_executing(dsn, "SELECT pg_sleep(60)")
    postgres_proxy.cut()

    with pytest.raises(LOST):
        await query
    assert await ask(postgres_proxy.through(dsn), "SELECT 1") == 1


async def test_a_network_that_swallows_answers_nobody(
    client: Session, dsn: str, postgres_proxy: Proxy
) -> None:
    """Neither end sees a closed connection; once the network is back, what was sent arrives."""
    postgres_proxy.swallow()
    insert = asyncio.create_task(client.execute("INSERT INTO rows VALUES (1)"))
    connect = asyncio.create_task(ask(postgres_proxy.through(dsn), "SELECT 2"))
    done, _ = await asyncio.wait([insert, connect], timeout=0.2)

    assert not done
    assert await ask(dsn, COUNT) == 0
    postgres_proxy.resume()
    assert await insert == "INSERT 0 1"
    assert await connect == 2


async def test_answers_are_swallowed_too(client: Session, dsn: str, postgres_proxy: Proxy) -> None:
    """A query that was already on its way is executed, and its answer waits."""
    query = "SELECT pg_advisory_lock(1)"
    holder = await asyncpg.connect(dsn)
    await holder.execute(query)
    waiting = asyncio.create_task(client.execute(query))
    await until_executing(dsn, query)
    postgres_proxy.swallow()
    await holder.close()
    # The client has the lock as soon as nobody else can take it.
    async with asyncio.timeout(30):
        while await ask(dsn, "SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"):
            pass
    done, _ = await asyncio.wait([waiting], timeout=0.2)

    assert not done
    postgres_proxy.resume()
    assert await waiting == "SELECT 1"


@pytest.mark.parametrize("direction", ["to_server", "to_client"])
@pytest.mark.parametrize("n_bytes", [0, 1, 7, 20])
async def test_a_connection_is_cut_after_so_many_bytes(
    client: Session, dsn: str, postgres_proxy: Proxy, direction: Direction, n_bytes: int
) -> None:
    """Also in the middle of a message, which then is worth nothing."""
    cut = postgres_proxy.cut_after(n_bytes, direction)

    with pytest.raises(LOST):
        await client.execute("INSERT INTO rows VALUES (1)")
    assert cut.is_set()
    # The server has got a part of the message, or all of it.
    assert await ask(dsn, COUNT) == (0 if direction == "to_server" else 1)
    assert await ask(postgres_proxy.through(dsn), "SELECT 1") == 1


async def test_bytes_are_counted_over_several_messages(client: Session, postgres_proxy: Proxy) -> None:
    """The cut comes where it was told to, not at the next message."""
    cut = postgres_proxy.cut_after(1000, "to_server")
    # A letter, four bytes of length, the text and a zero.
    for _ in range(1000 // len("Q....SELECT 1\0")):
        await client.execute("SELECT 1")

    assert not cut.is_set()
    with pytest.raises(LOST):
        await client.execute("SELECT 1")
    assert cut.is_set()


async def test_a_commit_happens_and_its_answer_gets_lost(
    client: Session, dsn: str, postgres_proxy: Proxy
) -> None:
    """The client can't know what became of its transaction, and the server has committed it."""
    bystander = await asyncpg.connect(postgres_proxy.through(dsn))
    lost = postgres_proxy.cut_before_answer_of(b"COMMIT")
    with pytest.raises(LOST):
        async with client.transaction():
            await client.execute(INSERT, 1)

    assert lost.is_set()
    assert await ask(dsn, COUNT) == 1
    assert await bystander.fetchval(COUNT) == 1
    await bystander.close()


@pytest.mark.parametrize("is_prepared", [False, True])
async def test_a_statement_is_executed_and_its_answer_gets_lost(
    client: Session, dsn: str, postgres_proxy: Proxy, is_prepared: bool
) -> None:
    """It is the execution that goes unanswered, not the preparation, whenever that was."""
    if is_prepared:
        await client.execute(INSERT, 1)
    lost = postgres_proxy.cut_before_answer_of(b"INSERT INTO rows")
    with pytest.raises(LOST):
        await client.execute(INSERT, 2)

    assert lost.is_set()
    assert await ask(dsn, "SELECT max(id) FROM rows") == 2


async def test_a_long_answer_gets_lost_as_a_whole(client: Session, dsn: str, postgres_proxy: Proxy) -> None:
    """The server begins to answer long before it commits."""
    postgres_proxy.cut_before_answer_of(b"generate_series")
    with pytest.raises(LOST):
        await client.fetch("INSERT INTO rows SELECT generate_series(1, 100000) RETURNING id")

    assert await ask(dsn, COUNT) == 100_000


async def test_only_one_answer_gets_lost(client: Session, dsn: str, postgres_proxy: Proxy) -> None:
    """The next one comes through."""
    postgres_proxy.cut_before_answer_of(b"INSERT")
    with pytest.raises(LOST):
        await client.execute(INSERT, 1)
    await ask(postgres_proxy.through(dsn), INSERT, 2)

    assert await ask(dsn, COUNT) == 2


async def test_the_proxy_of_a_stopped_server_hangs_up(own_postgres: Server) -> None:
    """And is there again with the server."""
    async with Proxy(own_postgres) as proxy:
        own_postgres.stop()
        with pytest.raises(LOST):
            await ask(proxy.dsn("postgres"), "SELECT 1")
        own_postgres.start()

        assert await ask(proxy.dsn("postgres"), "SELECT 1") == 1
