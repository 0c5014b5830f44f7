"""ports.DeadLetterStore: what failed for good is listed, revived or purged."""

from datetime import timedelta, timezone

import pytest

from postbus.errors import EventNotFoundError, NotADeadLetterError
from postbus.events import Event, EventStatus, GlobalSequence
from postbus.ports import Store
from postbus.testing import ManualClock
from tests.contracts.backends import on_embedded
from tests.contracts.steps import NOON, add_dead_letter, add_in_status, add_new, make_draft, status_of

_NOT_DEAD = [EventStatus.PENDING, EventStatus.PROCESSING, EventStatus.DONE]

pytestmark = on_embedded


async def _ids(store: Store, limit: int = 100, offset: int = 0) -> list[str]:
    return [event.id for event in (await store.dead_letters.page(limit, offset, None)).events]


class TestPage:
    async def test_the_newest_dead_letter_comes_first(self, store: Store) -> None:
        """By the moment of creation, not of death or storing; of two equal moments the later number."""
        for name, seconds in [("b", 1), ("d", 3), ("a", 0), ("c1", 2), ("c2", 2)]:
            await add_dead_letter(store, make_draft(id=name, created_at=NOON + timedelta(seconds=seconds)))

        assert await _ids(store) == ["d", "c2", "c1", "b", "a"]

    async def test_moments_that_differ_by_a_microsecond_or_a_whole_second_are_in_order(
        self, store: Store
    ) -> None:
        """A moment without a fraction is no exception."""
        second = NOON.replace(microsecond=0)
        for name, microseconds in [("b", 0), ("a", -1), ("d", 100_000), ("c", 1)]:
            moment = second + timedelta(microseconds=microseconds)
            await add_dead_letter(store, make_draft(id=name, created_at=moment))

        assert await _ids(store) == ["d", "c", "b", "a"]

    async def test_a_page_has_its_part_and_the_total(self, store: Store) -> None:
        """The total counts them all, whichever page is asked for."""
        for number in range(5):
            await add_dead_letter(store, make_draft(id=str(number)))
        pages = [await store.dead_letters.page(2, offset, None) for offset in (0, 2, 4, 6)]

        assert [[event.id for event in page.events] for page in pages] == [["4", "3"], ["2", "1"], ["0"], []]
        assert [page.total for page in pages] == [5, 5, 5, 5]

    async def test_only_dead_letters_are_listed(self, store: Store) -> None:
        """Whatever else there is."""
        for status in EventStatus:
            await add_in_status(store, status, make_draft(id=status.value))

        page = await store.dead_letters.page(10, 0, None)
        assert ([event.id for event in page.events], page.total) == (["dlq"], 1)

    async def test_a_listed_dead_letter_is_the_whole_event(self, store: Store) -> None:
        """With payload, metadata and the story of why."""
        await add_dead_letter(store, make_draft(payload={"order": 42}, id="dead", metadata={"source": "web"}))

        (event,) = (await store.dead_letters.page(10, 0, None)).events
        whole = await store.get("dead")
        assert all(getattr(event, name) == getattr(whole, name) for name in Event.__struct_fields__)
        assert (event.dead_letter_id, event.subscriber_id) == ("dead", None)
        assert (event.payload, event.metadata) == ({"order": 42}, {"source": "web"})
        assert event.errors == ["first", "second", "third", "fourth"]

    async def test_without_dead_letters_the_page_is_empty(self, store: Store) -> None:
        """Nothing found is no error."""
        page = await store.dead_letters.page(10, 0, None)

        assert (page.events, page.total) == ([], 0)


class TestRevive:
    async def test_a_revived_event_starts_anew(self, store: Store) -> None:
        """Pending, no attempts, no errors, never dead; everything else as it was."""
        draft = make_draft(payload=1, metadata={"source": "web"})
        sequence = await add_dead_letter(store, draft)
        await store.dead_letters.revive(draft.id)

        event = await store.get(draft.id)
        assert (event.status, event.retry_count) == (EventStatus.PENDING, 0)
        assert (event.last_error, event.dlq_at) == (None, None)
        assert (event.payload, event.metadata, event.created_at) == (1, {"source": "web"}, NOON)
        assert event.global_sequence == sequence

    async def test_a_revived_event_is_pending_and_no_longer_listed(self, store: Store) -> None:
        """The others stay where they are."""
        await add_dead_letter(store, make_draft(id="stays"))
        await add_dead_letter(store, make_draft(id="revived"))
        await store.dead_letters.revive("revived")

        page = await store.dead_letters.page(10, 0, None)
        assert ([event.id for event in page.events], page.total) == (["stays"], 1)
        pending = await store.backlog.pending(GlobalSequence(0), 10)
        assert [event.id for event in pending] == ["revived"]

    async def test_an_unknown_event_cannot_be_revived(self, store: Store) -> None:
        """The error names the id."""
        with pytest.raises(EventNotFoundError) as caught:
            await store.dead_letters.revive("nobody")

        assert caught.value.event_id == "nobody"

    @pytest.mark.parametrize("status", _NOT_DEAD)
    async def test_an_event_that_is_no_dead_letter_cannot_be_revived(
        self, store: Store, status: EventStatus
    ) -> None:
        """The error says what it is, and it stays so."""
        await add_in_status(store, status, make_draft(id="alive"))
        before = await store.get("alive")
        with pytest.raises(NotADeadLetterError) as caught:
            await store.dead_letters.revive("alive")

        assert (caught.value.event_id, caught.value.status) == ("alive", status.value)
        assert await store.get("alive") == before

    async def test_a_revived_event_can_die_and_be_revived_again(
        self, store: Store, clock: ManualClock
    ) -> None:
        """Its second death has its own moment."""
        draft = make_draft()
        sequence = await add_dead_letter(store, draft)
        await store.dead_letters.revive(draft.id)
        await store.backlog.claim([sequence])
        await clock.advance(5)
        await store.queue.bury(sequence, 1, '["again"]')

        (event,) = (await store.dead_letters.page(10, 0, None)).events
        assert (event.dlq_at, event.retry_count, event.errors) == (clock.now(), 1, ["again"])


