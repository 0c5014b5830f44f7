"""PgEventLog: gaps, filters, large payloads and what other programs write, on a real server."""

import asyncio
from datetime import UTC, datetime, timedelta
from itertools import product

import asyncpg
import msgspec
import pytest
from msgspec.structs import replace

from postbus.errors import EventNotFoundError, InvalidConfigError, StoreBusyError
from postbus.events import Event, EventStatus, Gap, GlobalSequence, UndecodablePayload
from postbus.policy.gaps import SubscriberState
from postbus.policy.patterns import TypeFilter, matches
from postbus.stores.postgres import PgEventStore
from postbus.stores.postgres.log_pages import decode_page
from postbus.stores.postgres.page_size import PageSize
from postbus.stores.postgres.rows import columns_from_rows
from postbus.stores.postgres.type_conditions import type_condition
from postbus.testing import ManualClock
from tests.contracts.steps import MAIL, NOON, append, bury, is_called_soon, make_draft, sequence_of
from tests.postgres.server import Server
from tests.postgres.steps import Session
from tests.stores.checkpoint_steps import START, until_waiting_for_lock
from tests.stores.log_steps import insert, numbers_of, open_log, open_writer, position

ORDERS = TypeFilter(["order.*"])
_ROUNDS = 40
_MATCHED = (
    "SELECT type FROM unnest($1::text[]) WITH ORDINALITY AS given (type, place) "
    "WHERE type = ANY($2::text[]) OR type ~ $3 ORDER BY place"
)


