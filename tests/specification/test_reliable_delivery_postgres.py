"""0002 on PostgreSQL: section 1.2 and the cases that sections 7.2 and 7.3 name; of 0005 a lost connection.

What every store does is in test_reliable_delivery.py; 7.4, the migration, is in test_migration.py and
8.1, the log lines, in test_logging.py.
"""

import asyncio
import logging
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest

from postbus import (
    CheckpointMode,
    Event,
    InMemoryStore,
    PgEventBus,
    PgStateStore,
    Projection,
    ReliableDeliveryConfig,
    StateStore,
)
from postbus.errors import StoreUnavailableError
from tests.faults.steps import end_backends, payloads, query, until, until_live
from tests.gaps.steps import ID, Seen, checkpoint_row, running, soon, writer, written
from tests.postgres.proxy import Proxy
from tests.postgres.server import Server
from tests.specification.instances import Instance

QUICK: dict[str, Any] = {"poll_interval": 0.05, "initial_retry_delay": 0.01}


class Total(Projection[dict[str, Any]]):
    """Remembers what it has seen, and so is idempotent."""

    subscriber_id = ID

    def state_key(self, event: Event) -> str:
        return "total"

    def apply(self, state: dict[str, Any] | None, event: Event) -> dict[str, Any]:
        state = state or {"seen": [], "total": 0}
        if event.id in state["seen"]:
            return state
        return {"seen": [*state["seen"], event.id], "total": state["total"] + event.payload}


class Failing:
    """A handler that fails so many times."""

    def __init__(self, times: int) -> None:
        self.times, self.payloads = times, list[object]()

    async def __call__(self, event: Event) -> None:
        self.payloads.append(event.payload)
        if len(self.payloads) <= self.times:
            raise ValueError("not yet")


@asynccontextmanager
async def started(dsn: str, handler: Any, **settings: Any) -> AsyncIterator[PgEventBus]:
    """A bus with one subscriber."""
    bus = PgEventBus(dsn, config=ReliableDeliveryConfig(**{**QUICK, **settings}))
    bus.subscribe("*", handler, id=ID)
    async with bus:
        yield bus


def payloads_of(seen: Seen) -> list[Any]:
    return [event.payload for event in seen.events]


class TestFailureScenarios:
    """Section 1.2."""

    async def test_subscriber_disconnects_for_5_seconds_events_are_processed_after_reconnect(
        self, postgres_dsn: str, postgres_proxy: Proxy
    ) -> None:
        """What is published while nothing gets through to the subscriber."""
        async with (
            running(postgres_proxy.through(postgres_dsn)) as (bus, [seen]),
            PgEventBus(postgres_dsn) as other,
        ):
            await other.publish("test.done", 0)
            await soon(lambda: payloads_of(seen) == [0])
            postgres_proxy.swallow()
            away_until = time.monotonic() + 5.0
            number = 0
            while time.monotonic() < away_until:
                number += 1
                await other.publish("test.done", number)
                await asyncio.sleep(0.05)
            postgres_proxy.resume()
            await soon(lambda: payloads_of(seen) == list(range(number + 1)), 30)
            await until_live(bus)

    async def test_application_restarts_resume_from_last_checkpoint(self, postgres_dsn: str) -> None:
        """Nothing of before comes again, and nothing of the time in between is lost."""
        before, after = Seen(), Seen()
        async with started(postgres_dsn, before) as bus:
            await bus.publish_many([("test.done", number) for number in range(5)])
            await bus.subscription(ID).caught_up(timeout=10)
        async with PgEventBus(postgres_dsn) as other:
            await other.publish("test.done", 5)
        async with started(postgres_dsn, after) as bus:
            await bus.publish("test.done", 6)
            await bus.subscription(ID).caught_up(timeout=10)

        assert (payloads_of(before), payloads_of(after)) == ([0, 1, 2, 3, 4], [5, 6])

    async def test_projection_throws_error_event_is_retried_or_sent_to_dlq(self, postgres_dsn: str) -> None:
        """The first one works in the end, the second one never does."""
        flaky = Failing(2)
        async with started(postgres_dsn, flaky, max_retries=2) as bus:
            await bus.publish("test.done", 1)
            await bus.subscription(ID).caught_up(timeout=10)
            assert (await bus.dlq.list()).total == 0

            flaky.times = 1_000_000
            await bus.publish("test.done", 2)
            await bus.subscription(ID).caught_up(timeout=10)
            page = await bus.dlq.list()

        assert flaky.payloads == [1, 1, 1, 2, 2, 2]
        assert [(letter.payload, letter.retry_count) for letter in page.events] == [(2, 3)]

    async def test_database_connection_drops_catch_up_after_reconnect(self, postgres_dsn: str) -> None:
        """All connections of the bus at once; events go on being published by others."""
        async with running(postgres_dsn) as (bus, [seen]), writer(postgres_dsn) as other:
            numbers = [await other.insert()]
            await soon(lambda: seen.numbers == numbers)
            await end_backends(postgres_dsn)
            numbers += [await other.insert() for _ in range(10)]
            await soon(lambda: seen.numbers == numbers)
            await until_live(bus)


