"""PgEventStore: its life, and pools, schemas and settings of the user's, on a real server."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from postbus import EventBus
from postbus.errors import (
    BusLoopError,
    EventNotFoundError,
    InvalidConfigError,
    InvalidTargetError,
    StoreClosedError,
    StoreUnavailableError,
)
from postbus.events import Event, Gap, GlobalSequence, LogPosition
from postbus.pg import PgEventBus
from postbus.stores.postgres import PgEventStore
from postbus.testing import ManualClock
from tests.contracts.steps import MAIL, append, bury, make_draft
from tests.end_to_end.forks import run_in_fork
from tests.postgres.databases import Databases
from tests.postgres.steps import ask
from tests.stores.checkpoint_steps import START, make_database, progress

SESSIONS = (
    "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
)


@pytest.fixture
async def postgres_dsn(databases: Databases) -> AsyncIterator[str]:
    async with make_database(databases) as dsn:
        yield dsn


class TestLife:
    async def test_a_store_opens_when_it_is_first_used(self, postgres_dsn: str) -> None:
        """As any other."""
        store = PgEventStore(postgres_dsn)
        try:
            (event,) = await store.append("order-1", [("order.placed", {"n": 1})])

            assert await store.read_stream("order-1") == [event]
        finally:
            await store.close()

    async def test_every_way_of_use_opens_it(self, postgres_dsn: str) -> None:
        """At the same time, once."""
        store = PgEventStore(postgres_dsn)
        try:
            found = await asyncio.gather(
                store.head(),
                store.log.read(START, 10, None),
                store.dead_letters.page(10, 0, None),
                store.states.get("orders", "1"),
                store.checkpoints.list(),
                store.subscriber_locks.try_acquire(MAIL),
            )

            assert found[0] == 0
            assert found[-1] is True
        finally:
            await store.close()

    async def test_closing_twice_is_closing_once_and_leaves_no_session(self, postgres_dsn: str) -> None:
        """Nor does closing what was never opened do anything."""
        store = PgEventStore(postgres_dsn)
        await store.close()
        await store.open()
        await store.append("order-1", [("order.placed",)])
        await store.close()
        await store.close()

        async with asyncio.timeout(10):
            while await ask(postgres_dsn, SESSIONS):
                pass

    async def test_a_closed_store_is_not_opened_behind_its_owners_back(self, postgres_dsn: str) -> None:
        """A handler that outlives its bus gets an error; open() is the way back."""
        store = PgEventStore(postgres_dsn)
        await store.open()
        await store.close()
        for use in (store.head, lambda: store.append("a", [("b",)]), lambda: store.get("a")):
            with pytest.raises(StoreClosedError):
                await use()
        await store.open()
        head = await store.head()
        await store.close()

        assert head == 0

    async def test_what_was_appended_before_close_is_there(self, postgres_dsn: str) -> None:
        """Closing waits for what is on its way."""
        store = PgEventStore(postgres_dsn)
        await store.open()
        appending = [asyncio.ensure_future(store.append(str(number), [("a",)])) for number in range(50)]
        await asyncio.sleep(0)
        await store.close()
        await asyncio.gather(*appending)

        assert await ask(postgres_dsn, "SELECT count(*) FROM postbus.events") == 50

    async def test_the_block_of_a_store_is_its_life(self, postgres_dsn: str) -> None:
        """Open inside, closed after."""
        async with PgEventStore(postgres_dsn) as store:
            await store.head()
        with pytest.raises(StoreClosedError):
            await store.head()

    async def test_another_event_loop_is_refused(self, postgres_dsn: str) -> None:
        """Its connections would wait for the loop in which they were made."""
        async with PgEventStore(postgres_dsn) as store:

            async def use_elsewhere() -> None:
                for use in (store.head, lambda: store.append("a", [("b",)])):
                    with pytest.raises(BusLoopError, match="another event loop"):
                        await use()

            await asyncio.to_thread(asyncio.run, use_elsewhere())

            assert await store.head() == 0

    async def test_a_forked_child_is_refused_and_does_the_parent_no_harm(self, postgres_dsn: str) -> None:
        """Two processes on one connection would mix their words."""
        async with PgEventStore(postgres_dsn) as store:

            def use_in_child() -> None:
                asyncio._set_running_loop(None)
                asyncio.run(_expect_refusal(store))

            assert run_in_fork(use_in_child) == 0
            assert await store.head() == 0

    async def test_a_server_that_is_not_there_is_told(self) -> None:
        """As something that may pass."""
        store = PgEventStore("postgresql://nobody@127.0.0.1:1/nothing")
        with pytest.raises(StoreUnavailableError):
            await store.open()
        await store.close()


async def _expect_refusal(store: PgEventStore) -> None:
    for use in (store.head, lambda: store.append("a", [("b",)])):
        with pytest.raises(BusLoopError, match="forked"):
            await use()
    await store.close()


def _read_moment(text: str) -> datetime:
    return datetime.fromisoformat(text)


def _refuse(value: object) -> str:
    raise ZeroDivisionError(value)


# The type, what writes it and what reads it.
CODECS: dict[str, tuple[str, Callable[[Any], str], Callable[[str], Any]]] = {
    "moments are read as text": ("timestamptz", datetime.isoformat, str),
    "moments are read without a zone": (
        "timestamptz",
        datetime.isoformat,
        lambda text: _read_moment(text).replace(tzinfo=None),
    ),
    "moments can't be written": ("timestamptz", _refuse, _read_moment),
    "moments can't be read": ("timestamptz", datetime.isoformat, _refuse),
    "moments are written without a part": (
        "timestamptz",
        lambda moment: moment.replace(microsecond=0).isoformat(),
        _read_moment,
    ),
    "numbers are read as text": ("int4", str, str),
    "large numbers are read as decimals": ("int8", str, Decimal),
    "truth is read as text": ("bool", str, str),
    "truth is read as a number": ("bool", str, lambda text: int(text == "t")),
    "truth is written in words that the server does not know": ("bool", lambda _: "ja", lambda _: True),
    "text is written in capitals": ("text", str.upper, str),
    "names are read as bytes": ("varchar", str, str.encode),
}


class TestPools:
    async def test_a_pool_that_decodes_json_in_its_own_way_is_no_harm(self, postgres_dsn: str) -> None:
        """Events, dead letters and states are read and written as everywhere."""

        async def set_codecs(connection: "asyncpg.Connection[asyncpg.Record]") -> None:
            for name in ("json", "jsonb"):
                await connection.set_type_codec(
                    name, encoder=json.dumps, decoder=json.loads, schema="pg_catalog"
                )

        async with (
            asyncpg.create_pool(postgres_dsn, init=set_codecs, min_size=1) as pool,
            PgEventStore(pool, clock=ManualClock()) as store,
        ):
            draft = make_draft(payload={"n": 1}, metadata={"k": "v"}, stream_id="order-1")
            (event,) = await append(store, draft)
            dead = await bury(store, await store.checkpoints.claim(MAIL, START), event, "boom")
            await store.states.put("orders", "1", b'{"n":1}')

            assert (await store.log.read(START, 10, None)).events == [event] == [await store.get(event.id)]
            assert (dead.payload, dead.metadata, dead.errors) == ({"n": 1}, {"k": "v"}, ["boom"])
            assert await store.states.get("orders", "1") == b'{"n":1}'
            assert await store.states.items("orders", "", 10) == [("1", b'{"n":1}')]

    @pytest.mark.parametrize(("type_name", "encoder", "decoder"), CODECS.values(), ids=CODECS)
    async def test_a_pool_that_changes_what_is_read_or_written_is_refused(
        self, postgres_dsn: str, type_name: str, encoder: Callable[[Any], str], decoder: Callable[[str], Any]
    ) -> None:
        """At the start: later it would be events with strange values, or a subscriber that stands still."""

        async def set_codec(connection: "asyncpg.Connection[asyncpg.Record]") -> None:
            await connection.set_type_codec(type_name, encoder=encoder, decoder=decoder, schema="pg_catalog")

        async with asyncpg.create_pool(postgres_dsn, init=set_codec, min_size=1, max_size=4) as pool:
            for session_dsn in (None, postgres_dsn):
                store = PgEventStore(pool, session_dsn=session_dsn)
                with pytest.raises(InvalidConfigError, match=rf"{type_name}, .*codec.* the DSN"):
                    await store.open()

            assert await pool.fetchval("SELECT 'as before'::name") == "as before"

    async def test_a_codec_of_the_pool_that_changes_nothing_is_no_harm(self, postgres_dsn: str) -> None:
        """It may tell a moment in other words."""

        async def set_codec(connection: "asyncpg.Connection[asyncpg.Record]") -> None:
            await connection.set_type_codec(
                "timestamptz", encoder=datetime.isoformat, decoder=_read_moment, schema="pg_catalog"
            )

        async with (
            asyncpg.create_pool(postgres_dsn, init=set_codec, min_size=1) as pool,
            PgEventStore(pool, clock=ManualClock()) as store,
        ):
            found, drafts = [], [make_draft(id=str(number)) for number in range(3)]
            for number, draft in enumerate(drafts):
                await append(store, draft)
                page = await store.log.read(LogPosition(GlobalSequence(number)), 10, None)
                found += [page.events[0].created_at, (await store.get(draft.id)).created_at]

            assert found == [draft.created_at for draft in drafts for _ in range(2)]

    async def test_the_users_pool_is_left_open(self, postgres_dsn: str) -> None:
        """It is the user's."""
        async with asyncpg.create_pool(postgres_dsn, min_size=1) as pool:
            async with PgEventStore(pool) as store:
                await store.append("order-1", [("order.placed",)])

            assert await pool.fetchval("SELECT count(*) FROM postbus.events") == 1


