"""ports.EventQueue: events are stored all or none, and change status only as allowed."""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime, timedelta

import pytest

from postbus.errors import DuplicateEventIdError, EventNotFoundError, StoreError
from postbus.events import Event, EventStatus, GlobalSequence
from postbus.ports import Store
from postbus.testing import ManualClock
from tests.contracts.backends import on_embedded
from tests.contracts.steps import (
    NOON,
    add,
    add_in_status,
    add_new,
    make_draft,
    start_adding,
    status_of,
)
from tests.patience import PATIENCE

_PAYLOADS = [
    None,
    True,
    0,
    -(2**63),
    2**64 - 1,
    0.1,
    1e300,
    "",
    "naïve ☃ 🎉 \u2028 \\ \" ' % ?",
    [],
    {},
    {"": {"a": [1, [2, {"b": None}]]}},
    ["x" * 100_000],
]


class TestAdd:
    async def test_a_stored_event_reads_back_as_it_was_given(self, store: Store) -> None:
        """Every field of the draft is kept, microseconds included; the rest is that of a new event."""
        metadata = {"source": "web", "ü": ""}
        draft = make_draft("order.placed", {"order": 42}, status=EventStatus.DONE, metadata=metadata)
        sequence = await add_new(store, draft)

        assert await store.get(draft.id) == Event(
            id=draft.id,
            type="order.placed",
            payload={"order": 42},
            created_at=NOON,
            status=EventStatus.DONE,
            metadata=metadata,
            global_sequence=sequence,
        )

    @pytest.mark.parametrize("payload", _PAYLOADS, ids=lambda payload: repr(payload)[:20])
    async def test_a_payload_reads_back_equal_and_of_the_same_type(
        self, store: Store, payload: object
    ) -> None:
        """Whatever JSON value was stored comes back."""
        draft = make_draft(payload=payload)
        await add(store, draft)

        found = (await store.get(draft.id)).payload
        assert found == payload
        assert type(found) is type(payload)

    @pytest.mark.parametrize("metadata", [None, {}, {"key": "value"}])
    async def test_metadata_read_back_as_given(self, store: Store, metadata: dict[str, str] | None) -> None:
        """No metadata and empty metadata stay two things."""
        draft = make_draft(metadata=metadata)
        await add(store, draft)

        assert (await store.get(draft.id)).metadata == metadata

    @pytest.mark.parametrize("status", [EventStatus.PENDING, EventStatus.PROCESSING, EventStatus.DONE])
    @on_embedded
    async def test_an_event_starts_in_the_status_of_its_draft(
        self, store: Store, status: EventStatus
    ) -> None:
        """The publisher decides: for the owner, in flight, or with no handler to wait for."""
        draft = make_draft(status=status)
        await add(store, draft)

        assert await status_of(store, draft) is status

    async def test_the_created_at_of_an_event_is_aware_and_in_utc(self, store: Store) -> None:
        """A moment is the same moment in every store."""
        draft = make_draft()
        await add(store, draft)

        assert (await store.get(draft.id)).created_at.utcoffset() == timedelta(0)

    async def test_sequence_numbers_count_from_one_in_the_order_of_the_drafts(self, store: Store) -> None:
        """One number for each draft, across calls."""
        first = await add(store, make_draft(), make_draft(), make_draft())
        second = await add(store, make_draft())

        assert (first, second) == ([1, 2, 3], [4])

    async def test_calls_made_at_once_are_numbered_and_answered_in_their_order(self, store: Store) -> None:
        """Publish order per publisher, even when a store groups several calls."""
        answered: list[int] = []
        futures = [start_adding(store, make_draft()) for _ in range(200)]
        for index, future in enumerate(futures):
            future.add_done_callback(lambda _, index=index: answered.append(index))  # type: ignore[misc]
        stored = await asyncio.gather(*futures)
        await asyncio.sleep(0)

        assert stored == [[number] for number in range(1, 201)]
        assert answered == list(range(200))

    async def test_given_and_made_ids_are_numbered_in_one_order(self, store: Store) -> None:
        """Publish order does not depend on who chose the id."""
        drafts = [make_draft(is_idempotent=number % 3 == 0) for number in range(30)]
        stored = await asyncio.gather(*[start_adding(store, draft) for draft in drafts])

        assert stored == [[number] for number in range(1, 31)]

    async def test_on_stored_is_never_called_inside_add(self, store: Store) -> None:
        """The caller can finish what it is doing before the answer comes, good or bad."""
        taken = make_draft()
        await add(store, taken)
        good = start_adding(store, make_draft())
        bad = start_adding(store, taken)
        are_answered = (good.done(), bad.done())
        await asyncio.wait([good, bad])

        assert are_answered == (False, False)
        assert isinstance(bad.exception(), DuplicateEventIdError)

    async def test_on_stored_is_called_in_the_thread_of_the_event_loop(self, store: Store) -> None:
        """It may touch whatever tasks may touch."""
        threads: list[int] = []
        is_answered = asyncio.Event()

        def on_stored(
            sequences: Sequence[int | None], versions: Sequence[int | None], error: StoreError | None
        ) -> None:
            threads.append(threading.get_ident())
            is_answered.set()

        store.queue.add([make_draft()], on_stored)
        async with asyncio.timeout(PATIENCE):
            await is_answered.wait()

        assert threads == [threading.get_ident()]

    async def test_the_event_is_there_when_on_stored_is_called(self, store: Store) -> None:
        """Whoever is told of an event can read it."""
        draft = make_draft()
        await start_adding(store, draft)

        assert (await store.get(draft.id)).id == draft.id

    async def test_an_event_is_stored_although_its_publisher_is_cancelled(self, store: Store) -> None:
        """What was handed over does not depend on the task that did it."""
        draft = make_draft()
        answers: list[Sequence[int | None]] = []
        is_answered = asyncio.Event()

        def on_stored(
            sequences: Sequence[int | None], versions: Sequence[int | None], error: StoreError | None
        ) -> None:
            answers.append(list(sequences))
            is_answered.set()

        async def publish() -> None:
            store.queue.add([draft], on_stored)
            await asyncio.Event().wait()

        publisher = asyncio.create_task(publish())
        await asyncio.sleep(0)
        publisher.cancel()
        async with asyncio.timeout(PATIENCE):
            await is_answered.wait()

        assert answers == [[1]]
        assert (await store.get(draft.id)).id == draft.id

    async def test_adding_nothing_stores_nothing(self, store: Store) -> None:
        """An empty call is a success."""
        assert await add(store) == []
        assert await add(store, make_draft()) == [1]

    async def test_one_call_may_hold_thousands_of_drafts(self, store: Store) -> None:
        """No limit of a database's statements shows through."""
        stored = await add(store, *[make_draft() for _ in range(6000)])

        assert stored == list(range(1, 6001))

    async def test_a_reader_who_changes_an_event_changes_only_a_copy(self, store: Store) -> None:
        """Nobody shares mutable objects through the store."""
        draft = make_draft(payload={"items": [1]}, metadata={"source": "web"})
        await add(store, draft)
        event = await store.get(draft.id)
        event.payload["items"].append(2)
        assert event.metadata is not None
        event.metadata["source"] = "changed"

        again = await store.get(draft.id)
        assert (again.payload, again.metadata) == ({"items": [1]}, {"source": "web"})

    async def test_a_publisher_who_changes_metadata_later_changes_nothing(self, store: Store) -> None:
        """What is stored is what was given at that moment."""
        metadata = {"source": "web"}
        draft = make_draft(metadata=metadata)
        await add(store, draft)
        metadata["source"] = "changed"

        assert (await store.get(draft.id)).metadata == {"source": "web"}