@pytest.mark.parametrize("wanted", [None, ORDERS], ids=["all", "of some types"])
class TestGaps:
    async def test_numbers_that_are_not_visible_are_missing(
        self, store: PgEventStore, writer: Session, wanted: TypeFilter | None
    ) -> None:
        """In ranges, those right after the position too, and none beyond the last event."""
        await insert(writer, [3, 4, 7, 11])
        await writer.execute("SELECT nextval('events_global_sequence_seq')")
        page = await store.log.read(START, 10, wanted)

        assert (numbers_of(page), page.up_to) == ([3, 4, 7, 11], 11)
        assert page.missing == (Gap(1, 2), Gap(5, 6), Gap(8, 10))

    async def test_a_page_tells_only_of_what_it_goes_up_to(
        self, store: PgEventStore, writer: Session, wanted: TypeFilter | None
    ) -> None:
        """The rest is told by the next page."""
        await insert(writer, [1, 3, 5, 9])
        first = await store.log.read(START, 2, wanted)
        second = await store.log.read(position(first.up_to), 10, wanted)

        assert (numbers_of(first), first.up_to, first.missing) == ([1, 3], 3, (Gap(2, 2),))
        assert (numbers_of(second), second.missing) == ([5, 9], (Gap(4, 4), Gap(6, 8)))

    async def test_what_has_appeared_in_the_open_gaps_comes_first(
        self, store: PgEventStore, writer: Session, wanted: TypeFilter | None
    ) -> None:
        """All of it, and the limit is for what comes after the head."""
        await insert(writer, [2, 5, 6, 10, 11, 12])
        page = await store.log.read(position(10, (1, 3), (5, 8)), 1, wanted)

        assert (numbers_of(page), page.up_to) == ([2, 5, 6, 11], 11)
        assert (page.missing, page.is_cut) == ((), False)

    async def test_what_appears_in_gaps_that_were_empty_so_far_comes_first_as_well(
        self, store: PgEventStore, writer: Session, wanted: TypeFilter | None
    ) -> None:
        """Whoever has found nothing in them looks less closely the next time, and misses nothing by that."""
        await insert(writer, [10, 11, 12, 13])
        after = position(10, (1, 3), (5, 8))
        quiet = [await store.log.read(after, 1, wanted) for _ in range(2)]
        await insert(writer, [2, 6])
        filled = [await store.log.read(after, 2, wanted) for _ in range(2)]
        closed = await store.log.read(position(12, (1, 1), (3, 3)), 2, wanted)

        assert [(numbers_of(page), page.up_to, page.is_cut) for page in quiet] == [([11], 11, False)] * 2
        assert [(numbers_of(page), page.up_to) for page in filled] == [([2, 6, 11, 12], 12)] * 2
        assert {page.server for page in filled} == {page.server for page in quiet} == {closed.server}
        assert [page.is_cut for page in filled] == [False, False]
        assert (numbers_of(closed), closed.up_to) == ([13], 13)

    async def test_the_limit_0_reads_only_the_open_gaps(
        self, store: PgEventStore, writer: Session, wanted: TypeFilter | None
    ) -> None:
        """For a subscriber that has too many of them."""
        await insert(writer, [2, 5, 6, 9])
        page = await store.log.read(position(5, (1, 3)), 0, wanted)

        assert (numbers_of(page), page.up_to, page.missing) == ([2], 5, ())

    async def test_at_the_end_of_the_log_a_page_goes_nowhere_although_gaps_were_filled(
        self, store: PgEventStore, writer: Session, wanted: TypeFilter | None
    ) -> None:
        """The end is the end."""
        await insert(writer, [1, 2, 3])
        page = await store.log.read(position(3, (2, 2)), 10, wanted)

        assert (numbers_of(page), page.up_to, page.is_cut) == ([2], 3, False)

    async def test_more_events_in_the_gaps_than_fit_are_read_page_by_page(
        self, store: PgEventStore, writer: Session, wanted: TypeFilter | None
    ) -> None:
        """Such a page says that it is cut, has the first of them, and nothing from beyond the head."""
        await insert(writer, [*range(1, 1500), 1501])
        await insert(writer, [1502])
        first = await store.log.read(position(1501, (1, 1500)), 10, wanted)
        second = await store.log.read(position(1501, (1001, 1500)), 10, wanted)

        assert (numbers_of(first), first.up_to) == (list(range(1, 1001)), 1501)
        assert (first.is_cut, first.missing) == (True, ())
        assert numbers_of(second) == [*range(1001, 1500), 1502]
        assert (second.up_to, second.is_cut) == (1502, False)

    async def test_large_events_in_the_gaps_are_read_a_few_at_a_time(
        self, store: PgEventStore, writer: Session, wanted: TypeFilter | None
    ) -> None:
        """What one late transaction brings need not fit into memory."""
        await insert(writer, range(1, 8))
        await _enlarge(writer)
        page = await store.log.read(position(7, (1, 6)), 10, wanted)

        assert (numbers_of(page), page.is_cut) == ([1, 2, 3], True)

    async def test_a_gap_of_billions_is_one_range(
        self, store: PgEventStore, writer: Session, wanted: TypeFilter | None
    ) -> None:
        """And costs no more than any other, filled or not."""
        far = 3_000_000_000
        await insert(writer, [1])
        await writer.execute("SELECT setval('events_global_sequence_seq', $1)", far)
        await insert(writer, [far + 1])
        page = await store.log.read(START, 10, wanted)
        later = await store.log.read(position(far + 1, (2, far)), 10, wanted)

        assert (page.missing, page.up_to) == ((Gap(2, far),), far + 1)
        assert (numbers_of(later), later.up_to) == ([], far + 1)

    async def test_ten_thousand_gaps_can_be_open(
        self, store: PgEventStore, writer: Session, wanted: TypeFilter | None
    ) -> None:
        """Whichever of them is filled is found."""
        await insert(writer, [2, 10_001, 19_998, 20_001])
        gaps = [(number, number) for number in range(2, 20_001, 2)]
        page = await store.log.read(position(20_001, *gaps), 10, wanted)

        assert (len(gaps), numbers_of(page)) == (10_000, [2, 19_998])

    async def test_of_a_stream_no_event_comes_before_an_earlier_one(
        self, store: PgEventStore, writer: Session, log_dsn: str, wanted: TypeFilter | None
    ) -> None:
        """Gaps and the rest are seen at one moment, in whichever moment the gap is filled."""
        state, versions = SubscriberState(), list[int | None]()
        async with open_writer(log_dsn) as slow:
            for version in range(1, 2 * _ROUNDS, 2):
                await slow.execute(f"BEGIN; {_in_stream(version)}")
                await insert(writer, [2 * version])
                await _read_on(store, state, wanted)
                filling = asyncio.ensure_future(slow.execute(f"COMMIT; {_in_stream(version + 1)}"))
                while state.head < 2 * version + 1 or state.open:
                    versions += await _read_on(store, state, wanted)
                await filling
                await insert(writer, [2 * version + 2])

        assert versions == list(range(1, 2 * _ROUNDS + 1))


def _in_stream(version: int) -> str:
    return (
        "INSERT INTO events (id, event_type, stream_id, stream_version) "
        f"VALUES ('in stream {version}', 'order.paid', 'order-1', {version})"
    )


async def _read_on(
    store: PgEventStore, state: SubscriberState, wanted: TypeFilter | None
) -> list[int | None]:
    """Read a page as a subscriber does; the versions of those of its events that have one."""
    page = await store.log.read(state.position, 10, wanted)
    for number in filter(state.head.__ge__, map(sequence_of, page.events)):
        state.deliver(number)
    state.pass_to(page.up_to, page.missing)
    return [event.stream_version for event in page.events if event.stream_version]


