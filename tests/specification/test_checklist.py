"""sqlite-event-bus: the module overview and every checkbox, one test each."""

import asyncio
import sqlite3
import uuid
from datetime import timedelta
from pathlib import Path

import pytest

import postbus
from postbus import (
    DLQInspector,
    Event,
    EventBus,
    EventBusShutdownError,
    EventStatus,
    RetryPolicy,
    SQLiteStore,
    SubscriptionRow,
)
from postbus.delivery.dispatcher import Dispatcher
from postbus.testing import ManualClock
from tests.delivery.steps import (
    ALWAYS,
    NOON,
    BlockingHandler,
    FlakyHandler,
    MakeBus,
    leave_behind,
    query,
    soon,
    start,
    statuses,
)


class TestModuleOverview:
    def test_event_bus_publishes_subscribes_and_unsubscribes(self) -> None:
        """One class with the three verbs."""
        assert all(callable(getattr(EventBus, verb)) for verb in ("publish", "subscribe", "unsubscribe"))

    def test_store_is_the_persistence_layer(self, database: Path) -> None:
        """SQLiteStore keeps one file and knows no bus."""
        assert SQLiteStore(database).path == database

    async def test_dispatcher_delivers_and_retries(self, make_bus: MakeBus) -> None:
        """A dispatcher of its own takes an event through its attempts; the bus only wires it."""
        assert callable(Dispatcher.attempt)

        handler = FlakyHandler(1)
        bus = make_bus()
        bus.subscribe(handler)
        await bus.publish("order.placed")

        assert [event.retry_count for event in handler.events] == [0, 1]

    async def test_dlq_inspects_the_dead_letters(self, make_bus: MakeBus) -> None:
        """DLQInspector is a class of its own, and the one that a bus offers."""
        assert isinstance(make_bus().dlq, DLQInspector)

    def test_types_are_shared(self) -> None:
        """Event, the subscription's row and RetryPolicy are public."""
        assert {"Event", "SubscriptionRow", "RetryPolicy", "EventStatus"} <= set(postbus.__all__)


class TestNorthStar:
    async def test_every_event_is_processed_or_a_dead_letter_with_its_context(
        self, make_bus: MakeBus
    ) -> None:
        """Whatever its handler does, a published event ends in one of two places."""
        bus = make_bus(retry=RetryPolicy(max_retries=1))

        async def fail_at_times(event: Event) -> None:
            if event.payload % 3 == 0 or (event.payload % 3 == 1 and not event.retry_count):
                raise ValueError(f"order {event.payload}")

        bus.subscribe("order.*", fail_at_times)
        ids = [await bus.publish("order.placed", number) for number in range(9)]
        events = [await bus.store.get(event_id) for event_id in ids]

        assert [event.status for event in events] == [EventStatus.DLQ, EventStatus.DONE, EventStatus.DONE] * 3
        assert events[3].errors == ["ValueError: order 3"] * 2