class TestIntegration:
    """Section 7.2."""

    async def test_subscriber_reconnection_catches_up_on_missed_events(self, postgres_dsn: str) -> None:
        """It left, events came, it is back."""
        seen = Seen()
        async with started(postgres_dsn, seen) as bus:
            await bus.publish("test.done", 1)
            await bus.subscription(ID).caught_up(timeout=10)
            handle = bus.subscription(ID)
            bus.unsubscribe(ID)
            await soon(lambda: handle.state == "stopped")
            await bus.publish_many([("test.done", 2), ("test.done", 3)])
            bus.subscribe("*", seen, id=ID)
            await bus.subscription(ID).caught_up(timeout=10)

        assert payloads_of(seen) == [1, 2, 3]

    async def test_application_restart_resumes_from_checkpoint(self, postgres_dsn: str) -> None:
        """Also one that was written in batches: it is flushed when the application ends."""
        before, after = Seen(), Seen()
        mode = CheckpointMode.batched(batch_size=1000, max_delay=60.0)
        async with started(postgres_dsn, before, checkpoint_mode=mode) as bus:
            await bus.publish_many([("test.done", number) for number in range(5)])
            await soon(lambda: len(before.events) == 5)
        async with started(postgres_dsn, after, checkpoint_mode=mode) as bus:
            await bus.publish("test.done", 5)
            await soon(lambda: bool(after.events))

        assert payloads_of(after) == [5]

    async def test_failed_events_go_to_dlq_after_max_retries(self, postgres_dsn: str) -> None:
        """With its history, and the events after it are processed."""
        failing = Failing(4)
        async with started(postgres_dsn, failing) as bus:
            event_id = await bus.publish("test.done", 1)
            await bus.publish("test.done", 2)
            await bus.subscription(ID).caught_up(timeout=10)
            (letter,) = (await bus.dlq.list()).events

        assert failing.payloads == [1, 1, 1, 1, 2]
        assert (letter.id, letter.subscriber_id, letter.retry_count, len(letter.errors)) == (
            event_id,
            ID,
            4,
            4,
        )

    async def test_multiple_subscribers_maintain_independent_checkpoints(self, postgres_dsn: str) -> None:
        """One that stands still is where it was, the other one is at the head."""
        released = asyncio.Event()

        async def wait(_: Event) -> None:
            await released.wait()

        async with started(postgres_dsn, wait) as bus:
            bus.subscribe("*", Seen(), id="fast")
            await bus.publish_many([("test.done", 1), ("test.done", 2)])
            await written(postgres_dsn, 2, "fast")
            slow = await checkpoint_row(postgres_dsn)
            released.set()

        assert slow["last_global_sequence"] == 0

    async def test_high_volume_catch_up_performance(self, postgres_dsn: str) -> None:
        """Ten thousand events, each once and in order; bench/ has the times."""
        seen = Seen()
        async with PgEventBus(postgres_dsn) as other:
            await other.publish_many([("test.done", number) for number in range(10_000)])
        async with started(postgres_dsn, seen, checkpoint_mode=CheckpointMode.batched(500, 5.0)) as bus:
            await bus.subscription(ID).caught_up(timeout=60)

        assert payloads_of(seen) == list(range(10_000))

    async def test_catch_up_with_concurrent_real_time_events_overlap_strategy(
        self, postgres_dsn: str
    ) -> None:
        """There is no hand-over between them, so nothing falls in between and nothing comes twice."""
        seen = Seen()
        async with PgEventBus(postgres_dsn) as other:
            await other.publish_many([("test.done", number) for number in range(500)])
            async with started(postgres_dsn, seen, catch_up_batch_size=10) as bus:
                for number in range(500, 600):
                    await other.publish("test.done", number)
                await bus.subscription(ID).caught_up(timeout=30)

        assert payloads_of(seen) == list(range(600))

    async def test_idempotent_projection_handles_duplicate_delivery(self, postgres_dsn: str) -> None:
        """Its state lives elsewhere and can't commit together with the checkpoint, which is set back here."""
        states = InMemoryStore()
        await states.open()
        total = Total(StateStore(states, "totals"))
        for numbers in ([1, 2], [4]):
            bus = PgEventBus(postgres_dsn, config=ReliableDeliveryConfig(**QUICK))
            bus.subscribe(total)
            async with bus:
                await bus.publish_many([("test.done", number) for number in numbers])
                await bus.subscription(ID).caught_up(timeout=10)
            await query(
                postgres_dsn, "UPDATE postbus.event_bus_checkpoints SET last_global_sequence = 0, head = NULL"
            )
        state = await total.states.get("total")

        assert state is not None
        assert state["total"] == 7

    async def test_a_projection_in_the_same_database_needs_not_be_idempotent(self, postgres_dsn: str) -> None:
        """State and checkpoint are one commit, whatever is terminated in between."""
        bus = PgEventBus(postgres_dsn, config=ReliableDeliveryConfig(**QUICK))
        total = Total(PgStateStore(bus.store, "totals", dict))
        bus.subscribe(total)
        async with bus, PgEventBus(postgres_dsn) as other:
            for number in range(50):
                await other.publish("test.done", number)
                if number % 20 == 10:
                    await end_backends(postgres_dsn)
            await until_live(bus)
            await bus.subscription(ID).caught_up(timeout=20)
            state = await total.states.get("total")

        assert state is not None
        assert (state["total"], len(state["seen"])) == (sum(range(50)), 50)

    async def test_multiple_instances_with_same_subscriber_id_only_one_processes_events(
        self, postgres_dsn: str
    ) -> None:
        """The others stand by, and every event is processed once."""
        instances = [running_instance(postgres_dsn) for _ in range(3)]
        async with instances[0] as first, instances[1] as second, instances[2] as third:
            buses = [first[0], second[0], third[0]]
            await soon(
                lambda: sorted(bus.subscription(ID).state for bus in buses) == ["live", "standby", "standby"]
            )
            for number in range(60):
                await buses[number % 3].publish("test.done", number)
            seen = [first[1], second[1], third[1]]
            await soon(lambda: sum(len(each.events) for each in seen) == 60)
            # Long enough for a second delivery to show.
            await asyncio.sleep(0.2)

            assert sorted(len(each.events) for each in seen) == [0, 0, 60]

    async def test_instance_failure_triggers_failover_to_another_instance(self, postgres_dsn: str) -> None:
        """Its process is killed in the middle of an event; the other one goes on with that event."""
        async with PgEventBus(postgres_dsn):
            pass  # makes the schema
        with Instance(postgres_dsn) as killed:
            await asyncio.to_thread(killed.wait_until_active)
            async with running_instance(postgres_dsn) as (bus, seen):
                await soon(lambda: bus.subscription(ID).state == "standby")
                await bus.publish("test.done", 1)
                await asyncio.to_thread(killed.wait_until_handling)
                killed.kill()
                await bus.publish("test.done", 2)
                await soon(lambda: payloads_of(seen) == [1, 2], 20)
                await soon(lambda: bus.subscription(ID).state == "live")