class TestAddOfAnIdThatIsTaken:
    async def test_a_given_id_is_stored_once(self, store: Store) -> None:
        """Publishing the same given id again succeeds, stores nothing and changes nothing."""
        first = make_draft(payload="first", id="order-42", is_idempotent=True)
        second = make_draft("order.other", "second", id="order-42", is_idempotent=True)
        stored = [await add(store, first), await add(store, second)]

        assert stored == [[1], [None]]
        event = await store.get("order-42")
        assert (event.type, event.payload, event.global_sequence) == ("order.placed", "first", 1)

    async def test_a_given_id_twice_in_one_call_is_stored_once(self, store: Store) -> None:
        """The first of the two counts; the drafts around them are stored."""
        drafts = [
            make_draft(),
            make_draft(payload="first", id="order-42", is_idempotent=True),
            make_draft(payload="second", id="order-42", is_idempotent=True),
            make_draft(),
        ]
        stored = await add(store, *drafts)

        assert stored[2] is None
        numbers = [number for number in stored if number is not None]
        assert len(numbers) == 3
        assert numbers == sorted(set(numbers))
        assert (await store.get("order-42")).payload == "first"
        assert (await store.get(drafts[3].id)).global_sequence == stored[3]

    async def test_a_given_id_twice_in_calls_made_at_once_is_stored_once(self, store: Store) -> None:
        """It does not matter that the first call is not durable yet."""
        drafts = [make_draft(payload=number, id="order-42", is_idempotent=True) for number in range(5)]
        stored = await asyncio.gather(*[start_adding(store, draft) for draft in drafts])

        assert stored == [[1], [None], [None], [None], [None]]
        assert (await store.get("order-42")).payload == 0

    async def test_a_given_and_then_a_made_id_at_once_are_a_success_and_an_error(self, store: Store) -> None:
        """The first call is the one that is stored."""
        given = start_adding(store, make_draft(payload="given", id="order-42", is_idempotent=True))
        made = start_adding(store, make_draft(payload="made", id="order-42"))
        await asyncio.wait([given, made])

        assert given.result() == [1]
        assert isinstance(made.exception(), DuplicateEventIdError)
        assert (await store.get("order-42")).payload == "given"

    async def test_a_given_id_that_a_factory_made_before_is_stored_already(self, store: Store) -> None:
        """It does not matter who chose the id the first time."""
        await add(store, make_draft(payload="first", id="order-42"))
        stored = await add(store, make_draft(payload="second", id="order-42", is_idempotent=True))

        assert stored == [None]
        assert (await store.get("order-42")).payload == "first"

    @pytest.mark.parametrize("is_idempotent", [True, False])
    async def test_a_made_id_that_is_taken_is_an_error(self, store: Store, is_idempotent: bool) -> None:
        """An id factory that repeats itself must not lose the second event silently."""
        await add(store, make_draft(payload="first", id="order-42", is_idempotent=is_idempotent))
        with pytest.raises(DuplicateEventIdError):
            await add(store, make_draft(payload="second", id="order-42"))

        assert (await store.get("order-42")).payload == "first"

    async def test_nothing_of_a_call_is_stored_if_one_made_id_is_taken(self, store: Store) -> None:
        """All or none: neither the drafts before the culprit nor those after it."""
        await add(store, make_draft(id="taken"))
        with pytest.raises(DuplicateEventIdError):
            await add(
                store,
                make_draft(id="before", is_idempotent=True),
                make_draft(id="taken"),
                make_draft(id="after"),
            )

        for event_id in ("before", "after"):
            with pytest.raises(EventNotFoundError):
                await store.get(event_id)

    async def test_nothing_of_a_call_is_stored_if_it_has_a_made_id_twice(self, store: Store) -> None:
        """All or none, also when the call is at odds with itself."""
        with pytest.raises(DuplicateEventIdError):
            await add(store, make_draft(id="before"), make_draft(id="twice"), make_draft(id="twice"))

        for event_id in ("before", "twice"):
            with pytest.raises(EventNotFoundError):
                await store.get(event_id)

    async def test_a_call_that_fails_takes_no_other_call_with_it(self, store: Store) -> None:
        """Calls made at the same moment may share a commit, never a fate."""
        await add(store, make_draft(id="taken"))
        good = [make_draft(id=f"good-{number}") for number in range(4)]
        futures = [start_adding(store, draft) for draft in (*good[:2], make_draft(id="taken"), *good[2:])]
        await asyncio.wait(futures)

        assert [future.exception() is None for future in futures] == [True, True, False, True, True]
        assert [(await store.get(draft.id)).id for draft in good] == [draft.id for draft in good]

    @on_embedded
    async def test_a_sequence_number_is_never_used_again(self, store: Store) -> None:
        """Not even that of the newest event, after it was purged."""
        await add_in_status(store, EventStatus.DLQ, make_draft())
        await add_in_status(store, EventStatus.DLQ, make_draft())
        await store.dead_letters.purge(NOON)

        assert await add_new(store, make_draft()) == 3


