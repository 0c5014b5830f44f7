"""0002, sections 4 and 7.4: what a start makes of an empty database, and of older tables."""

from collections.abc import AsyncIterator

import asyncpg
import pytest

from postbus import PgEventBus
from tests.gaps.steps import Seen, soon
from tests.postgres.steps import Session
from tests.stores.postgres_catalog import describe
from tests.stores.postgres_old_tables import insert_old_event, make_old_tables, old_id
from tests.stores.postgres_steps import listening

COLUMNS = """
SELECT attname, format_type(atttypid, atttypmod), attnotnull, pg_get_expr(adbin, adrelid)
FROM pg_attribute LEFT JOIN pg_attrdef ON adrelid = attrelid AND adnum = attnum
WHERE attrelid = $1::text::regclass AND attnum > 0
"""
INDEXED = """
SELECT array_agg(attname::text ORDER BY place)
FROM pg_index, unnest(indkey) WITH ORDINALITY AS key (number, place) JOIN pg_attribute ON attnum = number
WHERE indrelid = $1::text::regclass AND attrelid = indrelid AND indisvalid GROUP BY indexrelid
"""
CONSTRAINTS = (
    "SELECT conname, pg_get_constraintdef(oid) FROM pg_constraint WHERE conrelid = $1::text::regclass"
)
NUMBERS = "SELECT id, global_sequence FROM postbus.events ORDER BY global_sequence"
# Where the specification says UUID, an id may be any text.
CHECKPOINTS = {
    "subscriber_id": ("character varying(255)", True, None),
    "last_global_sequence": ("bigint", True, "0"),
    "last_event_id": ("text", False, None),
    "updated_at": ("timestamp with time zone", True, "now()"),
}
DEAD_LETTERS = {
    "id": ("text", True, None),
    "subscriber_id": ("character varying(255)", True, None),
    "event_id": ("text", True, None),
    "global_sequence": ("bigint", True, None),
    "error_message": ("text", False, None),
    "retry_count": ("integer", True, "0"),
    "created_at": ("timestamp with time zone", True, "now()"),
    "last_retry_at": ("timestamp with time zone", False, None),
}


@pytest.fixture
async def connection(postgres_dsn: str) -> AsyncIterator[Session]:
    """Looks at the database past postbus."""
    connection = await asyncpg.connect(postgres_dsn)
    yield connection
    await connection.close()


@pytest.fixture
async def fresh(postgres_dsn: str, connection: Session) -> Session:
    """A database on which a bus has started once."""
    async with PgEventBus(postgres_dsn):
        pass
    return connection


async def columns(connection: Session, table: str) -> dict[str, tuple[str, bool, str | None]]:
    """Type, NOT NULL and default of each column."""
    rows = await connection.fetch(COLUMNS, f"postbus.{table}")
    return {name: (type, is_required, default) for name, type, is_required, default in rows}


async def indexed(connection: Session, table: str) -> list[list[str]]:
    """The columns of each index."""
    return [row[0] for row in await connection.fetch(INDEXED, f"postbus.{table}")]


class TestEventsTable:
    """Section 4.1."""

    async def test_global_sequence_is_required_and_comes_from_its_sequence(self, fresh: Session) -> None:
        """The column, its default, NOT NULL; and the sequence goes when the table does."""
        owner = "SELECT pg_get_serial_sequence('postbus.events', 'global_sequence')"
        type, is_required, default = (await columns(fresh, "events"))["global_sequence"]

        assert (type, is_required) == ("bigint", True)
        assert default == "nextval('postbus.events_global_sequence_seq'::regclass)"
        assert await fresh.fetchval(owner) == "postbus.events_global_sequence_seq"

    async def test_global_sequence_has_an_index_for_catch_up_queries(self, fresh: Session) -> None:
        """That of the primary key."""
        assert ["global_sequence"] in await indexed(fresh, "events")

    async def test_notify_trigger_includes_global_sequence(self, postgres_dsn: str) -> None:
        """And not the data, which would have a large event refused."""
        async with (
            PgEventBus(postgres_dsn, notify="trigger"),
            listening(postgres_dsn, "postbus:postbus") as ear,
        ):
            number = await ear.connection.fetchval(
                "INSERT INTO postbus.events (id, event_type, data) "
                "VALUES ('1', 'a', to_json(repeat('x', 9000))) RETURNING global_sequence"
            )
            await soon(lambda: str(number) in ear.heard)