class TestSchemas:
    async def test_logs_in_two_schemas_know_nothing_of_each_other(self, postgres_dsn: str) -> None:
        """Whatever their names are."""
        async with PgEventStore(postgres_dsn) as one, PgEventStore(postgres_dsn, schema='it\'s "2"') as two:
            (event,) = await one.append("order-1", [("order.placed", {"n": 1})])

            assert await two.read_all() == []
            assert await two.read_stream("order-1") == []
            with pytest.raises(EventNotFoundError):
                await two.get(event.id)
            (other,) = await two.append("order-1", [("order.placed", {"n": 2})], expected_version=0)
            page = await two.log.read(LogPosition(other.global_sequence or 0), 10, None, with_sample=True)  # type: ignore[arg-type]
            assert page.events == []
            await two.purge(other.id, "anna")
            assert await one.read_all() == [event]

    @pytest.mark.parametrize("schema", ["{head}", "{after}", "{server}", "{gaps}", '"back\\slash" {head}'])
    async def test_a_name_that_looks_like_a_part_of_a_query_is_only_a_name(
        self, postgres_dsn: str, schema: str
    ) -> None:
        """Events, checkpoints with their gaps and dead letters are where every program finds them."""
        async with PgEventStore(postgres_dsn, schema=schema, clock=ManualClock()) as store:
            event, _ = await append(store, make_draft(), make_draft())
            owner = await store.checkpoints.claim(MAIL, START)
            await store.checkpoints.save(progress(owner, 1, head=9, open=(Gap(2, 8),), write_id="one"))
            dead = await bury(store, owner, event, "boom")
            claimed = await store.checkpoints.claim(MAIL, START)

            assert (await store.log.read(START, 1, None)).events == [event] == [await store.get(event.id)]
            assert (await store.dead_letters.page(1, 0, MAIL)).events == [dead]
            assert (claimed.position, claimed.head, claimed.open) == (1, 9, (Gap(2, 8),))
        tables = "SELECT count(*) FROM pg_tables WHERE schemaname = $1 AND tablename = 'event_bus_dlq'"
        assert await ask(postgres_dsn, tables, schema) == 1

    async def test_the_name_that_stands_for_the_role_is_refused(self, postgres_dsn: str) -> None:
        """Even in quotes a search_path takes it for the schema of whoever is connected."""
        with pytest.raises(InvalidConfigError, match=r"schema is '\$user'; expected another name"):
            PgEventStore(postgres_dsn, schema="$user")


