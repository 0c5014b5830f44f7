"""ports.DeadLetterStore, durable subscribers: each has dead letters of its own, all are in one list."""

from datetime import timedelta

import msgspec
import pytest

from postbus.errors import EventNotFoundError, NotADeadLetterError
from postbus.events import (
    Burial,
    Checkpoint,
    DeadLetter,
    Event,
    EventStatus,
    Progress,
    RetryOutcome,
    SubscriberId,
    UndecodablePayload,
)
from postbus.ports import Store
from postbus.testing import ManualClock
from tests.contracts.backends import on_embedded
from tests.contracts.steps import (
    BEGINNING,
    MAIL,
    NOON,
    START,
    STOCK,
    add_dead_event,
    add_dead_letter,
    append,
    bury,
    make_draft,
    sequence_of,
    status_of,
)


@pytest.fixture
async def mail(store: Store) -> Checkpoint:
    """The owner of one subscriber."""
    return await store.checkpoints.claim(MAIL, BEGINNING)


@pytest.fixture
async def stock(store: Store) -> Checkpoint:
    """The owner of another one."""
    return await store.checkpoints.claim(STOCK, BEGINNING)


async def _append_one(store: Store, event_id: str = "event", event_type: str = "order.placed") -> Event:
    (event,) = await append(store, make_draft(event_type, {"n": 1}, id=event_id, metadata={"source": "web"}))
    return event


async def _save_retry(store: Store, owner: Checkpoint, dead_letter: DeadLetter, error: str | None) -> None:
    await store.checkpoints.save(
        Progress(
            subscriber_id=owner.subscriber_id,
            epoch=owner.epoch,
            position=START,
            retries=[RetryOutcome(dead_letter.dead_letter_id, error)],
        )
    )


async def _names(store: Store, subscriber_id: SubscriberId | None = None) -> list[tuple[str, str | None]]:
    page = await store.dead_letters.page(100, 0, subscriber_id)
    assert page.total == len(page.events)
    return [(dead.id, dead.subscriber_id) for dead in page.events]


