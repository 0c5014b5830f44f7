"""PgCheckpoints: gaps, group commit, the disk, lost answers and purged events, on a real server."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from msgspec.structs import replace

from postbus.errors import (
    StoreUnavailableError,
    SubscriberFencedError,
    WrongExpectedVersionError,
)
from postbus.events import (
    Burial,
    Checkpoint,
    Event,
    Gap,
    GlobalSequence,
    LogPosition,
    RetryOutcome,
    StateWrite,
    SubscriberId,
    UndecodablePayload,
)
from postbus.stores.postgres.checkpoints import PgCheckpoints
from postbus.stores.postgres.store import PgEventStore
from postbus.testing import ManualClock
from tests.contracts.steps import MAIL, NOON, make_draft
from tests.postgres.databases import Databases
from tests.postgres.proxy import Proxy
from tests.postgres.server import Server
from tests.postgres.steps import Session
from tests.stores.checkpoint_steps import (
    START,
    make_database,
    no_transaction_is_open,
    open_checkpoints,
    open_session,
    progress,
    store_event,
    until_waiting_for_lock,
    until_waiting_for_standby,
    wait_for_standby,
)


@pytest.fixture
async def postgres_dsn(databases: Databases) -> AsyncIterator[str]:
    async with make_database(databases) as dsn:
        yield dsn


@pytest.fixture
async def checkpoints(postgres_dsn: str) -> AsyncIterator[PgCheckpoints]:
    async with open_checkpoints(postgres_dsn) as checkpoints:
        yield checkpoints


@pytest.fixture
async def session(checkpoints: PgCheckpoints, postgres_dsn: str) -> AsyncIterator[Session]:
    """A connection of the test's own, which finds our tables."""
    async with open_session(postgres_dsn) as session:
        yield session


