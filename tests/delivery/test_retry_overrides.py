"""Retry overrides: of one subscription, and of several that share an event."""

import pytest

from postbus import EventStatus, RetryPolicy
from postbus.testing import ManualClock
from tests.delivery.steps import ALWAYS, FlakyHandler, MakeBus


class TestOneSubscription:
    async def test_a_whole_policy_replaces_that_of_the_bus(
        self, make_bus: MakeBus, clock: ManualClock
    ) -> None:
        """None of the bus's own settings is left."""
        bus = make_bus(retry=RetryPolicy(max_retries=9, base_delay=9.0))
        bus.subscribe(FlakyHandler(ALWAYS), retry=RetryPolicy(max_retries=2))
        await bus.publish("order.placed")

        assert clock.sleeps == [1.0, 2.0]

    async def test_a_dict_replaces_only_its_fields(self, make_bus: MakeBus, clock: ManualClock) -> None:
        """The others are the bus's own."""
        bus = make_bus(retry=RetryPolicy(max_retries=2, base_delay=9.0))
        bus.subscribe(FlakyHandler(ALWAYS), retry={"backoff_multiplier": 1.0})
        await bus.publish("order.placed")

        assert clock.sleeps == [9.0, 9.0]

    async def test_it_counts_for_its_own_events_only(self, make_bus: MakeBus) -> None:
        """Others have what the bus has."""
        bus = make_bus(retry=RetryPolicy(max_retries=1))
        patient, impatient = FlakyHandler(ALWAYS), FlakyHandler(ALWAYS)
        bus.subscribe("order.*", patient, retry={"max_retries": 2})
        bus.subscribe("user.*", impatient)
        await bus.publish("order.placed")
        await bus.publish("user.created")

        assert (len(patient.events), len(impatient.events)) == (3, 2)

    async def test_no_retries_at_all(self, make_bus: MakeBus, clock: ManualClock) -> None:
        """max_retries=0: one attempt, no delay."""
        bus, handler = make_bus(), FlakyHandler(ALWAYS)
        bus.subscribe(handler, retry={"max_retries": 0})
        event = await bus.store.get(await bus.publish("order.placed"))

        assert (len(handler.events), clock.sleeps, event.status) == (1, [], EventStatus.DLQ)

    async def test_retries_without_a_delay(self, make_bus: MakeBus, clock: ManualClock) -> None:
        """base_delay=0 stays 0 however often it is multiplied."""
        bus, handler = make_bus(), FlakyHandler(2)
        bus.subscribe(handler, retry={"base_delay": 0.0})
        await bus.publish("order.placed")

        assert (len(handler.events), clock.monotonic()) == (3, 0.0)


class TestSeveralSubscriptions:
    """The most permissive setting wins, field by field, whichever of the two fails."""

    @pytest.mark.parametrize("is_swapped", [False, True])
    async def test_the_most_permissive_wins(
        self, make_bus: MakeBus, clock: ManualClock, is_swapped: bool
    ) -> None:
        """Largest retries, smallest base, largest multiplier, largest limit."""
        bus = make_bus()
        overrides = [
            {"max_retries": 3, "base_delay": 8.0, "backoff_multiplier": 10.0, "max_delay": 50.0},
            {"max_retries": 1, "base_delay": 2.0, "backoff_multiplier": 1.0, "max_delay": 100.0},
        ]
        first, second = reversed(overrides) if is_swapped else overrides
        bus.subscribe("order.*", FlakyHandler(ALWAYS), retry=first)
        bus.subscribe("*", FlakyHandler(), retry=second)
        await bus.publish("order.placed")

        assert clock.sleeps == [2.0, 20.0, 100.0]

    async def test_one_without_an_override_takes_part_with_the_bus_own(
        self, make_bus: MakeBus, clock: ManualClock
    ) -> None:
        """An override can't take retries away from the others."""
        bus = make_bus(retry=RetryPolicy(max_retries=2))
        bus.subscribe(FlakyHandler(ALWAYS))
        bus.subscribe(FlakyHandler(), retry={"max_retries": 0, "base_delay": 5.0})
        await bus.publish("order.placed")

        assert clock.sleeps == [1.0, 2.0]

    async def test_one_that_does_not_match_takes_no_part(self, make_bus: MakeBus) -> None:
        """Only those that the event has."""
        bus, handler = make_bus(), FlakyHandler(ALWAYS)
        bus.subscribe("order.*", handler, retry={"max_retries": 1})
        bus.subscribe("user.*", FlakyHandler(), retry={"max_retries": 50})
        await bus.publish("order.placed")

        assert len(handler.events) == 2

    async def test_one_that_joins_later_takes_part_from_then_on(self, make_bus: MakeBus) -> None:
        """Routes are found anew after each subscription."""
        bus, handler = make_bus(), FlakyHandler(ALWAYS)
        bus.subscribe("order.*", handler, retry={"max_retries": 0})
        await bus.publish("order.placed")
        before = len(handler.events)
        bus.subscribe("*", FlakyHandler(), retry={"max_retries": 1})
        await bus.publish("order.placed")

        assert (before, len(handler.events)) == (1, 3)