class TestWhatNoDatabaseIsReachedBy:
    @pytest.mark.parametrize("notify", ["Trigger", "none", "", False, None, ["off"]], ids=repr)
    def test_a_way_to_notify_that_there_is_not(self, notify: Any) -> None:
        """The error names those that there are."""
        expected = r"notify is .*; expected 'after_commit' or 'trigger' or 'off'"
        for make in (PgEventBus, PgEventStore):
            with pytest.raises(InvalidConfigError, match=expected):
                make("postgresql://localhost/app", notify=notify)

    @pytest.mark.parametrize("target", [None, 1, Path("app.db"), asyncpg.Pool], ids=repr)
    def test_a_target_that_is_neither_a_dsn_nor_a_pool(self, target: Any) -> None:
        """The error says what it may be, and names no path, which means nothing here."""
        expected = r"^target .* is of type \w+; expected a DSN such as .postgresql:[^;]*a pool of asyncpg$"
        for make in (PgEventBus, PgEventStore):
            with pytest.raises(InvalidTargetError, match=expected):
                make(target)

    @pytest.mark.parametrize("session_dsn", [1, False, b"postgresql://me:secret@localhost/app"], ids=repr)
    def test_a_session_dsn_that_is_no_text(self, session_dsn: Any) -> None:
        """Neither is it taken for one that was not given."""
        for make in (PgEventBus, PgEventStore):
            with pytest.raises(InvalidConfigError, match=r"session_dsn is .*expected a str") as refused:
                make("postgresql://localhost/app", session_dsn=session_dsn)

            assert "secret" not in str(refused.value)

    def test_a_dsn_in_bytes_does_not_give_its_password_away(self) -> None:
        """As a file that was read as bytes would; the message goes to a log."""
        for make in (PgEventBus, PgEventStore, EventBus):
            with pytest.raises(InvalidTargetError, match="is of type bytes") as refused:
                make(b"postgresql://me:secret@localhost/app")  # type: ignore[arg-type]

            assert "secret" not in str(refused.value)


