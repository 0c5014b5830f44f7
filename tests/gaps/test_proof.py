"""A gap is closed by proof and not by a clock: whoever is at work is waited for, nobody else is."""

import asyncio
import logging
from collections.abc import AsyncIterator

import pytest

from postbus import Event, PgEventBus, ReliableDeliveryConfig
from tests.gaps.steps import ID, NEXT, checkpoint_row, running, soon, writer, written
from tests.postgres.server import Server

_INSERT_IN_SQL = (
    "INSERT INTO postbus.events (id, event_type, data) VALUES (gen_random_uuid(), 'test.done', '1');"
)


async def test_a_writer_ten_times_slower_than_gap_timeout_is_not_lost(postgres_dsn: str) -> None:
    """However long it takes, its event is delivered."""
    gap_timeout = 0.1
    async with (
        running(postgres_dsn, gap_timeout=gap_timeout) as (_, [seen]),
        writer(postgres_dsn) as slow,
        writer(postgres_dsn) as fast,
    ):
        await slow.run("BEGIN")
        number = await slow.insert()
        began_at = asyncio.get_running_loop().time()
        others = []
        while asyncio.get_running_loop().time() - began_at < 10 * gap_timeout:
            others.append(await fast.insert())
        await soon(lambda: len(seen.numbers) == len(others))

        assert (await checkpoint_row(postgres_dsn))["last_global_sequence"] < number

        await slow.run("COMMIT")
        await soon(lambda: seen.numbers == [*others, number])
        await written(postgres_dsn, others[-1])


async def test_a_thousand_rolled_back_numbers_are_one_gap(postgres_dsn: str) -> None:
    """They cost one look and not one wait each."""
    async with running(postgres_dsn, gap_timeout=60.0) as (bus, [seen]), writer(postgres_dsn) as a:
        await a.run("BEGIN")
        await a.run(f"SELECT {NEXT} FROM generate_series(1, 1000)")
        await a.run("ROLLBACK")
        number = await a.insert()
        await soon(lambda: seen.numbers == [number])
        passed_after = await soon(lambda: bus.subscription(ID).checkpoint == number)

    assert number == 1001
    # On a machine that does other things besides; the clock of the specification would take 1000 times 5 s.
    assert passed_after < 5.0


async def test_a_thousand_gaps_of_one_number_are_passed_together(postgres_dsn: str) -> None:
    """Every second number is dead: no gap waits for the one before."""
    async with writer(postgres_dsn) as a:
        async with PgEventBus(postgres_dsn):
            pass  # makes the schema
        await a.run(f"DO $$ BEGIN FOR i IN 1..1000 LOOP PERFORM {NEXT}; {_INSERT_IN_SQL} END LOOP; END $$")
        async with running(postgres_dsn, gap_timeout=60.0) as (bus, [seen]):
            await soon(lambda: len(seen.numbers) == 1000)
            await soon(lambda: bus.subscription(ID).checkpoint == 2000)


async def test_the_open_transaction_of_a_stranger_delays_nothing(postgres_dsn: str) -> None:
    """One that has written, but no event, is nobody whom a gap could wait for."""
    async with (
        running(postgres_dsn, gap_timeout=60.0) as (bus, [seen]),
        writer(postgres_dsn) as stranger,
        writer(postgres_dsn) as a,
    ):
        await stranger.run("CREATE TABLE public.other (value int)")
        await stranger.run("BEGIN ISOLATION LEVEL REPEATABLE READ")
        await stranger.run("INSERT INTO public.other VALUES (1)")
        await stranger.run("SELECT count(*) FROM postbus.events")
        await a.run("BEGIN")
        await a.insert()
        await a.run("ROLLBACK")
        number = await a.insert()
        await soon(lambda: seen.numbers == [number] and bus.subscription(ID).checkpoint == number)
        await stranger.run("ROLLBACK")