@on_embedded
class TestMoves:
    async def test_a_finished_event_is_done_at_once_for_every_reader(self, store: Store) -> None:
        """finish() is written soon, and no reader sees the time in between."""
        drafts = [make_draft() for _ in range(50)]
        for number in await add(store, *drafts):
            assert number is not None
            store.queue.finish(number)

        assert {await status_of(store, draft) for draft in drafts} == {EventStatus.DONE}

    async def test_a_finished_event_is_out_of_reach_for_the_very_next_call(self, store: Store) -> None:
        """What is written soon comes before what is asked for later."""
        drafts = [make_draft() for _ in range(4)]
        numbers = [await add_new(store, draft) for draft in drafts]
        for number in numbers:
            store.queue.finish(number)
        await asyncio.gather(
            store.queue.fail(numbers[0], 1, '["late"]'),
            store.queue.bury(numbers[1], 1, '["late"]'),
            store.queue.release([numbers[2]]),
            store.backlog.recover("late", "late"),
        )

        events = [await store.get(draft.id) for draft in drafts]
        assert [(event.status, event.retry_count) for event in events] == [(EventStatus.DONE, 0)] * 4

    async def test_a_failed_attempt_is_recorded_and_the_event_stays_in_processing(self, store: Store) -> None:
        """The dispatcher goes on with it; a crash now would not forget the attempt."""
        draft = make_draft()
        sequence = await add_new(store, draft)
        await store.queue.fail(sequence, 1, '["boom"]')
        await store.queue.fail(sequence, 2, '["boom","\\"bang\\""]')

        event = await store.get(draft.id)
        assert (event.status, event.retry_count, event.dlq_at) == (EventStatus.PROCESSING, 2, None)
        assert event.errors == ["boom", '"bang"']

    async def test_a_buried_event_is_a_dead_letter_with_its_story(
        self, store: Store, clock: ManualClock
    ) -> None:
        """It knows when it died, how often it was tried and why it failed."""
        draft = make_draft()
        sequence = await add_new(store, draft)
        await clock.advance(90.5)
        await store.queue.bury(sequence, 4, '["a","b","c","d"]')

        event = await store.get(draft.id)
        assert (event.status, event.retry_count, event.errors) == (EventStatus.DLQ, 4, ["a", "b", "c", "d"])
        assert event.dlq_at == datetime.fromisoformat("2026-01-01T00:01:30.5+00:00")

    async def test_an_event_can_be_buried_without_an_error(self, store: Store) -> None:
        """last_error stays empty if nobody knows one."""
        draft = make_draft()
        await store.queue.bury(await add_new(store, draft), 0, None)

        event = await store.get(draft.id)
        assert (event.status, event.last_error, event.errors) == (EventStatus.DLQ, None, [])

    async def test_released_events_are_pending_with_their_attempts(self, store: Store) -> None:
        """Giving an event back is no attempt and no pardon."""
        drafts = [make_draft(), make_draft(), make_draft()]
        first, second, _ = [await add_new(store, draft) for draft in drafts]
        await store.queue.fail(first, 2, '["a","b"]')
        await store.queue.release([first, second])

        events = [await store.get(draft.id) for draft in drafts]
        assert [event.status for event in events] == [
            EventStatus.PENDING,
            EventStatus.PENDING,
            EventStatus.PROCESSING,
        ]
        assert (events[0].retry_count, events[0].errors) == (2, ["a", "b"])

    async def test_releasing_nothing_changes_nothing(self, store: Store) -> None:
        """An empty list is fine."""
        draft = make_draft()
        await add(store, draft)
        await store.queue.release([])

        assert await status_of(store, draft) is EventStatus.PROCESSING

    async def test_only_the_named_event_moves(self, store: Store) -> None:
        """Its neighbours keep everything they had."""
        drafts = [make_draft() for _ in range(5)]
        numbers = [await add_new(store, draft) for draft in drafts]
        store.queue.finish(numbers[1])
        await store.queue.fail(numbers[2], 1, '["boom"]')
        await store.queue.bury(numbers[3], 1, '["boom"]')

        events = [await store.get(draft.id) for draft in drafts]
        assert [event.status.value for event in events] == [
            "processing",
            "done",
            "processing",
            "dlq",
            "processing",
        ]
        assert [event.retry_count for event in events] == [0, 0, 1, 1, 0]


