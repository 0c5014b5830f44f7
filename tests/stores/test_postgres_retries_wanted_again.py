"""Retries through the outbox: who asks for one while a worker is at another gets it, should that one fail."""

import asyncio
from typing import Any

import pytest

from postbus import Event, PgEventBus, PgEventStore, ReliableDeliveryConfig
from postbus.events import Checkpoint, DeadLetter, GlobalSequence, LogPosition, OutboxEntry, SubscriberId
from tests.contracts.shared_database import shared_database
from tests.contracts.steps import append, bury, is_called_soon, make_draft
from tests.patience import PATIENCE
from tests.stores.test_postgres_outbox import POOL, claim, dsn, progress, store

__all__ = ["dsn", "shared_database", "store"]

Options = dict[str, Any]


@pytest.fixture
async def owner(store: PgEventStore) -> Checkpoint:
    """Who feeds the outbox."""
    return await store.checkpoints.claim(POOL, LogPosition(GlobalSequence(0)))


@pytest.fixture
async def dead(store: PgEventStore, owner: Checkpoint) -> DeadLetter:
    """A dead letter that nobody wants retried yet."""
    (event,) = await append(store, make_draft())
    return await bury(store, owner, event)


async def feed(store: PgEventStore, owner: Checkpoint, *, dead_letter_id: str | None) -> None:
    """The only event there is, or the retry of its dead letter."""
    (event,) = await store.read_all()
    entry = OutboxEntry(event.global_sequence or GlobalSequence(0), event.id, dead_letter_id)
    await store.checkpoints.save(progress(owner, [event], outbox=[entry]))


async def wanted(store: PgEventStore) -> list[str]:
    return [letter.dead_letter_id for letter in await store.dead_letters.wanted_retries(POOL, 10)]


class TestFeeding:
    async def test_a_wish_ends_when_its_row_is_made(
        self, store: PgEventStore, owner: Checkpoint, dead: DeadLetter
    ) -> None:
        """Also one that came after it was read: the attempt begins later still."""
        await store.dead_letters.revive(dead.dead_letter_id)
        await store.dead_letters.wanted_retries(POOL, 10)
        await store.dead_letters.revive(dead.dead_letter_id)
        await feed(store, owner, dead_letter_id=dead.dead_letter_id)
        (claimed,) = await claim(store)
        await store.outbox.bury(POOL, claimed, ["again"])

        assert await wanted(store) == []
        assert (await store.dead_letters.get(dead.dead_letter_id)).errors == ["boom", "again"]

    @pytest.mark.parametrize("is_retry", [True, False])
    async def test_a_wish_waits_until_the_row_that_is_there_has_gone(
        self, store: PgEventStore, owner: Checkpoint, dead: DeadLetter, is_retry: bool
    ) -> None:
        """Nobody is made to read it in vain, and to feed it once more changes nothing."""
        await feed(store, owner, dead_letter_id=dead.dead_letter_id if is_retry else None)
        (claimed,) = await claim(store)
        await store.dead_letters.revive(dead.dead_letter_id)
        before = await wanted(store)
        await feed(store, owner, dead_letter_id=dead.dead_letter_id)
        if is_retry:
            await store.outbox.bury(POOL, claimed, ["old code"])
        else:
            await store.outbox.finish(POOL, [claimed], is_repeatable=False)

        assert before == []
        assert await wanted(store) == [dead.dead_letter_id]

    async def test_who_passed_a_wish_over_is_woken_when_the_row_has_gone(
        self, store: PgEventStore, owner: Checkpoint, dead: DeadLetter
    ) -> None:
        """It was woken for the wish already, and found nothing to do."""
        woken = asyncio.Event()
        await feed(store, owner, dead_letter_id=dead.dead_letter_id)
        (claimed,) = await claim(store)
        store.log.watch(woken.set)
        await store.dead_letters.revive(dead.dead_letter_id)
        assert await is_called_soon(woken)
        # Until nothing more is heard of that.
        await asyncio.sleep(0.3)
        woken.clear()
        await store.outbox.bury(POOL, claimed, ["old code"])

        assert await is_called_soon(woken)

    async def test_a_success_resolves_whatever_was_wished_meanwhile(
        self, store: PgEventStore, owner: Checkpoint, dead: DeadLetter
    ) -> None:
        """What was wanted is done."""
        await feed(store, owner, dead_letter_id=dead.dead_letter_id)
        (claimed,) = await claim(store)
        await store.dead_letters.revive(dead.dead_letter_id)
        await store.outbox.finish(POOL, [claimed], is_repeatable=False)

        assert await wanted(store) == []
        assert (await store.dead_letters.page(10, 0, None)).total == 0

    async def test_the_row_of_another_subscriber_is_in_nobodys_way(
        self, store: PgEventStore, owner: Checkpoint, dead: DeadLetter
    ) -> None:
        """Each pool has a row of its own for an event."""
        other = await store.checkpoints.claim(SubscriberId("other"), LogPosition(GlobalSequence(0)))
        await feed(store, other, dead_letter_id=None)
        await store.dead_letters.revive(dead.dead_letter_id)

        assert await wanted(store) == [dead.dead_letter_id]