class TestGaps:
    async def test_a_new_subscriber_begins_with_the_gaps_of_its_start(
        self, checkpoints: PgCheckpoints
    ) -> None:
        """What can still appear below the head is not passed over."""
        start = LogPosition(GlobalSequence(9), (Gap(4, 4), Gap(6, 8)))
        claimed = await checkpoints.claim(MAIL, start)

        assert (claimed.position, claimed.head, claimed.open) == (3, 9, start.open)
        assert await checkpoints.load(MAIL) == replace(claimed, server=None)
        again = await checkpoints.claim(MAIL, LogPosition(GlobalSequence(20)))
        assert (again.position, again.head, again.open) == (3, 9, start.open)

    async def test_position_head_and_gaps_are_saved_together(self, checkpoints: PgCheckpoints) -> None:
        """As the next owner finds them."""
        owner = await checkpoints.claim(MAIL, START)
        await checkpoints.save(progress(owner, 3, head=9, open=(Gap(4, 4), Gap(6, 8)), event_id="nine"))

        claimed = await checkpoints.claim(MAIL, START)
        assert (claimed.position, claimed.head, claimed.open) == (3, 9, (Gap(4, 4), Gap(6, 8)))
        assert claimed.event_id == "nine"

    @pytest.mark.parametrize("is_repeatable", [False, True])
    @pytest.mark.parametrize(
        ("later", "expected"),
        [
            # Behind: everything stays.
            ({"position": 2, "head": 50}, (3, 9, (Gap(4, 4),), "nine")),
            ({"position": 0}, (3, 9, (Gap(4, 4),), "nine")),
            # The same position with less beyond it is older.
            ({"position": 3}, (3, 9, (Gap(4, 4),), "nine")),
            ({"position": 3, "head": 8, "open": (Gap(4, 8),)}, (3, 9, (Gap(4, 4),), "nine")),
            # The same head with other gaps: some are known to be dead by now.
            ({"position": 3, "head": 9, "open": ()}, (3, 9, (), "nine")),
            # Further beyond the same position.
            (
                {"position": 3, "head": 12, "open": (Gap(4, 4), Gap(10, 11))},
                (3, 12, (Gap(4, 4), Gap(10, 11)), "new"),
            ),
            # The position itself has moved, with nothing beyond it or with something.
            ({"position": 9}, (9, 9, (), "new")),
            ({"position": 10, "head": 12, "open": (Gap(11, 11),)}, (10, 12, (Gap(11, 11),), "new")),
        ],
    )
    async def test_the_further_position_stays_with_what_belongs_to_it(
        self,
        checkpoints: PgCheckpoints,
        is_repeatable: bool,
        later: dict[str, Any],
        expected: tuple[int, int, tuple[Gap, ...], str],
    ) -> None:
        """Whoever is late moves nothing back: neither the position nor the head."""
        owner = await checkpoints.claim(MAIL, START)
        await checkpoints.save(progress(owner, 3, head=9, open=(Gap(4, 4),), event_id="nine"))
        await checkpoints.save(progress(owner, **later, event_id="new", is_repeatable=is_repeatable))

        found = await checkpoints.load(MAIL)
        assert found is not None
        assert (found.position, found.head, found.open, found.event_id) == expected

    async def test_a_row_that_knows_no_head_is_moved_on(
        self, checkpoints: PgCheckpoints, session: Session
    ) -> None:
        """Such as that of an older version."""
        await session.execute(
            "INSERT INTO event_bus_checkpoints (subscriber_id, last_global_sequence) VALUES ('mail', 7)"
        )
        owner = await checkpoints.claim(MAIL, START)
        assert (owner.position, owner.head, owner.was_interrupted) == (7, None, False)
        await checkpoints.save(progress(owner, 8, event_id="eight"))

        found = await checkpoints.load(MAIL)
        assert found is not None
        assert (found.position, found.head, found.event_id) == (8, 8, "eight")

    async def test_numbers_given_up_are_on_record(self, checkpoints: PgCheckpoints, session: Session) -> None:
        """With the subscriber and the moment, in the transaction of the checkpoint."""
        owner = await checkpoints.claim(MAIL, START)
        given_up = (Gap(4, 4), Gap(6, 8))
        await checkpoints.save(progress(owner, 9, given_up=given_up))
        stale = owner
        await checkpoints.claim(MAIL, START)
        with pytest.raises(SubscriberFencedError):
            await checkpoints.save(progress(stale, 20, given_up=(Gap(10, 19),)))

        rows = await session.fetch(
            "SELECT subscriber_id, first_sequence, last_sequence, given_up_at "
            "FROM event_bus_gap_timeouts ORDER BY id"
        )
        assert [tuple(row) for row in rows] == [(MAIL, *gap, ManualClock().now()) for gap in given_up]


