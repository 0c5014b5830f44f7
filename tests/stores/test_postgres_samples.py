"""Samples of the writers of events: who can still fill a gap, on a real server."""

import asyncio
import contextlib
import os
import signal
from uuid import uuid4

import asyncpg
import pytest

from postbus.errors import StoreUnavailableError, UnsoundLogError
from postbus.events import WriterSample
from postbus.stores.postgres import PgEventStore
from postbus.stores.postgres.query_parts import fill_parts
from postbus.stores.postgres.samples import Samples
from postbus.testing import ManualClock
from tests.postgres.server import Server
from tests.postgres.steps import Session
from tests.stores.checkpoint_steps import START
from tests.stores.log_steps import insert, numbers_of, open_log, open_writer, position, until_ended
from tests.stores.test_postgres_soundness import FutureStandby

NEXT = "SELECT nextval('events_global_sequence_seq')"
INSERT = "INSERT INTO events (id, event_type) VALUES (gen_random_uuid()::text, 'order.placed')"


async def _sample(store: PgEventStore) -> WriterSample:
    sample = (await store.log.read(position(0), 10, None, with_sample=True)).sample
    assert sample is not None
    return sample


class TestHolders:
    async def test_a_page_has_a_sample_only_if_one_is_asked_for(
        self, store: PgEventStore, writer: Session
    ) -> None:
        """It costs the server a look at all its locks. The page is the same."""
        await insert(writer, [2, 3])
        plain = await store.log.read(START, 10, None)
        sampled = await store.log.read(START, 10, None, with_sample=True)

        assert plain.sample is None
        assert sampled.sample is not None
        assert (numbers_of(sampled), sampled.missing) == (numbers_of(plain), plain.missing)

    async def test_without_writers_there_are_no_holders(self, store: PgEventStore, writer: Session) -> None:
        """And the highest number that was visible is known."""
        await insert(writer, [1, 4])
        sample = await _sample(store)

        assert (sample.high, sample.holders) == (4, ())

    @pytest.mark.parametrize(
        "statement",
        [
            INSERT,
            NEXT,
            f"SAVEPOINT a; {INSERT}; ROLLBACK TO a; RELEASE a",
            f"DO $$ BEGIN {INSERT}; RAISE 'undone'; EXCEPTION WHEN OTHERS THEN NULL; END $$",
        ],
        ids=["insert", "nextval", "undone to a savepoint", "undone by an exception block"],
    )
    async def test_who_has_drawn_a_number_is_a_holder_until_the_end_of_its_transaction(
        self, store: PgEventStore, writer: Session, statement: str
    ) -> None:
        """Whether it has written or not, and even if it has undone that."""
        await writer.execute("BEGIN")
        before = await _sample(store)
        await writer.execute(statement)
        during = await _sample(store)
        await writer.execute("COMMIT")
        after = await _sample(store)

        assert [len(sample.holders) for sample in (before, during, after)] == [0, 1, 0]

    async def test_high_is_what_was_visible(self, store: PgEventStore, writer: Session) -> None:
        """Not what was handed out."""
        await insert(writer, [2])
        await writer.execute(f"BEGIN; {INSERT}")
        sample = await _sample(store)

        assert sample.high == 2

    async def test_a_prepared_transaction_is_a_holder_under_the_same_name(
        self, store: PgEventStore, writer: Session
    ) -> None:
        """Its session may end; only its own end counts."""
        await writer.execute(f"BEGIN; {INSERT}")
        open_one = await _sample(store)
        await writer.execute("PREPARE TRANSACTION 'order 42'")
        prepared = await _sample(store)
        await writer.execute("ROLLBACK PREPARED 'order 42'")
        ended = await _sample(store)

        assert len(open_one.holders) == 1
        assert (prepared.holders, ended.holders) == (open_one.holders, ())

    async def test_a_strangers_transaction_is_none(
        self, store: PgEventStore, writer: Session, log_dsn: str
    ) -> None:
        """Nor is one that reads events and the sequence, or writes events of another schema."""
        async with PgEventStore(log_dsn, schema="it's other"):
            await writer.execute("BEGIN; CREATE TABLE stranger (n integer); SELECT * FROM events")
            await writer.execute("SELECT last_value FROM events_global_sequence_seq")
            await writer.execute('SET LOCAL search_path TO "it\'s other"')
            await writer.execute(INSERT)

            assert (await _sample(store)).holders == ()
            await writer.execute("ROLLBACK")

    async def test_a_schema_of_any_name_has_its_own_holders(
        self, store: PgEventStore, writer: Session, log_dsn: str
    ) -> None:
        """Names are not built into strings."""
        async with PgEventStore(log_dsn, schema='it\'s "other"') as other:
            await writer.execute('SET search_path TO "it\'s ""other"""')
            await writer.execute(f"BEGIN; {INSERT}")

            assert len((await _sample(other)).holders) == 1
            assert (await _sample(store)).holders == ()

    async def test_tables_of_the_user_are_not_taken_for_those_of_the_server(
        self, store: PgEventStore, writer: Session, log_dsn: str
    ) -> None:
        """A search_path may put any schema before that of the server."""
        samples = Samples(fill_parts(store._database.queries("log.sql")), "postbus")
        names = ("pg_locks", "pg_depend", "pg_sequence", "pg_stat_activity", "pg_prepared_xacts")
        await writer.execute("CREATE SCHEMA hostile; SET search_path TO hostile, pg_catalog")
        await writer.execute("".join(f"CREATE TABLE hostile.{name} ();" for name in names))
        async with open_writer(log_dsn, "monthly import") as other:
            await other.execute(f"BEGIN; {INSERT}")

            assert len((await samples.take(writer)).holders) == 1
            assert [each.application_name for each in await samples.open_writers(writer)] == [
                "monthly import"
            ]


