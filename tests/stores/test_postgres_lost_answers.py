"""Appending to PostgreSQL when the connection breaks: stored once, and told, or honestly unknown."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence

import pytest

from postbus.errors import (
    DuplicateEventIdError,
    StoreError,
    StoreUnavailableError,
    WrongExpectedVersionError,
)
from postbus.events import Draft
from postbus.stores.postgres import appending as appending_module
from postbus.stores.postgres import insisting
from postbus.stores.postgres.answers import Stored
from postbus.stores.postgres.appending import Appending
from postbus.stores.postgres.inserts import LARGEST_STATEMENT
from tests.contracts.steps import make_draft
from tests.postgres.proxy import Proxy
from tests.postgres.server import Server
from tests.stores.appending_steps import (
    Announced,
    large_draft,
    open_appending,
    open_session,
    stored_ids,
    until_waiting_for_lock,
)
from tests.stores.postgres_steps import eventually, opened


@pytest.fixture
async def far(postgres_dsn: str, postgres_proxy: Proxy) -> AsyncIterator[Appending]:
    """Appending over a network that may break."""
    async with open_appending(postgres_proxy.through(postgres_dsn)) as appending:
        yield appending


async def test_an_event_whose_statement_was_to_notify_is_stored_once(
    postgres_dsn: str, postgres_proxy: Proxy
) -> None:
    """Its answer got lost: its number is found, and announced."""
    announced, draft = Announced("a channel"), make_draft()
    async with open_appending(postgres_proxy.through(postgres_dsn), announced) as appending:
        executed = postgres_proxy.cut_before_answer_of(b"CALL")
        stored = await appending.append([draft])

        assert executed.is_set()
        assert stored == [Stored(1, None)]
        assert (announced.notified, announced.numbers) == ([], [(1, 1)])
    async with open_session(postgres_dsn) as session:
        assert await stored_ids(session) == [draft.id]


@pytest.mark.parametrize(
    ("statement", "drafts"),
    [
        (b"INSERT INTO", [make_draft()]),
        (b"INSERT INTO", [make_draft() for _ in range(3)]),
        (b"append_events(", [make_draft(stream_id="a", expected_version=0), make_draft(stream_id="a")]),
        (b"COMMIT", [large_draft(LARGEST_STATEMENT // 2) for _ in range(3)]),
    ],
    ids=["one", "three", "stream", "large"],
)
async def test_what_was_stored_without_our_getting_to_know_is_stored_once(
    postgres_dsn: str,
    postgres_proxy: Proxy,
    far: Appending,
    statement: bytes,
    drafts: Sequence[Draft],
) -> None:
    """The caller learns its numbers all the same."""
    executed = postgres_proxy.cut_before_answer_of(statement)
    async with asyncio.timeout(20):
        stored = await far.append(drafts)

    assert executed.is_set()
    async with open_session(postgres_dsn) as session:
        rows = await session.fetch(
            "SELECT global_sequence, stream_version, id FROM postbus.events ORDER BY global_sequence"
        )
    assert [tuple(row) for row in rows] == [
        (*each, draft.id) for each, draft in zip(stored, drafts, strict=True)
    ]


async def test_every_call_of_a_group_gets_its_own_answer(
    postgres_dsn: str, postgres_proxy: Proxy, far: Appending
) -> None:
    """Stored before the cut or after it, refused or there already."""
    await far.append([make_draft(id="taken", stream_id="a"), make_draft(id="given", is_idempotent=True)])
    executed = postgres_proxy.cut_before_answer_of(b"append_events(")
    calls = [
        [make_draft(id="new", stream_id="a")],
        [make_draft(id="given", is_idempotent=True)],
        [make_draft(id="late", stream_id="a", expected_version=0)],
        [make_draft(id="taken")],
        [make_draft(id="plain"), make_draft(id="plain too")],
    ]
    new, given, late, taken, plain = await asyncio.gather(
        *[far.append(call) for call in calls], return_exceptions=True
    )

    assert executed.is_set()
    assert (new, given) == ([Stored(3, 2)], [Stored(None, None)])
    assert isinstance(late, WrongExpectedVersionError)
    assert isinstance(taken, DuplicateEventIdError)
    assert plain == [Stored(4, None), Stored(5, None)]
    async with open_session(postgres_dsn) as session:
        assert await stored_ids(session) == ["taken", "given", "new", "plain", "plain too"]


async def test_an_event_of_somebody_else_is_not_taken_for_ours(postgres_proxy: Proxy, far: Appending) -> None:
    """An id factory that repeats itself is an error, whatever the network does."""
    await far.append([make_draft("order.paid", id="taken")])
    executed = postgres_proxy.cut_before_answer_of(b"INSERT INTO")
    with pytest.raises(DuplicateEventIdError):
        await far.append([make_draft("order.placed", id="taken")])

    assert executed.is_set()


@pytest.mark.parametrize("stream_id", [None, "a"])
async def test_a_statement_that_is_still_at_work_on_the_server_is_waited_for(
    postgres_dsn: str,
    postgres_proxy: Proxy,
    far: Appending,
    stream_id: str | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The connection is gone, its transaction is not: the second try must not pass it."""
    # With a stream the second try finds it held by the first, and has to come again.
    monkeypatch.setattr(appending_module, "_PATIENCE", "1ms")
    async with open_session(postgres_dsn) as session:
        transaction = session.transaction()
        await transaction.start()
        await session.execute("LOCK TABLE postbus.events IN SHARE MODE")
        call = asyncio.create_task(far.append([make_draft(id="slow", stream_id=stream_id)]))
        await until_waiting_for_lock(postgres_dsn)
        postgres_proxy.cut()
        await until_waiting_for_lock(postgres_dsn, count=2)
        await transaction.commit()
        async with asyncio.timeout(10):
            (stored,) = await call

        assert stored.sequence is not None
        assert await stored_ids(session) == ["slow"]


