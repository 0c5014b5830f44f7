"""The one session of a bus: alive, or replaced; never silently dead."""

import asyncio
import logging
from functools import partial
from typing import Any

import asyncpg
import pytest

from postbus.errors import StoreError, StoreUnavailableError
from postbus.stores.postgres import pace
from postbus.stores.postgres.database import Database
from postbus.stores.postgres.session import Session
from tests.postgres.proxy import Proxy
from tests.postgres.server import Server
from tests.postgres.steps import ask
from tests.stores.postgres_steps import end_session, eventually, opened, session_pid


class Watcher:
    """Notes what a session tells."""

    def __init__(self, session: Session) -> None:
        self.heard: list[int | None] = []
        self.lost_count = 0
        session.on_notification(self.heard.append)
        session.on_lost(self._lose)

    def has_heard(self, count: int) -> bool:
        """Whether so many notifications came."""
        return len(self.heard) == count

    def _lose(self) -> None:
        self.lost_count += 1


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """A session that proves itself often and does not wait long."""
    monkeypatch.setattr(pace, "_LONGEST_BEAT", 0.1)
    monkeypatch.setattr(pace, "_LONGEST_ANSWER", 0.5)


async def test_a_session_hears_numbers(postgres_dsn: str) -> None:
    """A notification carries a number, or nothing if something else has changed; the rest is not for us."""
    async with opened(postgres_dsn) as database:
        watcher = Watcher(database.session)
        for payload in ("7", "not a number", "", "-1", "8"):
            await ask(postgres_dsn, "SELECT pg_notify($1, $2)", database.channel, payload)
        await eventually(lambda: len(watcher.heard) >= 3)

    assert watcher.heard == [7, None, 8]


async def test_a_session_whose_backend_was_ended_is_replaced(postgres_dsn: str) -> None:
    """The loss is told at once and once; the new session listens, and says that something may be missed."""
    async with opened(postgres_dsn) as database:
        watcher = Watcher(database.session)
        old = await session_pid(database)
        await end_session(postgres_dsn, database)
        assert watcher.lost_count == 1
        seconds = await eventually(lambda: database.session.is_up)
        await eventually(lambda: watcher.heard == [None])
        await ask(postgres_dsn, "SELECT pg_notify($1, '5')", database.channel)
        await eventually(lambda: watcher.heard == [None, 5])

        assert seconds < 1
        assert watcher.lost_count == 1
        assert await session_pid(database) != old


async def test_a_session_comes_back_after_every_loss(postgres_dsn: str) -> None:
    """Ten times in a row: each loss is told once, each new session once."""
    async with opened(postgres_dsn) as database:
        watcher = Watcher(database.session)
        for number in range(1, 11):
            await end_session(postgres_dsn, database)
            await eventually(partial(watcher.has_heard, number))

        assert watcher.lost_count == 10
        assert watcher.heard == [None] * 10


async def test_a_killed_server_is_found_again(own_postgres: Server) -> None:
    """After SIGKILL and a restart everything goes on by itself, at most 5 s after the server is ready."""
    async with opened(own_postgres.dsn()) as database:
        watcher = Watcher(database.session)
        own_postgres.kill()
        await eventually(lambda: watcher.lost_count == 1)
        with pytest.raises(StoreUnavailableError):
            await database.fetch("SELECT 1")
        # Long enough that the time between two attempts has grown.
        await asyncio.sleep(1)
        await asyncio.to_thread(own_postgres.start)
        rows = await database.fetch("SELECT 1")
        seconds = await eventually(lambda: watcher.heard == [None])
        await ask(own_postgres.dsn(), "SELECT pg_notify($1, '5')", database.channel)
        await eventually(lambda: watcher.heard == [None, 5])

    assert seconds < 5
    assert [row[0] for row in rows] == [1]
    assert watcher.lost_count == 1


async def test_a_half_open_connection_is_noticed_and_replaced(
    postgres_dsn: str, postgres_proxy: Proxy
) -> None:
    """A network that swallows everything and closes nothing is noticed within 10 s."""
    async with opened(postgres_proxy.through(postgres_dsn)) as database:
        watcher = Watcher(database.session)
        # Proven once: else the first probe would do.
        await eventually(lambda: database.session._is_proven)
        postgres_proxy.swallow()
        seconds = await eventually(lambda: watcher.lost_count == 1, within=15)
        postgres_proxy.resume()
        await eventually(lambda: watcher.heard == [None])

        assert seconds <= 10
        assert watcher.lost_count == 1


