"""sqlite-event-bus, Dispatcher Retry Logic: who runs when, when it stops, and what is left to read."""

import asyncio
import logging
from datetime import timedelta
from pathlib import Path

import msgspec
import pytest

from postbus import Event, EventBus, EventStatus, RetryPolicy
from postbus.testing import ManualClock
from tests.delivery.steps import A_DAY, ALWAYS, FlakyHandler, MakeBus, query


class TestSeveralHandlers:
    async def test_they_run_one_after_another(self, make_bus: MakeBus) -> None:
        """In the order of their subscription; the next begins when the last has ended."""
        bus = make_bus()
        steps: list[str] = []

        def handler(name: str) -> None:
            @bus.on("order.*")
            async def _(_: Event) -> None:
                steps.append(f"{name} begins")
                for _turn in range(20):
                    await asyncio.sleep(0)
                steps.append(f"{name} ends")

        handler("a")
        handler("b")
        handler("c")
        await bus.publish("order.placed")

        assert steps == ["a begins", "a ends", "b begins", "b ends", "c begins", "c ends"]

    async def test_a_failure_counts_for_the_event(self, make_bus: MakeBus) -> None:
        """Two handlers that fail in turn add to one count and one list of errors."""
        bus = make_bus()
        first, second = FlakyHandler(1, name="first"), FlakyHandler(1, name="second")
        bus.subscribe(first)
        bus.subscribe(second)
        event = await bus.store.get(await bus.publish("order.placed"))

        assert (event.status, event.retry_count) == (EventStatus.DONE, 2)
        assert event.errors == ["ValueError: first 1", "ValueError: second 1"]

    async def test_all_of_them_run_again_after_a_failure(self, make_bus: MakeBus) -> None:
        """The healthy one too, as the event is retried and not the handler."""
        bus = make_bus()
        healthy, flaky = FlakyHandler(), FlakyHandler(2)
        bus.subscribe(healthy)
        bus.subscribe(flaky)
        await bus.publish("order.placed")

        assert (len(healthy.events), len(flaky.events)) == (3, 3)

    async def test_a_failure_ends_the_attempt(self, make_bus: MakeBus) -> None:
        """Handlers behind the one that failed wait for the next attempt."""
        bus = make_bus()
        flaky, behind = FlakyHandler(2), FlakyHandler()
        bus.subscribe(flaky)
        bus.subscribe(behind)
        await bus.publish("order.placed")

        assert [event.retry_count for event in behind.events] == [2]

    async def test_the_event_stays_in_processing_for_its_retry(
        self, database: Path, make_bus: MakeBus
    ) -> None:
        """With count and error in the file before the next attempt begins."""
        bus = make_bus()
        seen: list[tuple[object, ...]] = []

        async def handler(event: Event) -> None:
            seen.extend(query(database, "SELECT status, retry_count, last_error FROM events"))
            if not event.retry_count:
                raise ValueError("boom")

        bus.subscribe(handler)
        await bus.publish("order.placed")

        assert seen == [("processing", 0, None), ("processing", 1, '["ValueError: boom"]')]


class TestAttempts:
    """With max_retries=5, base_delay=10, multiplier=3, max_delay=200: too slow for the circuit breaker."""

    @pytest.fixture
    async def moments(self, make_bus: MakeBus, clock: ManualClock) -> list[float]:
        """When each attempt of an event began that never succeeds."""
        policy = RetryPolicy(max_retries=5, base_delay=10.0, backoff_multiplier=3.0, max_delay=200.0)
        bus = make_bus(retry=policy)
        handler = FlakyHandler(ALWAYS, clock=clock)
        bus.subscribe(handler)
        await bus.publish("order.placed")
        return handler.moments

    def test_attempt_1_is_immediate(self, moments: list[float]) -> None:
        """Nobody waits before there was a failure."""
        assert moments[0] == 0

    def test_attempt_2_waits_for_the_base_delay(self, moments: list[float]) -> None:
        """Ten seconds."""
        assert moments[1] - moments[0] == 10

    def test_attempt_3_waits_for_the_base_delay_times_the_multiplier(self, moments: list[float]) -> None:
        """Thirty seconds."""
        assert moments[2] - moments[1] == 30

    def test_attempt_n_waits_for_the_power_of_the_multiplier(self, moments: list[float]) -> None:
        """base_delay * multiplier ** (n - 2): ninety seconds before the fourth."""
        assert moments[3] - moments[2] == 90

    def test_attempt_n_waits_no_longer_than_the_largest_delay(self, moments: list[float]) -> None:
        """270 and 810 seconds would be more than 200."""
        assert [moments[4] - moments[3], moments[5] - moments[4]] == [200, 200]

    def test_there_are_max_retries_and_one_attempts(self, moments: list[float]) -> None:
        """Five retries make six attempts."""
        assert len(moments) == 6


class TestJitter:
    @pytest.mark.parametrize(("noise", "delays"), [(1.0, [1.1, 2.2, 4.4]), (-1.0, [0.9, 1.8, 3.6])])
    async def test_it_moves_a_delay_by_ten_percent_at_most(
        self, make_bus: MakeBus, clock: ManualClock, noise: float, delays: list[float]
    ) -> None:
        """At both ends of the noise."""
        bus = make_bus(noise=lambda: noise)
        bus.subscribe(FlakyHandler(ALWAYS))
        await bus.publish("order.placed")

        assert clock.sleeps == pytest.approx(delays)

    async def test_without_jitter_noise_changes_nothing(self, make_bus: MakeBus, clock: ManualClock) -> None:
        """jitter=0: delays are exact."""
        bus = make_bus(retry=RetryPolicy(jitter=0.0), noise=lambda: 1.0)
        bus.subscribe(FlakyHandler(ALWAYS))
        await bus.publish("order.placed")

        assert clock.sleeps == [1.0, 2.0, 4.0]

    async def test_a_bus_makes_noise_of_its_own(self, database: Path, clock: ManualClock) -> None:
        """Without an injected one, delays differ from each other and stay within the bounds."""
        policy = RetryPolicy(max_retries=5, base_delay=100.0, backoff_multiplier=1.0, max_delay=100.0)
        bus = EventBus(database, clock=clock, retry=policy, handler_timeout=A_DAY, shutdown_timeout=A_DAY)
        bus.subscribe(FlakyHandler(ALWAYS))
        async with bus:
            await bus.publish("order.placed")

        assert len(set(clock.sleeps)) == 5
        assert all(90 <= delay <= 110 for delay in clock.sleeps)


