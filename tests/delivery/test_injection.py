"""Time, chance and ids come from outside."""

import itertools
import uuid
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from postbus import EventBus, InMemoryStore, InvalidEventIdError, RetryPolicy, SQLiteStore
from postbus.testing import ManualClock
from tests.delivery.steps import ALWAYS, FlakyHandler, MakeBus, query, soon


class TestClock:
    async def test_every_moment_in_the_file_is_the_clocks(self, database: Path, make_bus: MakeBus) -> None:
        """Of events, of dead letters and of subscriptions."""
        clock = ManualClock(datetime(2031, 5, 6, tzinfo=UTC), auto_advance=True)
        bus = make_bus(clock=clock, retry=RetryPolicy(max_retries=1, base_delay=5.0))
        bus.subscribe(FlakyHandler(ALWAYS))
        await bus.publish("order.placed")
        await soon(bus.idle())
        began, later = "2031-05-06T00:00:00.000000+00:00", "2031-05-06T00:00:05.000000+00:00"

        assert query(database, "SELECT created_at, updated_at, dlq_at FROM events") == [(began, later, later)]
        assert query(database, "SELECT created_at FROM subscriptions") == [(began,)]

    async def test_purge_goes_by_it(self, make_bus: MakeBus, clock: ManualClock) -> None:
        """bus.dlq has the clock of its bus."""
        bus = make_bus(retry=RetryPolicy(max_retries=0))
        bus.subscribe(FlakyHandler(ALWAYS))
        await bus.publish("order.placed")
        await clock.sleep(timedelta(days=2).total_seconds())

        assert await bus.dlq.purge(older_than_days=3) == 0
        assert await bus.dlq.purge(older_than_days=2) == 1

    async def test_hours_of_back_off_take_no_time(self, make_bus: MakeBus, clock: ManualClock) -> None:
        """A test of a patient policy is as quick as any other."""
        bus = make_bus(retry=RetryPolicy(max_retries=20, base_delay=3600.0, max_delay=3600.0))
        bus.subscribe(FlakyHandler(20))
        await soon(bus.publish("order.placed"))

        assert clock.monotonic() == 20 * 3600


class TestNoise:
    async def test_it_is_asked_once_for_each_delay(self, make_bus: MakeBus, clock: ManualClock) -> None:
        """And not for attempts that have none."""
        noises = iter([1.0, -1.0, 0.5])
        bus = make_bus(noise=lambda: next(noises))
        bus.subscribe(FlakyHandler(ALWAYS))
        await bus.publish("order.placed")

        assert clock.sleeps == pytest.approx([1.1, 1.8, 4.2])


class TestIdFactory:
    async def test_it_gives_the_ids(self, make_bus: MakeBus) -> None:
        """Strings or UUIDs."""
        numbers = itertools.count(1)
        bus = make_bus(id_factory=lambda: uuid.UUID(int=next(numbers)))
        ids = [await bus.publish("order.placed"), *await bus.publish_many([("order.placed", 1)] * 2)]

        assert ids == [str(uuid.UUID(int=number)) for number in (1, 2, 3)]

    async def test_a_given_id_goes_before_it(self, make_bus: MakeBus) -> None:
        """It is not even asked."""
        bus = make_bus(id_factory=lambda: pytest.fail("was asked"))

        assert await bus.publish("order.placed", event_id="given") == "given"

    async def test_what_is_no_id_is_refused(self, database: Path, make_bus: MakeBus) -> None:
        """Nothing is stored."""
        with pytest.raises(InvalidEventIdError):
            await make_bus(id_factory=lambda: 42).publish("order.placed")

        assert query(database, "SELECT id FROM events") == []


class TestStore:
    async def test_a_bus_takes_a_store(self, database: Path, make_bus: MakeBus) -> None:
        """One with settings of its own, for example."""
        store = SQLiteStore(database, synchronous="NORMAL")
        bus = make_bus(target=store)
        await bus.publish("order.placed", event_id="here")

        assert bus.store is store
        assert (await store.get("here")).type == "order.placed"

    async def test_a_bus_runs_in_memory(self) -> None:
        """The same code, for tests."""
        bus, handler = EventBus("memory:", clock=ManualClock(auto_advance=True)), FlakyHandler(1)
        bus.subscribe(handler)
        async with bus:
            event_id = await soon(bus.publish("order.placed", 42))
            event = await bus.store.get(event_id)

        assert isinstance(bus.store, InMemoryStore)
        assert (handler.payloads, event.errors) == ([42, 42], ["ValueError: boom 1"])
