"""Streams: versions count from 1, and of two writers at one version exactly one wins."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence

import pytest

from postbus.errors import (
    DuplicateEventIdError,
    InvalidEventFieldError,
    InvalidEventTypeError,
    InvalidPageError,
    InvalidPayloadError,
    PostbusError,
    StoreError,
    WrongExpectedVersionError,
)
from postbus.events import Draft, Event, EventStatus, NewEvent
from postbus.ports import Store
from tests.contracts.backends import on_embedded
from tests.contracts.steps import (
    NOON,
    START,
    add,
    add_dead_letter,
    append,
    make_draft,
    read_to_the_end,
    sequence_of,
    start_adding,
)
from tests.patience import PATIENCE


def _versions(events: Sequence[Event]) -> list[int | None]:
    return [event.stream_version for event in events]


class TestVersions:
    async def test_versions_count_from_1_in_each_stream(self, store: Store) -> None:
        """Across calls, across streams in one call, and an event without a stream has none."""
        first = await append(store, make_draft(stream_id="a"), make_draft(stream_id="b"), make_draft())
        second = await append(store, *[make_draft(stream_id=name) for name in ("b", "a", "a")])

        assert (_versions(first), _versions(second)) == ([1, 1, None], [2, 2, 3])

    async def test_published_and_appended_events_share_the_versions_of_their_stream(
        self, store: Store
    ) -> None:
        """Whichever way an event takes into it."""
        await add(store, make_draft(stream_id="a"))
        await append(store, make_draft(stream_id="a"))
        await add(store, make_draft(stream_id="a", is_idempotent=True), make_draft(stream_id="a"))

        assert _versions(await store.log.read_stream("a", 1, None)) == [1, 2, 3, 4]

    async def test_the_publisher_is_told_the_versions(self, store: Store) -> None:
        """One for each draft: None without a stream, and for an id that was there already."""
        await append(store, make_draft(stream_id="a"))
        await add(store, make_draft(id="there", stream_id="a", is_idempotent=True))
        versions = await _added_versions(
            store,
            make_draft(stream_id="a"),
            make_draft(),
            make_draft(id="there", stream_id="a", is_idempotent=True),
            make_draft(stream_id="a", is_idempotent=True),
        )

        assert versions == [3, None, None, 4]

    @pytest.mark.parametrize("is_idempotent", [True, False])
    async def test_one_event_alone_is_told_its_version(self, store: Store, is_idempotent: bool) -> None:
        """The commonest call of all."""
        drafts = [make_draft(stream_id="a", is_idempotent=is_idempotent) for _ in range(2)]

        assert [await _added_versions(store, draft) for draft in drafts] == [[1], [2]]

    async def test_a_publisher_without_streams_is_told_no_versions(self, store: Store) -> None:
        """Nothing to say."""
        assert await _added_versions(store, make_draft(), make_draft(is_idempotent=True)) == []

    async def test_a_given_id_that_is_there_takes_no_version(self, store: Store) -> None:
        """Its stream has no hole, and whatever version it expected does not matter any more."""
        once = make_draft(id="once", stream_id="a", expected_version=0, is_idempotent=True)
        await append(store, once)
        again = await append(store, once, make_draft(stream_id="a"))

        assert _versions(again) == [1, 2]
        assert _versions(await store.log.read_stream("a", 1, None)) == [1, 2]

    @on_embedded
    async def test_a_version_is_never_used_again(self, store: Store) -> None:
        """Purging dead letters leaves the events of streams where they are."""
        await append(store, make_draft(stream_id="a"))
        await add_dead_letter(store, make_draft(stream_id="a"))
        await store.dead_letters.purge(NOON)
        with pytest.raises(WrongExpectedVersionError) as caught:
            await append(store, make_draft(stream_id="a", expected_version=0))
        events = await append(store, make_draft(stream_id="a", expected_version=2))

        assert caught.value.actual == 2
        assert _versions(events) == [3]
        assert _versions(await store.log.read_stream("a", 1, None)) == [1, 2, 3]

    @pytest.mark.parametrize("name", [" ", "a%b_c", "'; DROP TABLE events; --", "☃ 🎉", "A", "x" * 255])
    async def test_a_stream_may_have_any_name(self, store: Store, name: str) -> None:
        """Names are compared letter by letter, and are never part of a statement."""
        await append(store, make_draft(stream_id=name), make_draft(stream_id="a"))

        assert _versions(await store.log.read_stream(name, 1, None)) == [1]


async def _added_versions(store: Store, *drafts: Draft) -> list[int | None]:
    """What add tells of the versions."""
    told: asyncio.Future[list[int | None]] = asyncio.get_running_loop().create_future()

    def on_stored(
        sequences: Sequence[int | None], versions: Sequence[int | None], error: StoreError | None
    ) -> None:
        told.set_result(list(versions))

    store.queue.add(drafts, on_stored)
    async with asyncio.timeout(PATIENCE):
        return await told


class TestExpectedVersion:
    async def test_a_stream_at_the_expected_version_takes_the_event(self, store: Store) -> None:
        """0 for a stream that does not exist, then 1, then 2."""
        for version in range(3):
            (event,) = await append(store, make_draft(stream_id="a", expected_version=version))
            assert event.stream_version == version + 1

    @pytest.mark.parametrize("expected", [0, 1, 3, 2**40])
    async def test_a_stream_at_another_version_refuses_it(self, store: Store, expected: int) -> None:
        """The error says where the stream is; nothing was stored."""
        await append(store, make_draft(stream_id="a"), make_draft(stream_id="a"))
        with pytest.raises(WrongExpectedVersionError) as caught:
            await append(store, make_draft(stream_id="a", expected_version=expected))

        error = caught.value
        assert (error.stream_id, error.expected, error.actual) == ("a", expected, 2)
        assert len((await read_to_the_end(store))[0]) == 2

    @pytest.mark.parametrize("is_idempotent", [True, False])
    async def test_a_publisher_is_refused_alike(self, store: Store, is_idempotent: bool) -> None:
        """publish(expected_version=…) has the same error, and stores nothing."""
        await append(store, make_draft(stream_id="a"))
        with pytest.raises(WrongExpectedVersionError):
            await add(store, make_draft(stream_id="a", expected_version=0, is_idempotent=is_idempotent))

        assert len((await read_to_the_end(store))[0]) == 1

    async def test_drafts_of_the_same_call_count(self, store: Store) -> None:
        """Where the stream must be just before this draft, the ones before it included."""
        events = await append(
            store, *[make_draft(stream_id="a", expected_version=version) for version in range(3)]
        )

        assert _versions(events) == [1, 2, 3]

    async def test_nothing_of_a_call_is_stored_if_one_stream_is_elsewhere(self, store: Store) -> None:
        """All or none: no number, no version, no event."""
        with pytest.raises(WrongExpectedVersionError):
            await append(
                store,
                make_draft(stream_id="a"),
                make_draft(stream_id="b", expected_version=1),
                make_draft(stream_id="a"),
            )

        assert (await read_to_the_end(store))[0] == []
        assert _versions(await append(store, make_draft(stream_id="a", expected_version=0))) == [1]

    @pytest.mark.parametrize("way", [append, add])
    async def test_of_many_writers_at_one_version_exactly_one_wins(
        self, store: Store, way: Callable[[Store, Draft], Awaitable[object]]
    ) -> None:
        """The others are told, and nothing of theirs is stored."""
        await append(store, make_draft(stream_id="a"))
        drafts = [make_draft(payload=n, stream_id="a", expected_version=1) for n in range(20)]
        outcomes = await asyncio.gather(*[way(store, draft) for draft in drafts], return_exceptions=True)

        refused = [isinstance(outcome, WrongExpectedVersionError) for outcome in outcomes]
        assert refused.count(False) == 1
        (_, winner) = await store.log.read_stream("a", 1, None)
        assert (winner.stream_version, winner.payload) == (2, refused.index(False))

    async def test_a_call_that_is_refused_spoils_no_other_made_at_the_same_moment(self, store: Store) -> None:
        """They may share a commit, never a fate."""
        await append(store, make_draft(stream_id="a"))
        calls = [
            start_adding(
                store,
                make_draft(payload=number, stream_id="a", expected_version=0)
                if number % 3 == 1
                else make_draft(payload=number, stream_id=f"s{number}", expected_version=0)
                if number % 3 == 2
                else make_draft(payload=number, stream_id="a"),
            )
            for number in range(60)
        ]
        appends = [asyncio.ensure_future(append(store, make_draft(stream_id="b"))) for _ in range(20)]
        await asyncio.wait(calls)
        await asyncio.wait(appends)

        assert [number for number, call in enumerate(calls) if call.exception()] == list(range(1, 60, 3))
        assert all(call.exception() is None for call in appends)
        stream = await store.log.read_stream("a", 2, None)
        assert [event.payload for event in stream] == list(range(0, 60, 3))
        assert _versions(stream) == list(range(2, 22))
        assert sorted(filter(None, _versions(await store.log.read_stream("b", 1, None)))) == list(
            range(1, 21)
        )

    async def test_a_duplicate_id_in_a_stream_leaves_the_stream_as_it_was(self, store: Store) -> None:
        """The next one gets the next version."""
        await append(store, make_draft(id="taken", stream_id="a"))
        with pytest.raises(DuplicateEventIdError):
            await append(store, make_draft(stream_id="a"), make_draft(id="taken", stream_id="a"))

        assert _versions(await append(store, make_draft(stream_id="a", expected_version=1))) == [2]


class TestReadStream:
    async def test_a_stream_is_read_in_the_order_of_its_versions(self, store: Store) -> None:
        """Its own events only, whole."""
        stored = await append(store, *[make_draft(stream_id=name) for name in "abaab"])

        assert await store.log.read_stream("a", 1, None) == [stored[0], stored[2], stored[3]]

    @pytest.mark.parametrize(
        ("bounds", "expected"),
        [
            ((2, 4), [2, 3, 4]),
            ((5, None), [5]),
            ((3, 3), [3]),
            ((4, 2), []),
            ((6, None), []),
            ((1, 99), [1, 2, 3, 4, 5]),
        ],
    )
    async def test_both_bounds_are_included(
        self, store: Store, bounds: tuple[int, int | None], expected: list[int]
    ) -> None:
        """And beyond the end there is nothing."""
        await append(store, *[make_draft(stream_id="a") for _ in range(5)])

        assert _versions(await store.log.read_stream("a", *bounds)) == expected

    async def test_a_stream_that_does_not_exist_is_empty(self, store: Store) -> None:
        """Nothing found is no error."""
        assert await store.log.read_stream("nobody", 1, None) == []

    async def test_a_stream_is_there_again_after_the_store_was_closed(self, store: Store) -> None:
        """With its version."""
        await append(store, make_draft(stream_id="a"), make_draft(stream_id="a"))
        await store.close()
        await store.open()

        assert _versions(await store.log.read_stream("a", 1, None)) == [1, 2]
        assert _versions(await append(store, make_draft(stream_id="a", expected_version=2))) == [3]


class TestWhatUsersCall:
    async def test_append_makes_events_of_what_publish_many_takes(self, store: Store) -> None:
        """Tuples and NewEvents, checked and encoded; a fresh id for each that has none."""
        events = await store.append(
            "order-42",
            [
                ("order.placed", {"total": 7}),
                ("order.paid", None, {"source": "web"}),
                NewEvent(
                    "order.shipped", event_id="shipped", actor_id="anna", correlation_id="c", schema_version=2
                ),
            ],
            expected_version=0,
        )

        assert [event.type for event in events] == ["order.placed", "order.paid", "order.shipped"]
        assert _versions(events) == [1, 2, 3]
        assert (events[0].payload, events[1].metadata) == ({"total": 7}, {"source": "web"})
        assert (events[2].id, events[2].actor_id, events[2].schema_version) == ("shipped", "anna", 2)
        assert await store.read_stream("order-42") == events == await store.read_all()
        assert {event.status for event in events} == {EventStatus.DONE}

    async def test_a_writer_who_is_late_is_told(self, store: Store) -> None:
        """And nothing of its append is stored."""
        await store.append("order-42", [("order.placed",)])
        with pytest.raises(WrongExpectedVersionError):
            await store.append("order-42", [("a",), ("b",)], expected_version=0)

        assert len(await store.read_all()) == 1

    @pytest.mark.parametrize(
        ("stream_id", "events", "expected_version", "error"),
        [
            ("", [("a",)], None, InvalidEventFieldError),
            (7, [("a",)], None, InvalidEventFieldError),
            ("a\x00", [("a",)], None, InvalidEventFieldError),
            ("s", [("a",)], -1, InvalidEventFieldError),
            ("s", [("a",)], True, InvalidEventFieldError),
            ("s", [("a",), ("b", {1, 2})], None, InvalidPayloadError),
            ("s", [("a",), ("b c",)], None, InvalidEventTypeError),
            ("s", ["order.placed"], None, InvalidPayloadError),
            ("s", [NewEvent("a", stream_id="other")], None, InvalidEventFieldError),
            ("s", [NewEvent("a", stream_id="s", expected_version=0)], None, InvalidEventFieldError),
        ],
    )
    async def test_what_cannot_be_appended_is_refused_whole(
        self,
        store: Store,
        stream_id: str,
        events: list[object],
        expected_version: int | None,
        error: type[Exception],
    ) -> None:
        """Nothing is stored of it."""
        with pytest.raises(error, match="nothing was stored"):
            await store.append(stream_id, events, expected_version=expected_version)

        assert await store.read_all() == []

    @pytest.mark.parametrize(
        ("item", "words"),
        [
            (("b", {1, 2}), "payload is of type set"),
            (("b c",), "event type 'b c' contains"),
            ("order.placed", "the item is of type str"),
            (NewEvent("b", stream_id="other"), "stream_id is 'other'"),
        ],
        ids=["payload", "type", "item", "stream"],
    )
    async def test_the_error_says_which_event_cannot_be_appended(
        self, store: Store, item: object, words: str
    ) -> None:
        """By its place in the list, and in no words of publish_many."""
        with pytest.raises(PostbusError, match=rf"^events\[2\]: {words}.*nothing was stored$") as refused:
            await store.append("s", [("a",), ("a",), item, ("a",)])

        assert "publish_many" not in str(refused.value)

    async def test_all_events_are_read_by_page(self, store: Store) -> None:
        """100 at a time unless told otherwise, after the number of the last."""
        stored = await append(store, *[make_draft() for _ in range(150)])
        first = await store.read_all()
        rest = await store.read_all(after=sequence_of(first[-1]))

        assert (first, rest) == (stored[:100], stored[100:])
        assert await store.read_all(after=await store.head()) == []
        assert await store.read_all(limit=0) == []
        assert await store.read_all(START, 2000) == stored

    async def test_a_large_page_is_read_whole(self, store: Store) -> None:
        """However much of the log a single look goes through."""
        stored = await append(store, *[make_draft() for _ in range(5000)])

        assert await store.read_all(limit=4999) == stored[:4999]

    @pytest.mark.parametrize("value", [-1, 1.5, True, "1"])
    async def test_bad_numbers_are_refused(self, store: Store, value: int) -> None:
        """The error names the argument."""
        for name in ("after", "limit"):
            with pytest.raises(InvalidPageError, match=name):
                await store.read_all(**{name: value})
        for name in ("from_version", "to_version"):
            with pytest.raises(InvalidPageError, match=name):
                await store.read_stream("a", **{name: value})
        with pytest.raises(InvalidPageError, match="from_version"):
            await store.read_stream("a", from_version=0)