class TestCheckpointTable:
    """Section 4.2."""

    async def test_it_has_the_columns_of_the_specification(self, fresh: Session) -> None:
        """One row for each subscriber."""
        assert CHECKPOINTS.items() <= (await columns(fresh, "event_bus_checkpoints")).items()
        assert ["subscriber_id"] in await indexed(fresh, "event_bus_checkpoints")


class TestDeadLetterTable:
    """Section 4.3."""

    async def test_it_has_the_columns_of_the_specification(self, fresh: Session) -> None:
        """Under the same names."""
        assert DEAD_LETTERS.items() <= (await columns(fresh, "event_bus_dlq")).items()

    async def test_an_event_is_a_dead_letter_of_a_subscriber_once(self, fresh: Session) -> None:
        """unique_subscriber_event, and no foreign key beside it."""
        rows = await fresh.fetch(CONSTRAINTS, "postbus.event_bus_dlq")
        found = {row["conname"]: row["pg_get_constraintdef"] for row in rows}

        assert found["unique_subscriber_event"] == "UNIQUE (subscriber_id, event_id)"
        assert not any("FOREIGN KEY" in definition for definition in found.values())

    async def test_subscriber_and_created_at_have_indexes(self, fresh: Session) -> None:
        """First among their columns."""
        first_columns = {names[0] for names in await indexed(fresh, "event_bus_dlq")}

        assert {"subscriber_id", "created_at"} <= first_columns


async def test_schema_changes_are_idempotent(postgres_dsn: str, fresh: Session) -> None:
    """Section 4: the next start changes nothing."""
    before = await describe(fresh, "postbus")
    async with PgEventBus(postgres_dsn):
        pass

    assert await describe(fresh, "postbus") == before


class TestMigration:
    """Section 7.4."""

    async def test_fresh_install_creates_all_schema_correctly(
        self, postgres_dsn: str, fresh: Session
    ) -> None:
        """Every table is there, and an event goes all the way through them."""
        tables = await fresh.fetch("SELECT tablename FROM pg_tables WHERE schemaname = 'postbus'")
        seen = Seen()
        bus = PgEventBus(postgres_dsn)
        bus.subscribe("*", seen, id="mail")
        async with bus:
            event_id = await bus.publish("order.placed", 1)
            await bus.subscription("mail").caught_up(timeout=10)

        assert {"events", "event_bus_checkpoints", "event_bus_dlq", "event_bus_outbox"} <= {
            name for (name,) in tables
        }
        assert [(event.id, event.global_sequence) for event in seen.events] == [(event_id, 1)]

    @pytest.mark.parametrize("shape", ["no numbers", "no numbers, but a bus", "numbers may be missing"])
    async def test_upgrade_from_previous_version_backfills_global_sequence(
        self, postgres_dsn: str, connection: Session, shape: str
    ) -> None:
        """Every event has a number of its own, the column is NOT NULL, and new events come after them."""
        await make_old_tables(connection, shape)
        for number in range(1, 21):
            await insert_old_event(connection, number, seconds=number)
        if shape == "numbers may be missing":
            await connection.execute("UPDATE postbus.events SET global_sequence = NULL")
        async with PgEventBus(postgres_dsn) as bus:
            new = await bus.store.get(await bus.publish("order.placed"))
        found = [number for _, number in await connection.fetch(NUMBERS)]

        assert len(found) == len(set(found)) == 21
        assert new.global_sequence == max(found)
        assert (await columns(connection, "events"))["global_sequence"][1]

    async def test_existing_events_maintain_temporal_ordering_after_backfill(
        self, postgres_dsn: str, connection: Session
    ) -> None:
        """By created_at, then by id; and that is the order in which a subscriber gets them."""
        await make_old_tables(connection, "no numbers")
        for number, seconds in [(5, 1), (9, 0), (2, 3), (4, 1), (3, 1.5)]:
            await insert_old_event(connection, number, seconds)
        seen = Seen()
        bus = PgEventBus(postgres_dsn)
        bus.subscribe("*", seen, id="mail")
        async with bus:
            await bus.subscription("mail").caught_up(timeout=10)
        expected = [str(old_id(number)) for number in (9, 4, 5, 3, 2)]

        assert [event_id for event_id, _ in await connection.fetch(NUMBERS)] == expected
        assert [event.id for event in seen.events] == expected