class TestGroups:
    async def test_the_checkpoints_of_many_subscribers_are_one_write(
        self, checkpoints: PgCheckpoints, session: Session
    ) -> None:
        """Of twenty that are due at once one is on its way, and the others share a statement and a commit."""
        names = [SubscriberId(f"subscriber-{number}") for number in range(20)]
        owners = [await checkpoints.claim(name, START) for name in names]
        await asyncio.gather(
            *(
                checkpoints.save(
                    progress(owner, 5 + number, head=30, open=(Gap(6 + number, 29),) * (number % 2))
                )
                for number, owner in enumerate(owners)
            )
        )

        assert await session.fetchval("SELECT count(DISTINCT xmin::text) FROM event_bus_checkpoints") == 2
        found = await checkpoints.list()
        assert {each.subscriber_id: (each.position, each.open) for each in found} == {
            name: (5 + number, (Gap(6 + number, 29),) * (number % 2)) for number, name in enumerate(names)
        }

    async def test_those_who_have_come_to_the_same_place_are_moved_to_it_whole(
        self, checkpoints: PgCheckpoints
    ) -> None:
        """Nothing is left of what was beyond, nor of attempts; and a late write moves nobody back."""
        owners = [await checkpoints.claim(SubscriberId(name), START) for name in "abcd"]
        attempt = {"attempt_sequence": GlobalSequence(4), "attempt_count": 2}
        for owner in owners:
            await checkpoints.save(progress(owner, 3, head=9, open=(Gap(4, 4),), **attempt))
        for position, event_id in ((12, "twelve"), (7, "seven")):
            saves = [progress(owner, position, event_id=event_id) for owner in owners]
            await asyncio.gather(*map(checkpoints.save, saves))

        assert [
            (each.position, each.head, each.open, each.event_id, each.attempt_sequence, each.attempt_count)
            for each in await checkpoints.list()
        ] == [(12, 12, (), "twelve", None, 0)] * 4

    @pytest.mark.parametrize("gaps", [(), (Gap(4, 4),)])
    async def test_those_who_are_at_different_places_are_each_moved_to_its_own(
        self, checkpoints: PgCheckpoints, gaps: tuple[Gap, ...]
    ) -> None:
        """With what each has processed last; one that has processed nothing new keeps what it had."""
        owners = [await checkpoints.claim(SubscriberId(name), START) for name in "abcd"]
        for owner in owners:
            await checkpoints.save(progress(owner, 2, event_id="first"))
        places = [(3, 10, "ten"), (3, 20, "twenty"), (3, 30, None), (3, 15, "fifteen")]
        if not gaps:
            places = [(head, head, event_id) for _, head, event_id in places]
        saves = [
            progress(owner, position, head=head, open=gaps, event_id=event_id)
            for owner, (position, head, event_id) in zip(owners, places, strict=True)
        ]
        await asyncio.gather(*map(checkpoints.save, saves))

        found = await checkpoints.list()
        assert [(each.position, each.head, each.event_id) for each in found] == [
            (position, head, event_id or "first") for position, head, event_id in places
        ]
        assert [each.open for each in found] == [gaps] * 4

    async def test_where_arrays_have_no_nulls_each_is_saved_all_the_same(self, postgres_dsn: str) -> None:
        """Of those who are in one group, some may be at an attempt and others not."""
        async with open_checkpoints(f"{postgres_dsn}?array_nulls=off") as checkpoints:
            owners = [await checkpoints.claim(SubscriberId(name), START) for name in "abc"]
            attempts = [(None, 0), (GlobalSequence(3), 1), (None, 0)]
            await asyncio.gather(
                *(
                    checkpoints.save(progress(owner, 2, attempt_sequence=sequence, attempt_count=count))
                    for owner, (sequence, count) in zip(owners, attempts, strict=True)
                )
            )
            saved = [await checkpoints.load(owner.subscriber_id) for owner in owners]

        assert [each and (each.attempt_sequence, each.attempt_count) for each in saved] == attempts

    async def test_saves_of_one_subscriber_in_one_group_all_count(self, checkpoints: PgCheckpoints) -> None:
        """In their order: the attempt of the last, the furthest position."""
        owner = await checkpoints.claim(MAIL, START)
        saves = [
            progress(owner, position, attempt_sequence=GlobalSequence(position), attempt_count=position)
            for position in (4, 9, 6)
        ]
        await asyncio.gather(*map(checkpoints.save, saves))

        found = await checkpoints.load(MAIL)
        assert found is not None
        assert (found.position, found.attempt_sequence, found.attempt_count) == (9, 6, 6)

    async def test_who_is_fenced_is_told_and_the_others_are_saved(self, checkpoints: PgCheckpoints) -> None:
        """Each by its own epoch, though they share a statement."""
        names = [SubscriberId(name) for name in "abcd"]
        owners = [await checkpoints.claim(name, START) for name in names]
        for name in names[::2]:
            await checkpoints.claim(name, START)
        outcomes = await asyncio.gather(
            *(checkpoints.save(progress(owner, 5)) for owner in owners), return_exceptions=True
        )

        assert [type(outcome).__name__ for outcome in outcomes] == ["SubscriberFencedError", "NoneType"] * 2
        assert [each.position for each in await checkpoints.list()] == [0, 5, 0, 5]

    async def test_who_stops_waiting_spoils_nothing(
        self, checkpoints: PgCheckpoints, session: Session
    ) -> None:
        """A save that was cancelled takes no other with it, and leaves no transaction behind."""
        owners = [await checkpoints.claim(SubscriberId(name), START) for name in "ab"]
        async with session.transaction():
            await session.execute("SELECT 1 FROM event_bus_checkpoints WHERE subscriber_id = 'a' FOR UPDATE")
            saves = [asyncio.ensure_future(checkpoints.save(progress(owner, 5))) for owner in owners]
            await until_waiting_for_lock(session)
            saves[0].cancel()
            with pytest.raises(asyncio.CancelledError):
                await saves[0]
        await saves[1]

        found = await checkpoints.load(SubscriberId("b"))
        assert found is not None
        assert found.position == 5
        assert await no_transaction_is_open(session)