class TestReviveAll:
    async def test_all_dead_letters_are_revived(self, store: Store) -> None:
        """Each as if alone, and how many they were."""
        for _ in range(3):
            await add_dead_letter(store, make_draft())
        revived = await store.dead_letters.revive_all(None, None)

        pending = await store.backlog.pending(GlobalSequence(0), 10)
        assert (revived, (await store.dead_letters.page(10, 0, None)).total) == (3, 0)
        assert [event.global_sequence for event in pending] == [1, 2, 3]
        assert [(event.retry_count, event.last_error, event.dlq_at) for event in pending] == [
            (0, None, None)
        ] * 3

    async def test_only_those_of_the_given_type_are_revived(self, store: Store) -> None:
        """The type is compared, letter by letter."""
        for event_type in ("order.placed", "order.paid", "order.placed", "order.Placed"):
            await add_dead_letter(store, make_draft(event_type))
        revived = await store.dead_letters.revive_all("order.placed", None)

        assert revived == 2
        left = (await store.dead_letters.page(10, 0, None)).events
        assert [event.type for event in left] == ["order.Placed", "order.paid"]

    @pytest.mark.parametrize("status", _NOT_DEAD)
    async def test_what_is_no_dead_letter_stays_as_it_is(self, store: Store, status: EventStatus) -> None:
        """Its attempts are not forgotten."""
        sequence = await add_new(store, make_draft(id="alive"))
        await store.queue.fail(sequence, 1, '["boom"]')
        if status is EventStatus.PENDING:
            await store.queue.release([sequence])
        if status is EventStatus.DONE:
            store.queue.finish(sequence)
        before = await store.get("alive")
        revived = await store.dead_letters.revive_all(None, None)

        assert (revived, before.status) == (0, status)
        assert await store.get("alive") == before


class TestPurge:
    async def test_the_cutoff_itself_is_purged_and_a_microsecond_later_is_not(self, store: Store) -> None:
        """created_at <= cutoff, and how many they were."""
        for name, microseconds in [("older", -1), ("equal", 0), ("younger", 1)]:
            moment = NOON + timedelta(microseconds=microseconds)
            await add_dead_letter(store, make_draft(id=name, created_at=moment))
        purged = await store.dead_letters.purge(NOON)

        page = await store.dead_letters.page(10, 0, None)
        assert purged == 2
        assert ([event.id for event in page.events], page.total) == (["younger"], 1)

    async def test_a_cutoff_in_another_time_zone_is_the_same_moment(self, store: Store) -> None:
        """A moment counts, not the way it is written."""
        await add_dead_letter(store, make_draft(id="equal"))
        await add_dead_letter(store, make_draft(id="younger", created_at=NOON + timedelta(seconds=1)))
        purged = await store.dead_letters.purge(NOON.astimezone(timezone(timedelta(hours=9))))

        assert (purged, await _ids(store)) == (1, ["younger"])

    async def test_a_purged_event_is_gone(self, store: Store) -> None:
        """Nobody finds or revives it."""
        await add_dead_letter(store, make_draft(id="gone"))
        await store.dead_letters.purge(NOON)

        with pytest.raises(EventNotFoundError):
            await store.get("gone")
        with pytest.raises(EventNotFoundError):
            await store.dead_letters.revive("gone")

    async def test_the_id_of_a_purged_event_is_free_again(self, store: Store) -> None:
        """A given id is stored once among the events that there are."""
        draft = make_draft(id="again", is_idempotent=True)
        await add_dead_letter(store, draft)
        await store.dead_letters.purge(NOON)

        assert await add_new(store, draft) == 2

    @pytest.mark.parametrize("status", _NOT_DEAD)
    async def test_what_is_no_dead_letter_is_never_purged(self, store: Store, status: EventStatus) -> None:
        """However old it is."""
        draft = make_draft()
        await add_in_status(store, status, draft)
        purged = await store.dead_letters.purge(NOON + timedelta(days=365))

        assert purged == 0
        assert await status_of(store, draft) is status
