"""PgDeadLetters: events that come too late, and retries in other processes, on a real server."""

import asyncio
from collections.abc import AsyncIterator, Iterable
from datetime import timedelta

import pytest

from postbus.errors import SubscriberFencedError
from postbus.events import Event, FencedOwner, Gap, GlobalSequence, SubscriberId
from postbus.policy.patterns import TypeFilter
from postbus.stores.postgres import PgEventStore
from postbus.testing import ManualClock
from tests.contracts.steps import MAIL, NOON, STOCK, append, bury, is_called_soon, make_draft
from tests.postgres.databases import Databases
from tests.postgres.steps import Session
from tests.stores.checkpoint_steps import START, make_database, progress
from tests.stores.log_steps import insert, numbers_of, open_log, open_writer


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def postgres_dsn(databases: Databases) -> AsyncIterator[str]:
    async with make_database(databases) as dsn:
        yield dsn


@pytest.fixture
async def store(postgres_dsn: str, clock: ManualClock) -> AsyncIterator[PgEventStore]:
    async with open_log(postgres_dsn, clock) as store:
        yield store


@pytest.fixture
async def writer(store: PgEventStore, postgres_dsn: str) -> AsyncIterator[Session]:
    """Another program, which writes events as it likes."""
    async with open_writer(postgres_dsn) as writer:
        yield writer


async def _give_up(store: PgEventStore, subscriber_id: SubscriberId, *gaps: tuple[int, int]) -> None:
    owner = await store.checkpoints.claim(subscriber_id, START)
    given_up = tuple(Gap(*gap) for gap in gaps)
    await store.checkpoints.save(progress(owner, 0, given_up=given_up))


async def _bury_late(
    store: PgEventStore, subscriber_id: SubscriberId = MAIL, patterns: Iterable[str] = ("order.*",)
) -> list[Event]:
    owner = await _owner(store, subscriber_id)
    return await store.dead_letters.bury_late(
        subscriber_id, TypeFilter(list(patterns)), "came too late", owner
    )


async def _owner(store: PgEventStore, subscriber_id: SubscriberId = MAIL) -> FencedOwner:
    checkpoint = await store.checkpoints.load(subscriber_id)
    return FencedOwner(subscriber_id, 0 if checkpoint is None else checkpoint.epoch)