class TestServers:
    async def test_a_claim_names_the_server_that_a_page_of_the_log_names(self, postgres_dsn: str) -> None:
        """So they can be compared: what was read here is written here."""
        store = PgEventStore(postgres_dsn)
        await store.open()
        try:
            claimed = await store.checkpoints.claim(MAIL, START)
            page = await store.log.read(START, 10, None)
        finally:
            await store.close()

        assert claimed.server is not None
        assert claimed.server == page.server

    @pytest.mark.parametrize(
        "more",
        [
            {},
            {"head": 9, "open": (Gap(6, 8),)},
            {"attempt_sequence": 6, "attempt_count": 1},
            {"is_repeatable": True},
            {"states": [StateWrite("orders", "42", b"1")], "drafts": [make_draft()], "write_id": "first"},
            {"given_up": (Gap(1, 1),)},
        ],
    )
    async def test_what_was_read_on_another_server_is_not_written(
        self, checkpoints: PgCheckpoints, session: Session, more: dict[str, Any]
    ) -> None:
        """The owner is told, and finds the row as it was; on its own server it writes the same."""
        owner = await checkpoints.claim(MAIL, START)
        before = await _all_rows(session)
        with pytest.raises(SubscriberFencedError):
            await checkpoints.save(progress(owner, 5, server="another", **more))
        assert await _all_rows(session) == before

        await checkpoints.save(progress(owner, 5, server=owner.server, **more))
        found = await checkpoints.load(MAIL)
        assert found is not None
        assert found.position == 5

    @pytest.mark.parametrize("is_repeatable", [False, True])
    async def test_in_a_group_each_is_held_to_its_own_server(
        self, checkpoints: PgCheckpoints, is_repeatable: bool
    ) -> None:
        """Though they share a statement; who knows no server is not asked for it."""
        owners = [await checkpoints.claim(SubscriberId(name), START) for name in "abcde"]
        servers = [owners[0].server, "another", owners[0].server, None, "another"]
        saves = [
            progress(owner, 5, server=server, is_repeatable=is_repeatable)
            for owner, server in zip(owners, servers, strict=True)
        ]
        outcomes = await asyncio.gather(*map(checkpoints.save, saves), return_exceptions=True)

        refused = [isinstance(outcome, SubscriberFencedError) for outcome in outcomes]
        assert refused == [False, True, False, False, True]
        assert [each.position for each in await checkpoints.list()] == [5, 0, 5, 5, 0]

    async def test_a_write_that_has_happened_is_no_success_on_another_server(
        self, checkpoints: PgCheckpoints, session: Session
    ) -> None:
        """It may have come with the rows; whoever made it has to claim the subscriber there."""
        owner = await checkpoints.claim(MAIL, START)
        whole = progress(owner, 1, server=owner.server, write_id="first", drafts=[make_draft()])
        for _ in range(2):
            await checkpoints.save(whole)
        with pytest.raises(SubscriberFencedError):
            await checkpoints.save(replace(whole, server="another"))

        assert await session.fetchval("SELECT count(*) FROM events") == 1

    async def test_only_the_server_of_the_claim_is_let_go(self, checkpoints: PgCheckpoints) -> None:
        """On another one the next owner is told that this one was interrupted."""
        owner = await checkpoints.claim(MAIL, START)
        await checkpoints.release(MAIL, owner.epoch, "another")
        after_another = await checkpoints.claim(MAIL, START)
        await checkpoints.release(MAIL, after_another.epoch, after_another.server)
        after_own = await checkpoints.claim(MAIL, START)

        assert (after_another.was_interrupted, after_own.was_interrupted) == (True, False)


async def _all_rows(session: Session) -> list[str]:
    tables = ("event_bus_checkpoints", "events", "postbus_states", "event_bus_gap_timeouts", "event_bus_dlq")
    rows = [await session.fetch(f"SELECT {table}::text FROM {table}") for table in tables]
    return [row[0] for each in rows for row in each]