class TestOneByOne:
    """Who has read no more than one event at the head reads the next one by a statement of its own."""

    async def test_it_is_the_same_event(self, store: PgEventStore, writer: Session, log_dsn: str) -> None:
        """With every field; only what is known of the server a page alone tells."""
        await insert(writer, [1])
        await store.log.read(START, 10, None)
        await insert(writer, [2])
        await writer.execute(
            """UPDATE events SET metadata = '{"k": "v"}', stream_id = 's', stream_version = 4, """
            "actor_id = 'anna' WHERE global_sequence = 2"
        )
        async with open_log(log_dsn, ManualClock()) as fresh:
            whole = await fresh.log.read(position(1), 10, None)
        page = await store.log.read(position(1), 10, None)

        assert (whole.server is None, page.server, store.log.known_head) == (False, None, 2)
        assert page == replace(whole, server=None)

    async def test_one_behind_a_gap_is_a_page(
        self, store: PgEventStore, writer: Session, log_dsn: str
    ) -> None:
        """Which server has told of the gap has to be known."""
        await insert(writer, [1])
        await store.log.read(START, 10, None)
        await insert(writer, [3])
        async with open_log(log_dsn, ManualClock()) as fresh:
            whole = await fresh.log.read(position(1), 10, None)
        page = await store.log.read(position(1), 10, None)

        assert (numbers_of(page), page.missing) == ([3], (Gap(2, 2),))
        assert page == whole

    async def test_what_has_come_with_it_is_a_page_again(self, store: PgEventStore, writer: Session) -> None:
        """That the log goes on is known, so that whoever reads goes on."""
        await insert(writer, [1])
        await store.log.read(START, 10, None)
        await insert(writer, [2, 3, 4, 5])
        first = await store.log.read(position(1), 10, None)
        known_head = store.log.known_head
        second = await store.log.read(position(2), 10, None)

        assert (numbers_of(first), known_head) == ([2], 3)
        assert (numbers_of(second), store.log.known_head) == ([3, 4, 5], 5)

    async def test_it_tells_of_retries(self, store: PgEventStore, writer: Session) -> None:
        """Whoever is woken for an event and for a retry at once reads only once."""
        await insert(writer, [1])
        before = await store.log.read(START, 10, None)
        await insert(writer, [2])
        without = await store.log.read(position(1), 10, None)
        await insert(writer, [3])
        await writer.execute(
            "INSERT INTO event_bus_dlq (id, subscriber_id, event_id, global_sequence, retry_count, "
            "created_at, error_history, event_type, event_created_at, retry_wanted_at) "
            "VALUES ('1', 'mail', '1', 1, 1, now(), '[]', 'order.placed', now(), now())"
        )
        wanted = await store.log.read(position(2), 10, None)

        assert [page.may_have_retries for page in (before, without, wanted)] == [False, False, True]
        assert (numbers_of(without), numbers_of(wanted)) == ([2], [3])
        assert without.server is wanted.server is None

    async def test_the_limit_0_reads_nothing(self, store: PgEventStore, writer: Session) -> None:
        await insert(writer, [1])
        await store.log.read(START, 10, None)
        await insert(writer, [2])
        page = await store.log.read(position(1), 0, None)

        assert (numbers_of(page), page.up_to) == ([], 1)


class TestFilters:
    async def test_unwanted_events_are_not_missing(self, store: PgEventStore, writer: Session) -> None:
        """They were looked at, and so was the whole of the log."""
        await insert(writer, [1, 4, 5], "mail.sent")
        await insert(writer, [3, 8])
        await insert(writer, [9], "mail.sent")
        page = await store.log.read(START, 10, ORDERS)

        assert (numbers_of(page), page.up_to) == ([3, 8], 9)
        assert page.missing == (Gap(2, 2), Gap(6, 7))

    async def test_unwanted_events_in_the_gaps_are_left_out(
        self, store: PgEventStore, writer: Session
    ) -> None:
        """As everywhere."""
        await insert(writer, [1, 2], "mail.sent")
        await insert(writer, [3, 4])

        assert numbers_of(await store.log.read(position(4, (1, 3)), 10, ORDERS)) == [3]

    async def test_a_page_that_looked_through_its_part_says_how_far(
        self, store: PgEventStore, writer: Session
    ) -> None:
        """Empty, and not at the end."""
        await insert(writer, range(1, 2101), "mail.sent")
        await insert(writer, [2102])
        first = await store.log.read(START, 10, ORDERS)
        second = await store.log.read(position(first.up_to), 10, ORDERS)

        assert (first.events, first.up_to, first.missing) == ([], 2000, ())
        assert (numbers_of(second), second.missing) == ([2102], (Gap(2101, 2101),))

    async def test_the_database_matches_as_python_does(self, writer: Session) -> None:
        """Whatever characters a name has, and whatever types other programs write."""
        segments = ["a", "ab", "*", "a+b", "(x)", "[y]", "^$", "\\d", "{2}", "a|b", "_-~", "\u00fc", "?"]
        patterns = [".".join(each) for size in (1, 2) for each in product(segments, repeat=size)]
        names = [
            "",
            "a",
            "ab",
            "aab",
            "a+b",
            "(x)",
            "[y]",
            "^$",
            "\\d",
            "7",
            "aa",
            "{2}",
            "a|b",
            "_-~",
            "\u00fc",
        ]
        names += ["y", "x", "a\nb", " ", "A"]
        types = [
            ".".join(each) for size in (1, 2, 3) for each in product(names[: 21 - 6 * size], repeat=size)
        ]
        found = [await _matched(writer, pattern, types) for pattern in patterns]

        expected = [[name for name in types if matches(pattern, name)] for pattern in patterns]
        assert found == expected

    async def test_several_patterns_are_one_filter(self, writer: Session) -> None:
        """Exact ones and others."""
        wanted = TypeFilter(["order.placed", "mail.*", "*.*.late"])
        types = ["order.placed", "order.paid", "mail.sent", "mail.sent.late", "a.b.late", "late"]
        found = await writer.fetch(_MATCHED, types, *type_condition(wanted))

        assert [row[0] for row in found] == [name for name in types if wanted(name)]