class TestUnsoundLogs:
    @pytest.mark.parametrize(
        ("change", "reason"),
        [
            ("ALTER SEQUENCE events_global_sequence_seq CACHE 20", "CACHE 20"),
            ("ALTER SEQUENCE events_global_sequence_seq INCREMENT 2", "INCREMENT 1"),
            ("ALTER SEQUENCE events_global_sequence_seq CYCLE", "NO CYCLE"),
            ("ALTER SEQUENCE events_global_sequence_seq RENAME TO other", "is gone"),
        ],
    )
    async def test_a_sequence_that_was_changed_meanwhile_proves_nothing(
        self, store: PgEventStore, writer: Session, change: str, reason: str
    ) -> None:
        """It is looked at every time; the message says how to repair it. What is visible can be read."""
        await insert(writer, [1, 2])
        await writer.execute(change)
        with pytest.raises(UnsoundLogError, match=reason):
            await store.log.read(START, 10, None, with_sample=True)

        assert numbers_of(await store.log.read(START, 10, None)) == [1, 2]

    async def test_hidden_events_prove_nothing(self, store: PgEventStore, writer: Session) -> None:
        """Row-level security may come while a bus runs, and what it hides looks like a number without use."""
        role = f"reader_{uuid4().hex}"
        await writer.execute(f"CREATE ROLE {role}; GRANT USAGE ON SCHEMA postbus TO {role}")
        await writer.execute(f"GRANT SELECT ON ALL TABLES IN SCHEMA postbus TO {role}")
        samples = Samples(fill_parts(store._database.queries("log.sql")), "postbus")
        await writer.execute(f"SET ROLE {role}")
        before = await samples.take(writer)
        await writer.execute("RESET ROLE; ALTER TABLE events ENABLE ROW LEVEL SECURITY")
        await writer.execute(f"SET ROLE {role}")
        with pytest.raises(UnsoundLogError, match="row-level security"):
            await samples.take(writer)
        await writer.execute(f"RESET ROLE; DROP OWNED BY {role}; DROP ROLE {role}")

        assert before.holders == ()

    async def test_a_standby_proves_nothing(self) -> None:
        """Events arrive there without drawing a number; it may have become one meanwhile."""
        with FutureStandby() as server:
            async with open_log(server.dsn(), ManualClock()) as store:
                server.become_standby()
                with pytest.raises(UnsoundLogError, match="standby"):
                    await _sample_of_another(store)


async def _sample_of_another(store: PgEventStore, server: str | None = None) -> WriterSample:
    """The first sample of a server that is not this one: its connections may live on for a moment."""
    async with asyncio.timeout(30):
        while True:
            with contextlib.suppress(StoreUnavailableError):
                if (sample := await _sample(store)).server != server:
                    return sample


async def _crash(server: Server) -> None:
    """End one process of the server, after which it restarts all others, or all of them."""
    # Up to version 14 only a new postmaster can be told from the one before; of the crash of a single
    # process the end of all sessions has to tell.
    if server.version < 15:
        server.kill()
        server.start()
        return
    async with open_writer(server.dsn()) as victim:
        os.kill(victim.get_server_pid(), signal.SIGKILL)
        with pytest.raises((asyncpg.PostgresError, asyncpg.InterfaceError, OSError)):
            await victim.execute("SELECT pg_sleep(30)")


