"""Checkpoints that can't be written: the subscriber waits and says why, and no event is passed over."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from postbus import CheckpointMode, Event, PgEventBus, ReliableDeliveryConfig
from tests.faults.steps import check_nothing_lost, flowing, limit_statements, query, until_live
from tests.gaps.steps import ID, checkpoint_row, running, soon, writer, written
from tests.postgres.steps import Session

REFUSE = """
    CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
        RAISE EXCEPTION 'not today';
    END $$;
    CREATE TRIGGER refuse BEFORE UPDATE OF last_global_sequence ON postbus.event_bus_checkpoints
        FOR EACH ROW EXECUTE FUNCTION refuse()
"""
ALLOW = "DROP TRIGGER refuse ON postbus.event_bus_checkpoints; DROP FUNCTION refuse"


async def run_script(dsn: str, script: str) -> None:
    """Several statements."""
    async with writer(dsn) as session:
        await session.run(script)


@asynccontextmanager
async def locked(dsn: str, table: str) -> AsyncIterator[None]:
    """Nobody else can read or write a table, as while it is altered."""
    async with writer(dsn) as session:
        await session.run("BEGIN")
        await session.run(f"LOCK TABLE postbus.{table} IN ACCESS EXCLUSIVE MODE")
        yield
        await session.run("ROLLBACK")


@pytest.mark.parametrize("mode", [CheckpointMode.synchronous(), CheckpointMode.batched(10, 0.1)], ids=str)
async def test_a_checkpoint_that_is_refused_is_written_later_and_no_event_is_lost(
    postgres_dsn: str, mode: CheckpointMode
) -> None:
    """The state tells why; mended, it goes on where it was without a new start."""
    async with running(postgres_dsn, checkpoint_mode=mode) as (bus, [seen]), writer(postgres_dsn) as other:
        first = await other.insert()
        await written(postgres_dsn, first)
        await run_script(postgres_dsn, REFUSE)
        others = [await other.insert() for _ in range(30)]
        handle = bus.subscription(ID)
        await soon(lambda: handle.state == "failed")

        assert "not today" in (handle.reason or "")
        assert (await checkpoint_row(postgres_dsn))["last_global_sequence"] == first

        await run_script(postgres_dsn, ALLOW)
        await written(postgres_dsn, others[-1])
        await until_live(bus)

    assert seen.numbers == [first, *others]


async def test_what_was_processed_and_not_written_comes_again_after_a_restart(postgres_dsn: str) -> None:
    """At least once, and from the first event whose checkpoint was not written."""
    async with writer(postgres_dsn) as other:
        async with running(postgres_dsn) as (_, [seen]):
            first = await other.insert()
            await written(postgres_dsn, first)
            await run_script(postgres_dsn, REFUSE)
            second = await other.insert()
            await soon(lambda: seen.numbers == [first, second])
        await run_script(postgres_dsn, ALLOW)
        async with running(postgres_dsn) as (_, [seen]):
            await soon(lambda: seen.numbers == [second])


async def test_a_role_that_may_not_write_checkpoints_goes_on_when_it_may(postgres_dsn: str) -> None:
    """REVOKE and GRANT, with nothing done to the bus."""
    async with PgEventBus(postgres_dsn):
        pass  # makes the schema
    role = f"postbus_clerk_{postgres_dsn.rpartition('_')[2]}"
    grants = f"""
        CREATE ROLE {role} LOGIN;
        GRANT USAGE ON SCHEMA postbus TO {role};
        GRANT ALL ON ALL TABLES IN SCHEMA postbus TO {role};
        GRANT ALL ON ALL SEQUENCES IN SCHEMA postbus TO {role}
    """
    await run_script(postgres_dsn, grants)
    try:
        as_clerk = postgres_dsn.replace("//postgres@", f"//{role}@")
        async with running(as_clerk) as (bus, [seen]), writer(postgres_dsn) as other:
            first = await other.insert()
            await written(postgres_dsn, first)
            await other.run(f"REVOKE UPDATE ON postbus.event_bus_checkpoints FROM {role}")
            second = await other.insert()
            handle = bus.subscription(ID)
            await soon(lambda: handle.state == "failed")

            assert "StoreReadOnlyError" in (handle.reason or "")

            await other.run(f"GRANT UPDATE ON postbus.event_bus_checkpoints TO {role}")
            await written(postgres_dsn, second)

        assert seen.numbers == [first, second]
    finally:
        await run_script(postgres_dsn, f"DROP OWNED BY {role}; DROP ROLE {role}")


@pytest.mark.parametrize("table", ["events", "event_bus_checkpoints"])
async def test_a_table_that_is_locked_for_seconds_delays_and_loses_nothing(
    postgres_dsn: str, table: str
) -> None:
    """Publishers wait or are told, subscribers wait."""
    async with running(postgres_dsn, ID, "stock") as (bus, [mail, stock]):
        async with flowing(bus, ID, "stock") as flow:
            await flow.more()
            async with locked(postgres_dsn, table):
                await asyncio.sleep(2.0)
            await flow.more()
        await check_nothing_lost(postgres_dsn, flow, mail, stock)
        await until_live(bus, ID, "stock")


async def test_a_lock_longer_than_any_statement_of_ours_makes_it_fail_with_the_reason_and_come_back(
    postgres_dsn: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody rebuilds a table for longer than a statement may take."""
    limit_statements(monkeypatch, 2.0)
    caplog.set_level(logging.CRITICAL, "postbus")
    async with running(postgres_dsn) as (bus, [seen]), writer(postgres_dsn) as other:
        first = await other.insert()
        await written(postgres_dsn, first)
        async with locked(postgres_dsn, "event_bus_checkpoints"):
            second = await other.insert()
            await soon(lambda: bus.subscription(ID).state == "failed", within=20)
        await written(postgres_dsn, second)
        await until_live(bus)

    assert seen.numbers == [first, second]


async def test_the_checkpoint_of_a_transactional_subscriber_that_is_refused_undoes_its_effects(
    postgres_dsn: str,
) -> None:
    """They are made again together, once."""
    await query(postgres_dsn, "CREATE TABLE effects (number int)")
    bus = PgEventBus(postgres_dsn, config=ReliableDeliveryConfig(poll_interval=0.05))

    @bus.on("*", id=ID)
    async def insert(event: Event, transaction: Session) -> None:
        await transaction.execute("INSERT INTO effects VALUES ($1)", event.payload)

    async with bus:
        await until_live(bus)
        await run_script(postgres_dsn, REFUSE)
        await bus.publish("test.done", 1)
        await soon(lambda: bus.subscription(ID).state == "failed")

        assert await query(postgres_dsn, "SELECT number FROM effects") == []

        await run_script(postgres_dsn, ALLOW)
        await bus.subscription(ID).caught_up(timeout=20)

    assert await query(postgres_dsn, "SELECT number FROM effects") == [(1,)]
    assert await query(postgres_dsn, "SELECT event_id FROM postbus.event_bus_dlq") == []
