"""Appending to PostgreSQL: shared commits, large calls, streams under contention, and who holds them up."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import msgspec
import pytest

from postbus.errors import (
    DuplicateEventIdError,
    StoreBusyError,
    StoreClosedError,
    StoreError,
    WrongExpectedVersionError,
)
from postbus.stores.postgres import appending as appending_module
from postbus.stores.postgres.answers import Stored
from postbus.stores.postgres.appending import Appending
from postbus.stores.postgres.channels import channel_name
from postbus.stores.postgres.event_queue import NoBacklog, NoDispatchLock, NoSubscriptions, PgEventQueue
from postbus.stores.postgres.inserts import LARGEST_STATEMENT
from postbus.stores.postgres.lock_keys import session_key
from tests.contracts.steps import NOON, START, make_draft
from tests.patience import PATIENCE
from tests.postgres.steps import Session, ask
from tests.stores.appending_steps import (
    Announced,
    large_draft,
    open_appending,
    open_session,
    stored_ids,
    until_waiting_for_lock,
)
from tests.stores.postgres_steps import eventually, listening, opened

VERSIONS = (
    "SELECT array_agg(stream_version ORDER BY global_sequence) FROM postbus.events WHERE stream_id = $1"
)
COUNT = "SELECT count(*) FROM postbus.events"
LOCK = "LOCK TABLE postbus.events IN SHARE MODE"
# Before the number is drawn: of the statements that store drafts only that for a single one has VALUES.
SLOW_WHEN_ALONE = """
CREATE FUNCTION be_slow() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    IF current_query() ~ 'VALUES|CALL' THEN PERFORM pg_sleep(0.2); END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER slow BEFORE INSERT ON postbus.events FOR EACH STATEMENT EXECUTE FUNCTION be_slow();
"""
STUCK_WHEN_ALONE = SLOW_WHEN_ALONE.replace("pg_sleep(0.2)", "count(*) FROM stuck") + "CREATE TABLE stuck ();"
# All but what the sessions of the bus have in common.
STREAM_LOCKS = f"""
SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND objsubid = 1
    AND (classid::bigint << 32) | objid::bigint <> {session_key(channel_name("postbus"))}