async def test_idle_connections_are_given_up_with_the_session(
    postgres_dsn: str, postgres_proxy: Proxy, hasty: None
) -> None:
    """What has cut off the session may have cut them off too, and a statement would find out slowly."""
    async with opened(postgres_proxy.through(postgres_dsn)) as database:
        watcher = Watcher(database.session)
        before = (await database.fetch("SELECT pg_backend_pid()"))[0][0]
        postgres_proxy.swallow()
        await eventually(lambda: watcher.lost_count == 1)
        postgres_proxy.resume()
        after = (await database.fetch("SELECT pg_backend_pid()"))[0][0]

    assert before != after


async def test_a_listener_that_went_silent_is_replaced(postgres_dsn: str, hasty: None) -> None:
    """The connection answers, but what is sent to it does not come: it is replaced by one that listens."""
    async with opened(postgres_dsn) as database:
        watcher = Watcher(database.session)
        await eventually(lambda: database.session._is_proven)
        await database.session.run(lambda session: session.execute("UNLISTEN *"))
        await eventually(lambda: watcher.heard == [None])
        await ask(postgres_dsn, "SELECT pg_notify($1, '5')", database.channel)
        await eventually(lambda: watcher.heard == [None, 5])

    assert watcher.lost_count == 1


class DeafConnection(asyncpg.Connection):
    """LISTEN has no effect, as behind a pooler in transaction mode."""

    async def add_listener(self, channel: str, callback: Any) -> None:
        """Pretend."""


async def test_a_pooler_that_swallows_listen_is_told_of_once(
    postgres_dsn: str, hasty: None, caplog: pytest.LogCaptureFixture
) -> None:
    """One warning says what to do; the session stays, since another one would be no better."""

    async def connect() -> DeafConnection:
        return await asyncpg.connect(postgres_dsn, connection_class=DeafConnection)

    session = Session(connect, "channel", Database(postgres_dsn).queries("session.sql"))
    session.listen()
    watcher = Watcher(session)
    with caplog.at_level(logging.WARNING, "postbus"):
        await session.start()
        await eventually(lambda: "session_dsn" in caplog.text)
        # Another probe, and its answer.
        await asyncio.sleep(1)
        is_up = session.is_up
        await session.stop()

    assert is_up
    assert watcher.lost_count == 0
    assert caplog.text.count("session_dsn") == 1


async def test_a_session_that_is_about_to_listen_is_not_taken_for_a_deaf_one(
    postgres_dsn: str, hasty: None, caplog: pytest.LogCaptureFixture
) -> None:
    """It begins to listen at the moment at which it is to prove itself, or has to try twice."""

    class Reluctant(asyncpg.Connection):
        refusal_count = 0

        async def add_listener(self, channel: str, callback: Any) -> None:
            if not Reluctant.refusal_count:
                Reluctant.refusal_count += 1
                raise asyncpg.OutOfMemoryError("not now")
            await super().add_listener(channel, callback)

    for kind in (asyncpg.Connection, Reluctant):

        async def connect(kind: Any = kind) -> Any:
            return await asyncpg.connect(postgres_dsn, connection_class=kind)

        session = Session(connect, "channel", Database(postgres_dsn).queries("session.sql"))
        watcher = Watcher(session)
        await session.start()
        session.listen()
        # Told once that it listens, and then long enough for an answer that does not come.
        await eventually(partial(watcher.has_heard, 1))
        await asyncio.sleep(0.7)
        await ask(postgres_dsn, "SELECT pg_notify('channel', '5')")
        await eventually(partial(watcher.has_heard, 2))
        await session.stop()

        assert watcher.heard == [None, 5]
        assert watcher.lost_count == 0
    assert "session_dsn" not in caplog.text


async def test_the_server_ends_a_session_that_has_become_silent(postgres_dsn: str) -> None:
    """So that the locks of a host that vanished are free within 10 s."""
    async with opened(postgres_dsn) as database:
        limit = await database.session.run(lambda session: session.fetchval("SHOW idle_session_timeout"))
        assert limit == "8s"


async def test_a_cancelled_caller_does_not_cost_the_session(postgres_dsn: str) -> None:
    """What runs on the session goes on to its end, and others come after it."""
    done: list[int] = []

    async def slow(session: Any) -> None:
        done.append(await session.fetchval("SELECT 1 FROM pg_sleep(0.2)"))

    async with opened(postgres_dsn) as database:
        watcher = Watcher(database.session)
        caller = asyncio.create_task(database.session.run(slow))
        await asyncio.sleep(0.05)
        caller.cancel()
        with pytest.raises(asyncio.CancelledError):
            await caller
        await session_pid(database)

    assert done == [1]
    assert watcher.lost_count == 0


