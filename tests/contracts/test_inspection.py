"""DLQInspector: the same on every store, and clear about what it does not take."""

from collections.abc import Awaitable, Callable
from datetime import timedelta

import pytest

from postbus.errors import (
    EventNotFoundError,
    InvalidEventFieldError,
    InvalidEventTypeError,
    InvalidPageError,
    InvalidSubscriberIdError,
    NotADeadLetterError,
)
from postbus.events import DeadLetter, EventStatus, SubscriberId
from postbus.inspection import DLQInspector
from postbus.ports import Store
from postbus.testing import ManualClock
from tests.contracts.backends import on_embedded
from tests.contracts.steps import BEGINNING, MAIL, STOCK, add_dead_letter, append, bury, make_draft


@pytest.fixture
def dlq(store: Store, clock: ManualClock) -> DLQInspector:
    return DLQInspector(store, clock=clock)


@pytest.fixture
async def dead(store: Store, clock: ManualClock) -> list[DeadLetter]:
    """One of each of two subscribers and one of the handlers, if there are any; an event that is alive."""
    if store.has_handlers:
        await add_dead_letter(store, make_draft("a", id="handlers", created_at=clock.now()))
    events = await append(store, make_draft("a", id="event"), make_draft("b", id="alive"))
    for subscriber_id in (MAIL, STOCK):
        await clock.advance(1)
        await bury(store, await store.checkpoints.claim(subscriber_id, BEGINNING), events[0])
    return (await store.dead_letters.page(10, 0, None)).events


class TestList:
    async def test_both_kinds_show_up_in_the_same_list(
        self, store: Store, dlq: DLQInspector, dead: list[DeadLetter]
    ) -> None:
        """Newest first, with the total."""
        page = await dlq.list()

        assert [each.subscriber_id for each in page.events] == [STOCK, MAIL, *[None] * store.has_handlers]
        assert (page.events, page.total) == (dead, 2 + store.has_handlers)

    async def test_a_part_of_the_list(self, dlq: DLQInspector, dead: list[DeadLetter]) -> None:
        """By page, and by subscriber."""
        second = await dlq.list(limit=1, offset=1)
        of_stock = await dlq.list(subscriber_id="stock")

        assert (second.events, second.total) == (dead[1:2], len(dead))
        assert (of_stock.events, of_stock.total) == (dead[:1], 1)


class TestGet:
    async def test_each_is_found_by_its_id(self, dlq: DLQInspector, dead: list[DeadLetter]) -> None:
        """Of either kind."""
        assert [await dlq.get(each.dead_letter_id) for each in dead] == dead

    async def test_what_is_no_dead_letter_is_told_apart(
        self, dlq: DLQInspector, dead: list[DeadLetter]
    ) -> None:
        """An event that is alive, and nothing at all."""
        with pytest.raises(NotADeadLetterError):
            await dlq.get("alive")
        with pytest.raises(EventNotFoundError):
            await dlq.get("nobody")


class TestRetry:
    @on_embedded
    async def test_one_of_the_handlers_begins_anew(
        self, store: Store, dlq: DLQInspector, dead: list[DeadLetter]
    ) -> None:
        """Pending, no attempts, no errors: the full reset."""
        await dlq.retry("handlers")

        event = await store.get("handlers")
        assert (event.status, event.retry_count, event.last_error) == (EventStatus.PENDING, 0, None)

    async def test_one_of_a_subscriber_is_marked_for_one_more_attempt(
        self, store: Store, dlq: DLQInspector, dead: list[DeadLetter]
    ) -> None:
        """By its own id; the event's id stands for all of them."""
        await dlq.retry(dead[0].dead_letter_id)
        marked = [len(await store.dead_letters.wanted_retries(name, 10)) for name in (STOCK, MAIL)]
        await dlq.retry("event")

        assert marked == [1, 0]
        assert await store.dead_letters.wanted_retries(MAIL, 10) == dead[1:2]

    @pytest.mark.parametrize(
        ("event_type", "subscriber_id", "expected"),
        [
            (None, None, [STOCK, MAIL, None]),
            ("a", None, [STOCK, MAIL, None]),
            ("b", None, []),
            (None, "mail", [MAIL]),
            ("a", "mail", [MAIL]),
        ],
    )
    async def test_all_of_a_type_and_a_subscriber(
        self,
        dlq: DLQInspector,
        dead: list[DeadLetter],
        event_type: str | None,
        subscriber_id: str | None,
        expected: list[SubscriberId | None],
    ) -> None:
        """How many they were."""
        retried = await dlq.retry_all(event_type, subscriber_id)

        assert retried == len([each for each in dead if each.subscriber_id in expected])


