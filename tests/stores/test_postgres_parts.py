"""Parts in PostgreSQL: the server puts every event into the part that policy.partitions does."""

import asyncio
from collections.abc import AsyncIterator
from typing import cast

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from postbus.events import Burial, Event, FencedOwner, Gap, GlobalSequence, LogPosition, Part, SubscriberId
from postbus.policy.partitions import part_id, part_of, part_of_event
from postbus.policy.patterns import TypeFilter
from postbus.stores.postgres.store import PgEventStore
from tests.contracts.steps import MAIL, append, make_draft
from tests.postgres.databases import Databases
from tests.stores.checkpoint_steps import START, make_database, progress
from tests.stores.log_steps import insert, numbers_of, open_writer

PARTS = [Part(index, 5) for index in range(5)]


@pytest.fixture
async def postgres_dsn(databases: Databases) -> AsyncIterator[str]:
    async with make_database(databases) as dsn:
        yield dsn


@pytest.fixture
async def store(postgres_dsn: str) -> AsyncIterator[PgEventStore]:
    async with PgEventStore(postgres_dsn) as store:
        yield store


def of_part(part: Part, *patterns: str) -> TypeFilter:
    return TypeFilter(patterns or ("*",), part)


# What a key may be: 1 to 255 printable characters, of any script.
KEYS = st.text(st.characters(exclude_categories=("C", "Z")), min_size=1, max_size=40)


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(KEYS, KEYS | st.none()), min_size=1, max_size=20), st.integers(2, 1024))
async def test_python_and_the_server_agree_on_every_part(
    store: PgEventStore, keys: list[tuple[str, str | None]], count: int
) -> None:
    """By stream or, without one, by id; in any script."""
    before = await store.head()
    drafts = [make_draft(id=f"{at} {before} {id}", stream_id=stream) for at, (id, stream) in enumerate(keys)]
    events = [event for draft in drafts for event in await store.log.append([draft])]
    after = LogPosition(GlobalSequence(before))

    for index in {part_of_event(event, count) for event in events}:
        page = await store.log.read(after, 1000, of_part(Part(index, count)))
        assert [event.id for event in page.events] == [
            event.id for event in events if part_of_event(event, count) == index
        ]
        assert page.up_to == await store.head()


async def test_the_parts_of_the_log_are_the_log(store: PgEventStore) -> None:
    """Each event is in one part, each part in order; types are asked for as well."""
    drafts = [
        make_draft(f"test.{at % 3}", at, stream_id=f"stream-{at % 17}" if at % 2 else None)
        for at in range(300)
    ]
    await append(store, *drafts)
    pages = [await store.log.read(START, 1000, of_part(part)) for part in PARTS]
    chosen = [await store.log.read(START, 1000, of_part(part, "test.0", "*.2")) for part in PARTS]

    assert all(numbers_of(page) == sorted(cast(list[int], numbers_of(page))) for page in pages)
    assert sorted(number or 0 for page in pages for number in numbers_of(page)) == list(range(1, 301))
    for page, some in zip(pages, chosen, strict=True):
        assert [event.id for event in some.events] == [
            event.id for event in page.events if event.type in ("test.0", "test.2")
        ]


async def test_a_gap_is_a_gap_for_every_part(store: PgEventStore, postgres_dsn: str) -> None:
    """Nobody knows which part a missing number is for; what fills it is read by its own part."""
    async with open_writer(postgres_dsn) as writer:
        await insert(writer, [1, 2, 5, 6])
        pages = [await store.log.read(START, 100, of_part(part)) for part in PARTS]
        assert {page.missing for page in pages} == {(Gap(3, 4),)}
        await insert(writer, [3])
        after = LogPosition(GlobalSequence(6), (Gap(3, 4),))
        filled = [numbers_of(await store.log.read(after, 100, of_part(part))) for part in PARTS]

    assert filled == [[3] if part_of("event-3", 5) == index else [] for index in range(5)]


async def test_a_part_is_asked_only_for_retries_of_its_own(store: PgEventStore) -> None:
    """Each wanted retry is one part's, that of its event; whoever has no parts has them all."""
    drafts = [make_draft(stream_id=f"stream-{at}" if at % 2 else None) for at in range(40)]
    await append(store, *drafts)
    events = (await store.log.read(START, 100, None)).events
    owner = await store.checkpoints.claim(MAIL, START)
    burials = tuple(Burial(event, ["failed"]) for event in events)
    await store.checkpoints.save(progress(owner, 0, burials=burials, write_id="w"))
    await store.dead_letters.revive_all(None, MAIL)

    found = [await store.dead_letters.wanted_retries(MAIL, 100, part) for part in PARTS]
    for part, letters in zip(PARTS, found, strict=True):
        expected = [event.id for event in events if part_of_event(event, 5) == part.index]
        assert sorted(letter.id for letter in letters) == sorted(expected)
    assert len(await store.dead_letters.wanted_retries(MAIL, 100)) == 40


