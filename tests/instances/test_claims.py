"""A new owner does not wait for a transaction of the former one that does not end; and ends no other."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlsplit

import pytest

from postbus.errors import StoreError, SubscriberFencedError
from postbus.events import BatchOutcome, Checkpoint, Event, LogPosition, StateWrite, SubscriberId
from postbus.stores.postgres.checkpoints import PgCheckpoints
from postbus.stores.postgres.store import PgEventStore
from tests.contracts.steps import MAIL, STOCK, sequence_of
from tests.patience import PATIENCE
from tests.postgres.databases import Databases
from tests.postgres.steps import Session
from tests.stores.checkpoint_steps import (
    START,
    make_database,
    open_checkpoints,
    open_session,
    progress,
    store_event,
    until_waiting_for_lock,
)

# Of the handler: whoever waits for it has not taken over.
_LONG = 60.0
_ALIVE = "SELECT count(*) FROM pg_stat_activity WHERE pid = $1"


@pytest.fixture
async def postgres_dsn(databases: Databases) -> AsyncIterator[str]:
    async with make_database(databases) as dsn:
        yield dsn


@pytest.fixture
async def checkpoints(postgres_dsn: str) -> AsyncIterator[PgCheckpoints]:
    """Those of the former owner."""
    async with open_checkpoints(postgres_dsn) as checkpoints:
        yield checkpoints


@pytest.fixture
async def others(postgres_dsn: str) -> AsyncIterator[PgCheckpoints]:
    """Those of the new owner."""
    async with open_checkpoints(postgres_dsn) as checkpoints:
        yield checkpoints


@pytest.fixture
async def session(postgres_dsn: str) -> AsyncIterator[Session]:
    async with open_session(postgres_dsn) as session:
        yield session


class Batch:
    """One whose handler does not come to its end, unless it is let."""

    def __init__(self, checkpoints: PgCheckpoints, owner: Checkpoint, event: Event) -> None:
        self._checkpoints, self._owner, self._event = checkpoints, owner, event
        self.pid = 0
        self._has_begun, self.released = asyncio.Event(), asyncio.Event()

    async def begin(self) -> "asyncio.Task[BatchOutcome]":
        """Return when its handler is at work."""
        running = asyncio.create_task(
            self._checkpoints.process(
                self._owner.subscriber_id,
                self._owner.epoch,
                [self._event],
                self._handle,
                lambda _: LogPosition(sequence_of(self._event)),
                timeout=_LONG,
                time_budget=_LONG,
            )
        )
        await asyncio.wait_for(self._has_begun.wait(), 10)
        return running

    async def _handle(self, _: Event, connection: Any) -> None:
        self.pid = await connection.fetchval("SELECT pg_backend_pid()")
        self._has_begun.set()
        await self.released.wait()
        await connection.execute("SELECT 1")


async def test_a_batch_that_does_not_end_is_ended_by_the_new_owner(
    checkpoints: PgCheckpoints, others: PgCheckpoints, session: Session, caplog: pytest.LogCaptureFixture
) -> None:
    """Soon, although its handler has a minute; none of its effects is there, and it is told."""
    owner = await checkpoints.claim(MAIL, START)
    batch = Batch(checkpoints, owner, await store_event(session, "a"))
    running = await batch.begin()
    began_at = time.monotonic()
    claimed = await others.claim(MAIL, START)
    seconds = time.monotonic() - began_at
    batch.released.set()
    outcome = (await asyncio.gather(running, return_exceptions=True))[0]

    assert seconds < _LONG / 10
    assert (claimed.epoch, claimed.position) == (owner.epoch + 1, 0)
    assert isinstance(outcome, StoreError)
    assert f"process {batch.pid} of the server" in caplog.text
    with pytest.raises(SubscriberFencedError):
        await checkpoints.save(progress(owner, 1))


async def test_a_write_of_more_than_a_checkpoint_that_does_not_end_is_ended_too(
    checkpoints: PgCheckpoints, others: PgCheckpoints, session: Session
) -> None:
    """Such as one that stands still between the checkpoint of a saga and its state."""
    owner = await checkpoints.claim(MAIL, START)
    async with session.transaction():
        await session.execute("LOCK TABLE postbus_states")
        write = StateWrite(store_name="orders", key="1", state_json=b"1")
        saving = asyncio.create_task(checkpoints.save(progress(owner, 1, states=[write], write_id="w")))
        await until_waiting_for_lock(session)
        claimed = await asyncio.wait_for(others.claim(MAIL, START), 5)
    outcome = (await asyncio.gather(saving, return_exceptions=True))[0]

    assert isinstance(outcome, StoreError)
    assert (claimed.epoch, claimed.position) == (owner.epoch + 1, 0)
    assert await session.fetchval("SELECT count(*) FROM postbus_states") == 0


async def test_nobody_else_is_ended(
    checkpoints: PgCheckpoints, others: PgCheckpoints, session: Session
) -> None:
    """Not the batch of another subscriber, not one in another schema, not this process's own connections."""
    await session.execute("SELECT pg_advisory_lock(1, 2), pg_advisory_lock(3)")
    mail, stock = [await checkpoints.claim(each, START) for each in (MAIL, STOCK)]
    event = await store_event(session, "a")
    doomed, innocent = Batch(checkpoints, mail, event), Batch(checkpoints, stock, event)
    running, running_on = await doomed.begin(), await innocent.begin()
    pids = {row[0] for row in await session.fetch("SELECT pid FROM pg_stat_activity WHERE pid <> $1", 0)}
    await others.claim(MAIL, START)
    innocent.released.set()
    outcome = await running_on
    left = {row[0] for row in await session.fetch("SELECT pid FROM pg_stat_activity")}
    doomed.released.set()
    await asyncio.gather(running, return_exceptions=True)

    assert outcome == BatchOutcome(1)
    assert pids - left == {doomed.pid}