class TestBurial:
    async def test_a_dead_letter_has_the_event_and_the_whole_story(
        self, store: Store, mail: Checkpoint, clock: ManualClock
    ) -> None:
        """Who gave up, when, after how many attempts and why."""
        event = await _append_one(store)
        await clock.advance(90)
        dead = await bury(store, mail, event, "first", 'second "☃"')

        assert (dead.subscriber_id, dead.dlq_at) == (MAIL, clock.now())
        assert (dead.errors, dead.retry_count, dead.status) == (["first", 'second "☃"'], 2, EventStatus.DLQ)
        told = {"errors", "last_error", "retry_count", "status", "dlq_at"}
        for name in set(Event.__struct_fields__) - told:
            assert getattr(dead, name) == getattr(event, name)
        assert (dead.last_retry_at, dead.resolved_at, dead.resolved_by, dead.notes) == (None,) * 4

    async def test_its_id_is_not_that_of_the_event(
        self, store: Store, mail: Checkpoint, stock: Checkpoint
    ) -> None:
        """Several subscribers may give up on one event."""
        event = await _append_one(store)
        ids = [(await bury(store, owner, event)).dead_letter_id for owner in (mail, stock)]

        assert len({*ids, event.id}) == 3

    async def test_the_event_itself_stays_as_it_is(self, store: Store, mail: Checkpoint) -> None:
        """The others process it, or have done so."""
        event = await _append_one(store)
        await bury(store, mail, event)

        assert await store.get(event.id) == event
        assert (await store.log.read(BEGINNING, 10, None)).events == [event]

    async def test_the_checkpoint_moves_with_it(self, store: Store, mail: Checkpoint) -> None:
        """Neither is there without the other."""
        event = await _append_one(store)
        await bury(store, mail, event)

        checkpoint = await store.checkpoints.load(MAIL)
        assert checkpoint is not None
        assert (checkpoint.position, checkpoint.event_id) == (sequence_of(event), event.id)

    async def test_the_same_event_buried_again_is_one_dead_letter_with_the_new_story(
        self, store: Store, mail: Checkpoint, clock: ManualClock
    ) -> None:
        """Unresolved again, dead since now, and under the same id."""
        event = await _append_one(store)
        first = await bury(store, mail, event, "old")
        await store.dead_letters.revive(first.dead_letter_id)
        await _save_retry(store, mail, first, "older")
        await store.dead_letters.resolve(first.dead_letter_id, "anna", "seen")
        await clock.advance(60)
        again = await bury(store, mail, event, "new", "newer")

        assert again.dead_letter_id == first.dead_letter_id
        assert (again.errors, again.retry_count, again.dlq_at) == (["new", "newer"], 2, clock.now())
        assert (again.resolved_at, again.resolved_by, again.notes) == (None, None, None)
        assert (await store.dead_letters.page(10, 0, None)).total == 1
        assert await store.dead_letters.wanted_retries(MAIL, 10) == []

    async def test_many_events_are_buried_in_one_save(self, store: Store, mail: Checkpoint) -> None:
        """Each with its own errors."""
        events = await append(store, *[make_draft(id=str(number)) for number in range(5)])
        burials = [Burial(event, [f"error {event.id}"]) for event in events]
        await store.checkpoints.save(
            Progress(subscriber_id=MAIL, epoch=mail.epoch, position=sequence_of(events[-1]), burials=burials)
        )

        page = await store.dead_letters.page(10, 0, MAIL)
        assert {dead.id: dead.errors for dead in page.events} == {
            str(number): [f"error {number}"] for number in range(5)
        }

    async def test_a_payload_that_is_not_json_is_kept_as_it_is(self, store: Store, mail: Checkpoint) -> None:
        """It is a dead letter like any other, for people to look at."""
        event = await _append_one(store)
        unreadable = msgspec.structs.replace(event, payload=UndecodablePayload("{nope", "malformed"))
        dead = await bury(store, mail, unreadable)

        assert isinstance(dead.payload, UndecodablePayload)
        assert dead.payload.text == "{nope"

    async def test_who_changes_a_dead_letter_changes_only_a_copy(
        self, store: Store, mail: Checkpoint
    ) -> None:
        """Nobody shares mutable objects through the store."""
        event = await _append_one(store)
        dead = await bury(store, mail, event)
        event.payload["n"] = 2
        dead.payload["n"] = 3
        assert dead.metadata is not None
        dead.metadata["source"] = "changed"

        found = await store.dead_letters.get(dead.dead_letter_id)
        assert (found.payload, found.metadata) == ({"n": 1}, {"source": "web"})

    async def test_dead_letters_are_there_after_the_store_was_closed(
        self, store: Store, mail: Checkpoint
    ) -> None:
        """With every field."""
        dead = await bury(store, mail, await _append_one(store))
        await store.close()
        await store.open()

        assert (await store.dead_letters.page(10, 0, None)).events == [dead]


