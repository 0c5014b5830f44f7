"""Counters: what happened to the events of each type."""

from postbus import RetryCounters, RetryPolicy
from tests.delivery.steps import ALWAYS, FlakyHandler, MakeBus, soon


async def test_they_tell_events_retries_saved_ones_and_dead_letters_apart(make_bus: MakeBus) -> None:
    """Three types: one always well, one saved by its second retry, one lost."""
    bus = make_bus(retry=RetryPolicy(max_retries=2))
    bus.subscribe("order.well", FlakyHandler())
    bus.subscribe("order.saved", FlakyHandler(2))
    bus.subscribe("order.lost", FlakyHandler(ALWAYS))
    for type in ("order.well", "order.well", "order.saved", "order.lost"):
        await bus.publish(type)

    assert bus.counters == {
        "order.well": RetryCounters(event_count=2),
        "order.saved": RetryCounters(event_count=1, retry_count=2, success_after_retry_count=1),
        "order.lost": RetryCounters(event_count=1, retry_count=2, dead_letter_count=1),
    }


async def test_they_count_what_nobody_waits_for(make_bus: MakeBus) -> None:
    """The same as for those who wait."""
    bus = make_bus()
    bus.subscribe(FlakyHandler(1))
    await bus.publish("order.placed", wait=False)
    await soon(bus.idle())

    assert bus.counters == {
        "order.placed": RetryCounters(event_count=1, retry_count=1, success_after_retry_count=1)
    }


async def test_what_was_read_does_not_change(make_bus: MakeBus) -> None:
    """A snapshot of that moment."""
    bus = make_bus()
    bus.subscribe(FlakyHandler())
    await bus.publish("order.placed")
    before = bus.counters
    await bus.publish("order.placed")

    assert (before["order.placed"].event_count, bus.counters["order.placed"].event_count) == (1, 2)


async def test_any_number_of_types_takes_bounded_memory(make_bus: MakeBus) -> None:
    """Beyond a thousand they share one counter, and none is lost."""
    bus = make_bus()
    bus.subscribe(FlakyHandler())
    await bus.publish_many([(f"order.{number}.shipped", number) for number in range(1200)])

    assert len(bus.counters) <= 1001
    assert sum(counters.event_count for counters in bus.counters.values()) == 1200


async def test_they_begin_anew_with_each_bus(make_bus: MakeBus) -> None:
    """They are kept in memory."""
    first = make_bus()
    first.subscribe(FlakyHandler())
    await first.publish("order.placed")
    await first.shutdown()

    assert make_bus().counters == {}
