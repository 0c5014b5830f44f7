"""ports.Backlog: what is pending is found, claimed once and announced."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from postbus.events import EventStatus, GlobalSequence
from postbus.ports import Store
from tests.contracts.backends import on_embedded
from tests.contracts.steps import add, add_dead_letter, add_in_status, add_new, make_draft, status_of
from tests.patience import PATIENCE

_START = GlobalSequence(0)

pytestmark = on_embedded


class TestRecover:
    async def test_what_was_in_processing_is_pending_with_one_more_failed_attempt(self, store: Store) -> None:
        """The attempt that ended with its process counts, after those before it."""
        new, tried = make_draft(), make_draft()
        await add(store, new)
        await store.queue.fail(await add_new(store, tried), 2, '["a","b"]')
        recovered = await store.backlog.recover("alone", 'the process "ended" ☠')

        events = [await store.get(new.id), await store.get(tried.id)]
        assert recovered == 2
        assert [event.status for event in events] == [EventStatus.PENDING, EventStatus.PENDING]
        assert [event.retry_count for event in events] == [1, 3]
        assert [event.errors for event in events] == [
            ['the process "ended" ☠'],
            ["a", "b", 'the process "ended" ☠'],
        ]

    async def test_one_that_was_alone_in_processing_is_told_so(self, store: Store) -> None:
        """Of several most have nothing to do with the end of their process."""
        await add(store, make_draft(), make_draft())
        await store.queue.release([GlobalSequence(1)])
        await store.backlog.recover("alone", "one of several")

        assert [(await store.read_all())[place].errors for place in (0, 1)] == [[], ["alone"]]

    @pytest.mark.parametrize("status", [EventStatus.PENDING, EventStatus.DONE, EventStatus.DLQ])
    async def test_what_was_not_in_processing_stays_as_it_is(self, store: Store, status: EventStatus) -> None:
        """Only an attempt under way can have been cut short."""
        draft = make_draft()
        await add_in_status(store, status, draft)
        before = await store.get(draft.id)
        recovered = await store.backlog.recover("ended", "ended")

        assert recovered == 0
        assert await store.get(draft.id) == before


class TestPending:
    async def test_pending_events_come_in_the_order_of_their_numbers(self, store: Store) -> None:
        """Publish order, however they became pending, and whole events."""
        await add(store, *[make_draft(payload=payload) for payload in range(40)])
        for number in (33, 2, 40, 8):
            await store.queue.release([GlobalSequence(number)])
        pending = await store.backlog.pending(_START, 3)

        assert [event.global_sequence for event in pending] == [2, 8, 33]
        assert [event.payload for event in pending] == [1, 7, 32]
        assert {event.status for event in pending} == {EventStatus.PENDING}

    async def test_pending_events_are_read_page_by_page(self, store: Store) -> None:
        """After the last number that was seen, and not more than asked for."""
        await add(store, *[make_draft(status=EventStatus.PENDING) for _ in range(5)])
        pages = [await store.backlog.pending(GlobalSequence(after), 2) for after in (0, 2, 4, 5)]

        assert [[event.global_sequence for event in page] for page in pages] == [[1, 2], [3, 4], [5], []]

    @pytest.mark.parametrize("status", [EventStatus.PROCESSING, EventStatus.DONE, EventStatus.DLQ])
    async def test_events_in_another_status_are_not_pending(self, store: Store, status: EventStatus) -> None:
        """Nobody takes up what is in other hands or settled."""
        await add_in_status(store, status, make_draft())

        assert await store.backlog.pending(_START, 10) == []


class TestClaim:
    async def test_a_pending_event_is_claimed_once(self, store: Store) -> None:
        """The second who asks gets nothing."""
        draft = make_draft(status=EventStatus.PENDING)
        sequence = await add_new(store, draft)
        claims = [await store.backlog.claim([sequence]), await store.backlog.claim([sequence])]

        assert claims == [{sequence}, set()]
        assert await status_of(store, draft) is EventStatus.PROCESSING

    async def test_only_what_still_was_pending_is_claimed(self, store: Store) -> None:
        """Others may have taken or settled some of them meanwhile; nobody else's are touched."""
        drafts = {status: make_draft() for status in EventStatus}
        numbers = [await add_in_status(store, status, draft) for status, draft in drafts.items()]
        unasked = make_draft(status=EventStatus.PENDING)
        await add(store, unasked)
        claimed = await store.backlog.claim([*numbers, *numbers, GlobalSequence(999)])

        assert claimed == {numbers[list(EventStatus).index(EventStatus.PENDING)]}
        assert await status_of(store, drafts[EventStatus.DONE]) is EventStatus.DONE
        assert await status_of(store, drafts[EventStatus.DLQ]) is EventStatus.DLQ
        assert await status_of(store, unasked) is EventStatus.PENDING

    async def test_a_claim_keeps_the_attempts(self, store: Store) -> None:
        """An event that crashes its process again and again comes to its end."""
        draft = make_draft()
        sequence = await add_new(store, draft)
        await store.backlog.recover("ended", "ended")
        await store.backlog.claim([sequence])

        event = await store.get(draft.id)
        assert (event.retry_count, event.errors) == (1, ["ended"])

    async def test_a_claim_may_name_any_number_of_events(self, store: Store) -> None:
        """No limit of a database's statements shows through."""
        await add(store, *[make_draft(status=EventStatus.PENDING) for _ in range(3)])
        claimed = await store.backlog.claim([GlobalSequence(number) for number in range(1, 50_000)])

        assert claimed == {1, 2, 3}

    async def test_claiming_nothing_claims_nothing(self, store: Store) -> None:
        """An empty list is fine."""
        await add(store, make_draft(status=EventStatus.PENDING))

        assert await store.backlog.claim([]) == set()