async def _matched(session: Session, pattern: str, types: list[str]) -> list[str]:
    rows = await session.fetch(_MATCHED, types, *type_condition(TypeFilter([pattern])))
    return [row[0] for row in rows]


@pytest.mark.parametrize("wanted", [None, ORDERS], ids=["all", "of some types"])
class TestSize:
    async def test_large_events_are_read_a_few_at_a_time(
        self, store: PgEventStore, writer: Session, wanted: TypeFilter | None
    ) -> None:
        """So that a backlog of any kind fits into memory; the next page goes on right there."""
        await insert(writer, range(1, 8))
        await _enlarge(writer)
        first = await store.log.read(START, 10, wanted)
        second = await store.log.read(position(first.up_to), 10, wanted)

        assert (numbers_of(first), first.up_to) == ([1, 2, 3], 3)
        assert (numbers_of(second), second.up_to) == ([4, 5, 6], 6)

    async def test_an_event_larger_than_a_page_is_read(
        self, store: PgEventStore, writer: Session, wanted: TypeFilter | None
    ) -> None:
        """Alone."""
        await insert(writer, [1, 2])
        await _enlarge(writer, 9)
        pages = [await store.log.read(position(after), 10, wanted) for after in (0, 1, 2)]

        assert [numbers_of(page) for page in pages] == [[1], [2], []]

    @pytest.mark.parametrize("megabytes", [1, 0.1])
    async def test_it_is_the_size_before_compression_that_counts(
        self, store: PgEventStore, writer: Session, wanted: TypeFilter | None, megabytes: float
    ) -> None:
        """Repetitive JSON takes next to nothing on disk, and all the more in memory; in gaps too."""
        await insert(writer, range(1, 102))
        count = int(1_000_000 * megabytes)
        await writer.execute("UPDATE events SET data = to_json(repeat('x', $1))", count)
        stored = await writer.fetchval("SELECT max(pg_column_size(data)) FROM events")
        page = await store.log.read(START, 1000, wanted)
        filled = await store.log.read(position(101, (1, 100)), 1000, wanted)

        assert stored < count / 50
        assert len(page.events) == len(filled.events) == 8_388_608 // (count + 130) + 1
        assert filled.is_cut

    async def test_not_more_than_a_thousand_come_at_once(
        self, store: PgEventStore, writer: Session, wanted: TypeFilter | None
    ) -> None:
        """However many are asked for."""
        await insert(writer, range(1, 1202))
        page = await store.log.read(START, 100_000, wanted)

        assert (len(page.events), page.up_to) == (1000, 1000)
        assert len(await store.read_all(limit=5000)) == 1201


