"""What nobody can have stored is not found, a huge number is just huge; the same on every store."""

import math
import uuid
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from postbus.errors import (
    EventNotFoundError,
    InvalidEventFieldError,
    InvalidPageError,
    InvalidStateError,
    PostbusError,
)
from postbus.events import Event
from postbus.inspection import DLQInspector
from postbus.observers.states import StateStore
from postbus.ports import Store
from postbus.testing import ManualClock
from tests.contracts.steps import BEGINNING, MAIL, append, bury, make_draft

HUGE = (2**63 - 1, 2**63, 2**70, 10**400)

UNKNOWN: dict[str, Any] = {
    "unknown": "unknown",
    "empty": "",
    "a lone surrogate": "\ud800",
    "a NUL": "a\0b",
    "a newline": "a\nb",
    "much too long": "x" * 100_000,
    "None": None,
    "a number": 42,
    "a huge number": 2**70,
    "a number that can't be shown": 10**5000,
    "bytes": b"event",
    "a list": ["event"],
    "an object": object(),
    "a UUID": uuid.UUID(int=5),
}


@pytest.fixture
def dlq(store: Store, clock: ManualClock) -> DLQInspector:
    return DLQInspector(store, clock=clock)


@pytest.fixture
async def events(store: Store) -> list[Event]:
    """Three events of one stream."""
    return await store.append("order-1", [("order.placed", number) for number in range(3)])


_FINDING: dict[str, Callable[[Store, DLQInspector, Any], Awaitable[object]]] = {
    "get": lambda store, _, unknown: store.get(unknown),
    "purge": lambda store, _, unknown: store.purge(unknown, "anna"),
    "get a dead letter": lambda _, dlq, unknown: dlq.get(unknown),
    "retry": lambda _, dlq, unknown: dlq.retry(unknown),
    "resolve": lambda _, dlq, unknown: dlq.resolve(unknown, "anna"),
}


class TestIds:
    @pytest.mark.parametrize("find", _FINDING.values(), ids=_FINDING)
    @pytest.mark.parametrize("unknown", UNKNOWN.values(), ids=UNKNOWN)
    async def test_an_id_that_no_event_has_is_not_found(
        self,
        store: Store,
        dlq: DLQInspector,
        unknown: Any,
        find: Callable[[Store, DLQInspector, Any], Awaitable[object]],
    ) -> None:
        """Whether or not it could be one; the error tells it without end."""
        with pytest.raises(EventNotFoundError, match="check the id") as caught:
            await find(store, dlq, unknown)

        assert len(str(caught.value)) < 300

    @pytest.mark.parametrize("unknown", UNKNOWN.values(), ids=UNKNOWN)
    async def test_a_stream_that_is_not_there_is_empty(self, store: Store, unknown: Any) -> None:
        """Whether or not there could be one of this name."""
        assert await store.read_stream(unknown) == []

    async def test_a_uuid_is_found_as_it_was_stored(self, store: Store) -> None:
        """Publishing takes it, and so does whatever looks it up."""
        stream_id: Any = uuid.UUID(int=7)
        (event,) = await store.append(stream_id, [("order.placed", 1)])
        event_id: Any = uuid.UUID(event.id)

        assert await store.read_stream(stream_id) == [event]
        assert await store.get(event_id) == event

    @pytest.mark.parametrize("by", ["", "\ud800", "a\0b", None, 7])
    async def test_whoever_purges_has_a_name_that_can_be_stored(
        self, store: Store, events: list[Event], by: Any
    ) -> None:
        """Else the payload stays."""
        with pytest.raises(InvalidEventFieldError, match="purger_id"):
            await store.purge(events[0].id, by)

        assert await store.get(events[0].id) == events[0]

    async def test_a_dead_letter_of_a_foreign_id_is_seen_to_like_any_other(
        self, store: Store, dlq: DLQInspector
    ) -> None:
        """Another program may have published under an id that we would not take."""
        strange = "two\nlines"
        (event,) = await append(store, make_draft("a", id=strange))
        await bury(store, await store.checkpoints.claim(MAIL, BEGINNING), event)
        await dlq.retry(strange)
        await dlq.resolve(strange, "anna")

        assert (await dlq.get(strange)).resolved_by == "anna"


