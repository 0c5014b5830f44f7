"""Backlog: it is read without the types that nobody wants, and counted."""

import pytest

from postbus.delivery.deliveries import sequence_of
from postbus.events import EventStatus, GlobalSequence
from postbus.ports import Backlog, Store
from tests.contracts.backends import on_embedded
from tests.contracts.steps import START, add, add_dead_letter, add_in_status, add_new, make_draft

pytestmark = on_embedded


@pytest.fixture
def backlog(store: Store) -> Backlog:
    return store.backlog


class TestPendingWithoutTypes:
    async def test_the_others_come_in_order_and_not_more_than_asked_for(
        self, store: Store, backlog: Backlog
    ) -> None:
        """Those that are left out don't count."""
        types = ["a", "b", "a", "c", "a", "b"] * 3
        await add(store, *[make_draft(type_, status=EventStatus.PENDING) for type_ in types])
        first = await backlog.pending(START, 3, {"a"})
        second = await backlog.pending(first[-1].global_sequence or START, 100, {"a", "c", "x"})

        assert [event.global_sequence for event in first] == [2, 4, 6]
        assert [event.global_sequence for event in second] == [8, 12, 14, 18]

    async def test_only_the_very_type_is_left_out(self, store: Store, backlog: Backlog) -> None:
        """Letters are compared as they are, and nothing in a type is a pattern."""
        types = ["a", "A", "a.b", "ab", "*", "%", "é"]
        await add(store, *[make_draft(type_, status=EventStatus.PENDING) for type_ in types])

        for left_out in types:
            left = await backlog.pending(START, 100, {left_out})
            assert [event.type for event in left] == [type_ for type_ in types if type_ != left_out]

    async def test_any_number_of_types_may_be_left_out(self, store: Store, backlog: Backlog) -> None:
        """As many as a lane remembers, at least."""
        types = [f"type.{number}" for number in range(501)]
        await add(store, *[make_draft(type_, status=EventStatus.PENDING) for type_ in types])
        left = await backlog.pending(START, 100, types[:500])

        assert [event.type for event in left] == ["type.500"]

    @pytest.mark.parametrize("status", [EventStatus.PROCESSING, EventStatus.DONE, EventStatus.DLQ])
    async def test_what_is_not_pending_is_not_among_the_others(
        self, store: Store, backlog: Backlog, status: EventStatus
    ) -> None:
        """As without types."""
        await add_in_status(store, status, make_draft("b"))

        assert await backlog.pending(START, 10, {"a"}) == []


class TestPendingCount:
    async def test_only_those_that_are_pending_up_to_the_number_count(
        self, store: Store, backlog: Backlog
    ) -> None:
        """Whatever their types are, and not those beyond."""
        for status in EventStatus:
            await add_in_status(store, status, make_draft())
        await add(store, *[make_draft(type_, status=EventStatus.PENDING) for type_ in "abc"])
        pending = [sequence_of(event) for event in await backlog.pending(START, 10)]

        assert len(pending) == 4
        assert await backlog.pending_count(START) == 0
        for index, sequence in enumerate(pending):
            assert await backlog.pending_count(GlobalSequence(sequence - 1)) == index
            assert await backlog.pending_count(sequence) == index + 1
        assert await backlog.pending_count(GlobalSequence(2**62)) == 4

    async def test_it_follows_what_happens_to_them(self, store: Store, backlog: Backlog) -> None:
        """Whoever is claimed or settled leaves, whoever is put back or retried comes."""
        sequence = await add_new(store, make_draft(status=EventStatus.PENDING))
        counts = [await backlog.pending_count(sequence)]
        await backlog.claim([sequence])
        counts.append(await backlog.pending_count(sequence))
        await store.queue.release([sequence])
        counts.append(await backlog.pending_count(sequence))
        await backlog.settle_pending([sequence])
        counts.append(await backlog.pending_count(sequence))
        await add_dead_letter(store, make_draft(id="dead"))
        await store.dead_letters.revive("dead")
        counts.append(await backlog.pending_count(GlobalSequence(sequence + 1)))

        assert counts == [1, 0, 1, 0, 1]
