"""Pages of the log that come in several rows, on a real server."""

from collections.abc import Sequence

import pytest

from postbus.events import Event, Gap, UndecodablePayload
from postbus.policy.patterns import TypeFilter
from postbus.stores.postgres import PgEventStore
from postbus.stores.postgres.database import Database
from postbus.stores.postgres.query_parts import fill_parts
from tests.postgres.steps import Session
from tests.stores.checkpoint_steps import START
from tests.stores.log_steps import numbers_of, position

# Of every kind there are some in each row: streams, metadata, other types; and if $2 is below 50, payloads
# that Python cannot read.
_INSERT = """
INSERT INTO events (global_sequence, id, event_type, data, created_at, stream_id, stream_version, metadata)
SELECT number, 'event-' || number, CASE number % 3 WHEN 0 THEN 'mail.sent' ELSE 'order.placed' END,
    CASE WHEN number % 50 = $2 THEN '"\\ud800"'::json ELSE json_build_array(number, repeat('x', 200)) END,
    to_timestamp(number % 1000000), CASE number % 4 WHEN 1 THEN 's' END,
    CASE number % 4 WHEN 1 THEN number END,
    CASE number % 5 WHEN 2 THEN json_build_object('number', number::text) END
FROM unnest($1::bigint[]) AS number
"""
_NONE = 50
_LAST = 2**63 - 1
NUMBERS = {
    "one after the other": range(1, 1001),
    "with gaps everywhere": range(5, 3005, 3),
    "far from each other": [*range(1, 500), *range(10**15, 10**15 + 500)],
    "up to the last number there is": [*range(1, 900), *range(_LAST - 90, _LAST + 1)],
}


async def _read_slowly(store: PgEventStore, wanted: TypeFilter | None) -> list[Event]:
    """A few at a time, so that each page is one row."""
    events, after = list[Event](), START
    while (page := await store.log.read(after, 40, wanted)).up_to > after.head:
        events += page.events
        after = position(page.up_to)
    return events


@pytest.mark.parametrize("wanted", [None, TypeFilter(["order.*"])], ids=["all", "of some types"])
class TestPieces:
    @pytest.mark.parametrize("numbers", NUMBERS.values(), ids=NUMBERS)
    @pytest.mark.parametrize("unreadable", [7, _NONE])
    async def test_every_event_is_there_in_order_with_what_is_its_own(
        self,
        store: PgEventStore,
        writer: Session,
        numbers: Sequence[int],
        wanted: TypeFilter | None,
        unreadable: int,
    ) -> None:
        await writer.execute(_INSERT, numbers, unreadable)
        page = await store.log.read(START, 1000, wanted)
        expected = await _read_slowly(store, wanted)

        assert list(page.events) == expected
        assert numbers_of(page) == [each for each in numbers if wanted is None or each % 3]
        assert any(isinstance(event.payload, UndecodablePayload) for event in expected) == (unreadable == 7)
        assert page.up_to == numbers[-1]

    async def test_what_has_appeared_in_gaps_comes_before_them(
        self, store: PgEventStore, writer: Session, wanted: TypeFilter | None
    ) -> None:
        await writer.execute(_INSERT, [1, 2, 4, *range(11, 900), 905], _NONE)
        page = await store.log.read(position(10, (1, 3), (4, 9)), 1000, wanted)

        assert numbers_of(page) == [1, 2, 4, *(n for n in (*range(11, 900), 905) if wanted is None or n % 3)]
        assert (page.missing, page.up_to) == ((Gap(900, 904),), 905)


async def test_no_row_is_so_large_that_the_server_needs_new_memory_for_each(
    store: PgEventStore, writer: Session, log_dsn: str
) -> None:
    """Texts of more than 128 KB would come from the operating system, and go back to it."""
    await writer.execute(_INSERT, range(1, 1001), _NONE)
    queries = fill_parts(Database(log_dsn).queries("log.sql"), and_wanted="", and_in_slice="")
    rows = await writer.fetch(queries["read_page"], 0, 1000, 2**23)

    assert max(len(row["string_agg"]) for row in rows) < 60_000