async def give_up(store: PgEventStore, part: Part, *gaps: Gap) -> None:
    """As a part does that waits no longer."""
    owner = await store.layouts.claim(part_id(MAIL, part))
    write = progress(owner, 0, given_up=gaps, dead_letters_of=MAIL, part=part, write_id=str(part))
    await store.checkpoints.save(write)


async def bury_late(store: PgEventStore, part: Part) -> list[Event]:
    return await store.dead_letters.bury_late(
        MAIL, of_part(part), "came too late", await owner_of(store, part_id(MAIL, part))
    )


async def owner_of(store: PgEventStore, checkpoint_id: SubscriberId) -> FencedOwner:
    checkpoint = await store.checkpoints.load(checkpoint_id)
    return FencedOwner(checkpoint_id, 0 if checkpoint is None else checkpoint.epoch)


class TestGivenUpNumbers:
    async def test_each_part_buries_its_own(self, store: PgEventStore, postgres_dsn: str) -> None:
        """Once, under the id of the subscriber, though all parts have given up the number."""
        await store.checkpoints.claim(MAIL, START)
        await store.layouts.switch(MAIL, 1, 5)
        for part in PARTS:
            await give_up(store, part, Gap(1, 20))
        async with open_writer(postgres_dsn) as writer:
            await insert(writer, range(1, 21))
        buried = await asyncio.gather(*[bury_late(store, part) for part in PARTS])

        for part, events in zip(PARTS, buried, strict=True):
            assert {part_of_event(event, 5) for event in events} <= {part.index}
        assert sorted(event.global_sequence or 0 for events in buried for event in events) == list(
            range(1, 21)
        )
        letters = await store.dead_letters.page(100, 0, MAIL)
        assert (letters.total, {letter.subscriber_id for letter in letters.events}) == (20, {MAIL})

    async def test_what_only_another_part_gave_up_was_not_missed(
        self, store: PgEventStore, postgres_dsn: str
    ) -> None:
        """The part of the event has seen it; also when the layout is another one by then."""
        await store.checkpoints.claim(MAIL, START)
        await store.layouts.switch(MAIL, 1, 5)
        seen_by = part_of("event-1", 5)
        for part in PARTS:
            if part.index != seen_by:
                await give_up(store, part, Gap(1, 1))
        async with open_writer(postgres_dsn) as writer:
            await insert(writer, [1])

        assert await bury_late(store, PARTS[seen_by]) == []
        assert (
            await store.dead_letters.bury_late(MAIL, None, "came too late", await owner_of(store, MAIL)) == []
        )

    async def test_they_are_not_forgotten_when_the_layout_changes(
        self, store: PgEventStore, postgres_dsn: str
    ) -> None:
        """What comes to a part of before is buried by the part that it is in now."""
        await store.checkpoints.claim(MAIL, START)
        await store.layouts.switch(MAIL, 1, 5)
        for part in PARTS:
            await give_up(store, part, Gap(1, 8))
        await store.layouts.switch(MAIL, 5, 3)
        async with open_writer(postgres_dsn) as writer:
            await insert(writer, range(1, 9))
        buried = [event for index in range(3) for event in await bury_late(store, Part(index, 3))]

        assert sorted(event.global_sequence or 0 for event in buried) == list(range(1, 9))
        assert (await store.dead_letters.page(100, 0, MAIL)).total == 8


async def test_dead_letters_of_a_part_are_the_subscribers(store: PgEventStore) -> None:
    """Made, retried and resolved under the id that the user gave."""
    await append(store, make_draft(id="dead", stream_id="s"))
    (event,) = (await store.log.read(START, 10, None)).events
    await store.checkpoints.claim(MAIL, START)
    await store.layouts.switch(MAIL, 1, 2)
    owner = await store.layouts.claim(SubscriberId("mail#1/2"))
    write = progress(owner, 1, burials=(Burial(event, ["failed"]),), dead_letters_of=MAIL, write_id="one")
    await store.checkpoints.save(write)
    (letter,) = (await store.dead_letters.page(10, 0, MAIL)).events

    outcome = await store.checkpoints.process(
        owner.subscriber_id,
        owner.epoch,
        [replace(event)],
        lambda _event, _connection: None,
        lambda _: LogPosition(GlobalSequence(1)),
        timeout=5.0,
        time_budget=1.0,
        retried=letter.dead_letter_id,
        dead_letters_of=MAIL,
    )
    resolved = await store.dead_letters.get(letter.dead_letter_id)
    assert (outcome.done_count, outcome.error) == (1, None)
    assert (resolved.subscriber_id, resolved.resolved_by) == (MAIL, MAIL)