class TestDisk:
    @pytest.fixture
    async def slow_disk(self, own_postgres: Server) -> AsyncIterator[tuple[PgCheckpoints, Session]]:
        """A server whose commits never end, unless nobody waits for them."""
        async with (
            open_checkpoints(own_postgres.dsn()) as checkpoints,
            open_session(own_postgres.dsn()) as session,
        ):
            yield checkpoints, session
            await wait_for_standby(session, "")

    async def test_only_a_save_that_can_be_repeated_does_not_wait_for_it(
        self, slow_disk: tuple[PgCheckpoints, Session]
    ) -> None:
        """Alone or with others, and one that must be durable makes its group wait."""
        checkpoints, session = slow_disk
        mail, stock, other = [await checkpoints.claim(SubscriberId(name), START) for name in ("a", "b", "c")]
        await wait_for_standby(session, "nobody")
        async with asyncio.timeout(30):
            await checkpoints.save(progress(mail, 1, is_repeatable=True))
            await asyncio.gather(
                *(checkpoints.save(progress(owner, 2, is_repeatable=True)) for owner in (mail, stock))
            )
            # Without company again.
            await checkpoints.save(progress(mail, 3, is_repeatable=True))
        alone, *group = [
            asyncio.ensure_future(checkpoints.save(progress(owner, 4, is_repeatable=owner is not other)))
            for owner in (mail, stock, other)
        ]
        await alone
        await until_waiting_for_standby(session)

        assert not any(save.done() for save in group)
        await wait_for_standby(session, "")
        await asyncio.gather(*group)


class TestLostAnswers:
    @pytest.fixture
    async def through_proxy(self, postgres_dsn: str, postgres_proxy: Proxy) -> AsyncIterator[PgCheckpoints]:
        async with open_checkpoints(postgres_proxy.through(postgres_dsn)) as checkpoints:
            yield checkpoints

    async def test_a_write_whose_answer_got_lost_is_not_repeated(
        self, through_proxy: PgCheckpoints, postgres_proxy: Proxy, session: Session
    ) -> None:
        """Tried again with the same write_id it is a success that stores nothing."""
        owner = await through_proxy.claim(MAIL, START)
        event = await store_event(session, "event")
        whole = progress(
            owner,
            1,
            write_id="first",
            burials=[Burial(event, ["boom"])],
            states=[StateWrite("orders", "42", b"1")],
            drafts=[make_draft(id="published")],
            given_up=(Gap(5, 5),),
        )
        lost = postgres_proxy.cut_before_answer_of(b"COMMIT;")
        with pytest.raises(StoreUnavailableError):
            await through_proxy.save(whole)
        assert lost.is_set()
        await session.execute("UPDATE postbus_states SET state = '2'")
        await through_proxy.save(whole)

        assert await session.fetchval("SELECT count(*) FROM events WHERE id = 'published'") == 1
        assert await session.fetchval("SELECT count(*) FROM event_bus_gap_timeouts") == 1
        assert await session.fetchval("SELECT state::text FROM postbus_states") == "2"

    async def test_a_write_that_never_arrived_is_made_by_the_next_try(
        self, through_proxy: PgCheckpoints, postgres_proxy: Proxy, session: Session
    ) -> None:
        """Nothing of the first try is left."""
        owner = await through_proxy.claim(MAIL, START)
        whole = progress(owner, 1, write_id="first", drafts=[make_draft(id="published")])
        lost = postgres_proxy.cut_before_answer_of(b"UPDATE")
        with pytest.raises(StoreUnavailableError):
            await through_proxy.save(whole)
        assert lost.is_set()
        assert await session.fetchval("SELECT count(*) FROM events") == 0
        await through_proxy.save(whole)

        assert await session.fetchval("SELECT count(*) FROM events") == 1

    async def test_whoever_was_fenced_meanwhile_is_told(
        self, checkpoints: PgCheckpoints, session: Session
    ) -> None:
        """The same write again is no success for who is not the owner any more."""
        owner = await checkpoints.claim(MAIL, START)
        whole = progress(owner, 1, write_id="first", drafts=[make_draft(id="published")])
        await checkpoints.save(whole)
        await checkpoints.claim(MAIL, START)

        with pytest.raises(SubscriberFencedError):
            await checkpoints.save(whole)
        assert await session.fetchval("SELECT count(*) FROM events") == 1

    async def test_the_next_write_of_its_owner_is_another_one(
        self, checkpoints: PgCheckpoints, session: Session
    ) -> None:
        """And the same one is the same, whatever plain checkpoints come in between."""
        owner = await checkpoints.claim(MAIL, START)
        for write_id in ("first", "first", "second", "second", None, None):
            await checkpoints.save(progress(owner, 1, write_id=write_id, drafts=[make_draft()]))
            await checkpoints.save(progress(owner, 1))

        assert await session.fetchval("SELECT count(*) FROM events") == 4