class TestNumbers:
    @pytest.mark.parametrize("huge", HUGE, ids=lambda huge: f"2**{math.log2(huge):g}")
    async def test_a_huge_number_is_just_huge(self, store: Store, events: list[Event], huge: int) -> None:
        """Nothing comes after it, and everything before."""
        assert await store.read_stream("order-1", huge) == []
        assert await store.read_stream("order-1", huge, huge) == []
        assert await store.read_stream("order-1", 2, huge) == events[1:]
        assert await store.read_all(huge) == []
        assert await store.read_all(0, huge) == events
        assert await store.read_all(huge, huge) == []

    @pytest.mark.parametrize("subscriber_id", [None, "mail"])
    @pytest.mark.parametrize("huge", HUGE, ids=lambda huge: f"2**{math.log2(huge):g}")
    async def test_a_huge_page_has_all_dead_letters_and_a_late_one_none(
        self, store: Store, dlq: DLQInspector, events: list[Event], huge: int, subscriber_id: str | None
    ) -> None:
        """The total is told nevertheless."""
        await bury(store, await store.checkpoints.claim(MAIL, BEGINNING), events[0])
        whole = await dlq.list(limit=huge, subscriber_id=subscriber_id)
        late = await dlq.list(limit=huge, offset=huge, subscriber_id=subscriber_id)

        assert [each.id for each in whole.events] == [events[0].id]
        assert (late.events, late.total) == ([], 1)

    @pytest.mark.parametrize(
        "value", [-1, -(2**70), -(10**400), 1.0, math.nan, math.inf, "1", None, True, []]
    )
    async def test_what_is_no_number_of_events_is_refused(self, store: Store, value: Any) -> None:
        """Negative ones would be read as "all" by a database."""
        for read in (
            lambda: store.read_stream("order-1", value),
            lambda: store.read_all(value),
            lambda: store.read_all(0, value),
            lambda: DLQInspector(store).list(value),
            lambda: DLQInspector(store).list(0, value),
        ):
            with pytest.raises(InvalidPageError, match="expected a whole number"):
                await read()

    @pytest.mark.parametrize("days", [600_000, 735_000, 10**9, 1e300, 2**70, 10**400])
    async def test_nothing_is_older_than_history(
        self, store: Store, dlq: DLQInspector, events: list[Event], days: float
    ) -> None:
        """Years have four digits everywhere: the year 383 does not come after 2026."""
        await bury(store, await store.checkpoints.claim(MAIL, BEGINNING), events[0])

        assert await dlq.purge(days) == 0
        assert (await dlq.list()).total == 1

    @pytest.mark.parametrize("days", [-1, -(10**400), math.nan, math.inf, -math.inf, "1", None, True])
    async def test_what_is_no_age_is_refused(self, dlq: DLQInspector, days: Any) -> None:
        """A purge of the future would be a purge of everything."""
        with pytest.raises(InvalidPageError, match="older_than_days"):
            await dlq.purge(days)


class TestMoments:
    @pytest.mark.parametrize("year", [1, 383, 999, 1000])
    async def test_all_events_come_after_a_year_long_ago(
        self, store: Store, events: list[Event], year: int
    ) -> None:
        """Also where moments are kept as text."""
        assert await store.log.position_at(datetime(year, 1, 1, tzinfo=UTC)) < (
            events[0].global_sequence or 0
        )

    async def test_all_events_come_before_the_end_of_the_calendar(
        self, store: Store, events: list[Event]
    ) -> None:
        """Its last second has no next one."""
        last = datetime.max.replace(tzinfo=UTC)

        assert await store.log.position_at(last) == events[-1].global_sequence
        assert await store.log.position_at(last.replace(microsecond=0)) == events[-1].global_sequence


class TestStates:
    @pytest.mark.parametrize(
        "key", [value for name, value in UNKNOWN.items() if name != "unknown"], ids=[*UNKNOWN][1:]
    )
    async def test_a_key_that_no_state_can_have_is_refused(self, store: Store, key: Any) -> None:
        """With an error of ours that says what a key is."""
        states = StateStore(store, "orders")
        expected = pytest.raises(InvalidStateError, match="1 to 255 printable characters")
        with expected:
            await states.get(key)
        with expected:
            await states.put(key, {})
        with expected:
            await states.delete(key)

        assert [each async for each in states.items()] == []


class TestAppending:
    @pytest.mark.parametrize(
        "strange", [None, 5, 2**70, "abc", "", b"abc", {"a": 1}, {}, object(), int, ("order.placed", 1)]
    )
    async def test_what_is_no_list_of_events_is_refused(self, store: Store, strange: Any) -> None:
        """An empty text or dict is none either; nothing is stored."""
        with pytest.raises(PostbusError, match="NewEvent; nothing was stored"):
            await store.append("order-1", strange)

        assert await store.head() == 0

    @pytest.mark.parametrize("version", [-1, 2**63, 2**70, 10**400, 1.0, "1", True])
    async def test_a_version_that_no_stream_has_is_refused(self, store: Store, version: Any) -> None:
        """The error says up to where there are any."""
        with pytest.raises(InvalidEventFieldError, match="a whole number from 0 to 9223372036854775807"):
            await store.append("order-1", [("order.placed", 1)], expected_version=version)

        assert await store.head() == 0