async def test_a_number_given_back_to_a_savepoint_is_waited_for_until_the_transaction_ends(
    postgres_dsn: str,
) -> None:
    """Until then its transaction could still use it."""
    async with (
        running(postgres_dsn) as (bus, [seen]),
        writer(postgres_dsn) as a,
        writer(postgres_dsn) as b,
    ):
        await a.run("BEGIN")
        await a.run("SAVEPOINT here")
        number = await a.insert()
        await a.run("ROLLBACK TO here")
        other = await b.insert()
        await soon(lambda: seen.numbers == [other])
        await a.insert(number)
        await a.run("COMMIT")
        await soon(lambda: seen.numbers == [other, number])
        await soon(lambda: bus.subscription(ID).checkpoint == other)


async def test_what_an_exception_block_undoes_is_passed(postgres_dsn: str) -> None:
    """A PL/pgSQL block that fails burns its number; the rest of its transaction counts."""
    block = f"""DO $$ BEGIN
        BEGIN
            {_INSERT_IN_SQL}
            RAISE EXCEPTION 'undo this';
        EXCEPTION WHEN raise_exception THEN NULL;
        END;
        {_INSERT_IN_SQL}
    END $$"""
    async with running(postgres_dsn) as (bus, [seen]), writer(postgres_dsn) as a:
        await a.run(block)
        await soon(lambda: seen.numbers == [2] and bus.subscription(ID).checkpoint == 2)


async def test_a_prepared_transaction_is_waited_for(postgres_dsn: str) -> None:
    """Also when the session that prepared it is long gone."""
    async with running(postgres_dsn) as (bus, [seen]), writer(postgres_dsn) as b:
        async with writer(postgres_dsn) as a:
            await a.run("BEGIN")
            number = await a.insert()
            await a.run("PREPARE TRANSACTION 'mine'")
        other = await b.insert()
        await soon(lambda: seen.numbers == [other])
        # Long enough for some samples, which all have to see it.
        await b.run("SELECT pg_sleep(0.3)")

        assert bus.subscription(ID).checkpoint == number - 1

        await b.run("COMMIT PREPARED 'mine'")
        await soon(lambda: seen.numbers == [other, number])
        await soon(lambda: bus.subscription(ID).checkpoint == other)


async def test_a_copy_that_still_buffers_is_waited_for(postgres_dsn: str) -> None:
    """It has drawn its numbers, and nothing else shows that it is at work."""
    async with running(postgres_dsn) as (_, [seen]), writer(postgres_dsn) as a, writer(postgres_dsn) as b:
        is_open = asyncio.Event()
        go_on = asyncio.Event()

        async def rows() -> AsyncIterator[bytes]:
            yield b"copied-1\ttest.done\t1\n"
            is_open.set()
            await go_on.wait()
            yield b"copied-2\ttest.done\t2\n"

        copying = asyncio.ensure_future(
            a.connection.copy_to_table(
                "events", schema_name="postbus", columns=["id", "event_type", "data"], source=rows()
            )
        )
        await is_open.wait()
        other = await b.insert()
        await soon(lambda: other in seen.numbers)
        go_on.set()
        await copying
        await soon(lambda: {event.id for event in seen.events} >= {"copied-1", "copied-2"})


async def test_numbers_that_a_server_crash_burned_are_passed(own_postgres: Server) -> None:
    """After kill -9 the sequence goes on some numbers later; the subscriber goes on too."""
    dsn = own_postgres.dsn("postgres")
    async with running(dsn) as (bus, [seen]):
        async with writer(dsn) as a:
            first = await a.insert()
        await soon(lambda: seen.numbers == [first])
        own_postgres.kill()
        own_postgres.start()
        async with writer(dsn) as a:
            last = await a.insert()
        await soon(lambda: last in seen.numbers, within=20)
        await soon(lambda: bus.subscription(ID).checkpoint == last)

    assert last > first + 1, "the crash burned no number, so this shows nothing"


async def test_a_restart_with_open_gaps_repeats_nothing_and_loses_nothing(postgres_dsn: str) -> None:
    """Head and gaps are part of the checkpoint."""
    async with writer(postgres_dsn) as a, writer(postgres_dsn) as b:
        async with running(postgres_dsn) as (_, [seen]):
            await a.run("BEGIN")
            gaps = []
            between = []
            for _ in range(5):
                gaps.append(await a.insert())
                between.append(await b.insert())
            await soon(lambda: seen.numbers == between)
        async with running(postgres_dsn) as (bus, [seen]):
            more = await b.insert()
            await soon(lambda: seen.numbers == [more])
            await a.run("COMMIT")
            await soon(lambda: seen.numbers == [more, *gaps])
            await soon(lambda: bus.subscription(ID).checkpoint == more)