class TestSettlePending:
    async def test_pending_events_are_done_unseen_when_the_user_says_so(self, store: Store) -> None:
        """Those that are named, and how many they were."""
        drafts = [make_draft(status=EventStatus.PENDING) for _ in range(3)]
        first, second, _ = [await add_new(store, draft) for draft in drafts]
        settled = await store.backlog.settle_pending([first, second, second])

        assert settled == 2
        assert [await status_of(store, draft) for draft in drafts] == [
            EventStatus.DONE,
            EventStatus.DONE,
            EventStatus.PENDING,
        ]

    @pytest.mark.parametrize("status", [EventStatus.PROCESSING, EventStatus.DONE, EventStatus.DLQ])
    async def test_events_in_another_status_are_not_settled(self, store: Store, status: EventStatus) -> None:
        """An event in flight or a dead letter is never marked done unseen."""
        draft = make_draft()
        settled = await store.backlog.settle_pending([await add_in_status(store, status, draft)])

        assert settled == 0
        assert await status_of(store, draft) is status


async def _add(store: Store) -> None:
    await add(store, make_draft(status=EventStatus.PENDING))


async def _release(store: Store) -> None:
    await store.queue.release([GlobalSequence(1)])


async def _recover(store: Store) -> None:
    await store.backlog.recover("ended", "ended")


async def _revive(store: Store) -> None:
    await store.dead_letters.revive("dead")


async def _revive_all(store: Store) -> None:
    await store.dead_letters.revive_all(None, None)


class TestWatch:
    # The lock is acquired first: to become the owner would be one more reason to call the watcher.

    @pytest.mark.parametrize("make_pending", [_add, _release, _recover, _revive, _revive_all])
    async def test_a_watcher_is_called_when_an_event_became_pending(
        self, store: Store, make_pending: Callable[[Store], Awaitable[None]]
    ) -> None:
        """Whoever runs the handlers looks at once, and then finds the event."""
        assert await add_new(store, make_draft()) == 1
        await add_dead_letter(store, make_draft(id="dead"))
        store.dispatch_lock.try_acquire()
        is_called = asyncio.Event()
        store.backlog.watch(is_called.set)
        await make_pending(store)
        async with asyncio.timeout(PATIENCE):
            await is_called.wait()

        assert len(await store.backlog.pending(_START, 10)) == 1

    async def test_a_watcher_is_called_again_for_each_later_change(self, store: Store) -> None:
        """One call does not use it up."""
        store.dispatch_lock.try_acquire()
        is_called = asyncio.Event()
        store.backlog.watch(is_called.set)
        for _ in range(3):
            is_called.clear()
            await _add(store)
            async with asyncio.timeout(PATIENCE):
                await is_called.wait()

        assert len(await store.backlog.pending(_START, 10)) == 3

    async def test_a_watcher_is_not_called_inside_add(self, store: Store) -> None:
        """The publisher is not interrupted by the one who runs the handlers."""
        store.dispatch_lock.try_acquire()
        is_called = asyncio.Event()
        store.backlog.watch(is_called.set)
        store.queue.add([make_draft(status=EventStatus.PENDING)], lambda *stored: None)
        was_called_inside = is_called.is_set()
        async with asyncio.timeout(PATIENCE):
            await is_called.wait()

        assert not was_called_inside

    async def test_a_watcher_that_was_taken_away_is_not_called(self, store: Store) -> None:
        """Nobody is woken who is no longer there, not even for a change on its way."""
        calls: list[str] = []
        store.backlog.watch(lambda: calls.append("called"))
        store.queue.add([make_draft(status=EventStatus.PENDING)], lambda *stored: None)
        store.backlog.watch(None)
        await _add(store)
        for _ in range(10):
            await asyncio.sleep(0)
        await store.close()

        assert calls == []

    async def test_the_latest_watcher_replaces_the_one_before(self, store: Store) -> None:
        """There is one at a time."""
        calls: list[str] = []
        is_called = asyncio.Event()
        store.backlog.watch(lambda: calls.append("old"))
        store.backlog.watch(is_called.set)
        await _add(store)
        async with asyncio.timeout(PATIENCE):
            await is_called.wait()

        assert calls == []