class TestTimeouts:
    async def test_a_page_that_was_not_read_in_time_is_half_as_large_the_next_time(
        self, log_dsn: str
    ) -> None:
        """So that a slow link is not stuck for ever. It grows again with every full page that is read."""
        async with open_log(log_dsn, ManualClock()), open_writer(log_dsn) as writer:
            await insert(writer, range(1, 1201))
            name = await writer.fetchval("SELECT quote_ident(current_database())")
            await writer.execute(f"ALTER DATABASE {name} SET lock_timeout = '50ms'")
            async with open_log(log_dsn, ManualClock()) as hasty:
                async with writer.transaction():
                    await writer.execute("LOCK TABLE events")
                    with pytest.raises(StoreBusyError):
                        await hasty.log.read(START, 1000, None)
                sizes = [len((await hasty.log.read(START, 1000, None)).events) for _ in range(8)]

        assert sizes == [500, 563, 634, 714, 804, 905, 1000, 1000]

    def test_it_becomes_as_small_as_one_event_and_as_large_as_before(self) -> None:
        """In bytes too, for the sake of the events in gaps."""
        size = PageSize()
        for _ in range(20):
            size.note_failure(TimeoutError())
        smallest = size.fit(1000)
        for _ in range(60):
            size.note_full()

        assert (smallest, size.fit(5000), size.fit(7)) == ((1, 8388), (1000, 8388608), (7, 8388608))

    def test_an_error_that_has_nothing_to_do_with_time_leaves_it(self) -> None:
        """A smaller page would fail as well."""
        size = PageSize()
        size.note_failure(asyncpg.UndefinedTableError("relation is not there"))

        assert size.fit(1000) == (1000, 8388608)


class TestDecoding:
    @pytest.mark.parametrize(("length", "turn_count"), [(1000, 0), (100_000, 10), (400_000, 30)])
    async def test_others_run_while_large_events_are_decoded(self, length: int, turn_count: int) -> None:
        """After about 256 KiB each time; an ordinary page is not held up."""
        rows = [(n, str(n), "a", f'"{"x" * length}"', NOON, None, None, None) for n in range(30)]
        turns = list[int]()

        async def run_beside() -> None:
            while True:
                turns.append(len(turns))
                await asyncio.sleep(0)

        beside = asyncio.ensure_future(run_beside())
        events = await decode_page(columns_from_rows(rows))
        beside.cancel()

        assert [event.global_sequence for event in events] == list(range(30))
        assert len(turns) == turn_count


async def _enlarge(session: Session, megabytes: int = 4) -> None:
    """Give all events a payload of this size, not compressed."""
    await session.execute("ALTER TABLE events ALTER data SET STORAGE EXTERNAL")
    await session.execute("UPDATE events SET data = to_json(repeat('x', 1000000 * $1))", megabytes)


