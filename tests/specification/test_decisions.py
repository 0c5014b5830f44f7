"""sqlite-event-bus, Architectural Decisions: what each of the six looks like from outside."""

import asyncio
import inspect
from pathlib import Path

import msgspec

from postbus import DLQInspector, Event, EventStatus, RetryPolicy, SQLiteStore, SubscriptionRow
from postbus.testing import ManualClock
from tests.delivery.steps import (
    ALWAYS,
    BlockingHandler,
    FlakyHandler,
    MakeBus,
    files_beside,
    leave_behind,
    query,
    soon,
    start,
    statuses,
    until,
)


async def test_ad_1_rows_have_no_handler_and_handlers_have_no_row(database: Path, make_bus: MakeBus) -> None:
    """The rows of an earlier process call nobody; those of this process replace them."""
    first = make_bus()
    gone = FlakyHandler()
    first.subscribe("order.*", gone)
    await first.start()
    await soon(first.idle())
    await first.shutdown()
    second = make_bus()
    kept_id = second.subscribe("user.*", FlakyHandler())
    await second.publish("order.placed")
    await soon(second.idle())

    assert msgspec.structs.fields(SubscriptionRow)[-1].name == "created_at"
    assert query(database, "SELECT id, event_type FROM subscriptions") == [(kept_id, "user.*")]
    assert gone.events == []


async def test_ad_2_failures_are_tracked_per_event(make_bus: MakeBus) -> None:
    """One handler that fails makes the whole event fail and all handlers run again."""
    bus = make_bus(retry=RetryPolicy(max_retries=1))
    healthy, sick = FlakyHandler(), FlakyHandler(ALWAYS)
    bus.subscribe(healthy)
    bus.subscribe(sick)
    event = await bus.store.get(await bus.publish("order.placed"))

    assert (event.status, event.retry_count, len(healthy.events)) == (EventStatus.DLQ, 2, 2)


async def test_ad_3_handlers_of_an_event_never_run_at_the_same_time(make_bus: MakeBus) -> None:
    """Plain functions in threads included."""
    bus = make_bus()
    running: set[str] = set()
    overlaps: list[set[str]] = []

    async def first(_: Event) -> None:
        running.add("first")
        for _turn in range(20):
            await asyncio.sleep(0)
            overlaps.append(running - {"first"})
        running.remove("first")

    def second(_: Event) -> None:
        running.add("second")
        overlaps.append(running - {"second"})
        running.remove("second")

    for handler in (first, second, first, second):
        bus.subscribe(handler)
    await bus.publish("order.placed")

    assert len(overlaps) == 42
    assert not any(overlaps)


async def test_ad_4_last_error_is_an_array_as_long_as_the_failures(database: Path, make_bus: MakeBus) -> None:
    """After each attempt, in the file."""
    bus = make_bus()
    lengths: list[tuple[int, int]] = []

    async def handler(event: Event) -> None:
        lengths.extend(
            query(database, "SELECT retry_count, coalesce(json_array_length(last_error), 0) FROM events")
        )
        raise ValueError(event.retry_count)

    bus.subscribe(handler)
    await bus.publish("order.placed")
    lengths.extend(query(database, "SELECT retry_count, json_array_length(last_error) FROM events"))

    assert lengths == [(0, 0), (1, 1), (2, 2), (3, 3), (4, 4)]


async def test_ad_5_the_inspector_needs_a_store_and_no_bus(database: Path) -> None:
    """List, get, retry and purge on a file that no bus has open; the store need not be open either."""
    for event_id in ("a", "b"):
        await leave_behind(database, event_id, "dlq", errors=["boom"])
    store = SQLiteStore(database)
    dlq = DLQInspector(store)
    listed = (await dlq.list()).total
    got = (await dlq.get("a")).errors
    await dlq.retry("a")
    purged = await dlq.purge(older_than_days=0)
    await store.close()

    assert (listed, got, purged) == (2, ["boom"], 1)
    assert statuses(database) == {"a": "pending"}
    assert list(inspect.signature(DLQInspector).parameters) == ["store", "clock"]


async def test_ad_5_the_inspector_works_beside_a_running_bus(database: Path, make_bus: MakeBus) -> None:
    """Through a store of its own, as another process would; the bus takes up what was retried."""
    bus, handler = make_bus(retry=RetryPolicy(max_retries=0)), FlakyHandler(1)
    bus.subscribe(handler)
    event_id = await bus.publish("order.placed")
    async with SQLiteStore(database) as store:
        await DLQInspector(store).retry(event_id)
        await until(lambda: len(handler.events) == 2)

    assert (await bus.store.get(event_id)).status is EventStatus.DONE


async def test_ad_6_shutdown_waits_for_the_drain_or_its_timeout_whichever_is_first(make_bus: MakeBus) -> None:
    """A quick drain ends it at once, a slow one is cut off at the configured moment."""
    moments: list[float] = []
    for is_quick in (True, False):
        clock = ManualClock()
        bus = make_bus(clock=clock, shutdown_timeout=7.0)
        handler = BlockingHandler()
        bus.subscribe(handler)
        publishing = start(bus.publish("order.placed"))
        await soon(handler.started.wait())
        stopping = start(bus.shutdown())
        if is_quick:
            handler.released.set()
        else:
            await clock.advance(7)
        await soon(asyncio.gather(stopping, publishing))
        moments.append(clock.monotonic())

    assert moments == [0.0, 7.0]


async def test_ad_6_an_abandoned_handler_finds_the_store_closed(database: Path, make_bus: MakeBus) -> None:
    """Whatever it still does with the bus is refused; the file is not opened again behind its back."""
    clock = ManualClock()
    bus = make_bus(clock=clock, shutdown_timeout=5.0)
    handler = BlockingHandler()
    refusals: list[str] = []

    async def cling(event: Event) -> None:
        try:
            await handler(event)
        except asyncio.CancelledError:
            try:
                await bus.publish("order.late")
            except Exception as error:
                refusals.append(type(error).__name__)
            raise

    bus.subscribe(cling)
    publishing = start(bus.publish("order.placed", event_id="slow"))
    await soon(handler.started.wait())
    stopping = start(bus.shutdown())
    await clock.advance(5)
    await soon(asyncio.gather(stopping, publishing))

    assert refusals == ["EventBusShutdownError"]
    assert statuses(database) == {"slow": "pending"}
    assert "events.db-wal" not in files_beside(database)
