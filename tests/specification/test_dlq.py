"""sqlite-event-bus, dead letters: list, retry and purge in every detail."""

from collections.abc import AsyncIterator
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from postbus import (
    DLQInspector,
    EventNotFoundError,
    EventStatus,
    NotADeadLetterError,
    RetryPolicy,
    SQLiteStore,
)
from postbus.testing import ManualClock
from tests.delivery.steps import NOON, FlakyHandler, MakeBus, leave_behind, query, soon, statuses


@pytest.fixture
async def dlq(database: Path) -> AsyncIterator[DLQInspector]:
    """An inspector at noon of the first of January 2026."""
    async with SQLiteStore(database) as store:
        yield DLQInspector(store, clock=ManualClock(NOON))


async def bury(path: Path, *event_ids: str, created_at: datetime = NOON) -> None:
    """Leave dead letters, each a second younger than the last."""
    for number, event_id in enumerate(event_ids):
        moment = created_at + timedelta(seconds=number)
        await leave_behind(path, event_id, "dlq", retry_count=1, errors=[event_id], created_at=moment)


class TestList:
    async def test_it_has_dead_letters_only(self, database: Path, dlq: DLQInspector) -> None:
        """Whatever else is in the file."""
        for status in EventStatus:
            await leave_behind(database, status, status)
        page = await dlq.list()

        assert ([event.id for event in page.events], page.total) == (["dlq"], 1)

    async def test_it_is_sorted_by_created_at_descending(self, database: Path, dlq: DLQInspector) -> None:
        """The newest first, in whichever order they were stored; the later stored first at equal moments."""
        for event_id, minutes in [("b", 1), ("d", 3), ("a", 0), ("c1", 2), ("c2", 2)]:
            await bury(database, event_id, created_at=NOON + timedelta(minutes=minutes))

        assert [event.id for event in (await dlq.list()).events] == ["d", "c2", "c1", "b", "a"]

    async def test_it_has_100_by_default(self, database: Path, dlq: DLQInspector) -> None:
        """And says how many there are."""
        await bury(database, *(str(number) for number in range(101)))
        page = await dlq.list()

        assert (len(page.events), page.total) == (100, 101)

    async def test_it_is_read_in_pages(self, database: Path, dlq: DLQInspector) -> None:
        """Limit and offset; the total is the same on each page, beyond the end too."""
        await bury(database, *"abcde")
        pages = [await dlq.list(limit=2, offset=offset) for offset in (0, 2, 4, 6)]

        assert [[event.id for event in page.events] for page in pages] == [["e", "d"], ["c", "b"], ["a"], []]
        assert [page.total for page in pages] == [5, 5, 5, 5]

    async def test_a_limit_of_none_at_all_only_counts(self, database: Path, dlq: DLQInspector) -> None:
        """limit=0 is a question for the total."""
        await bury(database, *"abc")
        page = await dlq.list(limit=0)

        assert (page.events, page.total) == ([], 3)


class TestRetry:
    async def test_it_is_a_full_reset(self, database: Path, dlq: DLQInspector) -> None:
        """Pending, no attempts, no errors, not dead; of one event only."""
        await bury(database, "one", "other")
        await dlq.retry("one")
        rows = query(database, "SELECT id, status, retry_count, last_error, dlq_at FROM events")

        assert rows == [("one", "pending", 0, None, None), ("other", "dlq", 1, '["other"]', None)]

    async def test_it_gives_the_event_all_its_attempts_again(self, make_bus: MakeBus) -> None:
        """It is a dead letter again after as many failures as the first time."""
        bus, handler = make_bus(retry=RetryPolicy(max_retries=1)), FlakyHandler(3)
        bus.subscribe(handler)
        event_id = await bus.publish("order.placed")
        await bus.dlq.retry(event_id)
        await soon(bus.idle())
        event = await bus.store.get(event_id)

        assert [event.retry_count for event in handler.events] == [0, 1, 0, 1]
        assert (event.status, event.errors, event.dlq_at) == (EventStatus.DONE, ["ValueError: boom 3"], None)

    async def test_an_unknown_id_is_an_error(self, dlq: DLQInspector) -> None:
        """It says which."""
        with pytest.raises(EventNotFoundError, match="nobody"):
            await dlq.retry("nobody")

    @pytest.mark.parametrize("status", ["pending", "processing", "done"])
    async def test_an_event_that_is_not_dead_is_an_error(
        self, database: Path, dlq: DLQInspector, status: str
    ) -> None:
        """It says what the event is, and leaves it so."""
        await leave_behind(database, "alive", status, retry_count=2)
        with pytest.raises(NotADeadLetterError, match=status):
            await dlq.retry("alive")

        assert query(database, "SELECT status, retry_count FROM events") == [(status, 2)]


class TestPurge:
    @pytest.mark.parametrize(
        ("age", "is_purged"),
        [
            (timedelta(days=7, microseconds=1), True),
            (timedelta(days=7), True),
            (timedelta(days=7, microseconds=-1), False),
        ],
        ids=["older", "at the cutoff", "younger"],
    )
    async def test_the_cutoff_is_inclusive(
        self, database: Path, dlq: DLQInspector, age: timedelta, is_purged: bool
    ) -> None:
        """created_at <= cutoff."""
        await bury(database, "dead", created_at=NOON - age)
        count = await dlq.purge(older_than_days=7)

        assert (count, statuses(database)) == ((1, {}) if is_purged else (0, {"dead": "dlq"}))

    async def test_only_dead_letters_are_deleted(self, database: Path, dlq: DLQInspector) -> None:
        """However old the others are."""
        for status in EventStatus:
            await leave_behind(database, status, status, created_at=NOON - timedelta(days=365))
        await dlq.purge(older_than_days=1)

        assert sorted(statuses(database)) == ["done", "pending", "processing"]

    async def test_it_goes_by_creation_and_not_by_death(self, database: Path, dlq: DLQInspector) -> None:
        """An old event that died a moment ago is old."""
        await bury(database, "old", created_at=NOON - timedelta(days=8))
        query(database, "UPDATE events SET dlq_at = ?", NOON.isoformat(timespec="microseconds"))

        assert await dlq.purge(older_than_days=7) == 1

    async def test_the_total_counts_what_is_left(self, database: Path, dlq: DLQInspector) -> None:
        """After a purge and after a retry."""
        await bury(database, *"abc")
        await bury(database, *"de", created_at=NOON - timedelta(days=8))
        totals = [(await dlq.list()).total]
        await dlq.purge(older_than_days=7)
        totals.append((await dlq.list()).total)
        await dlq.retry("a")
        totals.append((await dlq.list()).total)

        assert totals == [5, 3, 2]