class TestBuryLate:
    async def test_one_who_is_no_longer_the_owner_writes_nothing(
        self, store: PgEventStore, writer: Session
    ) -> None:
        """It is told so, and the present owner finds the event."""
        await _give_up(store, MAIL, (1, 1))
        former = await _owner(store)
        await insert(writer, [1])
        await store.checkpoints.claim(MAIL, START)

        with pytest.raises(SubscriberFencedError):
            await store.dead_letters.bury_late(MAIL, None, "came too late", former)
        assert (await store.dead_letters.page(10, 0, MAIL)).total == 0
        assert numbers_of(await store.dead_letters.bury_late(MAIL, None, "late", await _owner(store))) == [1]

    async def test_an_event_at_a_number_that_was_given_up_becomes_a_dead_letter(
        self, store: PgEventStore, writer: Session, clock: ManualClock
    ) -> None:
        """Of this subscriber, with the reason; nothing that was published is lost unseen."""
        await _give_up(store, MAIL, (2, 3))
        await insert(writer, [1, 2, 4])
        late = await _bury_late(store)

        assert late == [await store.get("event-2")]
        (dead,) = (await store.dead_letters.page(10, 0, None)).events
        assert (dead.id, dead.subscriber_id, dead.payload) == ("event-2", MAIL, 2)
        assert (dead.errors, dead.dlq_at) == (["came too late"], clock.now())

    async def test_each_is_reported_once(self, store: PgEventStore, writer: Session) -> None:
        """Even after its dead letter was resolved or purged; one that comes later still is."""
        await _give_up(store, MAIL, (1, 3), (5, 5))
        await insert(writer, [2, 5, 6])
        reported = [numbers_of(await _bury_late(store))]
        await store.dead_letters.purge(NOON + timedelta(days=1000))
        reported.append(numbers_of(await _bury_late(store)))
        await insert(writer, [3])
        reported.append(numbers_of(await _bury_late(store)))

        assert reported == [[2, 5], [], [3]]
        assert (await store.dead_letters.page(10, 0, None)).total == 1

    async def test_what_was_given_up_stays_on_record(self, store: PgEventStore, writer: Session) -> None:
        """With the numbers that came after all."""
        await _give_up(store, MAIL, (1, 3))
        await insert(writer, [2, 3])
        await _bury_late(store)
        row = await writer.fetchrow(
            "SELECT first_sequence, last_sequence, late_sequences FROM event_bus_gap_timeouts"
        )

        assert row is not None
        assert tuple(row) == (1, 3, [2, 3])

    async def test_only_wanted_types_are_buried(self, store: PgEventStore, writer: Session) -> None:
        """None stands for all; the others are none of the subscriber's business."""
        await _give_up(store, MAIL, (1, 4))
        await insert(writer, [1, 3], "mail.sent")
        await insert(writer, [2])
        wanted = await _bury_late(store)
        exact = await _bury_late(store, patterns=["order.placed", "mail.opened"])
        all_types = await store.dead_letters.bury_late(MAIL, None, "came too late", await _owner(store))

        assert [numbers_of(late) for late in (wanted, exact, all_types)] == [[2], [], [1, 3]]

    async def test_subscribers_do_not_share_what_they_gave_up(
        self, store: PgEventStore, writer: Session
    ) -> None:
        """What one has given up another may have delivered."""
        await _give_up(store, MAIL, (1, 1))
        await _give_up(store, STOCK, (1, 1), (2, 2))
        await insert(writer, [1, 2])

        assert numbers_of(await _bury_late(store)) == [1]
        assert numbers_of(await _bury_late(store, STOCK)) == [1, 2]

    async def test_many_that_come_at_once_are_all_buried(self, store: PgEventStore, writer: Session) -> None:
        """However large the transaction was that came too late."""
        await _give_up(store, MAIL, (1, 250), (251, 260))
        await insert(writer, range(1, 261))

        assert numbers_of(await _bury_late(store)) == list(range(1, 261))
        assert (await store.dead_letters.page(1, 0, None)).total == 260

    async def test_two_instances_bury_each_event_once(
        self, store: PgEventStore, writer: Session, postgres_dsn: str, clock: ManualClock
    ) -> None:
        """Whichever comes first, the other reports nothing."""
        await _give_up(store, MAIL, (1, 20))
        async with open_log(postgres_dsn, clock) as other:
            for first in range(1, 21, 5):
                await insert(writer, range(first, first + 5))
                found = await asyncio.gather(*[_bury_late(each) for each in (store, other, store, other)])

                assert sorted(map(len, found)) == [0, 0, 0, 5]

    async def test_a_dead_letter_that_came_late_can_be_retried(
        self, store: PgEventStore, writer: Session
    ) -> None:
        """It is one like any other."""
        await _give_up(store, MAIL, (1, 1))
        await insert(writer, [1])
        await _bury_late(store)
        await store.dead_letters.revive("event-1")

        (wanted,) = await store.dead_letters.wanted_retries(MAIL, 10)
        assert (wanted.id, wanted.global_sequence) == ("event-1", GlobalSequence(1))


async def test_a_wanted_retry_wakes_other_processes(
    store: PgEventStore, postgres_dsn: str, clock: ManualClock
) -> None:
    """The subscriber may be active there."""
    (event,) = await append(store, make_draft())
    dead = await bury(store, await store.checkpoints.claim(MAIL, START), event)
    async with open_log(postgres_dsn, clock) as other:
        is_called = asyncio.Event()
        other.log.watch(is_called.set)
        await store.dead_letters.revive(dead.dead_letter_id)

        assert await is_called_soon(is_called)


async def test_the_page_of_the_newest_does_not_read_through_all(store: PgEventStore, writer: Session) -> None:
    """Of all subscribers or of one: an index has them in this order."""
    await writer.execute(
        "INSERT INTO event_bus_dlq (id, subscriber_id, event_id, global_sequence, created_at, error_history, "
        "event_type, event_created_at) SELECT n, 'mail-' || n % 3, n, n, now() + n * interval '1 second', "
        "'[]', 'order.placed', now() FROM generate_series(1, 3000) AS n"
    )
    await writer.execute("ANALYZE event_bus_dlq")
    whole = await store.dead_letters.page(10, 5, None)
    of_one = await store.dead_letters.page(2, 0, SubscriberId("mail-1"))

    assert ([dead.global_sequence for dead in whole.events], whole.total) == ([*range(2995, 2985, -1)], 3000)
    assert ([dead.global_sequence for dead in of_one.events], of_one.total) == ([2998, 2995], 1000)
    assert (await store.dead_letters.page(10, 5000, None)).total == 3000
