"""sqlite-event-bus, Types: every field and every default."""

import asyncio
import uuid
from datetime import timedelta
from pathlib import Path

import msgspec
import pytest

from postbus import Event, EventStatus, RetryPolicy, SubscriptionRow
from postbus.config import DEFAULT_HANDLER_TIMEOUT
from postbus.testing import ManualClock
from tests.delivery.steps import (
    ALWAYS,
    BlockingHandler,
    FlakyHandler,
    MakeBus,
    query,
    soon,
    start,
)


class TestEvent:
    async def test_id_is_a_uuid(self, make_bus: MakeBus) -> None:
        """Time-ordered (version 7) by default, so that a large file stays fast."""
        bus = make_bus()
        ids = [await bus.publish("order.placed") for _ in range(3)]

        assert [uuid.UUID(event_id).version for event_id in ids] == [7, 7, 7]
        assert sorted(set(ids)) == ids

    async def test_id_is_a_uuid_v4_for_those_who_ask(self, make_bus: MakeBus) -> None:
        """With the id factory of the specification."""
        event_id = await make_bus(id_factory=uuid.uuid4).publish("order.placed")

        assert uuid.UUID(event_id).version == 4

    @pytest.mark.parametrize("type", ["user.created", "order.shipped"])
    async def test_type_is_a_dotted_name(self, make_bus: MakeBus, type: str) -> None:
        """The handler and the store have it as it was published."""
        bus = make_bus()
        handler = FlakyHandler()
        bus.subscribe(handler)
        event_id = await bus.publish(type)

        assert handler.events[0].type == (await bus.store.get(event_id)).type == type

    @pytest.mark.parametrize(
        "payload",
        [None, True, 0, -1.5, "", "é😀", [], [1, [2, None]], {}, {"a": {"b": [1, "c"]}}],
        ids=repr,
    )
    async def test_payload_is_any_json_value(self, make_bus: MakeBus, payload: object) -> None:
        """Handler and store get back what was given."""
        bus = make_bus()
        handler = FlakyHandler()
        bus.subscribe(handler)
        event_id = await bus.publish("order.placed", payload)

        assert handler.payloads == [payload]
        assert (await bus.store.get(event_id)).payload == payload

    async def test_created_at_is_the_moment_of_publishing(
        self, make_bus: MakeBus, clock: ManualClock
    ) -> None:
        """Aware, in UTC, by the injected clock."""
        bus = make_bus()
        await clock.sleep(90.5)
        event = await bus.store.get(await bus.publish("order.placed"))

        assert event.created_at == clock.now()
        assert event.created_at.utcoffset() == timedelta(0)

    async def test_status_is_processing_for_the_handler_and_done_afterwards(self, make_bus: MakeBus) -> None:
        """The status is the one of the store at that moment."""
        bus = make_bus()
        handler = FlakyHandler()
        bus.subscribe(handler)
        event_id = await bus.publish("order.placed")

        assert handler.events[0].status is EventStatus.PROCESSING
        assert (await bus.store.get(event_id)).status is EventStatus.DONE

    async def test_retry_count_counts_the_failed_attempts(self, make_bus: MakeBus) -> None:
        """The handler sees how often the event has failed before."""
        bus = make_bus()
        handler = FlakyHandler(2)
        bus.subscribe(handler)
        event_id = await bus.publish("order.placed")

        assert [event.retry_count for event in handler.events] == [0, 1, 2]
        assert (await bus.store.get(event_id)).retry_count == 2

    async def test_last_error_is_a_json_array_with_the_error_of_each_failed_attempt(
        self, make_bus: MakeBus
    ) -> None:
        """None as long as nothing has failed."""
        bus = make_bus()
        handler = FlakyHandler(2)
        bus.subscribe(handler)
        event_id = await bus.publish("order.placed")
        last_error = (await bus.store.get(event_id)).last_error

        assert handler.events[0].last_error is None
        assert last_error is not None
        assert msgspec.json.decode(last_error) == ["ValueError: boom 1", "ValueError: boom 2"]

    async def test_metadata_is_strings_by_strings_or_nothing(self, make_bus: MakeBus) -> None:
        """Handler and store get back what was given."""
        bus = make_bus()
        handler = FlakyHandler()
        bus.subscribe(handler)
        with_it = await bus.publish("order.placed", 1, {"source": "web"})
        without = await bus.publish("order.placed", 1)

        assert [event.metadata for event in handler.events] == [{"source": "web"}, None]
        assert (await bus.store.get(with_it)).metadata == {"source": "web"}
        assert (await bus.store.get(without)).metadata is None

    async def test_the_event_a_handler_gets_is_frozen(self, make_bus: MakeBus) -> None:
        """No handler can change it for the next one."""
        bus = make_bus()
        handler = FlakyHandler()
        bus.subscribe(handler)
        await bus.publish("order.placed")

        with pytest.raises(AttributeError):
            handler.events[0].type = "order.changed"  # type: ignore[misc]


class TestEventStatus:
    def test_there_are_four(self) -> None:
        """In the words that the table has."""
        assert [status.value for status in EventStatus] == ["pending", "processing", "done", "dlq"]