class TestPage:
    @on_embedded
    async def test_both_kinds_are_in_one_list_the_newest_first(
        self, store: Store, mail: Checkpoint, stock: Checkpoint, clock: ManualClock
    ) -> None:
        """A subscriber's is as old as its death, a handlers' as old as its event."""
        events = [await _append_one(store, name) for name in ("a", "b")]
        await clock.advance(10)
        for owner, event in ((mail, events[0]), (stock, events[0]), (mail, events[1])):
            await bury(store, owner, event)
            await add_dead_letter(
                store,
                make_draft(id=f"handlers-{clock.now():%S}", created_at=clock.now() + timedelta(seconds=1)),
            )
            await clock.advance(10)

        assert await _names(store) == [
            ("handlers-30", None),
            ("b", MAIL),
            ("handlers-20", None),
            ("a", STOCK),
            ("handlers-10", None),
            ("a", MAIL),
        ]

    @pytest.mark.parametrize("limit", [1, 2, 3, 7])
    @on_embedded
    async def test_pages_have_each_of_both_kinds_once_and_the_total(
        self, store: Store, mail: Checkpoint, clock: ManualClock, limit: int
    ) -> None:
        """Whichever page is asked for."""
        for number in range(4):
            await clock.advance(1)
            await bury(store, mail, await _append_one(store, f"mail-{number}"))
            await clock.advance(1)
            await add_dead_letter(store, make_draft(id=f"handlers-{number}", created_at=clock.now()))
        pages = [await store.dead_letters.page(limit, offset, None) for offset in range(0, 10, limit)]

        assert [dead.id for page in pages for dead in page.events] == [
            f"{kind}-{number}" for number in (3, 2, 1, 0) for kind in ("handlers", "mail")
        ]
        assert {page.total for page in pages} == {8}
        assert all(len(page.events) <= limit for page in pages)

    @on_embedded
    async def test_those_of_one_moment_come_in_the_order_of_their_numbers(
        self, store: Store, mail: Checkpoint, clock: ManualClock
    ) -> None:
        """The later number first, of both kinds alike."""
        for number in range(3):
            await bury(store, mail, await _append_one(store, f"mail-{number}"))
            await add_dead_letter(store, make_draft(id=f"handlers-{number}", created_at=clock.now()))

        assert [name for name, _ in await _names(store)] == [
            f"{kind}-{number}" for number in (2, 1, 0) for kind in ("handlers", "mail")
        ]

    @pytest.mark.parametrize("limit", [1, 2, 3, 7])
    async def test_those_of_the_subscribers_come_the_newest_first_page_by_page(
        self, store: Store, mail: Checkpoint, stock: Checkpoint, clock: ManualClock, limit: int
    ) -> None:
        """Of one moment the later number first, each once, and always the total."""
        for number in range(4):
            event = await _append_one(store, str(number))
            await bury(store, mail, event)
            await clock.advance(number % 2)
            await bury(store, stock, await _append_one(store, f"{number}!"))
        pages = [await store.dead_letters.page(limit, offset, None) for offset in range(0, 10, limit)]

        assert [dead.id for page in pages for dead in page.events] == [
            f"{number}{mark}" for number in (3, 2, 1, 0) for mark in ("!", "")
        ]
        assert {page.total for page in pages} == {8}
        assert all(len(page.events) <= limit for page in pages)

    async def test_a_page_of_one_subscriber_has_only_its_own(
        self, store: Store, mail: Checkpoint, stock: Checkpoint, clock: ManualClock
    ) -> None:
        """And their total."""
        await add_dead_event(store, make_draft())
        for name in ("a", "b"):
            await clock.advance(1)
            await bury(store, mail, await _append_one(store, name))
        await bury(store, stock, await _append_one(store, "c"))
        page = await store.dead_letters.page(1, 1, MAIL)

        assert ([dead.id for dead in page.events], page.total) == (["a"], 2)
        assert await _names(store, MAIL) == [("b", MAIL), ("a", MAIL)]
        assert await _names(store, STOCK) == [("c", STOCK)]
        assert await _names(store, SubscriberId("nobody")) == []