class TestWhole:
    async def test_a_draft_that_is_refused_undoes_all_of_it(
        self, checkpoints: PgCheckpoints, session: Session
    ) -> None:
        """And what has a write_id is not taken for written."""
        owner = await checkpoints.claim(MAIL, START)
        refused = progress(
            owner,
            1,
            write_id="first",
            states=[StateWrite("orders", "42", b"1")],
            drafts=[make_draft(stream_id="s", expected_version=5)],
            given_up=(Gap(1, 1),),
        )
        for _ in range(2):
            with pytest.raises(WrongExpectedVersionError):
                await checkpoints.save(refused)

        found = await checkpoints.load(MAIL)
        assert found is not None
        assert found.position == 0
        for table in ("events", "postbus_states", "event_bus_gap_timeouts"):
            assert await session.fetchval(f"SELECT count(*) FROM {table}") == 0

    async def test_one_that_is_cancelled_leaves_nothing_behind(
        self, checkpoints: PgCheckpoints, session: Session
    ) -> None:
        """Neither rows nor a transaction, wherever it is at that moment."""
        owner = await checkpoints.claim(MAIL, START)
        states = [StateWrite("orders", "42", b"2")]
        await session.execute(
            "INSERT INTO postbus_states (store_name, key, state) VALUES ('orders', '42', '1')"
        )
        async with session.transaction():
            await session.execute("SELECT 1 FROM postbus_states FOR UPDATE")
            save = asyncio.ensure_future(checkpoints.save(progress(owner, 1, states=states)))
            await until_waiting_for_lock(session)
            save.cancel()
            with pytest.raises(asyncio.CancelledError):
                await save

        assert await no_transaction_is_open(session)
        assert await session.fetchval("SELECT state::text FROM postbus_states") == "1"
        await asyncio.gather(*(checkpoints.save(progress(owner, 2, states=states)) for _ in range(10)))
        assert await session.fetchval("SELECT state::text FROM postbus_states") == "2"

    async def test_two_who_write_the_same_states_do_not_wait_in_a_ring(
        self, checkpoints: PgCheckpoints
    ) -> None:
        """Whatever order they write them in."""
        owners = [await checkpoints.claim(SubscriberId(name), START) for name in "ab"]
        keys = [str(number) for number in range(100)]

        async def save(owner: Checkpoint, names: list[str]) -> None:
            for number in range(10):
                writes = [StateWrite("orders", name, str(number).encode()) for name in names]
                await checkpoints.save(progress(owner, number, states=writes))

        await asyncio.gather(save(owners[0], keys), save(owners[1], keys[::-1]))