class TestSubscription:
    async def test_id_is_a_uuid_v4(self, make_bus: MakeBus) -> None:
        """A new one for each subscription, of the same handler too."""
        bus = make_bus()
        handler = FlakyHandler()
        ids = [uuid.UUID(bus.subscribe("order.*", handler)) for _ in range(3)]

        assert [each.version for each in ids] == [4, 4, 4]
        assert len(set(ids)) == 3

    async def test_event_type_is_a_glob_pattern(self, make_bus: MakeBus) -> None:
        """user.* gets user.created."""
        bus = make_bus()
        handler = FlakyHandler()
        bus.subscribe("user.*", handler)
        await bus.publish("user.created", 1)
        await bus.publish("order.created", 2)

        assert handler.payloads == [1]

    async def test_created_at_is_the_moment_of_subscribing(
        self, make_bus: MakeBus, clock: ManualClock
    ) -> None:
        """By the injected clock."""
        bus = make_bus()
        await clock.sleep(60)
        bus.subscribe(FlakyHandler())
        subscribed_at = clock.now()
        await clock.sleep(60)
        await bus.start()
        await soon(bus.idle())

        assert [row.created_at for row in await bus.store.subscriptions.list()] == [subscribed_at]

    async def test_timeout_overrides_that_of_the_bus(self, make_bus: MakeBus) -> None:
        """For this subscription only."""
        clock = ManualClock()
        bus = make_bus(clock=clock, handler_timeout=30.0, retry=RetryPolicy(max_retries=0))
        handler = BlockingHandler()
        bus.subscribe(handler, timeout=5.0)
        publishing = start(bus.publish("order.placed"))
        await soon(handler.started.wait())
        await clock.advance(4.9)
        was_cancelled_before = handler.was_cancelled
        await clock.advance(0.1)
        await soon(publishing)

        assert (was_cancelled_before, handler.was_cancelled) == (False, True)


class TestSubscriptionRow:
    async def test_it_has_id_event_type_and_created_at(
        self, database: Path, make_bus: MakeBus, clock: ManualClock
    ) -> None:
        """And nothing of the handler."""
        bus = make_bus()
        subscription_id = bus.subscribe("user.*", FlakyHandler())
        await bus.start()
        await soon(bus.idle())
        row = SubscriptionRow(id=subscription_id, event_type="user.*", created_at=clock.now())

        assert await bus.store.subscriptions.list() == [row]
        assert query(database, "SELECT id, event_type FROM subscriptions") == [(subscription_id, "user.*")]


class TestEventHandler:
    async def test_it_takes_the_event_and_is_awaited(self, make_bus: MakeBus) -> None:
        """Publishing is over when the handler is."""
        bus = make_bus()
        finished: list[Event] = []

        async def handler(event: Event) -> None:
            for _ in range(20):
                await asyncio.sleep(0)
            finished.append(event)

        bus.subscribe(handler)
        event_id = await bus.publish("order.placed")

        assert [event.id for event in finished] == [event_id]


class TestSubscribeOptions:
    async def test_timeout_is_30_seconds_by_default(self, make_bus: MakeBus) -> None:
        """Not a moment less, not a moment more."""
        clock = ManualClock()
        bus = make_bus(clock=clock, handler_timeout=DEFAULT_HANDLER_TIMEOUT, retry=RetryPolicy(max_retries=0))
        handler = BlockingHandler()
        bus.subscribe(handler)
        publishing = start(bus.publish("order.placed"))
        await soon(handler.started.wait())
        await clock.advance(29.999)
        was_cancelled_before = handler.was_cancelled
        await clock.advance(0.001)
        await soon(publishing)

        assert (was_cancelled_before, handler.was_cancelled) == (False, True)

    async def test_retry_merges_with_the_defaults(self, make_bus: MakeBus, clock: ManualClock) -> None:
        """What is not given stays as the bus has it."""
        bus = make_bus(retry=RetryPolicy(max_retries=2, base_delay=3.0, backoff_multiplier=5.0))
        bus.subscribe(FlakyHandler(ALWAYS), retry={"max_retries": 3, "max_delay": 60.0})
        await bus.publish("order.placed")

        assert clock.sleeps == [3.0, 15.0, 60.0]


class TestRetryPolicy:
    def test_max_retries_is_3_by_default(self) -> None:
        """Four attempts in all."""
        assert RetryPolicy().max_retries == 3

    def test_base_delay_is_1_second_by_default(self) -> None:
        """In seconds, as everywhere."""
        assert RetryPolicy().base_delay == 1.0

    def test_max_delay_is_30_seconds_by_default(self) -> None:
        """In seconds, as everywhere."""
        assert RetryPolicy().max_delay == 30.0

    def test_backoff_multiplier_is_2_by_default(self) -> None:
        """Each delay doubles the last."""
        assert RetryPolicy().backoff_multiplier == 2.0

    async def test_a_bus_uses_the_defaults(self, make_bus: MakeBus, clock: ManualClock) -> None:
        """Three retries after 1, 2 and 4 seconds."""
        bus = make_bus()
        bus.subscribe(FlakyHandler(ALWAYS))
        await bus.publish("order.placed")

        assert clock.sleeps == [1.0, 2.0, 4.0]