class TestGet:
    async def test_a_dead_letter_is_found_by_its_id(self, store: Store, mail: Checkpoint) -> None:
        """As it is listed."""
        dead = await bury(store, mail, await _append_one(store))

        assert await store.dead_letters.get(dead.dead_letter_id) == dead

    @on_embedded
    async def test_one_of_the_handlers_is_found_by_the_id_of_its_event(self, store: Store) -> None:
        """That is its own id."""
        await add_dead_letter(store, make_draft(id="dead"))

        found = await store.dead_letters.get("dead")
        assert [found] == (await store.dead_letters.page(10, 0, None)).events
        assert (found.dead_letter_id, found.subscriber_id) == ("dead", None)

    async def test_the_id_of_an_event_finds_a_dead_letter_of_a_subscriber(
        self, store: Store, mail: Checkpoint, stock: Checkpoint, clock: ManualClock
    ) -> None:
        """The newest, and one of the handlers before it."""
        event = await _append_one(store)
        await bury(store, mail, event)
        await clock.advance(1)
        newest = await bury(store, stock, event)

        assert await store.dead_letters.get(event.id) == newest

    async def test_an_unknown_id_is_not_found(self, store: Store) -> None:
        """The error names it."""
        with pytest.raises(EventNotFoundError) as caught:
            await store.dead_letters.get("nobody")

        assert caught.value.event_id == "nobody"

    async def test_an_event_that_is_none_is_told_apart(self, store: Store) -> None:
        """The error says what it is."""
        await _append_one(store, "alive")
        with pytest.raises(NotADeadLetterError) as caught:
            await store.dead_letters.get("alive")

        assert (caught.value.event_id, caught.value.status) == ("alive", "done")


class TestRevive:
    async def test_a_revived_dead_letter_is_marked_and_stays_listed(
        self, store: Store, mail: Checkpoint
    ) -> None:
        """Until its subscriber has tried it."""
        dead = await bury(store, mail, await _append_one(store))
        before = await store.dead_letters.wanted_retries(MAIL, 10)
        await store.dead_letters.revive(dead.dead_letter_id)

        assert before == []
        assert await store.dead_letters.wanted_retries(MAIL, 10) == [dead]
        assert await _names(store) == [("event", MAIL)]
        assert await store.backlog.pending(START, 10) == []

    async def test_the_id_of_an_event_stands_for_all_its_dead_letters(
        self, store: Store, mail: Checkpoint, stock: Checkpoint
    ) -> None:
        """Of the handlers, if there are any, and of every subscriber; those of other events stay."""
        event = await add_dead_event(store, make_draft(id="event"))
        for owner in (mail, stock):
            await bury(store, owner, event)
            await bury(store, owner, await _append_one(store, f"other of {owner.subscriber_id}"))
        await store.dead_letters.revive("event")

        assert [each.id for each in await store.backlog.pending(START, 10)] == ["event"] * store.has_handlers
        for subscriber_id in (MAIL, STOCK):
            wanted = await store.dead_letters.wanted_retries(subscriber_id, 10)
            assert [dead.id for dead in wanted] == ["event"]

    async def test_its_own_id_stands_for_one_alone(
        self, store: Store, mail: Checkpoint, stock: Checkpoint
    ) -> None:
        """The other subscriber's stays as it is."""
        event = await _append_one(store)
        dead = await bury(store, mail, event)
        await bury(store, stock, event)
        await store.dead_letters.revive(dead.dead_letter_id)

        assert len(await store.dead_letters.wanted_retries(MAIL, 10)) == 1
        assert await store.dead_letters.wanted_retries(STOCK, 10) == []

    async def test_marking_it_twice_means_one_attempt(self, store: Store, mail: Checkpoint) -> None:
        """Whoever is impatient changes nothing."""
        dead = await bury(store, mail, await _append_one(store))
        await store.dead_letters.revive(dead.dead_letter_id)
        await store.dead_letters.revive(dead.dead_letter_id)

        assert len(await store.dead_letters.wanted_retries(MAIL, 10)) == 1

    @pytest.mark.parametrize("is_by_event_id", [True, False])
    async def test_a_resolved_one_is_not_tried_again(
        self, store: Store, mail: Checkpoint, stock: Checkpoint, is_by_event_id: bool
    ) -> None:
        """Its effects may be there already; the error says that it is resolved."""
        event = await _append_one(store)
        dead = await bury(store, mail, event)
        await store.dead_letters.resolve(dead.dead_letter_id, "anna", None)
        with pytest.raises(NotADeadLetterError, match="resolved"):
            await store.dead_letters.revive(event.id if is_by_event_id else dead.dead_letter_id)
        await bury(store, stock, event)
        await store.dead_letters.revive(event.id)

        assert await store.dead_letters.wanted_retries(MAIL, 10) == []
        assert len(await store.dead_letters.wanted_retries(STOCK, 10)) == 1