async def test_more_than_a_batch_beyond_a_gap_does_not_stall(postgres_dsn: str) -> None:
    """Much is processed ahead while a writer takes its time."""
    async with (
        running(postgres_dsn, catch_up_batch_size=10) as (_, [seen]),
        writer(postgres_dsn) as a,
        writer(postgres_dsn) as b,
    ):
        await a.run("BEGIN")
        gap = await a.insert()
        await b.run(
            "INSERT INTO postbus.events (id, event_type, data) "
            "SELECT 'e' || n, 'test.done', '1' FROM generate_series(1, 5000) n"
        )
        await soon(lambda: len(seen.numbers) == 5000, within=60)
        await a.run("COMMIT")
        await soon(lambda: len(seen.numbers) == 5001)

    assert seen.numbers[-1] == gap


async def test_a_warning_names_the_transaction_that_is_waited_for(
    postgres_dsn: str, caplog: pytest.LogCaptureFixture
) -> None:
    """After gap_timeout, once for the gap: pid, application and age."""
    caplog.set_level(logging.WARNING, "postbus")

    def warnings() -> list[str]:
        return [record.getMessage() for record in caplog.records if "has waited for" in record.getMessage()]

    async with (
        running(postgres_dsn, gap_timeout=0.2) as (_, [seen]),
        writer(postgres_dsn, "nightly import") as a,
        writer(postgres_dsn) as b,
    ):
        await a.run("BEGIN")
        gap = await a.insert()
        await b.insert()
        await soon(lambda: bool(warnings()))
        await b.run("SELECT pg_sleep(0.6)")
        await a.run("ROLLBACK")
        await soon(lambda: len(seen.numbers) == 1)

    (warning,) = warnings()
    assert f"numbers {gap} " in warning
    assert f"pid {a.pid}" in warning
    assert "'nightly import'" in warning
    assert " s" in warning


async def test_a_sequence_that_becomes_unsound_stops_the_subscriber_with_the_reason(
    postgres_dsn: str,
) -> None:
    """With CACHE 10 a session would use numbers later without a lock; repaired, it goes on by itself."""
    async with running(postgres_dsn) as (bus, [seen]), writer(postgres_dsn) as a, writer(postgres_dsn) as b:
        await a.run("BEGIN")
        gap = await a.insert()
        other = await b.insert()
        await soon(lambda: seen.numbers == [other])
        await a.run("COMMIT")
        await soon(lambda: seen.numbers == [other, gap])
        await b.run("ALTER SEQUENCE postbus.events_global_sequence_seq CACHE 10")
        await a.run("BEGIN")
        await a.draw()
        await a.run("ROLLBACK")
        await b.insert()
        await soon(lambda: bus.subscription(ID).state == "failed")

        assert "CACHE" in (bus.subscription(ID).reason or "")

        await b.run("ALTER SEQUENCE postbus.events_global_sequence_seq CACHE 1")
        await soon(lambda: bus.subscription(ID).state == "live", within=20)


async def test_a_start_from_now_does_not_miss_who_is_at_work(postgres_dsn: str) -> None:
    """An event that is committed after the start is delivered, also at a number below the head."""
    async with PgEventBus(postgres_dsn) as other, writer(postgres_dsn) as a:
        await a.run("BEGIN")
        gap = await a.insert()
        await other.publish("test.done")
        bus = PgEventBus(postgres_dsn, config=ReliableDeliveryConfig(poll_interval=0.05))
        numbers: list[int | None] = []

        async def note(event: Event) -> None:
            numbers.append(event.global_sequence)

        bus.subscribe("*", note, id=ID, start_from="now")
        async with bus:
            await soon(lambda: bus.subscription(ID).state == "live")
            await a.run("COMMIT")
            await soon(lambda: numbers == [gap])