class TestForeignRows:
    async def test_a_moment_beyond_pythons_calendar_is_drawn_in(
        self, store: PgEventStore, writer: Session
    ) -> None:
        """One such row does not hold up all others."""
        moments = ["infinity", "-infinity", "20000-01-01", "0044-03-15 BC", "2026-01-01 12:00:00.123456+00"]
        for moment in moments:
            await writer.execute(
                f"INSERT INTO events (id, event_type, created_at, purged_at) VALUES ($1, 'a', '{moment}', "
                f"'{moment}')",
                moment,
            )
        events = (await store.log.read(START, 10, None)).events

        latest, earliest = datetime.max.replace(tzinfo=UTC), datetime.min.replace(tzinfo=UTC)
        assert [event.created_at for event in events] == [latest, earliest, latest, earliest, NOON]
        assert events[-1].purged_at == NOON
        assert all(event.purged_at is not None and event.purged_at.tzinfo is UTC for event in events)

    @pytest.mark.parametrize("payload", ['"\\ud800"', "[" * 12_000 + "]" * 12_000, '{"a": 1e999}'])
    async def test_json_that_python_cannot_read_is_shown_as_it_is(
        self, store: PgEventStore, writer: Session, payload: str
    ) -> None:
        """Its neighbours are read."""
        await insert(writer, [1, 2, 3])
        await writer.execute("UPDATE events SET data = $1::text::json WHERE global_sequence = 2", payload)
        events = (await store.log.read(START, 10, None)).events

        assert [event.payload for event in (events[0], events[2])] == [1, 3]
        assert isinstance(events[1].payload, UndecodablePayload)
        assert events[1].payload.text == payload
        assert events[1].payload.reason

    async def test_no_payload_is_none(self, store: PgEventStore, writer: Session) -> None:
        """As after a purge."""
        await insert(writer, [1, 2])
        await writer.execute("UPDATE events SET data = NULL WHERE global_sequence = 1")
        await writer.execute("UPDATE events SET data = 'null' WHERE global_sequence = 2")

        assert [event.payload for event in (await store.log.read(START, 10, None)).events] == [None, None]

    @pytest.mark.parametrize("wanted", [None, TypeFilter(["a", "b"])], ids=["all", "of some types"])
    @pytest.mark.parametrize("limit", [2, 10])
    async def test_each_event_has_what_is_its_own(
        self, store: PgEventStore, writer: Session, wanted: TypeFilter | None, limit: int
    ) -> None:
        """Also where only some are in streams, have metadata, or a version without a stream."""
        await writer.execute(
            """INSERT INTO events (id, event_type, data, created_at, stream_id, stream_version, metadata)
            VALUES ('1', 'a', '"\\u001e"', now(), NULL, NULL, NULL),
            ('2', 'b', '[1,\n2]', now(), 's', 7, NULL),
            ('3', 'a', NULL, now(), NULL, NULL, '{"k":"v"}'), ('4', 'b', '{}', now(), 't', NULL, '{"k":"w"}'),
            ('5', 'a', '5', now(), NULL, 9, NULL), ('6', 'b', '6', now(), NULL, NULL, NULL)"""
        )
        expected = [await store.log.get(str(n)) for n in range(1, 7)]
        read, after = list[Event](), START
        while events := (await store.log.read(after, limit, wanted)).events:
            read += events
            after = position(read[-1].global_sequence or 0)

        assert read == expected
        assert [(event.payload, event.stream_id, event.stream_version) for event in read] == [
            ("\x1e", None, None), ([1, 2], "s", 7), (None, None, None), ({}, "t", None), (5, None, 9),
            (6, None, None),
        ]  # fmt: skip

    async def test_metadata_that_are_not_strings_are_shown_as_they_are(
        self, store: PgEventStore, writer: Session
    ) -> None:
        """Better than hiding them, and no reason to hold the event up."""
        await insert(writer, [1])
        await writer.execute("""UPDATE events SET metadata = '{"n":1,"s":"\\ud800"}'""")
        (event,) = (await store.log.read(START, 10, None)).events

        assert event.metadata == {"undecodable": '{"n":1,"s":"\\ud800"}'}

    async def test_every_field_is_read(self, store: PgEventStore, writer: Session) -> None:
        """In a page, by id and in a stream alike."""
        expected = Event(
            id="a", type="order.placed", payload={"n": 1}, created_at=NOON, status=EventStatus.DONE,
            metadata={"k": "v"}, stream_id="order-1", stream_version=1, global_sequence=GlobalSequence(1),
            actor_id="anna", purger_id="bert", purged_at=NOON + timedelta(days=1), correlation_id="c",
            causation_id="d", schema_version=2,
        )  # fmt: skip
        await writer.execute("SET TimeZone = 'Asia/Kolkata'")
        await writer.execute(
            "INSERT INTO events (id, event_type, data, created_at, metadata, stream_id, stream_version, "
            "actor_id, purger_id, purged_at, correlation_id, causation_id, schema_version) "
            """VALUES ('a', 'order.placed', '{"n": 1}', $1, '{"k": "v"}', 'order-1', 1, 'anna', 'bert', """
            "$1::timestamptz + interval '1 day', 'c', 'd', 2)",
            NOON,
        )

        assert (await store.log.read(START, 10, None)).events == [expected]
        assert (await store.log.read(START, 10, ORDERS)).events == [expected]
        assert (await store.log.read(position(1, (1, 1)), 10, None)).events == [expected]
        assert await store.log.read_stream("order-1", 1, None) == [expected] == [await store.get("a")]

    async def test_a_version_without_a_stream_is_read_whatever_else_is_in_the_page(
        self, store: PgEventStore, writer: Session
    ) -> None:
        """Such as an older table may have."""
        await insert(writer, [1, 2])
        await writer.execute("UPDATE events SET stream_version = 5 WHERE global_sequence = 1")
        before = (await store.log.read(START, 10, None)).events
        await writer.execute(
            "UPDATE events SET stream_id = 's', stream_version = 1 WHERE global_sequence = 2"
        )
        after = (await store.log.read(START, 10, None)).events

        assert [(each.stream_id, each.stream_version) for each in before] == [(None, 5), (None, None)]
        assert [(each.stream_id, each.stream_version) for each in after] == [(None, 5), ("s", 1)]

    @pytest.mark.parametrize("style", ["German", "SQL, DMY", "Postgres, MDY"])
    async def test_moments_are_the_same_wherever_and_however_the_server_writes_them(
        self, store: PgEventStore, writer: Session, log_dsn: str, style: str
    ) -> None:
        """In UTC, with as many digits as they have."""
        moments = [NOON, NOON.replace(microsecond=0), NOON.replace(microsecond=100_000)]
        for number, moment in enumerate(moments):
            await writer.execute(
                "INSERT INTO events (id, event_type, created_at) VALUES ($1, 'a', $2)", str(number), moment
            )
        name = await writer.fetchval("SELECT quote_ident(current_database())")
        await writer.execute(f"ALTER DATABASE {name} SET TimeZone = 'Asia/Kolkata'")
        await writer.execute(f"ALTER DATABASE {name} SET DateStyle = '{style}'")
        async with open_log(log_dsn, ManualClock()) as elsewhere:
            events = (await elsewhere.log.read(START, 10, None)).events

        assert [event.created_at for event in events] == moments
        assert all(event.created_at.tzinfo is UTC for event in events)