class TestServers:
    async def test_a_server_that_has_recovered_from_a_crash_is_another_one(
        self, own_postgres: Server
    ) -> None:
        """Commits that did not wait for the disk may be gone, and their numbers handed out again."""
        async with open_log(own_postgres.dsn(), ManualClock()) as store:
            before = await _sample(store)
            again = await _sample(store)
            await _crash(own_postgres)
            after = await _sample_of_another(store, before.server)
            page = await store.log.read(START, 10, None)

        assert before.server == again.server
        assert after.server == page.server


class TestOpenWriters:
    async def test_nobody_is_listed_when_nobody_writes(self, store: PgEventStore, writer: Session) -> None:
        """We ourselves are not a writer, nor is whoever has ended."""
        await insert(writer, [1])
        await writer.execute("BEGIN; SELECT * FROM events")

        assert await store.log.open_writers() == []

    async def test_a_writer_is_listed_with_its_process_name_and_age(
        self, store: PgEventStore, log_dsn: str
    ) -> None:
        """So that somebody can see to it."""
        async with open_writer(log_dsn, "monthly import") as writer:
            await writer.execute(f"BEGIN; {INSERT}; SELECT pg_sleep(0.05)")
            (found,) = await store.log.open_writers()

            assert (found.pid, found.application_name) == (writer.get_server_pid(), "monthly import")
            assert found.gid is None
            assert found.age_seconds is not None
            assert 0.05 <= found.age_seconds < 60

    async def test_the_age_is_unknown_of_what_our_role_may_not_see(
        self, store: PgEventStore, writer: Session, log_dsn: str
    ) -> None:
        """Better than taking it for young."""
        role = f"stranger_{uuid4().hex}"
        await writer.execute(f"CREATE ROLE {role}; GRANT USAGE ON SCHEMA postbus TO {role}")
        await writer.execute(f"GRANT ALL ON ALL TABLES IN SCHEMA postbus TO {role}")
        await writer.execute(f"GRANT ALL ON ALL SEQUENCES IN SCHEMA postbus TO {role}")
        samples = Samples(fill_parts(store._database.queries("log.sql")), "postbus")
        async with open_writer(log_dsn, "theirs") as theirs, open_writer(log_dsn, "ours") as ours:
            await theirs.execute(f"BEGIN; {INSERT}")
            await ours.execute(f"SET ROLE {role}")
            found = await samples.open_writers(ours)
        await writer.execute(f"DROP OWNED BY {role}; DROP ROLE {role}")

        assert [(each.application_name, each.age_seconds) for each in found] == [("theirs", None)]

    async def test_the_oldest_comes_first(self, store: PgEventStore, log_dsn: str) -> None:
        """It is the one that is waited for, whoever drew a number first."""
        async with open_writer(log_dsn, "young") as young, open_writer(log_dsn, "old") as old:
            await old.execute("BEGIN; SELECT 1")
            await young.execute(f"BEGIN; {INSERT}")
            await old.execute(INSERT)
            found = await store.log.open_writers()

            assert [each.application_name for each in found] == ["old", "young"]

    async def test_a_prepared_transaction_is_listed_by_its_name(
        self, store: PgEventStore, writer: Session, log_dsn: str
    ) -> None:
        """It belongs to no session, and may be older than all of them."""
        async with open_writer(log_dsn) as preparing:
            pid = preparing.get_server_pid()
            await preparing.execute(f"BEGIN; {INSERT}; PREPARE TRANSACTION 'order 42'")
        await until_ended(writer, pid)
        (found,) = await store.log.open_writers()
        await writer.execute("COMMIT PREPARED 'order 42'")

        assert (found.pid, found.application_name, found.gid) == (None, None, "order 42")
        assert found.age_seconds is not None
        assert 0 <= found.age_seconds < 60
        assert await store.log.open_writers() == []

    async def test_a_prepared_transaction_is_found_after_a_restart_of_the_server(
        self, own_postgres: Server
    ) -> None:
        """It survives it under another name, and nobody else remembers it."""
        dsn = own_postgres.dsn()
        async with open_log(dsn, ManualClock()), open_writer(dsn) as writer:
            await writer.execute(f"BEGIN; {INSERT}; PREPARE TRANSACTION 'order 42'")
        own_postgres.restart()
        async with open_log(dsn, ManualClock()) as store:
            sample, (found,) = await _sample(store), await store.log.open_writers()

        assert [holder.startswith("-1/") for holder in sample.holders] == [True]
        assert found.gid == "order 42"