@asynccontextmanager
async def running_instance(dsn: str) -> AsyncIterator[tuple[PgEventBus, Seen]]:
    """One instance of an application."""
    seen = Seen()
    async with started(dsn, seen) as bus:
        yield bus, seen


async def until_caught_up(bus: PgEventBus) -> None:
    """Ask until there is an answer: the pool may still lend connections whose end nobody has noticed."""
    async with asyncio.timeout(30):
        while True:
            with suppress(StoreUnavailableError):
                return await bus.subscription(ID).caught_up()


class TestFailureInjection:
    """Section 7.3."""

    async def test_kill_connection_during_event_processing_verify_resume_from_checkpoint(
        self, postgres_dsn: str
    ) -> None:
        """While the handler is at work: that one event may come again, and no other does."""
        entered, released, handled = asyncio.Event(), asyncio.Event(), list[int]()

        async def handle(event: Event) -> None:
            handled.append(event.payload)
            if event.payload == 2 and not released.is_set():
                entered.set()
                await released.wait()

        async with started(postgres_dsn, handle) as bus:
            await bus.publish_many([("test.done", number) for number in (1, 2, 3)])
            await entered.wait()
            await end_backends(postgres_dsn)
            released.set()
            await until_live(bus)
            await until_caught_up(bus)

        assert handled in ([1, 2, 3], [1, 2, 2, 3])

    async def test_simulate_projection_errors_verify_retry_then_dlq(self, postgres_dsn: str) -> None:
        """Two attempts, one dead letter."""
        failing = Failing(1_000_000)
        async with started(postgres_dsn, failing, max_retries=1) as bus:
            await bus.publish("test.done", 1)
            await bus.subscription(ID).caught_up(timeout=10)
            page = await bus.dlq.list()

        assert failing.payloads == [1, 1]
        assert [letter.payload for letter in page.events] == [1]

    async def test_database_unavailable_during_checkpoint_write_verify_event_redelivered(
        self, own_postgres: Server, caplog: pytest.LogCaptureFixture
    ) -> None:
        """The server dies after the handler and before the write, and so does the application."""
        caplog.set_level(logging.CRITICAL, "postbus")
        dsn, after = own_postgres.dsn(), Seen()
        handled: list[object] = []

        async def handle_and_lose_server(event: Event) -> None:
            handled.append(event.payload)
            own_postgres.kill()

        async with started(dsn, handle_and_lose_server) as bus:
            await bus.publish("test.done", 1)
            await soon(lambda: bus.subscription(ID).state == "failed")
        own_postgres.start()
        async with started(dsn, after) as bus:
            await bus.subscription(ID).caught_up(timeout=20)

        assert handled == payloads_of(after) == [1]

    async def test_crash_between_processing_and_checkpoint_verify_at_least_once_delivery(
        self, postgres_dsn: str
    ) -> None:
        """A process is killed whose handler is not through: the event comes again."""
        async with PgEventBus(postgres_dsn) as other:
            with Instance(postgres_dsn) as killed:
                await asyncio.to_thread(killed.wait_until_active)
                await other.publish("test.done", 1)
                await asyncio.to_thread(killed.wait_until_handling)
                killed.kill()
        async with running_instance(postgres_dsn) as (bus, seen):
            await until_live(bus)
            await bus.subscription(ID).caught_up(timeout=20)

        assert payloads_of(seen) == [1]

    async def test_kill_active_instance_verify_another_instance_acquires_advisory_lock_and_continues(
        self, postgres_dsn: str
    ) -> None:
        """The lock is in pg_locks under another process, and no event of the log is missing."""
        async with PgEventBus(postgres_dsn):
            pass  # makes the schema
        with Instance(postgres_dsn) as killed:
            await asyncio.to_thread(killed.wait_until_active)
            holder = await lock_holders(postgres_dsn)
            async with running_instance(postgres_dsn) as (bus, seen):
                await soon(lambda: bus.subscription(ID).state == "standby")
                killed.kill()
                await until_live(bus)
                new_holder = await until(lambda: lock_holders(postgres_dsn), bool)
                await bus.publish_many([("test.done", number) for number in range(10)])
                await bus.subscription(ID).caught_up(timeout=10)

        assert len(holder) == len(new_holder) == 1
        assert holder != new_holder
        assert payloads_of(seen) == await payloads(postgres_dsn)