class TestResolve:
    async def test_it_leaves_the_list_and_stays_on_record(
        self, dlq: DLQInspector, dead: list[DeadLetter], clock: ManualClock
    ) -> None:
        """With who has seen to it, and notes if there are any."""
        await dlq.resolve(dead[0].dead_letter_id, by="anna", notes="sent\nby hand")
        await dlq.resolve(dead[-1].dead_letter_id, "bert")

        found = [await dlq.get(dead[0].dead_letter_id), await dlq.get(dead[-1].dead_letter_id)]
        assert [(each.resolved_by, each.notes) for each in found] == [
            ("anna", "sent\nby hand"),
            ("bert", None),
        ]
        assert {each.resolved_at for each in found} == {clock.now()}
        assert (await dlq.list()).events == dead[1:-1]


class TestPurge:
    async def test_both_kinds_are_purged_by_their_age(
        self, store: Store, dlq: DLQInspector, dead: list[DeadLetter], clock: ManualClock
    ) -> None:
        """So many days or more; the event of a subscriber's stays."""
        await clock.advance(timedelta(days=1).total_seconds() - 2)
        of_the_handlers = await dlq.purge(1)
        later = await dlq.purge(0)

        assert (of_the_handlers, later) == (store.has_handlers, 2)
        assert (await dlq.list()).total == 0
        assert [event.id for event in (await store.log.read(BEGINNING, 10, None)).events] == [
            "event",
            "alive",
        ]


_BAD_CALLS: dict[str, tuple[Callable[[DLQInspector], Awaitable[object]], type[Exception]]] = {
    "limit": (lambda dlq: dlq.list(limit=-1), InvalidPageError),
    "offset": (lambda dlq: dlq.list(offset=True), InvalidPageError),
    "list of nobody": (lambda dlq: dlq.list(subscriber_id=""), InvalidSubscriberIdError),
    "list of a number": (lambda dlq: dlq.list(subscriber_id=7), InvalidSubscriberIdError),  # type: ignore[arg-type]
    "retry all of no type": (lambda dlq: dlq.retry_all("a..b"), InvalidEventTypeError),
    "retry all of nobody": (lambda dlq: dlq.retry_all(None, "a\0"), InvalidSubscriberIdError),
    "resolve by nobody": (lambda dlq: dlq.resolve("event", ""), InvalidEventFieldError),
    "resolve by None": (lambda dlq: dlq.resolve("event", None), InvalidEventFieldError),  # type: ignore[arg-type]
    "resolve by a number": (lambda dlq: dlq.resolve("event", 7), InvalidEventFieldError),  # type: ignore[arg-type]
    "notes that are no text": (lambda dlq: dlq.resolve("event", "anna", 7), InvalidEventFieldError),  # type: ignore[arg-type]
    "notes with NUL": (lambda dlq: dlq.resolve("event", "anna", "\0"), InvalidEventFieldError),
    "notes with half a pair": (
        lambda dlq: dlq.resolve("event", "anna", "\ud83d"),
        InvalidEventFieldError,
    ),
    "purge": (lambda dlq: dlq.purge(-1), InvalidPageError),
}


@pytest.mark.parametrize(("call", "error"), _BAD_CALLS.values(), ids=_BAD_CALLS)
async def test_bad_input_is_refused_and_changes_nothing(
    dlq: DLQInspector,
    dead: list[DeadLetter],
    call: Callable[[DLQInspector], Awaitable[object]],
    error: type[Exception],
) -> None:
    """The error says what was found and what was expected."""
    with pytest.raises(error, match="expected"):
        await call(dlq)

    assert (await dlq.list()).events == dead