async def test_who_gives_up_says_that_nobody_knows(
    postgres_proxy: Proxy, far: Appending, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The caller must not take it for a refusal."""
    monkeypatch.setattr(insisting, "_LOST_SECONDS", 0.1)
    await far.append([make_draft()])

    async def keep_cutting() -> None:
        while True:
            await postgres_proxy.cut_before_answer_of(b"postbus").wait()

    cutting = asyncio.create_task(keep_cutting())
    with pytest.raises(StoreUnavailableError, match="may or may not have been stored"):
        await far.append([make_draft()])
    cutting.cancel()


async def test_a_store_that_is_closed_before_the_answer_is_found_says_that_nobody_knows(
    postgres_dsn: str, postgres_proxy: Proxy
) -> None:
    """It was sent: to say that the store was closed would be half the truth."""
    async with opened(postgres_proxy.through(postgres_dsn)) as database:
        executed = postgres_proxy.cut_before_answer_of(b"INSERT INTO")
        call = asyncio.create_task(Appending(database, Announced()).append([make_draft()]))
        await executed.wait()
        # Whoever tries to connect waits.
        postgres_proxy.swallow()
        await database.close()
        with pytest.raises(StoreUnavailableError, match="may or may not have been stored"):
            await call
        postgres_proxy.resume()


async def test_what_was_never_sent_is_refused_at_once(own_postgres: Server) -> None:
    """Nobody has to wonder whether it was stored."""
    async with open_appending(own_postgres.dsn("postgres")) as appending:
        own_postgres.stop()
        async with asyncio.timeout(5):
            with pytest.raises(StoreUnavailableError) as caught:
                await appending.append([make_draft()])

        assert "may or may not" not in str(caught.value)


async def test_appending_goes_on_when_the_server_is_back(own_postgres: Server) -> None:
    """Without a restart of ours; nothing that was acknowledged is missing."""
    dsn = own_postgres.dsn("postgres")
    async with open_appending(dsn) as appending:
        acknowledged: list[str] = []

        async def publish(name: int) -> None:
            for number in range(40):
                draft = make_draft(id=f"{name} {number}", is_idempotent=name % 2 == 0)
                with contextlib.suppress(StoreError):
                    await appending.append([draft])
                    acknowledged.append(draft.id)
                await asyncio.sleep(0.01)

        publishing = asyncio.gather(*[publish(name) for name in range(5)])
        await eventually(lambda: len(acknowledged) >= 20)
        own_postgres.kill()
        await asyncio.to_thread(own_postgres.start)
        await publishing
        await appending.append([make_draft(id="last")])

    async with open_session(dsn) as session:
        ids = await stored_ids(session)
    assert len(ids) == len(set(ids))
    assert set(acknowledged) <= set(ids)
    assert ids[-1] == "last"
