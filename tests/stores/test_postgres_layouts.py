"""PgLayouts: parts are made and replaced as a whole, and only when all are equally far."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from postbus.errors import LayoutChangedError, StoreUnavailableError, SubscriberFencedError, UnsoundLogError
from postbus.events import Gap, GlobalSequence, Layout, LogPosition, Part, SubscriberId
from postbus.policy.partitions import part_id
from postbus.stores.postgres.store import PgEventStore
from tests.contracts.steps import MAIL
from tests.postgres.databases import Databases
from tests.postgres.proxy import Proxy
from tests.postgres.steps import ask
from tests.stores.checkpoint_steps import START, make_database, progress

_ROWS = "SELECT array_agg(subscriber_id ORDER BY subscriber_id) FROM postbus.event_bus_checkpoints"


@pytest.fixture
async def postgres_dsn(databases: Databases) -> AsyncIterator[str]:
    async with make_database(databases) as dsn:
        yield dsn


@pytest.fixture
async def store(postgres_dsn: str) -> AsyncIterator[PgEventStore]:
    async with PgEventStore(postgres_dsn) as store:
        yield store


def part(index: int, count: int) -> SubscriberId:
    return part_id(MAIL, Part(index, count))


def places(layout: Layout | None) -> list[tuple[int, int | None, tuple[Gap, ...]]]:
    assert layout is not None
    return [(each.position, each.head, each.open) for each in layout.parts]


async def split(store: PgEventStore, count: int, start: LogPosition = START) -> None:
    """A subscriber of so many parts at one place."""
    await store.checkpoints.claim(MAIL, start)
    assert await store.layouts.switch(MAIL, 1, count)


async def move(store: PgEventStore, id: SubscriberId, position: int) -> None:
    """Have a part process everything up to a number."""
    await store.checkpoints.save(progress(await store.layouts.claim(id), position))


async def test_a_subscriber_without_a_checkpoint_has_no_layout(store: PgEventStore) -> None:
    """One that has a checkpoint is whole, and the checkpoint is that of its only part."""
    assert await store.layouts.load(MAIL) is None
    await store.checkpoints.claim(MAIL, START)

    layout = await store.layouts.load(MAIL)
    assert layout is not None
    assert (layout.partitions, [each.subscriber_id for each in layout.parts]) == (1, [MAIL])


async def test_parts_begin_where_the_whole_was(store: PgEventStore) -> None:
    """With what was processed beyond its gaps: it is not to come again."""
    start = LogPosition(GlobalSequence(9), (Gap(4, 4), Gap(6, 8)))
    await split(store, 3, start)

    layout = await store.layouts.load(MAIL)
    assert layout is not None
    assert layout.partitions == 3
    assert [each.subscriber_id for each in layout.parts] == ["mail#0/3", "mail#1/3", "mail#2/3"]
    assert places(layout) == [(3, 9, start.open)] * 3


@pytest.mark.parametrize("wanted", [1, 2, 5])
async def test_parts_that_are_equally_far_are_replaced(
    store: PgEventStore, postgres_dsn: str, wanted: int
) -> None:
    """All at once; no row of the old ones is left."""
    await split(store, 3)
    for index in range(3):
        await move(store, part(index, 3), 7)

    assert await store.layouts.switch(MAIL, 3, wanted)
    assert places(await store.layouts.load(MAIL)) == [(7, 7, ())] * wanted
    expected = {"mail", *(part(index, wanted) for index in range(wanted))}
    assert set(await ask(postgres_dsn, _ROWS)) == expected  # type: ignore[call-overload]


@pytest.mark.parametrize("index", [0, 2])
async def test_parts_that_are_not_equally_far_stay(store: PgEventStore, index: int) -> None:
    """What one of them has to process would be passed over, or come again."""
    await split(store, 3)
    await move(store, part(index, 3), 7)

    assert not await store.layouts.switch(MAIL, 3, 5)
    assert [place[0] for place in places(await store.layouts.load(MAIL))] == [
        7 if each == index else 0 for each in range(3)
    ]


async def test_parts_with_different_gaps_stay(store: PgEventStore) -> None:
    """Where one waits for a number that another has seen, they are not at one place."""
    await split(store, 2, LogPosition(GlobalSequence(9), (Gap(4, 4), Gap(6, 6))))
    owner = await store.layouts.claim(part(1, 2))
    await store.checkpoints.save(progress(owner, 3, head=9, open=(Gap(4, 4),)))

    assert not await store.layouts.switch(MAIL, 2, 1)
    owner = await store.layouts.claim(part(0, 2))
    await store.checkpoints.save(progress(owner, 3, head=9, open=(Gap(4, 4),)))
    assert await store.layouts.switch(MAIL, 2, 1)
    assert places(await store.layouts.load(MAIL)) == [(3, 9, (Gap(4, 4),))]


async def test_what_is_done_already_is_not_done_again(store: PgEventStore) -> None:
    """Whoever asks for the layout that is there is told that it is; for a third one, that it is another."""
    await split(store, 3)
    await move(store, part(0, 3), 7)

    assert await store.layouts.switch(MAIL, 1, 3)
    assert [place[0] for place in places(await store.layouts.load(MAIL))] == [7, 0, 0]
    with pytest.raises(LayoutChangedError):
        await store.layouts.switch(MAIL, 1, 5)


async def test_the_whole_can_only_be_claimed_while_it_is_whole(store: PgEventStore) -> None:
    """And a part only in its layout: nothing is made where nothing is."""
    await split(store, 3)
    with pytest.raises(LayoutChangedError, match="another number of partitions"):
        await store.checkpoints.claim(MAIL, START)
    with pytest.raises(LayoutChangedError):
        await store.layouts.claim(part(0, 5))
    await store.layouts.switch(MAIL, 3, 1)

    with pytest.raises(LayoutChangedError):
        await store.layouts.claim(part(0, 3))
    assert (await store.checkpoints.claim(MAIL, START)).position == 0


async def test_owners_of_a_former_layout_can_write_nothing(store: PgEventStore) -> None:
    """Neither of the whole nor of a part, also when there is a part of the same name again."""
    whole = await store.checkpoints.claim(MAIL, START)
    await store.layouts.switch(MAIL, 1, 2)
    old = await store.layouts.claim(part(0, 2))
    await store.layouts.switch(MAIL, 2, 1)
    between = await store.checkpoints.claim(MAIL, START)
    await store.layouts.switch(MAIL, 1, 2)
    present = await store.layouts.claim(part(0, 2))

    for former in (whole, old, between):
        with pytest.raises(SubscriberFencedError):
            await store.checkpoints.save(progress(former, 7))
    assert present.epoch > old.epoch
    await store.checkpoints.save(progress(present, 7))


async def test_an_attempt_that_ended_a_process_is_not_forgotten(store: PgEventStore) -> None:
    """The next owners are careful, whatever the layout is by then."""
    await split(store, 2)
    owner = await store.layouts.claim(part(1, 2))
    await store.checkpoints.save(progress(owner, 0, attempt_sequence=GlobalSequence(5), attempt_count=2))
    await store.layouts.switch(MAIL, 2, 3)

    claimed = [await store.layouts.claim(part(index, 3)) for index in range(3)]
    assert all(each.was_interrupted for each in claimed)
    assert {(each.attempt_sequence, each.attempt_count) for each in claimed} == {(5, 2)}


async def test_who_let_go_in_good_order_makes_nobody_careful(store: PgEventStore) -> None:
    """Care costs a write for every event."""
    whole = await store.checkpoints.claim(MAIL, START)
    await store.checkpoints.release(MAIL, whole.epoch)
    await store.layouts.switch(MAIL, 1, 2)

    assert not (await store.layouts.claim(part(0, 2))).was_interrupted


async def test_two_who_change_the_layout_at_once_make_one_of_it(
    store: PgEventStore, postgres_dsn: str
) -> None:
    """The second finds it done, or another."""
    await store.checkpoints.claim(MAIL, START)
    async with PgEventStore(postgres_dsn) as other:
        done = await asyncio.gather(
            store.layouts.switch(MAIL, 1, 4),
            other.layouts.switch(MAIL, 1, 5),
            other.layouts.switch(MAIL, 1, 4),
            return_exceptions=True,
        )

    layout = await store.layouts.load(MAIL)
    assert layout is not None
    assert layout.partitions == len(layout.parts)
    assert [isinstance(each, LayoutChangedError) for each in done].count(True) in (1, 2)


async def test_a_change_whose_answer_got_lost_is_made_once(
    store: PgEventStore, postgres_dsn: str, postgres_proxy: Proxy
) -> None:
    """Asked again, it is done already."""
    await split(store, 2)
    async with PgEventStore(postgres_proxy.through(postgres_dsn)) as through:
        await through.layouts.load(MAIL)
        is_cut = postgres_proxy.cut_before_answer_of(b"COMMIT")
        with pytest.raises(StoreUnavailableError):
            await through.layouts.switch(MAIL, 2, 3)
        assert is_cut.is_set()

        assert await through.layouts.switch(MAIL, 2, 3)

    assert places(await store.layouts.load(MAIL)) == [(0, 0, ())] * 3


async def test_parts_that_somebody_deleted_are_missed(store: PgEventStore, postgres_dsn: str) -> None:
    """How far they were is not known; without the subscriber's own row it begins anew."""
    await split(store, 3)
    await move(store, part(0, 3), 7)
    await ask(postgres_dsn, "DELETE FROM postbus.event_bus_checkpoints WHERE subscriber_id = 'mail#1/3'")
    with pytest.raises(UnsoundLogError, match="only 2 have rows"):
        await store.layouts.load(MAIL)
    await ask(postgres_dsn, "DELETE FROM postbus.event_bus_checkpoints WHERE subscriber_id = 'mail'")

    assert await store.layouts.load(MAIL) is None
    await split(store, 3)
    assert [place[0] for place in places(await store.layouts.load(MAIL))] == [0, 0, 0]
