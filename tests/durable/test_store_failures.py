"""The store fails: nothing is lost, the state says so, and it goes on by itself."""

import asyncio
import logging
from typing import Any

import pytest

from postbus import (
    CheckpointMode,
    Event,
    EventBus,
    ReliableDeliveryConfig,
    RetryPolicy,
    StoreBusyError,
    StoreClosedError,
    StoreError,
    StoreFullError,
)
from postbus.testing import ManualClock
from tests.delivery.steps import ALWAYS, BlockingHandler, FlakyHandler, soon, start, until
from tests.durable.steps import (
    ID,
    Database,
    MakeBus,
    checkpoint_of,
    faulty,
    let_others_run,
    letters_of,
    on_embedded,
    opened,
    position_of,
    publish_numbers,
    try_again,
)

FULL = StoreFullError("the disk is full")


async def running(make_bus: MakeBus, store: Any, handler: Any, **options: Any) -> EventBus:
    """A bus whose subscriber is live."""
    bus = make_bus(store)
    bus.subscribe("*", handler, id=ID, **options)
    await bus.start()
    await until(lambda: bus.subscription(ID).state == "live")
    return bus


@pytest.mark.parametrize("error", [StoreError("the database refused: no"), StoreFullError("elsewhere")])
async def test_a_handler_that_a_store_has_refused_something_has_failed(
    database: Database, make_bus: MakeBus, clock: ManualClock, error: StoreError
) -> None:
    """It waits only for a store, its own or another, that can't do its work at the moment."""
    calls: list[int] = []

    async def handle(event: Event) -> None:
        calls.append(event.payload)
        if event.payload == 1 and calls.count(1) < 4:
            raise error

    retry = RetryPolicy(max_retries=1)
    bus = await running(make_bus, faulty(database), handle, retry=retry)
    await publish_numbers(bus, 1, 2)
    is_refusal = type(error) is StoreError
    await soon(try_again(clock, 1 if is_refusal else 3))
    await soon(bus.subscription(ID).caught_up())

    assert calls == ([1, 1, 2] if is_refusal else [1, 1, 1, 1, 2])
    assert len(await letters_of(bus)) == is_refusal


async def test_a_checkpoint_that_cannot_be_written_fails_the_subscriber_until_it_can(
    database: Database, make_bus: MakeBus, clock: ManualClock
) -> None:
    """The event was processed once and is not delivered again; the next one waits."""
    store, handler = faulty(database), FlakyHandler()
    bus = await running(make_bus, store, handler)
    store.checkpoints.fail("save", FULL)
    await publish_numbers(bus, 1, 2)
    await soon(clock.wait_for_sleepers(1))
    handle = bus.subscription(ID)
    assert (handle.state, handle.reason) == ("failed", "StoreFullError: the disk is full")
    assert handle.checkpoint == 0

    await soon(try_again(clock, 5))
    assert handler.payloads == [1]
    store.checkpoints.mend("save")
    await soon(try_again(clock))
    await soon(bus.subscription(ID).caught_up())
    await until(lambda: handle.state == "live")
    assert handler.payloads == [1, 2]
    assert handle.reason is None
    assert await position_of(bus) == 2


async def test_a_dead_letter_that_cannot_be_written_leaves_the_checkpoint_where_it_is(
    database: Database, make_bus: MakeBus, clock: ManualClock
) -> None:
    """Dead letter and checkpoint are one transaction: the event is passed with its dead letter or not."""
    store = faulty(database)
    bus = await running(make_bus, store, FlakyHandler(ALWAYS), retry=RetryPolicy(max_retries=0))
    store.checkpoints.fail("save", FULL)
    await publish_numbers(bus, 1)
    await soon(clock.wait_for_sleepers(1))
    assert await position_of(bus) == 0
    assert await letters_of(bus) == []
    assert bus.subscription(ID).state == "failed"

    store.checkpoints.mend("save")
    await soon(try_again(clock))
    await soon(bus.subscription(ID).caught_up())
    (letter,) = await letters_of(bus)
    assert letter.errors == ["ValueError: boom 1"]
    assert await position_of(bus) == 1