class TestQuickStartRebuildChecklist:
    def test_shared_types(self) -> None:
        """An event, its status, a subscription's row and a policy can be made by hand."""
        event = Event(id="1", type="order.placed", created_at=NOON)
        row = SubscriptionRow(id="2", event_type="order.*", created_at=NOON)

        assert (event.status, row.event_type, RetryPolicy().max_retries) == (
            EventStatus.PENDING,
            "order.*",
            3,
        )

    async def test_sqlite_store(self, database: Path, make_bus: MakeBus) -> None:
        """WAL, tables made on first use, events and subscriptions created, read, changed and deleted."""
        bus = make_bus(retry=RetryPolicy(max_retries=0))
        subscription_id = bus.subscribe("order.*", FlakyHandler(ALWAYS))
        event_id = await bus.publish("order.placed")
        await bus.idle()
        created = [row.id for row in await bus.store.subscriptions.list()]
        buried = (await bus.store.get(event_id)).status
        await bus.dlq.purge(older_than_days=0)
        bus.unsubscribe(subscription_id)
        await bus.idle()

        assert query(database, "PRAGMA journal_mode") == [("wal",)]
        assert (created, buried) == ([subscription_id], EventStatus.DLQ)
        assert query(database, "SELECT * FROM events") == []
        assert await bus.store.subscriptions.list() == []

    async def test_publish(self, database: Path, make_bus: MakeBus) -> None:
        """Stored first, then dispatched; returns the event's id when the dispatch is complete."""
        bus = make_bus()
        handler = BlockingHandler()
        bus.subscribe("order.*", handler)
        publishing = start(bus.publish("order.placed", {"order": 42}))
        await soon(handler.started.wait())
        while_dispatched = query(database, "SELECT id, status, payload FROM events")
        was_done = publishing.done()
        handler.released.set()
        event_id = await soon(publishing)

        assert while_dispatched == [(event_id, "processing", '{"order":42}')]
        assert not was_done
        assert (await bus.store.get(event_id)).status is EventStatus.DONE

    async def test_subscribe(self, make_bus: MakeBus, clock: ManualClock) -> None:
        """With or without a filter by type, with or without options; returns the subscription's id."""
        bus = make_bus()
        orders, everything = FlakyHandler(1, clock=clock), FlakyHandler()
        ids = {
            bus.subscribe("order.*", orders, timeout=5.0, retry={"base_delay": 7.0}),
            bus.subscribe(everything, retry={"base_delay": 9.0}),
        }
        await bus.publish("order.placed", 1)
        await bus.publish("user.created", 2)

        assert len({uuid.UUID(each) for each in ids}) == 2
        assert (orders.payloads, orders.moments) == ([1, 1], [0.0, 7.0])
        assert everything.payloads == [1, 2]

    async def test_unsubscribe(self, make_bus: MakeBus) -> None:
        """The handler with this id gets nothing more; the others do."""
        bus = make_bus()
        gone, staying = FlakyHandler(), FlakyHandler()
        subscription_id = bus.subscribe("order.*", gone)
        bus.subscribe("order.*", staying)
        await bus.publish("order.placed", 1)
        bus.unsubscribe(subscription_id)
        await bus.publish("order.placed", 2)

        assert (gone.payloads, staying.payloads) == ([1], [1, 2])

    async def test_dispatcher_timeout_protection(self, make_bus: MakeBus) -> None:
        """A handler that takes too long is ended, and that is a failed attempt."""
        clock = ManualClock()
        bus = make_bus(clock=clock, handler_timeout=30.0, retry=RetryPolicy(max_retries=0))
        handler = BlockingHandler()
        bus.subscribe(handler)
        publishing = start(bus.publish("order.placed"))
        await soon(handler.started.wait())
        await clock.advance(30)
        event = await bus.store.get(await soon(publishing))

        assert handler.was_cancelled
        assert event.status is EventStatus.DLQ
        assert "TimeoutError" in event.errors[0]

    async def test_dispatcher_retry(self, make_bus: MakeBus, clock: ManualClock) -> None:
        """Base delay, growing delays, largest delay, and so many retries."""
        bus = make_bus(retry=RetryPolicy(max_retries=4, base_delay=20.0, max_delay=100.0))
        handler = FlakyHandler(ALWAYS)
        bus.subscribe(handler)
        await bus.publish("order.placed")

        assert clock.sleeps == [20.0, 40.0, 80.0, 100.0]
        assert len(handler.events) == 5

    async def test_dispatcher_dlq_routing(self, make_bus: MakeBus) -> None:
        """With its retries used up an event is a dead letter that tells of every failure."""
        bus = make_bus(retry=RetryPolicy(max_retries=1))
        bus.subscribe(FlakyHandler(ALWAYS))
        event_id = await bus.publish("order.placed")
        event = await bus.dlq.get(event_id)

        assert event.errors == ["ValueError: boom 1", "ValueError: boom 2"]

    async def test_dlq_inspector_list(self, database: Path, make_bus: MakeBus) -> None:
        """Pages by offset and limit, 100 by default, the newest first."""
        for number in range(102):
            created_at = NOON + timedelta(minutes=number)
            await leave_behind(database, str(number), "dlq", created_at=created_at)
        dlq = make_bus().dlq
        first, second, one = await dlq.list(), await dlq.list(offset=100), await dlq.list(limit=1, offset=1)

        assert [event.id for event in first.events] == [str(number) for number in range(101, 1, -1)]
        assert [event.id for event in second.events] == ["1", "0"]
        assert [event.id for event in one.events] == ["100"]

    async def test_dlq_inspector_retry(self, database: Path) -> None:
        """A full reset: pending, no attempts, no errors."""
        await leave_behind(database, "dead", "dlq", retry_count=4, errors=["boom"])
        async with SQLiteStore(database) as store:
            await DLQInspector(store).retry("dead")

        assert query(database, "SELECT status, retry_count, last_error FROM events") == [("pending", 0, None)]

    async def test_dlq_inspector_purge(self, database: Path, make_bus: MakeBus, clock: ManualClock) -> None:
        """Dead letters of so many days ago are deleted, the one at the cutoff among them."""
        week_ago = clock.now() - timedelta(days=7)
        await leave_behind(database, "older", "dlq", created_at=week_ago - timedelta(days=1))
        await leave_behind(database, "at the cutoff", "dlq", created_at=week_ago)
        await leave_behind(database, "newer", "dlq", created_at=week_ago + timedelta(microseconds=1))
        purged = await make_bus().dlq.purge(older_than_days=7)

        assert (purged, list(statuses(database))) == (2, ["newer"])

    async def test_shutdown(self, database: Path, make_bus: MakeBus) -> None:
        """Waits for what is in flight and refuses what is new."""
        bus = make_bus()
        handler = BlockingHandler()
        bus.subscribe(handler)
        publishing = start(bus.publish("order.placed", event_id="in flight"))
        await soon(handler.started.wait())
        stopping = start(bus.shutdown())
        await asyncio.sleep(0)
        with pytest.raises(EventBusShutdownError):
            await bus.publish("order.placed", event_id="new")
        was_done = stopping.done()
        handler.released.set()
        await soon(asyncio.gather(stopping, publishing))

        assert not was_done
        assert statuses(database) == {"in flight": "done"}

    async def test_startup_recovery(self, database: Path, make_bus: MakeBus) -> None:
        """What a crash left in processing is dispatched again."""
        await leave_behind(database, "stuck", "processing", payload={"order": 42})
        bus = make_bus()
        handler = FlakyHandler()
        bus.subscribe(handler)
        await bus.start()
        await soon(bus.idle())

        assert handler.payloads == [{"order": 42}]
        assert (await bus.store.get("stuck")).status is EventStatus.DONE