async def _finish(store: Store, sequence: GlobalSequence) -> None:
    store.queue.finish(sequence)


async def _fail(store: Store, sequence: GlobalSequence) -> None:
    await store.queue.fail(sequence, 9, '["late"]')


async def _bury(store: Store, sequence: GlobalSequence) -> None:
    await store.queue.bury(sequence, 9, '["late"]')


async def _release(store: Store, sequence: GlobalSequence) -> None:
    await store.queue.release([sequence])


@pytest.mark.parametrize("move", [_finish, _fail, _bury, _release])
@on_embedded
class TestMovesThatAreNotAllowed:
    @pytest.mark.parametrize("status", [EventStatus.PENDING, EventStatus.DONE, EventStatus.DLQ])
    async def test_an_event_that_is_not_in_processing_stays_as_it_is(
        self,
        store: Store,
        clock: ManualClock,
        move: Callable[[Store, GlobalSequence], Awaitable[None]],
        status: EventStatus,
    ) -> None:
        """A late handler can't change what was decided meanwhile."""
        draft = make_draft()
        sequence = await add_in_status(store, status, draft)
        before = await store.get(draft.id)
        await clock.advance(1)
        await move(store, sequence)

        assert await store.get(draft.id) == before

    async def test_a_number_that_no_event_has_changes_nothing(
        self, store: Store, move: Callable[[Store, GlobalSequence], Awaitable[None]]
    ) -> None:
        """It was purged meanwhile; there is nothing left to say about it."""
        draft = make_draft()
        await add(store, draft)
        await move(store, GlobalSequence(999))

        assert await status_of(store, draft) is EventStatus.PROCESSING
        assert (await store.dead_letters.page(10, 0, None)).total == 0
