"""ports.EventLog: every event is read once, in order, and the log tells when it has grown."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta, timezone

import msgspec
import pytest

from postbus.errors import DuplicateEventIdError, EventNotFoundError
from postbus.events import Event, EventStatus, GlobalSequence, Progress, SubscriptionRow
from postbus.policy.patterns import TypeFilter
from postbus.ports import Store
from tests.contracts.backends import on_embedded
from tests.contracts.steps import (
    BEGINNING,
    MAIL,
    NOON,
    START,
    add,
    add_dead_letter,
    add_new,
    after,
    append,
    bury,
    is_called_soon,
    make_draft,
    read_to_the_end,
    sequence_of,
    start_adding,
)
from tests.patience import PATIENCE


def _ids(events: list[Event]) -> list[str]:
    return [event.id for event in events]


class TestAppend:
    async def test_appended_events_come_back_as_they_are_stored(self, store: Store) -> None:
        """Whole events, in order, the same that everybody reads."""
        drafts = [make_draft(payload={"n": n}, metadata={"source": "web"}) for n in range(3)]
        events = await append(store, *drafts)

        assert _ids(events) == [draft.id for draft in drafts]
        assert [event.payload for event in events] == [{"n": 0}, {"n": 1}, {"n": 2}]
        assert events == [await store.log.get(draft.id) for draft in drafts]
        numbers = [sequence_of(event) for event in events]
        assert numbers == sorted(set(numbers))

    async def test_every_field_of_a_draft_is_kept_whichever_way_it_takes(self, store: Store) -> None:
        """Who caused it, what belongs together, and the version of its payload."""
        facts = {
            "actor_id": "anna",
            "correlation_id": "request-7",
            "causation_id": "e-6",
            "schema_version": 3,
        }
        drafts = [
            msgspec.structs.replace(make_draft(id=way), **facts) for way in ("appended", "added", "once")
        ]
        await append(store, drafts[0])
        await add(store, drafts[1])
        await add(store, msgspec.structs.replace(drafts[2], is_idempotent=True))

        events, _ = await read_to_the_end(store)
        assert [{name: getattr(event, name) for name in facts} for event in events] == [facts] * 3

    async def test_nothing_is_stored_if_one_made_id_is_taken(self, store: Store) -> None:
        """All or none: neither the drafts before the culprit nor those after it."""
        await append(store, make_draft(id="taken"))
        with pytest.raises(DuplicateEventIdError):
            await append(store, make_draft(id="before"), make_draft(id="taken"), make_draft(id="after"))

        assert _ids((await read_to_the_end(store))[0]) == ["taken"]

    async def test_a_given_id_that_is_there_gives_the_event_that_is_stored(self, store: Store) -> None:
        """Appending it again is a success that stores nothing."""
        (first,) = await append(store, make_draft(payload="first", id="order-42", is_idempotent=True))
        again = await append(
            store,
            make_draft(payload="second", id="order-42", is_idempotent=True),
            make_draft(payload="new", id="new", is_idempotent=True),
            make_draft(payload="newer", id="new", is_idempotent=True),
        )

        assert again[0] == first
        assert [event.payload for event in again] == ["first", "new", "new"]
        assert _ids((await read_to_the_end(store))[0]) == ["order-42", "new"]

    async def test_appending_nothing_stores_nothing(self, store: Store) -> None:
        """An empty call is a success."""
        assert await append(store) == []
        assert await store.log.head() == START

    async def test_published_and_appended_events_are_in_one_order(self, store: Store) -> None:
        """There is one log, whichever way an event took into it."""
        await add(store, make_draft(id="a"))
        await append(store, make_draft(id="b"))
        await add(store, make_draft(id="c"))

        assert _ids((await read_to_the_end(store))[0]) == ["a", "b", "c"]

    async def test_calls_made_at_once_each_have_all_their_events_in_order(self, store: Store) -> None:
        """They may share a commit; what each of them got is its own."""
        calls = [[make_draft(payload=[call, n]) for n in range(3)] for call in range(30)]
        stored = await asyncio.gather(*[append(store, *drafts) for drafts in calls])

        assert [[event.payload for event in events] for events in stored] == [
            [[call, 0], [call, 1], [call, 2]] for call in range(30)
        ]
        assert len((await read_to_the_end(store))[0]) == 90

    @pytest.mark.parametrize(
        ("rows", "status"),
        [([], EventStatus.DONE), ([SubscriptionRow("x", "*", NOON)], EventStatus.PENDING)],
        ids=["without subscriptions", "with subscriptions"],
    )
    @on_embedded
    async def test_an_event_without_a_status_waits_where_there_are_subscriptions(
        self, store: Store, rows: list[SubscriptionRow], status: EventStatus
    ) -> None:
        """Even of a process that is down; where there are none it is done."""
        await store.subscriptions.replace(rows)
        (event,) = await store.log.append([make_draft(status=None)])

        assert event.status is status
        assert _ids(await store.backlog.pending(START, 10)) == [event.id] * len(rows)

    async def test_a_reader_who_changes_an_event_changes_only_a_copy(self, store: Store) -> None:
        """Nobody shares mutable objects through the log."""
        for event in await append(store, make_draft(payload=[1], metadata={"source": "web"})):
            event.payload.append(2)
        for event in (await store.log.read(BEGINNING, 10, None)).events:
            event.payload.append(3)
            assert event.metadata is not None
            event.metadata["source"] = "changed"

        (event,) = (await store.log.read(BEGINNING, 10, None)).events
        assert (event.payload, event.metadata) == ([1], {"source": "web"})


class TestGet:
    async def test_an_event_is_found_by_its_id(self, store: Store) -> None:
        """The same as in the store itself."""
        (event,) = await append(store, make_draft(id="order-42"))

        assert await store.log.get("order-42") == event == await store.get("order-42")

    async def test_an_unknown_event_is_not_found(self, store: Store) -> None:
        """The error names the id."""
        with pytest.raises(EventNotFoundError) as caught:
            await store.log.get("nobody")

        assert caught.value.event_id == "nobody"


class TestRead:
    async def test_the_log_is_read_page_by_page_in_order(self, store: Store) -> None:
        """After the last number that was looked at, and not more than asked for."""
        stored = await append(store, *[make_draft() for _ in range(7)])
        first = await store.log.read(BEGINNING, 3, None)
        second = await store.log.read(after(first.up_to), 3, None)

        assert first.events == stored[:3]
        assert second.events == stored[3:6]
        assert (await read_to_the_end(store, 3))[0] == stored

    async def test_a_page_goes_up_to_its_last_event_at_least(self, store: Store) -> None:
        """Nothing that was delivered is read again, nothing that was not is passed over."""
        stored = await append(store, *[make_draft() for _ in range(3)])
        page = await store.log.read(BEGINNING, 2, None)

        assert sequence_of(stored[1]) <= page.up_to < sequence_of(stored[2])

    async def test_only_wanted_types_are_read(self, store: Store) -> None:
        """In order, whatever lies between them."""
        types = ["order.placed", "mail.sent", "order.paid", "mail.sent", "order.placed"]
        stored = await append(store, *[make_draft(event_type) for event_type in types])
        events, _ = await read_to_the_end(store, 2, TypeFilter(["order.*"]))

        assert events == [stored[0], stored[2], stored[4]]

    @pytest.mark.parametrize("limit", [1, 100])
    async def test_a_reader_who_wants_few_of_many_always_gets_on_and_to_the_end(
        self, store: Store, limit: int
    ) -> None:
        """Each page goes further, thousands of others or not, and none of the wanted is missed."""
        drafts = [make_draft("rare" if number % 2500 == 1999 else "common") for number in range(6000)]
        stored = await append(store, *drafts)
        events, end = await read_to_the_end(store, limit, TypeFilter(["rare"]))

        assert events == [event for event in stored if event.type == "rare"]
        assert end == sequence_of(stored[-1])

    async def test_a_reader_who_wants_nothing_comes_to_the_end(self, store: Store) -> None:
        """And is told how far it is."""
        stored = await append(store, *[make_draft() for _ in range(5000)])
        events, end = await read_to_the_end(store, 10, TypeFilter([]))

        assert (events, end) == ([], sequence_of(stored[-1]))

    async def test_only_at_the_end_of_the_log_a_page_goes_nowhere(self, store: Store) -> None:
        """up_to == after means: there is nothing more, for now."""
        empty = await store.log.read(BEGINNING, 10, None)
        (event,) = await append(store, make_draft())
        number = sequence_of(event)

        assert (empty.events, empty.up_to) == ([], START)
        assert (await store.log.read(BEGINNING, 10, None)).up_to == number
        assert (await store.log.read(after(number), 10, None)).up_to == number
        beyond = GlobalSequence(number + 1000)
        assert (await store.log.read(after(beyond), 10, None)).up_to == beyond

    @on_embedded
    async def test_a_reader_at_the_end_has_reached_the_head_although_the_newest_was_deleted(
        self, store: Store
    ) -> None:
        """Nobody waits for a number that will never be used."""
        (first,) = await append(store, make_draft(created_at=NOON + timedelta(days=1)))
        for _ in range(3):
            await add_dead_letter(store, make_draft())
        await store.dead_letters.purge(NOON)
        events, end = await read_to_the_end(store)

        assert events == [first]
        assert end >= await store.log.head() >= sequence_of(first)

    @on_embedded
    async def test_deleted_events_hide_none_behind_them(self, store: Store) -> None:
        """A reader passes thousands of numbers that are gone."""
        await add(store, *[make_draft() for _ in range(3000)])
        events, _ = await read_to_the_end(store)
        await asyncio.gather(*[store.queue.bury(sequence_of(event), 1, '["boom"]') for event in events])
        await store.dead_letters.purge(NOON)
        (event,) = await append(store, make_draft())

        assert (await read_to_the_end(store))[0] == [event]

    @on_embedded
    async def test_events_are_read_in_whichever_status_they_are(self, store: Store) -> None:
        """The log has them all: those of the in-process handlers too."""
        drafts = [make_draft(id=status.value) for status in EventStatus]
        await add(store, *[msgspec.structs.replace(draft, status=EventStatus.PROCESSING) for draft in drafts])
        pending, _, done, dead = [sequence_of(event) for event in (await read_to_the_end(store))[0]]
        await store.queue.release([pending])
        store.queue.finish(done)
        await store.queue.bury(dead, 1, '["boom"]')

        events, _ = await read_to_the_end(store)
        assert [(event.id, event.status) for event in events] == [(s.value, s) for s in EventStatus]

    async def test_what_was_published_before_is_read(self, store: Store) -> None:
        """Whoever got the number of an event finds it in the log."""
        for _ in range(50):
            number = await add_new(store, make_draft())
            page = await store.log.read(after(number - 1), 10, None)
            assert [event.global_sequence for event in page.events] == [number]


class TestHead:
    async def test_an_empty_log_has_the_head_0(self, store: Store) -> None:
        """That is where a reader begins."""
        assert (await store.log.head(), store.log.known_head) == (0, 0)

    async def test_the_head_is_the_number_of_the_newest_event(self, store: Store) -> None:
        """Whichever way it took, and without asking the database for those of this process."""
        appended = sequence_of((await append(store, make_draft(), make_draft()))[-1])
        heads = [await store.log.head(), store.log.known_head]
        added = await add_new(store, make_draft())

        assert heads == [appended, appended]
        assert [await store.log.head(), store.log.known_head] == [added, added]
        assert added > appended

    async def test_the_known_head_is_found_again_when_the_store_is_opened_again(self, store: Store) -> None:
        """Nobody has to append first."""
        number = await add_new(store, make_draft())
        await store.close()
        await store.open()

        assert (await store.log.head(), store.log.known_head) == (number, number)

    @on_embedded
    async def test_numbers_are_not_used_again_after_the_newest_were_deleted(self, store: Store) -> None:
        """A reader who was there would miss the new ones; neither the store's end changes that."""
        gone = [await add_dead_letter(store, make_draft()) for _ in range(3)]
        await store.dead_letters.purge(NOON)
        (kept,) = await append(store, make_draft())
        await store.close()
        await store.open()
        (newer,) = await append(store, make_draft())

        assert gone[-1] < sequence_of(kept) < sequence_of(newer)