@pytest.mark.parametrize("is_transactional", [False, True])
@pytest.mark.parametrize(
    "options", [{}, {"mode": "competing"}, {"partitions": 2}], ids=["ordered", "competing", "partitioned"]
)
async def test_a_bus_makes_the_attempt_that_was_asked_for_during_another(
    dsn: str, options: Options, is_transactional: bool
) -> None:
    """With the code that was mended meanwhile, and without waiting for a poll."""
    calls: list[str] = []
    is_mended, is_inside, goes_on, is_done = False, asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def handle(_: Event) -> None:
        calls.append("new code" if is_mended else "old code")
        if len(calls) == 2:
            is_inside.set()
            await goes_on.wait()
        if calls[-1] == "old code":
            raise ValueError
        is_done.set()

    async def handle_within(event: Event, _: object) -> None:
        await handle(event)

    config = ReliableDeliveryConfig(max_retries=0, poll_interval=PATIENCE)
    async with asyncio.timeout(PATIENCE / 2), PgEventBus(dsn, config=config) as bus:
        bus.subscribe("*", handle_within if is_transactional else handle, id=POOL, **options)
        event_id = await bus.publish("order.placed")
        await bus.idle()
        await bus.dlq.retry(event_id)
        await is_inside.wait()
        await bus.dlq.retry(event_id)
        is_mended = True
        goes_on.set()
        await is_done.wait()
        await bus.idle()
        left = await bus.dlq.list()

    assert calls == ["old code", "old code", "new code"]
    assert left.total == 0


class TestResolving:
    async def test_a_row_that_no_worker_has_begun_is_withdrawn(
        self, store: PgEventStore, owner: Checkpoint, dead: DeadLetter
    ) -> None:
        """There is nothing left to be done."""
        await store.dead_letters.revive(dead.dead_letter_id)
        await feed(store, owner, dead_letter_id=dead.dead_letter_id)
        await store.dead_letters.resolve(dead.id, "ann", None)

        assert await claim(store) == []

    async def test_the_row_of_the_event_itself_stays(
        self, store: PgEventStore, owner: Checkpoint, dead: DeadLetter
    ) -> None:
        """It is no retry: the event is delivered anew."""
        await feed(store, owner, dead_letter_id=None)
        await store.dead_letters.resolve(dead.dead_letter_id, "ann", None)

        assert len(await claim(store)) == 1

    @pytest.mark.parametrize("error", [None, "again"])
    async def test_what_a_worker_has_begun_changes_nothing_any_more(
        self, store: PgEventStore, owner: Checkpoint, dead: DeadLetter, error: str | None
    ) -> None:
        """It ends, and the letter is as it was resolved."""
        await store.dead_letters.revive(dead.dead_letter_id)
        await feed(store, owner, dead_letter_id=dead.dead_letter_id)
        (claimed,) = await claim(store)
        await store.dead_letters.resolve(dead.dead_letter_id, "ann", None)
        before = await store.dead_letters.get(dead.dead_letter_id)
        if error is None:
            await store.outbox.finish(POOL, [claimed], is_repeatable=False)
        else:
            await store.outbox.bury(POOL, claimed, [error])

        assert await store.dead_letters.get(dead.dead_letter_id) == before
        assert await claim(store) == []