"""


@pytest.fixture(params=[None, "postbus:postbus"], ids=["", "and notify"])
async def appending(postgres_dsn: str, request: pytest.FixtureRequest) -> AsyncIterator[Appending]:
    async with open_appending(postgres_dsn, Announced(request.param)) as appending:
        yield appending


@pytest.fixture
async def session(postgres_dsn: str, appending: Appending) -> AsyncIterator[Session]:
    """A connection of somebody else to the same tables."""
    async with open_session(postgres_dsn) as session:
        yield session


class TestGroups:
    async def test_concurrent_appends_share_commits(self, appending: Appending, session: Session) -> None:
        """A hundred of them are a handful of transactions."""
        await asyncio.gather(*[appending.append([make_draft()]) for _ in range(100)])

        commits = await session.fetchval("SELECT count(DISTINCT xmin::text) FROM postbus.events")
        assert commits <= 3

    async def test_calls_of_one_turn_are_numbered_in_their_order(self, appending: Appending) -> None:
        """Whatever their kind, and how many drafts each has."""
        kinds: list[dict[str, Any]] = [
            {},
            {"is_idempotent": True},
            {"stream_id": "a"},
            {"stream_id": "b", "is_idempotent": True},
        ]
        calls = [
            [make_draft(**kinds[number % len(kinds)]) for _ in range(number % 3 + 1)] for number in range(60)
        ]
        answers = await asyncio.gather(*[appending.append(drafts) for drafts in calls])

        numbers = [stored.sequence for answer in answers for stored in answer]
        assert numbers == list(range(1, len(numbers) + 1))

    @pytest.mark.parametrize("count", [2, 1000])
    async def test_a_call_is_numbered_in_the_order_of_its_drafts(
        self, appending: Appending, session: Session, count: int
    ) -> None:
        """By the server: the numbers that are told are those in the table."""
        drafts = [make_draft(payload=number) for number in range(count)]
        stored = await appending.append(drafts)

        rows = await session.fetch(
            "SELECT global_sequence, id, data::text FROM postbus.events ORDER BY global_sequence"
        )
        told = [
            (each.sequence, draft.id, draft.payload_json.decode())
            for each, draft in zip(stored, drafts, strict=True)
        ]
        assert [tuple(row) for row in rows] == told

    async def test_a_draft_is_stored_with_all_its_columns(
        self, appending: Appending, session: Session
    ) -> None:
        """Alone, in a group, and through the function that looks first."""
        whole = {"actor_id": "anna", "correlation_id": "c", "causation_id": "b", "schema_version": 2**40}
        draft = make_draft(payload={"a": [1]}, metadata={"source": "web"})
        for count, more in ((1, {}), (2, {}), (1, {"is_idempotent": True})):
            drafts = [
                msgspec.structs.replace(draft, id=f"{count} {more} {number}", **whole, **more)
                for number in range(count)
            ]
            await appending.append(drafts)

        columns = (
            "event_type, data::text, metadata::text, created_at, actor_id, correlation_id, causation_id, "
            "schema_version"
        )
        rows = await session.fetch(
            f"SELECT DISTINCT {columns}, count(*) FROM postbus.events GROUP BY {columns}"
        )
        expected = ("order.placed", '{"a":[1]}', '{"source":"web"}', NOON, *whole.values(), 4)
        assert [tuple(row) for row in rows] == [expected]

    async def test_one_bad_call_of_a_group_fails_alone(self, appending: Appending, session: Session) -> None:
        """Be it an id that is taken, a stream that is elsewhere, or what only this database refuses."""
        await session.execute("ALTER TABLE postbus.events ADD CHECK (data::text <> '\"bad\"')")
        await appending.append([make_draft(id="taken", stream_id="a")])
        bad = [
            ([make_draft(id="taken")], DuplicateEventIdError),
            ([make_draft(id="x"), make_draft(id="x")], DuplicateEventIdError),
            ([make_draft(stream_id="a", expected_version=0)], WrongExpectedVersionError),
            ([make_draft(payload="bad")], StoreError),
        ]
        for drafts, expected in bad:
            good = [[make_draft(payload=number)] for number in range(6)]
            calls = [appending.append(call) for call in (*good[:3], drafts, *good[3:])]
            *answers, error, last = _bad_last(await asyncio.gather(*calls, return_exceptions=True))

            assert type(error) is expected, drafts
            assert all(isinstance(answer, list) for answer in (*answers, last))
        assert await session.fetchval(COUNT) == 1 + len(bad) * 6

    async def test_a_refusal_burns_no_number_where_it_was_foreseeable(self, appending: Appending) -> None:
        """A gap would make readers look who is at work."""
        await appending.append([make_draft(stream_id="a")])
        with pytest.raises(WrongExpectedVersionError):
            await appending.append([make_draft(stream_id="a", expected_version=7)])
        given = make_draft(id="given", is_idempotent=True)
        first, again = await asyncio.gather(appending.append([given]), appending.append([given]))

        assert first == [Stored(2, None)]
        assert again == [Stored(None, None)]

    async def test_the_highest_number_is_announced_when_it_is_durable(self, postgres_dsn: str) -> None:
        """Whoever is woken finds it; with the lowest of the same commit."""
        async with opened(postgres_dsn) as database, open_session(postgres_dsn) as session:
            announced = Announced()
            appending = Appending(database, announced)
            await appending.append([make_draft() for _ in range(3)])
            await appending.append([make_draft(id="once", is_idempotent=True)])
            await appending.append([make_draft(id="once", is_idempotent=True)])
            given = [make_draft(id=f"given {number}", is_idempotent=True) for number in range(3)]
            await appending.append(given)

            assert [last for last, _ in announced.numbers] == [3, 4, announced.numbers[-1][1] + 2]
            assert [last - first for last, first in announced.numbers] == [2, 0, 2]
            assert await session.fetchval(COUNT) == 7

    async def test_one_event_is_committed_and_notified_by_one_statement(self, postgres_dsn: str) -> None:
        """Others that are told find it. What is not one plain event is announced as ever."""
        announced = Announced("a channel")
        async with (
            opened(postgres_dsn) as database,
            open_session(postgres_dsn) as session,
            listening(postgres_dsn, "a channel") as outside,
        ):
            appending = Appending(database, announced)
            await appending.append([make_draft()])
            await appending.append([make_draft(), make_draft()])
            await appending.append([make_draft(metadata={"source": "web"})])
            await eventually(lambda: outside.heard == ["1"])

            assert await session.fetchval(COUNT) == 4
        assert announced.notified == [1]
        assert announced.numbers == [(3, 2), (4, 4)]

    async def test_what_was_submitted_is_stored_although_its_caller_is_cancelled(
        self, appending: Appending, session: Session
    ) -> None:
        """At whatever moment."""
        for turn_count in range(6):
            call = asyncio.create_task(appending.append([make_draft()]))
            for _ in range(turn_count + 1):
                await asyncio.sleep(0)
            call.cancel()
        await appending.drain()

        assert await session.fetchval(COUNT) == 6

    async def test_calls_behind_one_that_needs_no_group_are_numbered_after_it(
        self, appending: Appending, session: Session, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The first of a turn is sent at once, on another connection than the rest."""
        monkeypatch.setattr(appending_module, "_SECONDS_BEHIND", 10.0)
        # Two connections, so that nobody has to open one.
        await asyncio.gather(*[appending.append([make_draft()]) for _ in range(2)])
        await session.execute(SLOW_WHEN_ALONE)
        stored = await asyncio.gather(*[appending.append([make_draft()]) for _ in range(4)])

        assert [each.sequence for (each,) in stored] == [3, 4, 5, 6]

    async def test_one_who_waits_at_the_server_holds_up_nobody_for_long(
        self, postgres_dsn: str, appending: Appending, session: Session
    ) -> None:
        """Its connection may be dead: the others take another one, though they came later."""
        await session.execute(STUCK_WHEN_ALONE)
        transaction = session.transaction()
        await transaction.start()
        await session.execute("LOCK TABLE stuck")
        first = asyncio.create_task(appending.append([make_draft()]))
        await until_waiting_for_lock(postgres_dsn)
        async with asyncio.timeout(5):
            others = await asyncio.gather(*[appending.append([make_draft()]) for _ in range(2)])

        assert not first.done()
        assert [each.sequence for (each,) in others] == [1, 2]
        await transaction.commit()
        assert await first == [Stored(3, None)]

    async def test_who_is_alone_needs_no_task(
        self, postgres_dsn: str, appending: Appending, session: Session
    ) -> None:
        """A group and its task would be a fifth of what a single append costs."""
        async with session.transaction():
            await session.execute(LOCK)
            call = asyncio.create_task(appending.append([make_draft()]))
            await until_waiting_for_lock(postgres_dsn)
            names = {task.get_name() for task in asyncio.all_tasks()}
        await call

        assert "postbus group commit" not in names

    async def test_what_waits_at_the_server_is_stored_although_its_caller_is_cancelled(
        self, postgres_dsn: str, appending: Appending, session: Session
    ) -> None:
        """The server was told to end the statement; another one stores the event, once."""
        async with session.transaction():
            await session.execute(LOCK)
            call = asyncio.create_task(appending.append([make_draft()]))
            await until_waiting_for_lock(postgres_dsn)
            call.cancel()
        await appending.drain()

        assert call.cancelled()
        assert await session.fetchval(COUNT) == 1

    async def test_nothing_is_on_its_way_any_more_after_drain(
        self, postgres_dsn: str, appending: Appending, session: Session
    ) -> None:
        """Also of who needed no group."""
        async with session.transaction():
            await session.execute(LOCK)
            call = asyncio.create_task(appending.append([make_draft()]))
            await until_waiting_for_lock(postgres_dsn)
            drain = asyncio.create_task(appending.drain())
            await ask(postgres_dsn, "SELECT 1")
            assert not drain.done()
        await drain

        assert await session.fetchval(COUNT) == 1
        await call

    async def test_drain_does_not_wait_for_whoever_appends_again_and_again(
        self, appending: Appending
    ) -> None:
        """What was on its way is stored; what was begun later is not its concern."""

        async def append_for_ever() -> None:
            while True:
                await appending.append([make_draft()])

        caller = asyncio.create_task(append_for_ever())
        await asyncio.sleep(0)
        await asyncio.wait_for(appending.drain(), PATIENCE)
        caller.cancel()
        await asyncio.wait([caller])
        await appending.drain()

        assert caller.cancelled()

    async def test_a_closed_database_refuses(self, postgres_dsn: str) -> None:
        """And says what to do."""
        async with opened(postgres_dsn) as database:
            appending = Appending(database, Announced())
        with pytest.raises(StoreClosedError, match="open"):
            await appending.append([make_draft()])

    async def test_a_pool_with_its_own_way_with_json_changes_nothing(
        self, postgres_dsn: str, session: Session
    ) -> None:
        """Many programs have the driver decode JSON; our payloads are JSON already."""

        async def decode_json(connection: Session) -> None:
            for name in ("json", "jsonb"):
                await connection.set_type_codec(
                    name, encoder=json.dumps, decoder=json.loads, schema="pg_catalog"
                )

        async with (
            asyncpg.create_pool(postgres_dsn, init=decode_json, min_size=0, max_size=4) as pool,
            open_appending(pool) as appending,
        ):
            for streams in ([None], [None, None], ["a"]):
                await appending.append(
                    [make_draft(payload={"a": 1}, metadata={"b": "c"}, stream_id=each) for each in streams]
                )

        rows = await session.fetch("SELECT DISTINCT data::text, metadata::text FROM postbus.events")
        assert [tuple(row) for row in rows] == [('{"a":1}', '{"b":"c"}')]