class TestPositionAt:
    async def test_it_is_just_before_the_first_event_of_that_moment_or_later(self, store: Store) -> None:
        """To the microsecond, in any time zone."""
        moments = [NOON + timedelta(seconds=seconds) for seconds in (0, 10, 10, 20)]
        stored = await append(store, *[make_draft(created_at=moment) for moment in moments])
        just_after = NOON + timedelta(microseconds=1)
        asked = [NOON - timedelta(days=1), NOON, just_after, moments[1], moments[3]]
        asked.append(moments[3].astimezone(timezone(timedelta(hours=-9))))
        positions = [await store.log.position_at(moment) for moment in asked]

        firsts = [(await store.log.read(after(position), 1, None)).events for position in positions]
        assert firsts == [[stored[index]] for index in (0, 0, 1, 1, 3, 3)]

    async def test_it_is_the_head_when_everything_is_older(self, store: Store) -> None:
        """Whoever starts there gets what comes."""
        empty = await store.log.position_at(NOON)
        (event,) = await append(store, make_draft())

        assert empty == START
        assert await store.log.position_at(NOON + timedelta(microseconds=1)) == sequence_of(event)

    async def test_a_clock_that_went_back_hides_no_event(self, store: Store) -> None:
        """The first in the order of the log counts, so that none of that moment is passed over."""
        seconds = [0, 60, 5, 30, 90]
        stored = await append(store, *[make_draft(created_at=NOON + timedelta(seconds=s)) for s in seconds])
        position = await store.log.position_at(NOON + timedelta(seconds=30))

        assert (await store.log.read(after(position), 1, None)).events == [stored[1]]