class TestFacts:
    async def test_every_page_names_the_server(
        self, store: PgEventStore, writer: Session, log_dsn: str
    ) -> None:
        """The same one for as long as it runs, with a sample or without, in any time zone."""
        name = await writer.fetchval("SELECT quote_ident(current_database())")
        await writer.execute(f"ALTER DATABASE {name} SET TimeZone = 'Asia/Kolkata'")
        async with open_log(log_dsn, ManualClock()) as elsewhere:
            sampled = await elsewhere.log.read(position(5, (1, 2)), 10, None, with_sample=True)
        pages = [sampled, await store.log.read(START, 10, None), await store.log.read(START, 10, ORDERS)]

        (server,) = {page.server for page in pages}
        assert server
        assert sampled.sample is not None
        assert sampled.sample.server == server

    async def test_who_reads_knows_how_far_the_log_goes(self, store: PgEventStore, writer: Session) -> None:
        """Even when nobody has told of it, so that a full page is not taken for the last one."""
        await insert(writer, [1, 2, 3])
        before = store.log.known_head
        await store.log.read(START, 1, None)

        assert (before, store.log.known_head) == (0, 3)

    @pytest.mark.parametrize("wanted", [None, ORDERS], ids=["all", "of some types"])
    @pytest.mark.parametrize(
        "change",
        [
            "TRUNCATE events RESTART IDENTITY",
            "DELETE FROM events; ALTER SEQUENCE events_global_sequence_seq RESTART",
            "DELETE FROM events WHERE global_sequence > 2; SELECT setval('events_global_sequence_seq', 2)",
            "DELETE FROM events; SELECT setval('events_global_sequence_seq', 3, false)",
        ],
    )
    async def test_a_position_beyond_all_numbers_that_were_ever_drawn_is_told(
        self, store: PgEventStore, writer: Session, change: str, wanted: TypeFilter | None
    ) -> None:
        """The log was emptied or restored: its next events would be passed over in silence."""
        await insert(writer, [1, 2, 3])
        positions = [position(3), position(3, (2, 2))]
        before = [await store.log.read(each, 10, wanted) for each in positions]
        await writer.execute(change)
        after = [await store.log.read(each, 10, wanted) for each in positions]
        sampled = await store.log.read(position(3), 10, wanted, with_sample=True)
        last_one = await store.log.read(position(2 if "setval" in change else 0), 10, wanted)

        assert [page.is_beyond for page in before] == [False, False]
        assert [page.is_beyond for page in (*after, sampled)] == [True, True, True]
        assert not last_one.is_beyond

    @pytest.mark.parametrize("wanted", [None, ORDERS], ids=["all", "of some types"])
    async def test_events_that_were_deleted_put_no_position_beyond_the_log(
        self, store: PgEventStore, writer: Session, wanted: TypeFilter | None
    ) -> None:
        """Old events may go, even all of them."""
        await insert(writer, [1, 2, 3])
        await writer.execute("DELETE FROM events WHERE global_sequence > 1")
        some = await store.log.read(position(3), 10, wanted)
        await writer.execute("TRUNCATE events")
        none = await store.log.read(position(3), 10, wanted)
        beyond = await store.log.read(position(4), 10, wanted)

        assert [page.is_beyond for page in (some, none, beyond)] == [False, False, True]

    @pytest.mark.parametrize("wanted", [None, ORDERS], ids=["all", "of some types"])
    async def test_a_page_tells_whether_a_retry_is_wanted(
        self, store: PgEventStore, writer: Session, wanted: TypeFilter | None
    ) -> None:
        """So that a subscriber at the head of the log needs no other question."""
        (event,) = await append(store, make_draft())
        await bury(store, await store.checkpoints.claim(MAIL, position(0)), event)
        told = list[bool]()
        for moment in (None, NOON):
            await writer.execute("UPDATE event_bus_dlq SET retry_wanted_at = $1", moment)
            for after in (START, position(1), position(1, (1, 1))):
                told.append((await store.log.read(after, 10, wanted)).may_have_retries)

        assert told == [False] * 3 + [True] * 3

    async def test_the_server_is_another_one_after_a_restart(self, own_postgres: Server) -> None:
        """What was known of its writers counts no more."""
        async with open_log(own_postgres.dsn(), ManualClock()) as store:
            before = await store.log.read(START, 10, None)
        own_postgres.restart()
        async with open_log(own_postgres.dsn(), ManualClock()) as store:
            after = await store.log.read(START, 10, None)

        assert before.server != after.server