def _bad_last(answers: list[object]) -> list[object]:
    """The one in the middle last but one."""
    return [*answers[:3], *answers[4:6], answers[3], answers[6]]


class TestLargeCalls:
    async def test_a_call_larger_than_a_statement_is_stored_whole(
        self, appending: Appending, session: Session
    ) -> None:
        """In one transaction, and in order."""
        drafts = [large_draft(LARGEST_STATEMENT // 3, stream_id="a") for _ in range(7)]
        small, stored = await asyncio.gather(appending.append([make_draft()]), appending.append(drafts))

        assert stored == [Stored(number + 1, number) for number in range(1, 8)]
        assert small == [Stored(1, None)]
        assert await session.fetchval("SELECT count(DISTINCT xmin::text) FROM postbus.events") == 2

    @pytest.mark.parametrize("flaw", [{"expected_version": 9}, {"id": "taken", "stream_id": None}])
    async def test_nothing_is_stored_of_one_that_is_refused_in_its_last_part(
        self, appending: Appending, session: Session, flaw: dict[str, object]
    ) -> None:
        """All or none, also in several statements."""
        await appending.append([make_draft(id="taken")])
        drafts = [large_draft(LARGEST_STATEMENT // 3, stream_id="a") for _ in range(7)]
        drafts.append(msgspec.structs.replace(make_draft(stream_id="a"), **flaw))
        with pytest.raises((WrongExpectedVersionError, DuplicateEventIdError)):
            await appending.append(drafts)

        assert await stored_ids(session) == ["taken"]

    @pytest.mark.parametrize("stream_count", [499, 501, 10_000])
    async def test_a_call_may_write_any_number_of_streams(
        self, appending: Appending, session: Session, stream_count: int
    ) -> None:
        """The server's table of locks is no limit."""
        drafts = [make_draft(stream_id=f"s{number}") for number in range(stream_count)]
        stored, (other,) = await asyncio.gather(
            appending.append(drafts), appending.append([make_draft(stream_id="s7", is_idempotent=True)])
        )

        assert {each.stream_version for each in stored} == {1}
        assert other.stream_version == 2
        locks = STREAM_LOCKS
        assert await session.fetchval(locks) == 0


class TestContention:
    async def test_all_who_expect_nothing_get_the_next_versions(
        self, appending: Appending, session: Session
    ) -> None:
        """From 1 on, without a hole."""
        answers = await asyncio.gather(*[appending.append([make_draft(stream_id="a")]) for _ in range(50)])

        assert sorted(stored.stream_version or 0 for (stored,) in answers) == list(range(1, 51))
        assert await session.fetchval(VERSIONS, "a") == list(range(1, 51))

    async def test_of_those_who_expect_the_same_version_exactly_one_wins(
        self, postgres_dsn: str, appending: Appending
    ) -> None:
        """In several processes as well."""
        async with open_appending(postgres_dsn) as other, open_appending(postgres_dsn) as third:
            for version in range(10):
                draft = make_draft(stream_id="a", expected_version=version)
                answers = await asyncio.gather(
                    *[
                        who.append([msgspec.structs.replace(draft, id=f"{version} {number}")])
                        for number, who in enumerate([appending, other, third] * 3)
                    ],
                    return_exceptions=True,
                )
                errors = [answer for answer in answers if isinstance(answer, WrongExpectedVersionError)]

                assert len(errors) == 8
                assert {(error.expected, error.actual) for error in errors} == {(version, version + 1)}
                assert [Stored] == [
                    type(stored) for answer in answers if isinstance(answer, list) for stored in answer
                ]

    async def test_the_versions_of_a_stream_rise_with_the_numbers(
        self, postgres_dsn: str, appending: Appending, session: Session
    ) -> None:
        """A reader who goes by numbers sees each stream in order, whoever writes it."""
        async with open_appending(postgres_dsn) as other, open_appending(postgres_dsn) as third:

            async def append(who: Appending, number: int) -> None:
                streams = "abc"[number % 3 :] + "abc"[: number % 3]
                for round_number in range(8):
                    drafts = [make_draft(stream_id=stream) for stream in streams[: round_number % 3 + 1]]
                    await who.append(drafts)

            await asyncio.gather(
                *[append(who, number) for number in range(6) for who in (appending, other, third)]
            )
            for _ in range(10):
                async with session.transaction():
                    await session.execute("SELECT postbus.publish('x', stream_id => 'a')")

        for stream in "abc":
            versions = await session.fetchval(VERSIONS, stream)
            assert versions == list(range(1, len(versions) + 1))
        assert await session.fetchval(COUNT) == 3 * 6 * (1 + 2 + 3 + 1 + 2 + 3 + 1 + 2) + 10

    async def test_given_ids_in_any_order_never_end_in_a_deadlock(
        self, postgres_dsn: str, appending: Appending, session: Session
    ) -> None:
        """Two processes that store the same messages, each in its own order."""
        async with open_appending(postgres_dsn) as other:
            ids = [f"message {number}" for number in range(20)]
            drafts = [make_draft(id=each, is_idempotent=True) for each in ids]
            await asyncio.gather(
                *[appending.append(drafts[number:] + drafts[:number]) for number in range(20)],
                *[other.append(drafts[::-1][number:] + drafts[::-1][:number]) for number in range(20)],
            )

        assert sorted(await stored_ids(session)) == sorted(ids)
        deadlocks = "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"
        assert await session.fetchval(deadlocks) == 0

    async def test_a_deadlock_with_strangers_is_tried_again(
        self, postgres_dsn: str, appending: Appending, session: Session
    ) -> None:
        """Whoever writes into our table by hand may wait for us while we wait for it."""
        insert = "INSERT INTO postbus.events (id, event_type) VALUES ($1, 'x')"
        await session.execute("SET deadlock_timeout = '60s'")
        transaction = session.transaction()
        await transaction.start()
        await session.execute(insert, "second")
        call = asyncio.create_task(appending.append([make_draft(id="first"), make_draft(id="second")]))
        await until_waiting_for_lock(postgres_dsn)
        async with asyncio.timeout(10):
            # Waits until the other has been chosen as the victim.
            await session.execute(insert, "first")
            await transaction.rollback()

            assert [stored.sequence is not None for stored in await call] == [True, True]
        assert await stored_ids(session) == ["first", "second"]

    async def test_it_works_where_transactions_are_repeatable_read_by_default(
        self, postgres_dsn: str, session: Session
    ) -> None:
        """There a statement that waited sees the stream as it was before."""
        await session.execute(
            "DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET default_transaction_isolation = %L', "
            "current_database(), 'repeatable read'); END $$"
        )
        async with open_appending(postgres_dsn) as one, open_appending(postgres_dsn) as other:
            await asyncio.gather(
                *[who.append([make_draft(stream_id="a")]) for who in (one, other) for _ in range(10)],
                *[other.append([make_draft(id="once", is_idempotent=True)]) for _ in range(3)],
            )

        assert await session.fetchval(VERSIONS, "a") == list(range(1, 21))

    async def test_an_id_that_somebody_else_is_about_to_store_is_waited_for(
        self, postgres_dsn: str, appending: Appending, session: Session
    ) -> None:
        """If it is stored in the end, a given one is there already, and a made one is taken."""
        transaction = session.transaction()
        await transaction.start()
        await session.execute("INSERT INTO postbus.events (id, event_type) VALUES ('a', 'x'), ('b', 'x')")
        given = asyncio.create_task(appending.append([make_draft(id="a", is_idempotent=True)]))
        await until_waiting_for_lock(postgres_dsn)
        made = asyncio.create_task(appending.append([make_draft(id="b")]))
        await transaction.commit()

        assert await given == [Stored(None, None)]
        with pytest.raises(DuplicateEventIdError, match="'b'"):
            await made


class TestHeldUp:
    @pytest.mark.parametrize("is_idempotent", [False, True])
    async def test_who_holds_a_stream_or_an_id_holds_up_its_writers_only(
        self,
        postgres_dsn: str,
        appending: Appending,
        session: Session,
        is_idempotent: bool,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        """Those who share a group with the first of them wait for a moment, and nobody after that."""
        monkeypatch.setattr(appending_module, "_PATIENCE", "1s")
        transaction = session.transaction()
        await transaction.start()
        held = [
            make_draft(id=name, is_idempotent=True) if is_idempotent else make_draft(stream_id=name)
            for name in ("held", "held too")
        ]
        await appending.insert_within(session, held)
        waiting: list[asyncio.Task[list[Stored]]] = []
        async with asyncio.timeout(5):
            for number in range(10):
                draft = held[number % 2]
                if not is_idempotent:
                    draft = make_draft(stream_id=draft.stream_id)
                waiting.append(asyncio.create_task(appending.append([draft])))
                await asyncio.gather(
                    appending.append([make_draft(stream_id="free")]), appending.append([make_draft()])
                )
        are_done = [call.done() for call in waiting]
        await transaction.commit()
        async with asyncio.timeout(5):
            answers = await asyncio.gather(*waiting)

        assert are_done == [False] * 10
        versions = [stored.stream_version for (stored,) in answers if stored.stream_version is not None]
        assert sorted(versions) == ([] if is_idempotent else [2, 2, 3, 3, 4, 4, 5, 5, 6, 6])
        assert await ask(postgres_dsn, COUNT) == 22 + len(versions)

    async def test_many_streams_that_are_held_hold_others_up_but_once(
        self, appending: Appending, session: Session
    ) -> None:
        """Who shares a group with their writers does not wait for one after the other."""
        names = [f"held {number}" for number in range(60)]
        transaction = session.transaction()
        await transaction.start()
        await appending.insert_within(session, [make_draft(stream_id=name) for name in names])
        held = [asyncio.create_task(appending.append([make_draft(stream_id=name)])) for name in names]
        # A twentieth of a second for each would be three seconds.
        async with asyncio.timeout(2):
            await appending.append([make_draft(stream_id="free")])
        await transaction.rollback()

        assert {stored.stream_version for (stored,) in await asyncio.gather(*held)} == {1}

    async def test_patience_is_for_streams_and_not_for_the_table(
        self, postgres_dsn: str, appending: Appending, session: Session
    ) -> None:
        """Who got the stream in time waits for a locked table as long as everybody does."""
        transaction = session.transaction()
        await transaction.start()
        await appending.insert_within(session, [make_draft(stream_id="a")])
        async with open_session(postgres_dsn) as other:
            call = asyncio.create_task(appending.append([make_draft(stream_id="a")]))
            locking = other.transaction()
            await locking.start()
            locked = asyncio.create_task(other.execute("LOCK TABLE postbus.events IN SHARE MODE"))
            await until_waiting_for_lock(postgres_dsn, count=2)
            await transaction.commit()
            await locked
            await until_waiting_for_lock(postgres_dsn)
            # Longer than anybody's patience.
            await asyncio.wait([call], timeout=0.5)
            was_done = call.done()
            await locking.rollback()
            async with asyncio.timeout(5):
                (stored,) = await call

        assert not was_done
        assert stored.stream_version == 2

    async def test_after_a_rollback_the_next_takes_the_version(
        self, postgres_dsn: str, appending: Appending, session: Session
    ) -> None:
        """Nothing of the other is left."""
        transaction = session.transaction()
        await transaction.start()
        await appending.insert_within(session, [make_draft(stream_id="held", id="given", is_idempotent=True)])
        calls = [
            asyncio.create_task(appending.append([draft]))
            for draft in (make_draft(stream_id="held"), make_draft(id="given", is_idempotent=True))
        ]
        await until_waiting_for_lock(postgres_dsn)
        await transaction.rollback()
        async with asyncio.timeout(5):
            (one,), (given,) = await asyncio.gather(*calls)

        assert one.stream_version == 1
        assert given.sequence is not None

    async def test_who_waits_too_long_is_told_by_whom_and_has_stored_nothing(
        self, appending: Appending, session: Session, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The name of the stream tells where to look."""
        monkeypatch.setattr(appending_module, "_BUSY_SECONDS", 0.1)
        async with session.transaction():
            await appending.insert_within(
                session, [make_draft(stream_id="held"), make_draft(id="held", is_idempotent=True)]
            )
            for draft, name in (
                (make_draft(stream_id="held"), "stream 'held'"),
                (make_draft(id="held", is_idempotent=True, stream_id="free"), "event id 'held'"),
            ):
                with pytest.raises(StoreBusyError, match=f"^{name} could not .* nothing was stored"):
                    await appending.append([make_draft(id="with it", stream_id="other"), draft])
        (stored,) = await appending.append([make_draft(stream_id="held")])

        assert stored.stream_version == 2
        assert "with it" not in await stored_ids(session)

    async def test_a_call_of_very_many_streams_is_held_up_alone(
        self, postgres_dsn: str, appending: Appending, session: Session
    ) -> None:
        """It needs them all, and goes on when it has them."""
        transaction = session.transaction()
        await transaction.start()
        await appending.insert_within(session, [make_draft(stream_id="held")])
        many = asyncio.create_task(
            appending.append([make_draft(stream_id=name) for name in ["held", *map(str, range(599))]])
        )
        await until_waiting_for_lock(postgres_dsn)
        async with asyncio.timeout(5):
            await appending.append([make_draft()])
        was_done = many.done()
        await transaction.rollback()
        async with asyncio.timeout(5):
            stored = await many

        assert not was_done
        assert len(stored) == 600

    async def test_a_call_of_very_many_streams_holds_up_only_who_shares_their_buckets(
        self, appending: Appending, session: Session, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Left open in its caller's transaction, it is no reason for all others to wait."""
        monkeypatch.setattr(appending_module, "_BUSY_SECONDS", 0.1)
        low, high = await _streams_of_two_halves(session)
        async with session.transaction():
            await appending.insert_within(session, [make_draft(stream_id=name) for name in low[:600]])
            locks = STREAM_LOCKS
            lock_count = await session.fetchval(locks)
            # With 600 of them there is hardly a bucket of their half that is not taken.
            for held in (low[7], low[601:]):
                names = [held] if isinstance(held, str) else held
                with pytest.raises(
                    StoreBusyError, match=r"^stream '\d+' could .* or one that shares its lock"
                ):
                    await appending.append([make_draft(stream_id=name) for name in names])
            async with asyncio.timeout(5):
                for names in (high[:1], high[:600]):
                    await appending.append([make_draft(stream_id=name) for name in names])

        assert lock_count <= 256
        assert [
            stored.stream_version for stored in await appending.append([make_draft(stream_id=low[7])])
        ] == [2]

    async def test_calls_of_few_and_of_very_many_streams_never_end_in_a_deadlock(
        self, postgres_dsn: str, appending: Appending, session: Session
    ) -> None:
        """In any order, and the versions of what they share have no hole."""
        names = [f"{number}" for number in range(600)]
        async with open_appending(postgres_dsn) as other, open_appending(postgres_dsn) as third:
            await asyncio.gather(
                *[
                    who.append([make_draft(stream_id=name) for name in some])
                    for _ in range(3)
                    for who, some in (
                        (appending, names),
                        (other, names[::-1]),
                        (third, names[300:310]),
                        (third, names[305:295:-1]),
                    )
                ]
            )

        assert await session.fetchval(VERSIONS, "303") == list(range(1, 13))
        assert await session.fetchval(VERSIONS, "7") == list(range(1, 7))
        deadlocks = "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"
        assert await session.fetchval(deadlocks) == 0


async def _streams_of_two_halves(session: Session) -> tuple[list[str], list[str]]:
    """Names of streams that lie in the lower and in the upper half of the lock buckets."""
    rows = await session.fetch(
        "SELECT n::text, (postbus.append_keys('{}', '{}', ARRAY[n::text]))[1] < 0 "
        "FROM generate_series(1, 2000) AS n"
    )
    return [name for name, is_low in rows if is_low], [name for name, is_low in rows if not is_low]


class TestPortsWithoutHandlers:
    async def test_what_is_added_to_the_queue_is_appended(
        self, appending: Appending, session: Session
    ) -> None:
        """Numbers and versions are told as by every store."""
        queue = PgEventQueue(appending)
        told: asyncio.Future[tuple[object, ...]] = asyncio.get_running_loop().create_future()
        queue.add([make_draft(stream_id="a"), make_draft()], lambda *answer: told.set_result(answer))
        empty: asyncio.Future[tuple[object, ...]] = asyncio.get_running_loop().create_future()
        queue.add([], lambda *answer: empty.set_result(answer))

        assert await told == ([1, 2], [1, None], None)
        assert await empty == ((), (), None)
        assert await session.fetchval(COUNT) == 2

    async def test_nothing_is_ever_in_the_hands_of_a_handler(self, appending: Appending) -> None:
        """A call that would mean that there is a handler is a fault of ours."""
        queue = PgEventQueue(appending)
        await queue.release([])
        for call in (queue.fail(START, 1, "x"), queue.bury(START, 1, None), queue.release([START])):
            with pytest.raises(AssertionError, match="no in-process handlers"):
                await call
        with pytest.raises(AssertionError, match="no in-process handlers"):
            queue.finish(START)

    async def test_there_is_nothing_to_own_to_recover_or_to_list(self) -> None:
        """A bus that asks gets an honest answer."""
        backlog, lock, table = NoBacklog(), NoDispatchLock(), NoSubscriptions()
        backlog.watch(None)
        lock.release()
        await table.replace([])

        assert (await backlog.recover("x", "y"), await backlog.pending(START, 10)) == (0, [])
        assert (await backlog.claim([START]), await backlog.settle_pending([START])) == (set(), 0)
        assert (lock.try_acquire(), await table.list()) == (False, [])
