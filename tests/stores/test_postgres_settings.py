"""What a role or a database may have set changes nothing: not what is delivered, nor what is read."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta

import asyncpg
import pytest

from postbus import Event
from postbus.pg import PgEventBus
from tests.patience import PATIENCE
from tests.postgres.steps import Session

SETTINGS = {
    "words for values": {
        "DateStyle": "German, DMY",
        "IntervalStyle": "iso_8601",
        "TimeZone": "Asia/Kathmandu",
        "extra_float_digits": "-15",
        "bytea_output": "escape",
        "xmloption": "document",
        "client_encoding": "LATIN1",
    },
    "words of queries": {
        "array_nulls": "off",
        "quote_all_identifiers": "on",
        "standard_conforming_strings": "off",
        "transform_null_equals": "on",
    },
    "names": {"search_path": "hostile, pg_catalog"},
    "no names": {"search_path": ""},
    "transactions": {
        "default_transaction_isolation": "serializable",
        "default_transaction_deferrable": "on",
        "idle_in_transaction_session_timeout": "1s",
        "synchronous_commit": "off",
    },
    "snapshots": {"default_transaction_isolation": "repeatable read", "row_security": "off"},
    "functions": {
        "check_function_bodies": "off",
        "plpgsql.extra_errors": "all",
        "plpgsql.variable_conflict": "use_column",
    },
    "plans": {
        "plan_cache_mode": "force_generic_plan",
        "enable_indexscan": "off",
        "from_collapse_limit": "1",
        "join_collapse_limit": "1",
        "jit_above_cost": "0",
        "parallel_setup_cost": "0",
    },
}
# What would be found first by a name without its schema.
HOSTILE = """
    CREATE SCHEMA hostile;
    CREATE TABLE hostile.events ();
    CREATE FUNCTION hostile.nextval(regclass) RETURNS bigint LANGUAGE sql AS 'SELECT 1::bigint';
"""
TYPES = ["order.placed", "order.paid", "order.paid", "order.sent"]


@pytest.fixture(params=SETTINGS)
async def database(postgres_dsn: str, request: pytest.FixtureRequest) -> str:
    """A database whose every connection has these settings."""
    session = await asyncpg.connect(postgres_dsn)
    await session.execute(HOSTILE)
    name = await session.fetchval("SELECT quote_ident(current_database())")
    for setting, value in SETTINGS[request.param].items():
        words = value if setting == "search_path" and value else f"'{value}'"
        await session.execute(f"ALTER DATABASE {name} SET {setting} = {words}")
    await session.close()
    return postgres_dsn


async def test_whatever_is_set_every_kind_of_subscriber_gets_every_event(database: str) -> None:
    """From the making of the tables on; by whatever way an event is published."""
    bus = PgEventBus(database)
    received: dict[str, list[str]] = {name: [] for name in ("alone", "within", "competing", "parts")}

    async def refuse(_: Event) -> None:
        raise LookupError("refused")

    async def note_within(event: Event, connection: Session) -> None:
        assert await connection.fetchval("SELECT 1") == 1
        received["within"].append(event.type)

    def note_as(name: str) -> Callable[[Event], Awaitable[None]]:
        async def note(event: Event) -> None:
            received[name].append(event.type)

        return note

    bus.subscribe("*", note_as("alone"), id="alone")
    bus.subscribe("*", note_within, id="within")
    bus.subscribe("*", note_as("competing"), id="competing", mode="competing")
    bus.subscribe("*", note_as("parts"), id="parts", partitions=2)
    bus.subscribe("order.sent", refuse, id="refusing", retry={"max_retries": 0})
    async with asyncio.timeout(PATIENCE), bus:
        await bus.publish("order.placed", {"n": 1}, {"by": "anna"}, stream_id="order-1")
        await asyncio.gather(*(bus.publish("order.paid", stream_id="order-1") for _ in range(2)))
        session = await asyncpg.connect(database)
        async with session.transaction():
            await bus.publish("order.sent", connection=session, event_id="sent")
        await session.close()
        await bus.idle()
        await bus.store.purge("sent", "anna")
        placed, purged = (await bus.store.read_stream("order-1"))[0], await bus.store.get("sent")
        letters = (await bus.dlq.list()).events

    now = datetime.now(UTC)
    assert {name: sorted(types) for name, types in received.items()} == dict.fromkeys(received, sorted(TYPES))
    assert (placed.payload, placed.metadata) == ({"n": 1}, {"by": "anna"})
    assert purged.purged_at is not None
    for moment in (placed.created_at, purged.purged_at):
        assert moment.tzinfo is UTC
        assert now - timedelta(seconds=PATIENCE) < moment <= now
    assert [(letter.id, letter.subscriber_id, letter.payload) for letter in letters] == [
        ("sent", "refusing", None)
    ]