class TestDeadLetter:
    async def test_it_is_one_after_max_retries_and_one_attempts(self, make_bus: MakeBus) -> None:
        """Neither before nor after."""
        bus = make_bus(retry=RetryPolicy(max_retries=2))
        saved, lost = FlakyHandler(2), FlakyHandler(3)
        bus.subscribe("order.saved", saved)
        bus.subscribe("order.lost", lost)
        events = [await bus.store.get(await bus.publish(type)) for type in ("order.saved", "order.lost")]

        assert [event.status for event in events] == [EventStatus.DONE, EventStatus.DLQ]
        assert (len(saved.events), len(lost.events)) == (3, 3)

    async def test_it_has_all_error_messages_as_a_json_array(self, database: Path, make_bus: MakeBus) -> None:
        """One string per attempt, the oldest first, in the column last_error."""
        bus = make_bus(retry=RetryPolicy(max_retries=2))
        bus.subscribe(FlakyHandler(ALWAYS))
        await bus.publish("order.placed")
        [(last_error, retry_count)] = query(database, "SELECT last_error, retry_count FROM events")

        assert msgspec.json.decode(last_error) == [f"ValueError: boom {attempt}" for attempt in (1, 2, 3)]
        assert retry_count == 3

    async def test_it_is_the_original_event(self, make_bus: MakeBus, clock: ManualClock) -> None:
        """Id, type, payload, metadata and moment are as published, whatever the handler did with them."""
        bus = make_bus(retry=RetryPolicy(max_retries=1))

        async def handler(event: Event) -> None:
            event.payload["order"] = "changed"
            raise ValueError("boom")

        bus.subscribe(handler)
        published_at = clock.now()
        event_id = await bus.publish("order.placed", {"order": 42}, {"source": "web"})
        event = await bus.dlq.get(event_id)

        assert (event.id, event.type) == (event_id, "order.placed")
        assert (event.payload, event.metadata) == ({"order": 42}, {"source": "web"})
        assert event.created_at == published_at

    async def test_it_has_the_moment_of_its_final_failure(
        self, make_bus: MakeBus, clock: ManualClock
    ) -> None:
        """Back-off included: 1 + 2 + 4 seconds after it was published."""
        bus = make_bus()
        bus.subscribe(FlakyHandler(ALWAYS))
        published_at = clock.now()
        event = await bus.dlq.get(await bus.publish("order.placed"))

        assert event.dlq_at == published_at + timedelta(seconds=7)

    async def test_an_event_that_succeeds_has_no_such_moment(self, make_bus: MakeBus) -> None:
        """However often it was retried."""
        bus = make_bus()
        bus.subscribe(FlakyHandler(3))
        event = await bus.store.get(await bus.publish("order.placed"))

        assert (event.status, event.dlq_at) == (EventStatus.DONE, None)


class TestLog:
    async def test_each_failed_attempt_including_the_last_logs_one_warning(
        self, make_bus: MakeBus, caplog: pytest.LogCaptureFixture
    ) -> None:
        """With all of its fields; the last one waits for nothing."""
        bus = make_bus(retry=RetryPolicy(max_retries=2, base_delay=0.5))
        bus.subscribe("user.*", FlakyHandler())
        subscription_id = bus.subscribe("order.*", FlakyHandler(ALWAYS))
        event_id = await bus.publish("order.placed")
        warnings = [record.__dict__ for record in caplog.records if record.levelno == logging.WARNING]
        fields = ("event_id", "event_type", "subscription_id", "attempt", "max_attempts", "delay_ms", "error")

        assert [tuple(warning[field] for field in fields) for warning in warnings] == [
            (event_id, "order.placed", subscription_id, 1, 3, 500, "ValueError: boom 1"),
            (event_id, "order.placed", subscription_id, 2, 3, 1000, "ValueError: boom 2"),
            (event_id, "order.placed", subscription_id, 3, 3, 0, "ValueError: boom 3"),
        ]

    async def test_the_delay_that_is_logged_is_the_one_that_is_waited(
        self, make_bus: MakeBus, clock: ManualClock, caplog: pytest.LogCaptureFixture
    ) -> None:
        """Jitter included."""
        bus = make_bus(retry=RetryPolicy(max_retries=1, base_delay=2.0), noise=lambda: 0.5)
        bus.subscribe(FlakyHandler(ALWAYS))
        await bus.publish("order.placed")
        logged = [
            record.__dict__["delay_ms"] for record in caplog.records if record.levelno == logging.WARNING
        ]

        assert logged == [2100, 0]
        assert clock.sleeps == pytest.approx([2.1])

    async def test_success_logs_no_warning(self, make_bus: MakeBus, caplog: pytest.LogCaptureFixture) -> None:
        """Nobody is warned of what went well."""
        bus = make_bus()
        bus.subscribe(FlakyHandler())
        await bus.publish("order.placed")

        assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []
