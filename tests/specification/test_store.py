"""sqlite-event-bus, SQLiteStore: its six duties, its notes and its schema."""

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from postbus import Event, EventBus, EventStatus, InvalidTargetError, RetryPolicy, SQLiteStore
from postbus.stores.named_queries import load_queries
from tests.delivery.steps import FlakyHandler, MakeBus, leave_behind, query, soon, start, statuses


@pytest.fixture
async def empty(database: Path) -> Path:
    """A file that postbus has opened once."""
    async with SQLiteStore(database):
        pass
    return database


def columns(path: Path, table: str) -> dict[str, tuple[str, int, str | None]]:
    """Type, NOT NULL and default of each column."""
    rows = query(path, 'SELECT name, type, "notnull", dflt_value FROM pragma_table_info(?)', table)
    return {name: (type, not_null, default) for name, type, not_null, default in rows}


class TestDuties:
    async def test_1_wal_mode_lets_others_read_during_a_write(
        self, database: Path, make_bus: MakeBus
    ) -> None:
        """A reader that has begun neither waits for a writer nor stops it."""
        bus = make_bus()
        await bus.publish("order.placed", event_id="first")
        with closing(sqlite3.connect(database, timeout=0, isolation_level=None)) as reader:
            reader.execute("BEGIN")
            before = reader.execute("SELECT id FROM events").fetchall()
            await bus.publish("order.placed", event_id="second")
            during = reader.execute("SELECT id FROM events").fetchall()

        assert query(database, "PRAGMA journal_mode") == [("wal",)]
        assert before == during == [("first",)]
        assert list(statuses(database)) == ["first", "second"]

    def test_1_wal_mode_needs_a_file(self) -> None:
        """SQLite's own ":memory:" would silently ignore it, so it is refused with the word to use instead."""
        with pytest.raises(InvalidTargetError, match='"memory:"'):
            EventBus(":memory:")

    async def test_2_tables_are_created_on_first_connection(self, empty: Path) -> None:
        """Both of the specification, in a file that was not there."""
        tables = {name for (name,) in query(empty, "SELECT name FROM sqlite_master WHERE type = 'table'")}

        assert {"events", "subscriptions"} <= tables

    async def test_2_tables_are_created_once(self, database: Path) -> None:
        """Whoever opens the file again finds what is in it."""
        for event_id in ("first", "second"):
            bus = EventBus(database)
            async with bus:
                await bus.publish("order.placed", event_id=event_id)

        assert list(statuses(database)) == ["first", "second"]

    async def test_3_payload_is_json_text(self, database: Path, make_bus: MakeBus) -> None:
        """Any program that reads JSON can read it."""
        await make_bus().publish("order.placed", {"order": 42, "tags": ["a", None, 1.5]}, {"source": "web"})
        stored = query(database, "SELECT typeof(payload), payload, typeof(metadata), metadata FROM events")

        assert stored == [("text", '{"order":42,"tags":["a",null,1.5]}', "text", '{"source":"web"}')]

    @pytest.mark.parametrize("name", ["read_pending", "recover_events"])
    async def test_4_status_has_an_index(self, empty: Path, name: str) -> None:
        """What start asks for is found without reading what is finished."""
        statement = load_queries("postbus.stores.sqlite", "queries.sql")[name].format(columns="id", types="")
        plan = " ".join(row[3] for row in query(empty, f"EXPLAIN QUERY PLAN {statement}", 0, 0))

        assert "idx_events_status (status=?" in plan

    async def test_4_type_has_an_index(self, empty: Path) -> None:
        """Where types are asked for: a person looks for the dead letters of one type."""
        question = "EXPLAIN QUERY PLAN SELECT id FROM events WHERE status = 'dlq' AND type = 'order.placed'"
        plan = " ".join(row[3] for row in query(empty, question))

        assert "idx_events_type (type=?" in plan

    async def test_5_status_goes_from_pending_over_processing_to_done(
        self, database: Path, make_bus: MakeBus
    ) -> None:
        """Every step is in the file before the next one begins."""
        await leave_behind(database, "1", "pending")
        bus = make_bus()
        seen: list[str] = []

        async def handler(_: Event) -> None:
            seen.extend(statuses(database).values())

        await bus.start()
        await soon(bus.idle())
        seen.extend(statuses(database).values())
        bus.subscribe(handler)
        await soon(bus.idle())
        seen.append((await bus.store.get("1")).status)

        assert seen == ["pending", "processing", "done"]

    async def test_5_status_goes_from_processing_to_dlq(self, database: Path, make_bus: MakeBus) -> None:
        """With count, errors and moment in the same step."""
        bus = make_bus(retry=RetryPolicy(max_retries=0))
        seen: list[str] = []

        async def handler(_: Event) -> None:
            seen.extend(statuses(database).values())
            raise ValueError("boom")

        bus.subscribe(handler)
        await bus.publish("order.placed")
        row = query(database, "SELECT status, retry_count, last_error, dlq_at IS NOT NULL FROM events")

        assert seen == ["processing"]
        assert row == [("dlq", 1, '["ValueError: boom"]', 1)]

    async def test_5_status_changes_only_from_where_it_was(self, database: Path, make_bus: MakeBus) -> None:
        """An event that somebody else has settled meanwhile is not settled a second time."""
        bus = make_bus(retry=RetryPolicy(max_retries=0))

        async def handler(_: Event) -> None:
            query(database, "UPDATE events SET status = 'done'")
            raise ValueError("boom")

        bus.subscribe(handler)
        await bus.publish("order.placed")

        assert query(database, "SELECT status, last_error FROM events") == [("done", None)]

    async def test_5_every_transition_stamps_updated_at(self, database: Path, make_bus: MakeBus) -> None:
        """The moment of the last change, not of the first."""
        bus = make_bus(retry=RetryPolicy(max_retries=1, base_delay=20.0))
        seen: list[tuple[str, str]] = []

        async def handler(_: Event) -> None:
            seen.extend(query(database, "SELECT created_at, updated_at FROM events"))
            raise ValueError("boom")

        bus.subscribe(handler)
        await bus.publish("order.placed")
        seen.extend(query(database, "SELECT created_at, updated_at FROM events"))
        began, later = "2026-01-01T00:00:00.000000+00:00", "2026-01-01T00:00:20.000000+00:00"

        assert seen == [(began, began), (began, began), (began, later)]

    async def test_6_only_the_row_of_a_subscription_is_stored(
        self, database: Path, make_bus: MakeBus
    ) -> None:
        """Its handler lives with the bus: another bus on the file does not call it."""
        bus = make_bus()
        handler = FlakyHandler()
        subscription_id = bus.subscribe("order.*", handler)
        await bus.start()
        await soon(bus.idle())
        stored = query(database, "SELECT id, event_type FROM subscriptions")
        await bus.shutdown()
        await make_bus().publish("order.placed")

        assert stored == [(subscription_id, "order.*")]
        assert handler.events == []