class TestReviveAll:
    @pytest.fixture(autouse=True)
    async def with_five(self, store: Store, mail: Checkpoint, stock: Checkpoint) -> None:
        """One of the handlers, if there are any, two of each subscriber; one of them resolved."""
        await add_dead_event(store, make_draft("a", id="handlers"))
        for owner in (mail, stock):
            for event_type in ("a", "b"):
                event = await _append_one(store, f"{owner.subscriber_id}-{event_type}", event_type)
                await bury(store, owner, event)
        await store.dead_letters.resolve("stock-b", "anna", None)

    @pytest.mark.parametrize(
        ("event_type", "subscriber_id", "expected"),
        [
            (None, None, ["handlers", "mail-a", "mail-b", "stock-a"]),
            ("a", None, ["handlers", "mail-a", "stock-a"]),
            (None, MAIL, ["mail-a", "mail-b"]),
            ("b", MAIL, ["mail-b"]),
            (None, STOCK, ["stock-a"]),
            ("b", STOCK, []),
            ("c", None, []),
        ],
    )
    async def test_the_unresolved_ones_of_a_type_and_a_subscriber_are_revived(
        self, store: Store, event_type: str | None, subscriber_id: SubscriberId | None, expected: list[str]
    ) -> None:
        """And how many they were."""
        revived = await store.dead_letters.revive_all(event_type, subscriber_id)

        pending = await store.backlog.pending(START, 10)
        wanted = [await store.dead_letters.wanted_retries(name, 10) for name in (MAIL, STOCK)]
        found = [event.id for event in (*pending, *wanted[0], *wanted[1])]
        assert found == [name for name in expected if store.has_handlers or name != "handlers"]
        assert revived == len(found)


class TestWantedRetries:
    async def test_the_oldest_comes_first_and_not_more_than_asked_for(
        self, store: Store, mail: Checkpoint, clock: ManualClock
    ) -> None:
        """Whatever the order in which they were marked."""
        dead = []
        for name in "abc":
            await clock.advance(1)
            dead.append(await bury(store, mail, await _append_one(store, name)))
        for each in reversed(dead):
            await store.dead_letters.revive(each.dead_letter_id)

        assert await store.dead_letters.wanted_retries(MAIL, 10) == dead
        assert await store.dead_letters.wanted_retries(MAIL, 2) == dead[:2]

    async def test_a_retry_that_succeeds_resolves_the_dead_letter(
        self, store: Store, mail: Checkpoint, clock: ManualClock
    ) -> None:
        """It leaves the list, and stays on record with the moment."""
        dead = await bury(store, mail, await _append_one(store))
        await store.dead_letters.revive(dead.dead_letter_id)
        await clock.advance(7)
        await _save_retry(store, mail, dead, None)

        found = await store.dead_letters.get(dead.dead_letter_id)
        assert (found.resolved_at, found.last_retry_at) == (clock.now(), clock.now())
        assert (found.errors, found.dlq_at) == (dead.errors, dead.dlq_at)
        assert await _names(store) == []
        assert await store.dead_letters.wanted_retries(MAIL, 10) == []

    async def test_a_retry_that_fails_adds_its_error_and_is_not_wanted_any_more(
        self, store: Store, mail: Checkpoint, clock: ManualClock
    ) -> None:
        """One more attempt means one; it stays a dead letter."""
        dead = await bury(store, mail, await _append_one(store), "a", "b")
        await store.dead_letters.revive(dead.dead_letter_id)
        await clock.advance(7)
        await _save_retry(store, mail, dead, 'c "☃"')

        (found,) = (await store.dead_letters.page(10, 0, MAIL)).events
        assert (found.errors, found.retry_count) == (["a", "b", 'c "☃"'], 3)
        assert (found.last_retry_at, found.resolved_at, found.dlq_at) == (clock.now(), None, dead.dlq_at)
        assert await store.dead_letters.wanted_retries(MAIL, 10) == []

    async def test_the_outcome_of_a_retry_of_what_is_gone_is_no_error(
        self, store: Store, mail: Checkpoint
    ) -> None:
        """It was purged meanwhile; the rest of the save is written."""
        dead = await bury(store, mail, await _append_one(store))
        await store.dead_letters.purge(NOON + timedelta(days=365))
        await _save_retry(store, mail, dead, None)
        await _save_retry(store, mail, dead, "boom")

        assert await _names(store) == []