class TestBurials:
    async def test_the_payload_is_kept_word_for_word(
        self, checkpoints: PgCheckpoints, session: Session
    ) -> None:
        """As it is in the log, and not as it was decoded."""
        owner = await checkpoints.claim(MAIL, START)
        event = await store_event(session, "event", payload='{"n":  1.0}')
        await checkpoints.save(progress(owner, 1, burials=[Burial(event, ["boom"])]))

        assert await session.fetchval("SELECT payload FROM event_bus_dlq") == '{"n":  1.0}'

    @pytest.mark.parametrize("payload", [{"n": 1}, UndecodablePayload("{nope", "malformed")])
    async def test_what_was_purged_meanwhile_stays_away(
        self, checkpoints: PgCheckpoints, session: Session, payload: object
    ) -> None:
        """Its reader may still know it; the dead letter says who has taken it away."""
        owner = await checkpoints.claim(MAIL, START)
        stored = await store_event(session, "event")
        event = Event(
            id=stored.id,
            type=stored.type,
            payload=payload,
            created_at=NOON,
            global_sequence=stored.global_sequence,
        )
        await session.execute("UPDATE events SET data = NULL, purger_id = 'anna', purged_at = $1", NOON)
        await checkpoints.save(progress(owner, 1, burials=[Burial(event, ["boom"])]))

        row = await session.fetchrow("SELECT payload, purger_id, purged_at FROM event_bus_dlq")
        assert row is not None
        assert tuple(row) == (None, "anna", NOON)

    async def test_a_purge_at_the_same_moment_comes_before_or_after(
        self, checkpoints: PgCheckpoints, session: Session
    ) -> None:
        """A burial waits for one that has begun, and then finds no payload."""
        owner = await checkpoints.claim(MAIL, START)
        event = await store_event(session, "event")
        async with session.transaction():
            await session.execute("UPDATE events SET data = NULL, purger_id = 'anna', purged_at = $1", NOON)
            save = asyncio.ensure_future(
                checkpoints.save(progress(owner, 1, burials=[Burial(event, ["boom"])]))
            )
            await until_waiting_for_lock(session)
            await session.execute("UPDATE event_bus_dlq SET payload = NULL")
        await save

        row = await session.fetchrow("SELECT payload, purger_id FROM event_bus_dlq")
        assert row is not None
        assert tuple(row) == (None, "anna")

    async def test_an_event_that_is_gone_is_buried_as_its_reader_knows_it(
        self, checkpoints: PgCheckpoints, session: Session
    ) -> None:
        """Somebody has deleted it from the log."""
        owner = await checkpoints.claim(MAIL, START)
        event = await store_event(session, "event")
        await session.execute("DELETE FROM events")
        await checkpoints.save(progress(owner, 1, burials=[Burial(event, ["boom"])]))

        assert await session.fetchval("SELECT payload FROM event_bus_dlq") == '{"n":1}'

    async def test_words_that_the_database_does_not_take_are_escaped(
        self, checkpoints: PgCheckpoints, session: Session
    ) -> None:
        """An error with a NUL or half a character stops no subscriber."""
        owner = await checkpoints.claim(MAIL, START)
        event = await store_event(session, "event")
        await checkpoints.save(progress(owner, 1, burials=[Burial(event, ["\0", "half \ud800"])]))
        letter = await session.fetchval("SELECT id FROM event_bus_dlq")
        await checkpoints.save(progress(owner, 1, retries=[RetryOutcome(letter, 'quote " \\ \0')]))

        row = await session.fetchrow(
            "SELECT retry_count, error_message, ARRAY(SELECT json_array_elements_text(error_history)) "
            "FROM event_bus_dlq"
        )
        assert row is not None
        last = 'quote " \\ \\x00'
        assert tuple(row) == (3, last, ["\\x00", "half \\ud800", last])

    @pytest.mark.parametrize(
        ("history", "expected"),
        [
            ("[]", ["new"]),
            ('[ "old" ]\n ', ["old", "new"]),
            ('["\\u0000 \\ud800"]', ["\\u0000 \\ud800", "new"]),
            ('"old"', ["old", "new"]),
        ],
    )
    async def test_a_history_that_another_program_wrote_is_lengthened(
        self, checkpoints: PgCheckpoints, session: Session, history: str, expected: list[str]
    ) -> None:
        """Whatever JSON it is."""
        owner = await checkpoints.claim(MAIL, START)
        event = await store_event(session, "event")
        await checkpoints.save(progress(owner, 1, burials=[Burial(event, ["boom"])]))
        letter = await session.fetchval(
            "UPDATE event_bus_dlq SET error_history = $1::text::json RETURNING id", history
        )
        await checkpoints.save(progress(owner, 1, retries=[RetryOutcome(letter, "new")]))

        written = await session.fetchval("SELECT error_history::text FROM event_bus_dlq")
        assert (
            "".join(written.split())
            == "[" + ",".join(f'"{"".join(each.split())}"' for each in expected) + "]"
        )