class TestDeadLetterQueue:
    """Section 2.2.5."""

    async def test_the_entry_remains_valid_even_if_the_original_event_is_deleted(
        self, postgres_dsn: str
    ) -> None:
        """No foreign key stops it, and the letter has all that is needed to look at it and to retry it."""
        failing = Failing(1)
        async with started(postgres_dsn, failing, max_retries=0) as bus:
            event_id = await bus.publish("test.done", {"order": 42})
            await bus.subscription(ID).caught_up(timeout=10)
            await query(postgres_dsn, "DELETE FROM postbus.events")
            letter = await bus.dlq.get(event_id)
            await bus.dlq.retry(letter.dead_letter_id)
            await soon(lambda: len(failing.payloads) == 2)

        assert (letter.payload, letter.subscriber_id, letter.errors) == (
            {"order": 42},
            ID,
            ["ValueError: not yet"],
        )
        assert failing.payloads == [{"order": 42}] * 2

    async def test_an_event_is_in_it_once_for_each_subscriber(self, postgres_dsn: str) -> None:
        """Two subscribers that fail have two entries of one event."""
        async with started(postgres_dsn, Failing(1), max_retries=0) as bus:
            bus.subscribe("*", Failing(1), id="other")
            event_id = await bus.publish("test.done", 1)
            for subscriber_id in (ID, "other"):
                await bus.subscription(subscriber_id).caught_up(timeout=10)
            page = await bus.dlq.list()

        assert sorted((letter.subscriber_id, letter.id) for letter in page.events) == [
            (ID, event_id),
            ("other", event_id),
        ]