class TestResolve:
    async def test_a_resolved_dead_letter_leaves_the_list_and_stays_on_record(
        self, store: Store, mail: Checkpoint, clock: ManualClock
    ) -> None:
        """With who saw to it, when, and what they noted."""
        dead = await bury(store, mail, await _append_one(store))
        await store.dead_letters.revive(dead.dead_letter_id)
        await clock.advance(5)
        await store.dead_letters.resolve(dead.dead_letter_id, "anna", "sent by hand ☃")

        found = await store.dead_letters.get(dead.dead_letter_id)
        assert (found.resolved_at, found.resolved_by) == (clock.now(), "anna")
        assert (found.notes, found.errors) == ("sent by hand ☃", dead.errors)
        assert await _names(store) == await _names(store, MAIL) == []
        assert await store.dead_letters.wanted_retries(MAIL, 10) == []

    @on_embedded
    async def test_one_of_the_handlers_can_be_resolved(self, store: Store, clock: ManualClock) -> None:
        """It is not tried again, and nobody calls it done."""
        await add_dead_letter(store, make_draft(id="dead"))
        await add_dead_letter(store, make_draft(id="other"))
        await store.dead_letters.resolve("dead", "anna", None)
        revived = await store.dead_letters.revive_all(None, None)

        found = await store.dead_letters.get("dead")
        assert (found.resolved_at, found.resolved_by, found.notes) == (clock.now(), "anna", None)
        assert (revived, await _names(store)) == (1, [])
        assert (await store.get("dead")).status is EventStatus.DLQ

    async def test_the_id_of_an_event_stands_for_all_its_dead_letters(
        self, store: Store, mail: Checkpoint, stock: Checkpoint
    ) -> None:
        """Of the handlers, if there are any, and of every subscriber."""
        event = await add_dead_event(store, make_draft(id="event"))
        for owner in (mail, stock):
            await bury(store, owner, event)
        await bury(store, mail, await _append_one(store, "other"))
        await store.dead_letters.resolve("event", "anna", None)

        assert await _names(store) == [("other", MAIL)]

    async def test_who_comes_second_is_told_and_changes_nothing(self, store: Store, mail: Checkpoint) -> None:
        """The first who saw to it stays on record."""
        dead = await bury(store, mail, await _append_one(store))
        await store.dead_letters.resolve(dead.dead_letter_id, "anna", "first")
        with pytest.raises(NotADeadLetterError, match="resolved"):
            await store.dead_letters.resolve(dead.dead_letter_id, "bert", "second")

        found = await store.dead_letters.get(dead.dead_letter_id)
        assert (found.resolved_by, found.notes) == ("anna", "first")

    async def test_what_is_no_dead_letter_cannot_be_resolved(self, store: Store) -> None:
        """Unknown, or alive."""
        await _append_one(store, "alive")
        with pytest.raises(EventNotFoundError):
            await store.dead_letters.resolve("nobody", "anna", None)
        with pytest.raises(NotADeadLetterError):
            await store.dead_letters.resolve("alive", "anna", None)

        assert (await store.get("alive")).status is EventStatus.DONE