class TestNotes:
    async def test_the_store_works_beside_the_event_loop(self, database: Path, make_bus: MakeBus) -> None:
        """A database that is locked by somebody else keeps a publisher waiting, and no other task."""
        bus = make_bus()
        await bus.start()
        turns = 0
        with closing(sqlite3.connect(database, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            publishing = start(bus.publish("order.placed"))
            for _ in range(1000):
                await asyncio.sleep(0)
                turns += 1
            was_done = publishing.done()
            other.execute("ROLLBACK")
        await soon(publishing)

        assert (turns, was_done) == (1000, False)


class TestSchema:
    async def test_events_has_the_columns_of_the_specification(self, empty: Path) -> None:
        """Under the same names, with the same types and defaults."""
        expected = {
            "id": ("TEXT", 1, None),
            "type": ("TEXT", 1, None),
            "payload": ("TEXT", 1, None),
            "status": ("TEXT", 1, "'pending'"),
            "retry_count": ("INTEGER", 1, "0"),
            "last_error": ("TEXT", 0, None),
            "metadata": ("TEXT", 0, None),
            "created_at": ("TEXT", 1, None),
            "updated_at": ("TEXT", 1, None),
        }

        assert expected.items() <= columns(empty, "events").items()

    async def test_events_has_columns_beyond_the_specification(self, empty: Path) -> None:
        """A sequence number that is never used twice, the moment of death, streams."""
        added = {"global_sequence", "dlq_at", "stream_id", "stream_version", "correlation_id", "causation_id"}
        [(statement,)] = query(empty, "SELECT sql FROM sqlite_master WHERE name = 'events'")

        assert added <= set(columns(empty, "events"))
        assert "global_sequence INTEGER PRIMARY KEY AUTOINCREMENT" in statement

    async def test_the_id_of_an_event_is_unique(self, empty: Path) -> None:
        """It was the primary key, and remains a key."""
        insert = (
            "INSERT INTO events (id, type, payload, created_at, updated_at) VALUES ('1', 'a', '1', '', '')"
        )
        query(empty, insert)

        with pytest.raises(sqlite3.IntegrityError, match="UNIQUE"):
            query(empty, insert)

    async def test_the_two_indexes_of_the_specification_exist(self, empty: Path) -> None:
        """Under the same names."""
        indexes = {name for (name,) in query(empty, "SELECT name FROM sqlite_master WHERE type = 'index'")}

        assert {"idx_events_status", "idx_events_type"} <= indexes

    async def test_subscriptions_has_the_columns_of_the_specification(self, empty: Path) -> None:
        """These three and no others."""
        assert columns(empty, "subscriptions") == {
            "id": ("TEXT", 0, None),
            "event_type": ("TEXT", 1, None),
            "created_at": ("TEXT", 1, None),
        }

    async def test_a_row_as_the_specification_writes_it_is_delivered(
        self, database: Path, empty: Path, make_bus: MakeBus
    ) -> None:
        """Any program can publish by an INSERT into the nine columns."""
        query(
            database,
            "INSERT INTO events (id, type, payload, status, retry_count, last_error, metadata, created_at,"
            " updated_at) VALUES ('1', 'order.placed', '{\"order\": 42}', 'pending', 0, NULL, NULL,"
            " '2026-01-01T12:00:00.000Z', '2026-01-01T12:00:00.000Z')",
        )
        bus = make_bus()
        handler = FlakyHandler()
        bus.subscribe(handler)
        await bus.start()
        await soon(bus.idle())

        assert handler.payloads == [{"order": 42}]
        assert (await bus.store.get("1")).status is EventStatus.DONE