async def test_a_dead_letter_that_was_never_written_is_delivered_again_after_a_restart(
    database: Database, make_bus: MakeBus, clock: ManualClock
) -> None:
    store = faulty(database)
    first = await running(make_bus, store, FlakyHandler(ALWAYS), retry=RetryPolicy(max_retries=0))
    store.checkpoints.fail("save", FULL)
    await publish_numbers(first, 1)
    await soon(clock.wait_for_sleepers(1))
    await soon(first.shutdown())
    second, handler = make_bus(), FlakyHandler()
    second.subscribe("*", handler, id=ID)
    await second.start()
    await soon(second.idle())

    assert handler.payloads == [1]


async def test_waiting_for_the_store_takes_longer_each_time_and_never_more_than_two_seconds(
    database: Database, make_bus: MakeBus, clock: ManualClock
) -> None:
    store = faulty(database)
    bus = await running(make_bus, store, FlakyHandler())
    store.checkpoints.fail("save", FULL, 9)
    await publish_numbers(bus, 1)
    await soon(try_again(clock, 9))
    await soon(bus.subscription(ID).caught_up())

    assert clock.sleeps == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.6, 2.0, 2.0, 2.0, 2.0])


async def test_it_is_told_once_and_when_it_is_over(
    database: Database, make_bus: MakeBus, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    """Not once for every try."""
    store = faulty(database)
    bus = await running(make_bus, store, FlakyHandler())
    caplog.set_level(logging.INFO, "postbus")
    store.checkpoints.fail("save", FULL, 3)
    await publish_numbers(bus, 1)
    await soon(try_again(clock, 3))
    await soon(bus.subscription(ID).caught_up())

    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [
        ("ERROR", f"subscriber {ID} waits for the store, trying again: the disk is full"),
        ("INFO", f"subscriber {ID} goes on"),
    ]


async def test_reading_is_tried_again_as_well(
    database: Database, make_bus: MakeBus, clock: ManualClock
) -> None:
    await read_while_it_fails(database, make_bus, clock, "log", "read")


@on_embedded
async def test_asking_for_retries_is_tried_again_as_well(
    database: Database, make_bus: MakeBus, clock: ManualClock
) -> None:
    """On PostgreSQL nobody asks unless the log says that there are any."""
    await read_while_it_fails(database, make_bus, clock, "dead_letters", "wanted_retries")


async def read_while_it_fails(
    database: Database, make_bus: MakeBus, clock: ManualClock, port: str, method: str
) -> None:
    store, handler = faulty(database), FlakyHandler()
    getattr(store, port).fail(method, StoreBusyError("another process holds it"), 2)
    bus = make_bus(store)
    bus.subscribe("*", handler, id=ID)
    await publish_numbers(bus, 1)
    await soon(clock.wait_for_sleepers(1))
    assert bus.subscription(ID).state == "failed"

    await soon(try_again(clock, 2))
    await soon(bus.subscription(ID).caught_up())
    assert handler.payloads == [1]
    await until(lambda: bus.subscription(ID).state == "live")


@pytest.mark.parametrize("method", ["load", "claim"])
async def test_a_checkpoint_that_cannot_be_loaded_never_means_the_beginning(
    database: Database, make_bus: MakeBus, clock: ManualClock, method: str
) -> None:
    """It is asked for again until there is an answer."""
    first = make_bus()
    first.subscribe("*", FlakyHandler(), id=ID)
    await publish_numbers(first, 1, 2)
    await soon(first.idle())
    await first.shutdown()
    store, handler = faulty(database), FlakyHandler()
    store.checkpoints.fail(method, FULL, 3)
    second = make_bus(store)
    second.subscribe("*", handler, id=ID)
    await publish_numbers(second, 3)
    await soon(clock.wait_for_sleepers(1))
    assert second.subscription(ID).state == "failed"

    await soon(try_again(clock, 3))
    await soon(second.subscription(ID).caught_up())
    assert handler.payloads == [3]


async def test_a_failed_subscriber_can_be_stopped(
    database: Database, make_bus: MakeBus, clock: ManualClock
) -> None:
    """It does not wait for the store to come back."""
    store = faulty(database)
    bus = await running(make_bus, store, FlakyHandler())
    store.checkpoints.fail("save", FULL)
    await publish_numbers(bus, 1)
    await soon(clock.wait_for_sleepers(1))
    handle = bus.subscription(ID)
    bus.unsubscribe(ID)
    await until(lambda: handle.state == "stopped" and not clock.sleeping)


async def test_an_idle_bus_does_not_wait_for_a_failed_subscriber(
    database: Database, make_bus: MakeBus
) -> None:
    """Also not when it begins to fail while it is waited for."""
    store, handler = faulty(database), BlockingHandler()
    bus = await running(make_bus, store, handler)
    await publish_numbers(bus, 1, 2)
    await soon(handler.started.wait())
    idle = start(bus.idle())
    await asyncio.sleep(0.01)
    store.checkpoints.fail("save", FULL)
    handler.released.set()
    await soon(idle)

    assert bus.subscription(ID).state == "failed"


async def test_a_page_that_cannot_be_read_ahead_is_nobodys_lost_error(
    database: Database, make_bus: MakeBus, clock: ManualClock
) -> None:
    """The next page fails to be read while an event of this one waits for its retry; then the bus ends."""
    async with opened(database) as store:
        await store.append("s", [("a", number) for number in range(10)])
    failing = faulty(database)
    bus = make_bus(failing, config=ReliableDeliveryConfig(catch_up_batch_size=2))

    @bus.on("*", id=ID)
    async def choke(_: Event) -> None:
        failing.log.fail("read", ZeroDivisionError("a bug"))
        await asyncio.sleep(0)
        raise ValueError("choked")

    await bus.start()
    await soon(clock.wait_for_sleepers(1))
    await soon(bus.shutdown())


async def test_a_store_that_is_closed_by_hand_stops_its_subscribers_with_a_word(
    database: Database, make_bus: MakeBus, caplog: pytest.LogCaptureFixture
) -> None:
    """A loop never ends in silence."""
    store = faulty(database)
    bus = await running(make_bus, store, FlakyHandler())
    store.checkpoints.fail("save", StoreClosedError("it was closed"))
    await publish_numbers(bus, 1)
    handle = bus.subscription(ID)
    await until(lambda: handle.state == "stopped")

    assert handle.reason == "it was closed"
    assert any(record.levelname == "ERROR" and ID in record.getMessage() for record in caplog.records)


async def test_an_error_that_nobody_expected_does_not_end_the_loop(
    database: Database, make_bus: MakeBus, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    """It is told, the state is failed, and after a second the subscriber begins anew at its checkpoint."""
    store, handler = faulty(database), FlakyHandler()
    bus = await running(make_bus, store, handler)
    store.checkpoints.fail("save", ZeroDivisionError("a bug"), 1)
    await publish_numbers(bus, 1)
    await soon(clock.wait_for_sleepers(1))
    handle = bus.subscription(ID)
    assert (handle.state, handle.reason) == ("failed", "ZeroDivisionError: a bug")

    await soon(try_again(clock))
    await soon(bus.subscription(ID).caught_up())
    await until(lambda: handle.state == "live")
    assert handler.payloads == [1, 1]
    assert await position_of(bus) == 1
    assert "met an error that postbus did not expect" in caplog.text


class TestHandlersThatNeedAStore:
    async def test_what_only_the_store_spoils_is_not_an_attempt(
        self, make_bus: MakeBus, clock: ManualClock
    ) -> None:
        """However often: the event is delivered in the end, and no dead letter."""
        bus = make_bus()
        calls: list[int] = []

        @bus.on("*", id=ID, retry=RetryPolicy(max_retries=0))
        async def look_up(event: Event) -> None:
            calls.append(event.payload)
            if len(calls) <= 20:
                raise StoreBusyError("the other database is busy")

        await publish_numbers(bus, 1)
        await soon(clock.wait_for_sleepers(1))
        handle = bus.subscription(ID)
        assert (handle.state, handle.reason) == ("failed", "StoreBusyError: the other database is busy")

        await soon(try_again(clock, 20))
        await soon(bus.subscription(ID).caught_up())
        await until(lambda: handle.state == "live")
        assert len(calls) == 21
        assert handle.reason is None
        assert await letters_of(bus) == []

    async def test_the_page_that_is_read_ahead_does_not_hide_it(
        self, database: Database, make_bus: MakeBus, clock: ManualClock
    ) -> None:
        """The state is failed for as long as the handler fails, whatever else succeeds."""
        async with opened(database) as store:
            await store.append("s", [("a", number) for number in range(10)])
        bus = make_bus(config=ReliableDeliveryConfig(catch_up_batch_size=1))
        bus.subscribe("*", FlakyStoreUser(ALWAYS), id=ID)
        await bus.start()
        await soon(clock.wait_for_sleepers(1))
        # Let the thread of a file answer.
        await let_others_run()

        assert bus.subscription(ID).state == "failed"

    async def test_a_real_error_after_it_counts(self, make_bus: MakeBus, clock: ManualClock) -> None:
        bus = make_bus()
        errors = iter([StoreBusyError("busy"), ValueError("real"), StoreBusyError("busy"), ValueError("2nd")])

        @bus.on("*", id=ID, retry=RetryPolicy(max_retries=1, base_delay=9))
        async def fail(_: Event) -> None:
            raise next(errors)

        await publish_numbers(bus, 1)
        await soon(try_again(clock, 3))
        await soon(bus.subscription(ID).caught_up())
        (letter,) = await letters_of(bus)

        assert letter.errors == ["ValueError: real", "ValueError: 2nd"]
        assert bus.subscription(ID).reason is None

    async def test_others_go_on_meanwhile(self, make_bus: MakeBus, clock: ManualClock) -> None:
        bus, sound = make_bus(), FlakyHandler()
        bus.subscribe("*", FlakyStoreUser(ALWAYS), id=ID)
        bus.subscribe("*", sound, id="sound")
        await publish_numbers(bus, 1, 2)
        await soon(bus.subscription("sound").caught_up())

        assert sound.payloads == [1, 2]


class FlakyStoreUser:
    """A handler whose own database is away at first."""

    def __init__(self, failure_count: int) -> None:
        self.calls, self._failure_count = 0, failure_count

    async def __call__(self, _: Event) -> None:
        self.calls += 1
        if self.calls <= self._failure_count:
            raise StoreBusyError("the other database is busy")


async def test_a_batch_that_cannot_be_written_is_kept_and_written_later(
    database: Database, make_bus: MakeBus, clock: ManualClock
) -> None:
    store, handler = faulty(database), FlakyHandler()
    bus = await running(
        make_bus, store, handler, checkpoint_mode=CheckpointMode.batched(batch_size=3, max_delay=60)
    )
    store.checkpoints.fail("save", FULL, 2)
    await publish_numbers(bus, 1, 2, 3, 4)
    await soon(try_again(clock, 2))
    await until(lambda: len(handler.events) == 4)

    assert handler.payloads == [1, 2, 3, 4]
    assert await position_of(bus) == 3


async def test_what_is_processed_and_can_not_be_written_at_the_end_comes_again(
    database: Database, make_bus: MakeBus
) -> None:
    """At least once: a shutdown with a full disk ends in time and loses nothing."""
    store = faulty(database)
    first = await running(make_bus, store, FlakyHandler(), checkpoint_mode=CheckpointMode.batched(100, 3600))
    await publish_numbers(first, 1, 2)
    await soon(first.idle())
    store.checkpoints.fail("save", FULL)
    await soon(first.shutdown())
    second, handler = make_bus(), FlakyHandler()
    second.subscribe("*", handler, id=ID)
    await second.start()
    await soon(second.subscription(ID).caught_up())

    assert handler.payloads == [1, 2]
    assert (await checkpoint_of(second)).position == 2


async def test_waiting_for_a_failed_subscriber_ends_when_it_recovers(
    database: Database, make_bus: MakeBus, clock: ManualClock
) -> None:
    store = faulty(database)
    bus = await running(make_bus, store, FlakyHandler())
    store.checkpoints.fail("save", FULL, 1)
    await publish_numbers(bus, 1)
    waiting = start(bus.subscription(ID).wait_for(1))
    await soon(try_again(clock))
    await soon(waiting)

    assert await position_of(bus) == 1