class TestBatchedCheckpoints:
    """0005, section 6.2.3."""

    async def test_batched_checkpoint_on_reconnection(self, postgres_dsn: str) -> None:
        """All connections end before a batch is full: what is pending is written nevertheless."""
        mode, seen = CheckpointMode.batched(batch_size=100, max_delay=60.0), Seen()
        async with started(postgres_dsn, seen, checkpoint_mode=mode) as bus, writer(postgres_dsn) as other:
            await until_live(bus)
            numbers = [await other.insert() for _ in range(3)]
            await soon(lambda: seen.numbers == numbers)
            assert (await checkpoint_row(postgres_dsn))["last_global_sequence"] == 0
            epoch = (await checkpoint_row(postgres_dsn))["epoch"]

            assert await end_backends(postgres_dsn) > 0
            await written(postgres_dsn, numbers[-1])
            await until(lambda: checkpoint_row(postgres_dsn), lambda row: row["epoch"] > epoch)
            await until_live(bus)
            numbers += [await other.insert() for _ in range(2)]
            await soon(lambda: len(seen.numbers) >= len(numbers))

            assert seen.numbers == numbers


async def lock_holders(dsn: str) -> list[tuple[Any, ...]]:
    """The server processes that hold a subscriber."""
    return await query(
        dsn,
        "SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND granted AND objsubid = 2 "
        "AND database = (SELECT oid FROM pg_database WHERE datname = current_database())",
    )