async def test_a_session_that_does_not_answer_is_given_up(postgres_dsn: str, hasty: None) -> None:
    """Its caller gets an error and the locks are lost, but nobody waits for ever."""
    async with opened(postgres_dsn) as database:
        watcher = Watcher(database.session)
        with pytest.raises(StoreUnavailableError):
            await database.session.run(lambda session: session.execute("SELECT pg_sleep(60)"))
        assert watcher.lost_count == 1
        await eventually(lambda: database.session.is_up)


async def test_an_error_of_a_statement_leaves_the_session_as_it_is(postgres_dsn: str) -> None:
    """The caller gets it; nothing is lost."""
    async with opened(postgres_dsn) as database:
        watcher = Watcher(database.session)
        with pytest.raises(StoreError, match="division by zero"):
            await database.session.run(lambda session: session.execute("SELECT 1/0"))

        assert await session_pid(database)
        assert watcher.lost_count == 0


async def test_a_session_that_is_down_refuses_at_once(own_postgres: Server) -> None:
    """Who needs it tries again later."""
    async with opened(own_postgres.dsn()) as database:
        own_postgres.kill()
        await eventually(lambda: not database.session.is_up)
        with pytest.raises(StoreUnavailableError, match="is down"):
            await session_pid(database)


async def test_stopping_is_no_loss(postgres_dsn: str) -> None:
    """A session that ends in good order tells nobody, and can be stopped again."""
    async with opened(postgres_dsn) as database:
        watcher = Watcher(database.session)
    await database.session.stop()
    await database.close()

    assert watcher.lost_count == 0


async def test_closing_is_quick_although_the_server_does_not_answer(
    postgres_dsn: str, postgres_proxy: Proxy
) -> None:
    """Half-open connections are closed without waiting for an answer that will not come."""
    async with opened(postgres_proxy.through(postgres_dsn)) as database:
        await database.fetch("SELECT 1")
        postgres_proxy.swallow()
        before = asyncio.get_running_loop().time()
        await database.close()
        seconds = asyncio.get_running_loop().time() - before

    assert seconds < 2.5


async def test_closing_is_quick_although_the_server_is_gone(own_postgres: Server) -> None:
    """Also while the session is being replaced."""
    async with opened(own_postgres.dsn()) as database:
        own_postgres.kill()
        await eventually(lambda: not database.session.is_up)
        before = asyncio.get_running_loop().time()
        await database.close()
        seconds = asyncio.get_running_loop().time() - before

    assert seconds < 2.5


@pytest.mark.parametrize(
    ("dsn", "place"),
    [
        ("postgresql://me:s3cret@127.0.0.1:1/shop", "database 'shop' on 127.0.0.1:1"),
        ("postgresql://me:s3cret@nowhere.invalid/shop", "database 'shop' on nowhere.invalid:5432"),
        (
            "postgresql:///shop?host=127.0.0.1&port=1&user=me&password=s3cret",
            "database 'shop' on 127.0.0.1:1",
        ),
        # A password that is not percent-encoded ends the part with the host.
        ("postgresql://me:s3cret#@127.0.0.1:1/shop", "the DSN can't be understood"),
        ("mysql://me:s3cret@127.0.0.1:1/shop", "the DSN can't be understood"),
    ],
)
async def test_a_failed_start_names_the_place_and_never_the_password(dsn: str, place: str) -> None:
    """Whoever reads the log can repair it and learns no secret, in the causes neither."""
    with pytest.raises(StoreError) as raised:
        await Database(dsn).open()

    assert place in str(raised.value)
    error: BaseException | None = raised.value
    while error is not None:
        assert "s3cret" not in f"{error} {error!r}"
        error = error.__cause__


async def test_a_database_that_could_not_be_opened_can_be_opened_later(own_postgres: Server) -> None:
    """A failed start leaves nothing behind."""
    own_postgres.stop()
    database = Database(own_postgres.dsn())
    with pytest.raises(StoreUnavailableError):
        await database.open()
    own_postgres.start()
    await database.open()
    try:
        assert (await database.fetch("SELECT 1"))[0][0] == 1
    finally:
        await database.close()