async def _add(store: Store) -> None:
    await add(store, make_draft())


async def _append(store: Store) -> None:
    await append(store, make_draft())


async def _save(store: Store) -> None:
    epoch = (await store.checkpoints.claim(MAIL, BEGINNING)).epoch
    await store.checkpoints.save(
        Progress(subscriber_id=MAIL, epoch=epoch, position=START, drafts=[make_draft()])
    )


async def _revive(store: Store) -> None:
    await store.dead_letters.revive("dead")


async def _revive_all(store: Store) -> None:
    await store.dead_letters.revive_all(None, MAIL)


class TestWatch:
    @pytest.mark.parametrize("change", [_add, _append, _save, _revive, _revive_all])
    async def test_every_watcher_is_called_when_the_log_has_grown_or_a_retry_is_wanted(
        self, store: Store, change: Callable[[Store], Awaitable[None]]
    ) -> None:
        """Subscribers look again at once."""
        (event,) = await append(store, make_draft(id="dead"))
        await bury(store, await store.checkpoints.claim(MAIL, BEGINNING), event)
        are_called = [asyncio.Event(), asyncio.Event()]
        for is_called in are_called:
            store.log.watch(is_called.set)
        await change(store)

        assert [await is_called_soon(is_called) for is_called in are_called] == [True, True]

    async def test_a_watcher_who_is_called_finds_the_event(self, store: Store) -> None:
        """The wake-up for an event never comes before it; others may come at any time."""
        found: asyncio.Future[GlobalSequence] = asyncio.get_running_loop().create_future()

        def look() -> None:
            if not found.done() and store.log.known_head:
                found.set_result(store.log.known_head)

        store.log.watch(look)
        added = start_adding(store, make_draft())
        async with asyncio.timeout(PATIENCE):
            head = await found

        assert [head] == await added
        assert len((await store.log.read(BEGINNING, 10, None)).events) == 1

    async def test_a_watcher_is_called_again_for_each_later_change(self, store: Store) -> None:
        """One call does not use it up."""
        is_called = asyncio.Event()
        store.log.watch(is_called.set)
        for _ in range(3):
            is_called.clear()
            await _append(store)
            assert await is_called_soon(is_called)

    async def test_a_watcher_who_left_is_not_called_and_the_others_are(self, store: Store) -> None:
        """Not even for a change on its way."""
        calls: list[str] = []
        is_called = asyncio.Event()

        def leave_alone() -> None:
            calls.append("called")

        store.log.watch(leave_alone)
        store.log.watch(is_called.set)
        adding = start_adding(store, make_draft())
        store.log.unwatch(leave_alone)
        await adding

        assert await is_called_soon(is_called)
        assert calls == []

    async def test_who_never_watched_can_leave(self, store: Store) -> None:
        """A shutdown need not know how far the start came."""
        is_called = asyncio.Event()
        store.log.unwatch(is_called.set)
        store.log.watch(is_called.set)
        store.log.unwatch(is_called.set)
        store.log.unwatch(is_called.set)
        await _append(store)
        await store.close()

        assert not is_called.is_set()

    async def test_nobody_watches_a_closed_store(self, store: Store) -> None:
        """Whoever opens it again says so again."""
        calls: list[str] = []
        is_called = asyncio.Event()
        store.log.watch(lambda: calls.append("called"))
        await store.close()
        await store.open()
        store.log.watch(is_called.set)
        await _append(store)

        assert await is_called_soon(is_called)
        assert calls == []

    async def test_a_watcher_is_not_called_inside_add(self, store: Store) -> None:
        """The publisher is not interrupted by subscribers."""
        is_called = asyncio.Event()
        store.log.watch(is_called.set)
        adding = start_adding(store, make_draft())
        was_called_inside = is_called.is_set()
        await adding

        assert not was_called_inside
        assert await is_called_soon(is_called)