class TestStates:
    async def test_keys_come_in_the_order_of_python(self, postgres_dsn: str) -> None:
        """Whatever the collation of the database is."""
        keys = ["a", "B", "\u00e4", "z", "Z", "-", "1", "10", "9", "\u20ac", "\U0001f600"]
        async with PgEventStore(postgres_dsn) as store:
            for key in keys:
                await store.states.put("orders", key, b"1")
            found: list[str] = []
            while items := await store.states.items("orders", found[-1] if found else "", 3):
                found += [key for key, _ in items]

        assert found == sorted(keys)

    async def test_a_state_is_kept_word_for_word(self, postgres_dsn: str) -> None:
        """Numbers of any size, double keys and escapes too: it is the user's JSON."""
        state = b'{"b":1,"a":12345678901234567890.1234567890,"a":"\\u0000 \\ud800 \xc3\xa4"}'
        async with PgEventStore(postgres_dsn) as store:
            await store.states.put("orders", "1", state)

            assert await store.states.get("orders", "1") == state


def _ids(events: list[Event]) -> list[str]:
    return [event.id for event in events]


async def test_reading_all_goes_on_over_gaps_and_pages(postgres_dsn: str) -> None:
    """As many as are asked for, in order."""
    async with PgEventStore(postgres_dsn) as store:
        await store.append("order-1", [("order.placed",)] * 1500)
        await ask(postgres_dsn, "SELECT nextval('postbus.events_global_sequence_seq')")
        (last,) = await store.append("order-2", [("order.placed",)])
        events = await store.read_all(limit=5000)

        assert len(set(_ids(events))) == 1501
        assert events[-1] == last
        assert await store.read_all(after=1490, limit=5) == events[1490:1495]
        assert await store.read_all(after=2**70) == []
        assert await store.read_stream("order-1", 2**70) == []