class TestNow:
    async def test_without_writers_nothing_can_appear(self, store: PgEventStore, writer: Session) -> None:
        """However many numbers are missing."""
        await insert(writer, [2, 5])

        assert await store.log.now(GlobalSequence(5)) == position(5)

    async def test_nobody_starts_beyond_the_last_event(self, store: PgEventStore, writer: Session) -> None:
        """Whatever was believed of the log: the next events would be passed over."""
        await insert(writer, [1, 2])

        assert await store.log.now(GlobalSequence(3_000_000_000)) == position(2)

    async def test_with_a_writer_every_missing_number_may_be_its(
        self, store: PgEventStore, writer: Session, log_dsn: str
    ) -> None:
        """Up to the head, and none above it."""
        await insert(writer, [2, 5, 9])
        async with open_writer(log_dsn) as slow, slow.transaction():
            await slow.execute("SELECT nextval('events_global_sequence_seq')")

            assert await store.log.now(GlobalSequence(5)) == position(5, (1, 1), (3, 4))
            assert await store.log.now(GlobalSequence(7)) == position(7, (1, 1), (3, 4), (6, 7))
            assert await store.log.now(GlobalSequence(0)) == position(0)

    async def test_the_whole_log_is_looked_through_while_the_writer_is_there(
        self, store: PgEventStore, writer: Session, log_dsn: str
    ) -> None:
        """It may have begun a hundred thousand events ago."""
        async with open_writer(log_dsn) as slow, slow.transaction():
            await slow.execute("SELECT nextval('events_global_sequence_seq')")
            await insert(writer, range(2, 200_001))
            head = await store.head()

            assert await store.log.now(head) == position(200_000, (1, 1))


class TestPositionAt:
    async def test_a_moment_in_any_time_zone_is_the_same(self, store: PgEventStore, writer: Session) -> None:
        """To the microsecond."""
        await insert(writer, [2, 3])
        await writer.execute(
            "UPDATE events SET created_at = $1 WHERE global_sequence = 3", NOON + timedelta(microseconds=1)
        )

        assert await store.log.position_at(NOON) == 1
        assert await store.log.position_at(NOON + timedelta(microseconds=1)) == 2
        assert await store.log.position_at(NOON + timedelta(microseconds=2)) == 3


class TestAppendWithin:
    async def test_watchers_are_woken_when_the_callers_transaction_has_committed(
        self, store: PgEventStore, writer: Session
    ) -> None:
        """And find the event, as it was returned."""
        is_called = asyncio.Event()
        store.log.watch(is_called.set)
        async with writer.transaction():
            (event,) = await store.append("order-1", [("order.placed", {"n": 1})], connection=writer)
            before = (await store.log.read(START, 10, None)).events

        assert await is_called_soon(is_called)
        assert (before, (await store.log.read(START, 10, None)).events) == ([], [event])

    async def test_a_connection_outside_a_transaction_is_refused(
        self, store: PgEventStore, writer: Session
    ) -> None:
        """It would commit at once, whatever becomes of the caller's work."""
        with pytest.raises(InvalidConfigError, match="inside a transaction"):
            await store.append("order-1", [("order.placed",)], connection=writer)

        assert await store.head() == 0

    async def test_for_a_given_id_that_is_there_the_stored_event_is_returned(
        self, store: PgEventStore, writer: Session
    ) -> None:
        """Also if it was stored in the same transaction."""
        draft = make_draft(id="given", payload=1, is_idempotent=True)
        again = msgspec.structs.replace(draft, payload_json=b"2")
        async with writer.transaction():
            (first,) = await store.log.append_within(writer, [draft])
            (second,) = await store.log.append_within(writer, [again])

        assert first == second == await store.get("given")


class TestPurge:
    async def test_a_copy_that_is_being_buried_loses_its_payload_too(
        self, store: PgEventStore, writer: Session
    ) -> None:
        """Whoever buries it at the same moment comes before the purge, and is waited for."""
        (event,) = await append(store, make_draft(payload="secret"))
        owner = await store.checkpoints.claim(MAIL, position(0))
        async with writer.transaction():
            # Holds up the burial in the middle of its transaction.
            await writer.execute("LOCK TABLE event_bus_dlq IN EXCLUSIVE MODE")
            burying = asyncio.ensure_future(bury(store, owner, event))
            await until_waiting_for_lock(writer)
            purging = asyncio.ensure_future(store.log.purge(event.id, "anna"))
        dead, _ = await asyncio.gather(burying, purging)

        assert (await store.dead_letters.get(dead.dead_letter_id)).payload is None

    async def test_an_unknown_event_is_told(self, store: PgEventStore) -> None:
        """And nothing is left locked."""
        with pytest.raises(EventNotFoundError):
            await store.log.purge("nobody", "anna")
