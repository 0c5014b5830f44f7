"""Backlog: it is read without the types that nobody wants, and counts dead letters."""

import pytest

from postbus.events import EventStatus
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


class TestDeadLetterCount:
    async def test_it_grows_with_each_burial(self, store: Store, backlog: Backlog) -> None:
        """And with nothing else that happens to an event."""
        counts = [await backlog.dead_letter_count()]
        for status in EventStatus:
            await add_in_status(store, status, make_draft())
            counts.append(await backlog.dead_letter_count())
        sequence = await add_new(store, make_draft())
        await store.queue.fail(sequence, 1, '["x"]')
        await store.queue.release([sequence])
        await store.backlog.recover("x", "x")
        counts.append(await backlog.dead_letter_count())

        assert counts == [0, 0, 0, 0, 1, 1]

    async def test_it_shrinks_with_each_one_that_is_retried(self, store: Store, backlog: Backlog) -> None:
        """One by one, or all together."""
        for number in range(5):
            await add_dead_letter(store, make_draft("a" if number < 4 else "b", id=f"dead-{number}"))
        counts = [await backlog.dead_letter_count()]
        await store.dead_letters.revive("dead-2")
        counts.append(await backlog.dead_letter_count())
        await store.dead_letters.revive_all("a", None)
        counts.append(await backlog.dead_letter_count())
        await store.dead_letters.revive_all(None, None)
        counts.append(await backlog.dead_letter_count())

        assert counts == [5, 4, 1, 0]