class TestPurge:
    async def test_a_subscribers_counts_from_its_death_and_the_cutoff_is_included(
        self, store: Store, mail: Checkpoint, clock: ManualClock
    ) -> None:
        """To the microsecond, however old its event is; and how many they were."""
        started_at = clock.now()
        events = [await _append_one(store, name) for name in "abc"]
        for event in events:
            await bury(store, mail, event)
            await clock.advance(0.000001)
        purged = await store.dead_letters.purge(started_at + timedelta(microseconds=1))

        assert (purged, await _names(store)) == (2, [("c", MAIL)])

    async def test_the_event_stays_in_the_log_for_the_others(
        self, store: Store, mail: Checkpoint, stock: Checkpoint, clock: ManualClock
    ) -> None:
        """Only the dead letter goes, and only that of this age."""
        event = await _append_one(store)
        await bury(store, mail, event)
        cutoff = clock.now()
        await clock.advance(1)
        kept = await bury(store, stock, event)
        await store.dead_letters.purge(cutoff)

        assert (await store.log.read(BEGINNING, 10, None)).events == [event]
        assert (await store.dead_letters.page(10, 0, None)).events == [kept]
        assert await store.dead_letters.get(event.id) == kept

    @on_embedded
    async def test_what_a_subscriber_has_not_come_to_yet_stays_in_the_log(
        self, store: Store, mail: Checkpoint, clock: ManualClock
    ) -> None:
        """It is no dead letter of the handlers any more, and nothing undelivered is deleted."""
        passed, ahead = make_draft(created_at=clock.now()), make_draft(created_at=clock.now())
        position = await add_dead_letter(store, passed)
        await store.checkpoints.save(
            Progress(subscriber_id=MAIL, epoch=mail.epoch, position=position, event_id=passed.id)
        )
        await add_dead_letter(store, ahead)
        purged = await store.dead_letters.purge(clock.now())

        assert (purged, (await store.dead_letters.page(10, 0, None)).total) == (2, 0)
        assert [event.id for event in (await store.log.read(BEGINNING, 10, None)).events] == [ahead.id]
        assert await status_of(store, ahead) is EventStatus.DONE

    @on_embedded
    async def test_an_event_of_a_stream_stays_in_its_stream(self, store: Store, clock: ManualClock) -> None:
        """A stream without holes is worth more than the room of one event."""
        draft = make_draft(created_at=clock.now(), stream_id="order-1")
        await add_dead_letter(store, draft)
        purged = await store.dead_letters.purge(clock.now())

        assert (purged, (await store.dead_letters.page(10, 0, None)).total) == (1, 0)
        assert [event.id for event in await store.log.read_stream("order-1", 1, None)] == [draft.id]

    async def test_resolved_ones_are_purged_too(
        self, store: Store, mail: Checkpoint, clock: ManualClock
    ) -> None:
        """Of both kinds; then their ids are unknown."""
        dead = []
        if store.has_handlers:
            await add_dead_letter(store, make_draft(id="handlers", created_at=clock.now()))
            dead.append("handlers")
        dead.append((await bury(store, mail, await _append_one(store))).dead_letter_id)
        for dead_letter_id in dead:
            await store.dead_letters.resolve(dead_letter_id, "anna", None)
        purged = await store.dead_letters.purge(clock.now())

        assert purged == len(dead)
        for dead_letter_id in dead:
            with pytest.raises(EventNotFoundError):
                await store.dead_letters.get(dead_letter_id)

    @on_embedded
    async def test_a_subscribers_outlives_its_event(
        self, store: Store, mail: Checkpoint, clock: ManualClock
    ) -> None:
        """What the handlers gave up may be purged; the subscriber can still try its own."""
        old = clock.now() - timedelta(days=1)
        await add_dead_letter(store, make_draft(payload={"n": 1}, id="event", created_at=old))
        dead = await bury(store, mail, await store.get("event"))
        purged = await store.dead_letters.purge(old)
        await store.dead_letters.revive("event")

        (wanted,) = await store.dead_letters.wanted_retries(MAIL, 10)
        assert (purged, wanted) == (1, dead)
        assert (wanted.id, wanted.type, wanted.payload) == ("event", "order.placed", {"n": 1})