async def test_a_subscriber_with_a_name_like_that_of_a_batch_is_not_taken_for_one(
    checkpoints: PgCheckpoints, others: PgCheckpoints, session: Session, postgres_dsn: str
) -> None:
    """Its owner keeps its session, whoever takes "mail" over."""
    owner = await checkpoints.claim(MAIL, START)
    async with PgEventStore(postgres_dsn) as store:
        assert await store.subscriber_locks.try_acquire(SubscriberId(f"{MAIL}:batch"))
        batch = Batch(checkpoints, owner, await store_event(session, "a"))
        running = await batch.begin()
        pid = await store._database.session.run(lambda it: it.fetchval("SELECT pg_backend_pid()"))
        await asyncio.wait_for(others.claim(MAIL, START), 5)
        batch.released.set()
        outcome = (await asyncio.gather(running, return_exceptions=True))[0]

        assert isinstance(outcome, StoreError)
        assert await session.fetchval(_ALIVE, pid) == 1


async def test_a_stranger_who_has_locked_the_row_is_waited_for(
    others: PgCheckpoints, session: Session, postgres_dsn: str
) -> None:
    """An administrator who looks at it, say: that one is never ended."""
    await others.claim(MAIL, START)
    async with open_session(postgres_dsn) as stranger:
        pid = stranger.get_server_pid()
        transaction = stranger.transaction()
        await transaction.start()
        await stranger.execute("SELECT * FROM event_bus_checkpoints FOR UPDATE")
        claiming = asyncio.create_task(others.claim(MAIL, START))
        # Longer than a new owner waits for a former one.
        await asyncio.wait([claiming], timeout=0.6)
        is_claimed, is_alive = claiming.done(), await session.fetchval(_ALIVE, pid)
        await transaction.rollback()
        claimed = await asyncio.wait_for(claiming, PATIENCE)

    assert (is_claimed, is_alive) == (False, 1)
    assert claimed.epoch == 2


@asynccontextmanager
async def role_without_rights(dsn: str) -> AsyncIterator[str]:
    """A DSN of a role that may write our tables and end nobody's session."""
    async with open_session(dsn) as session:
        name = f"limited_{session.get_server_pid()}"
        await session.execute(f"CREATE ROLE {name} LOGIN")
        await session.execute(f"GRANT ALL ON SCHEMA postbus TO {name}")
        for things in ("TABLES", "SEQUENCES", "FUNCTIONS"):
            await session.execute(f"GRANT ALL ON ALL {things} IN SCHEMA postbus TO {name}")
        parts = urlsplit(dsn)
        place = parts.netloc.rpartition("@")[2]
        try:
            yield parts._replace(netloc=f"{name}@{place}").geturl()
        finally:
            await session.execute(f"DROP OWNED BY {name}; DROP ROLE {name}")


async def test_a_role_that_may_not_end_the_batch_waits_for_it_and_says_so_once(
    checkpoints: PgCheckpoints, session: Session, postgres_dsn: str, caplog: pytest.LogCaptureFixture
) -> None:
    """It is the owner as soon as the batch is over, which then counts."""
    event = await store_event(session, "a")
    async with (
        role_without_rights(postgres_dsn) as limited_dsn,
        open_checkpoints(limited_dsn) as limited,
    ):
        with caplog.at_level(logging.WARNING, "postbus"):
            for subscriber_id in (SubscriberId("first"), SubscriberId("second")):
                owner = await checkpoints.claim(subscriber_id, START)
                batch = Batch(checkpoints, owner, event)
                running = await batch.begin()
                claiming = asyncio.create_task(limited.claim(subscriber_id, START))
                await asyncio.wait([claiming], timeout=0.6)
                assert not claiming.done()
                batch.released.set()
                assert await running == BatchOutcome(1)
                claimed = await asyncio.wait_for(claiming, PATIENCE)
                assert (claimed.epoch, claimed.position) == (2, sequence_of(event))

    assert caplog.text.count("has to wait for a transaction of its former owner") == 1