class TestFutureWork:
    async def test_prepared_statement_caching(self, make_bus: MakeBus) -> None:
        """What comes again and again is prepared once: SQLite asks its authorizer whenever it prepares."""
        bus = make_bus(retry=RetryPolicy(max_retries=1))
        bus.subscribe("order.*", FlakyHandler())
        bus.subscribe("mail.*", FlakyHandler(ALWAYS))
        bus.subscribe("*", FlakyHandler(), id="log")
        prepared: list[tuple[object, ...]] = []

        def note(*action: object) -> int:
            prepared.append(action)
            return sqlite3.SQLITE_OK

        async def use_the_store() -> None:
            await bus.publish("order.placed")
            await bus.publish_many([("order.placed", 1), ("order.paid", 2)])
            event_id = await bus.publish("mail.queued")
            await bus.dlq.get(event_id)
            await bus.dlq.purge(older_than_days=0)
            await soon(bus.idle())

        await use_the_store()
        assert isinstance(bus.store, SQLiteStore)
        for access in (bus.store.write, bus.store.read):
            await access(lambda connection: connection.set_authorizer(note))
        # To set it has everything prepared anew, once.
        await use_the_store()
        once = len(prepared)
        for _ in range(20):
            await use_the_store()

        assert once > 100
        assert len(prepared) < 2 * once

    async def test_dlq_at_timestamp(self, make_bus: MakeBus, clock: ManualClock) -> None:
        """A dead letter knows when it became one; that is later than when it was created."""
        bus = make_bus(retry=RetryPolicy(max_retries=1, base_delay=5.0))
        bus.subscribe(FlakyHandler(ALWAYS))
        began_at = clock.now()
        event = await bus.dlq.get(await bus.publish("order.placed"))

        assert (event.created_at, event.dlq_at) == (began_at, began_at + timedelta(seconds=5))

    async def test_circuit_breaker_half_open_probe(self, make_bus: MakeBus, clock: ManualClock) -> None:
        """After 30 s one event probes a handler that failed too often; the others wait for its outcome."""
        bus = make_bus(retry=RetryPolicy(max_retries=0))
        sick, healed = FlakyHandler(4), BlockingHandler()

        async def handler(event: Event) -> None:
            await (sick(event) if len(sick.events) < 4 else healed(event))

        bus.subscribe("order.*", handler)
        for _ in range(4):
            await bus.publish("order.placed")
        opened_at = clock.monotonic()
        publishing = [start(bus.publish("order.placed")) for _ in range(5)]
        await soon(healed.started.wait())
        # One round trip through the file: whoever would get in is in.
        await bus.publish("user.created")
        while_probing, probed_at = len(healed.events), clock.monotonic()
        healed.released.set()
        await soon(asyncio.gather(*publishing))

        assert (while_probing, len(healed.events)) == (1, 5)
        assert probed_at == opened_at + 30.0
