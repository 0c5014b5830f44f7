"""Where a subscriber begins that has no checkpoint yet."""

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from postbus import EventBus, InvalidConfigError
from postbus.testing import ManualClock
from tests.delivery.steps import FlakyHandler, soon
from tests.durable.steps import ID, MakeBus, position_of, publish_numbers


async def started_after(bus: EventBus, *numbers: int) -> EventBus:
    """A running bus with these events in its log."""
    await bus.start()
    await publish_numbers(bus, *numbers)
    return bus


@pytest.mark.parametrize(
    ("start_from", "expected"),
    [("beginning", [1, 2, 3, 4]), ("now", [4]), (0, [1, 2, 3, 4]), (2, [3, 4]), (3, [4])],
)
async def test_the_first_event_is_the_one_after_the_start(
    make_bus: MakeBus, start_from: Any, expected: list[int]
) -> None:
    """Of three events and one that is published after the subscriber is live."""
    bus, handler = await started_after(make_bus(), 1, 2, 3), FlakyHandler()
    bus.subscribe("*", handler, id=ID, start_from=start_from)
    await soon(bus.subscription(ID).caught_up())
    await publish_numbers(bus, 4)
    await soon(bus.idle())

    assert handler.payloads == expected


async def test_the_beginning_is_the_default(make_bus: MakeBus) -> None:
    bus, handler = await started_after(make_bus(), 1, 2), FlakyHandler()
    bus.subscribe("*", handler, id=ID)
    await soon(bus.idle())

    assert handler.payloads == [1, 2]


async def test_a_start_beyond_the_end_waits_for_that_event(make_bus: MakeBus) -> None:
    """Events up to that number are not delivered."""
    bus, handler = await started_after(make_bus(), 1, 2), FlakyHandler()
    bus.subscribe("*", handler, id=ID, start_from=4)
    await publish_numbers(bus, 3, 4, 5)
    await soon(bus.subscription(ID).wait_for(5))

    assert handler.payloads == [5]


async def test_what_is_published_right_after_subscribing_from_now_on_is_delivered(make_bus: MakeBus) -> None:
    """Now is the moment of the subscription, not that of the first turn of its loop."""
    bus, handler = await started_after(make_bus(), 1, 2), FlakyHandler()
    bus.subscribe("*", handler, id=ID, start_from="now")
    await publish_numbers(bus, 3)
    await soon(bus.subscription(ID).caught_up())

    assert handler.payloads == [3]


async def test_subscribing_from_now_on_before_the_start_means_from_the_start_on(make_bus: MakeBus) -> None:
    first = await started_after(make_bus(), 1)
    await first.shutdown()
    bus, handler = make_bus(), FlakyHandler()
    bus.subscribe("*", handler, id=ID, start_from="now")
    await bus.start()
    await publish_numbers(bus, 2)
    await soon(bus.subscription(ID).caught_up())

    assert handler.payloads == [2]


@pytest.mark.parametrize(
    ("moment", "expected"),
    [
        (datetime(2000, 1, 1, tzinfo=UTC), [1, 2, 3]),
        (datetime(2026, 1, 1, 0, 1, tzinfo=UTC), [2, 3]),
        (datetime(2026, 1, 1, 1, 1, 30, tzinfo=timezone(timedelta(hours=1))), [3]),
        (datetime(2026, 1, 1, 0, 2, 0, 1, tzinfo=UTC), []),
        (datetime(3000, 1, 1, tzinfo=UTC), []),
    ],
)
async def test_a_moment_means_what_was_published_then_or_later(
    make_bus: MakeBus, clock: ManualClock, moment: datetime, expected: list[int]
) -> None:
    """One event a minute; the zone of the moment does not matter."""
    bus, handler = make_bus(), FlakyHandler()
    for number in (1, 2, 3):
        await publish_numbers(bus, number)
        await clock.advance(60)
    bus.subscribe("*", handler, id=ID, start_from=moment)
    await soon(bus.subscription(ID).caught_up())

    assert handler.payloads == expected


@pytest.mark.parametrize("start_from", ["beginning", "now", 0, datetime(2000, 1, 1, tzinfo=UTC)])
async def test_a_checkpoint_counts_more_than_any_start(make_bus: MakeBus, start_from: Any) -> None:
    """A restart with another start_from neither repeats nor skips anything."""
    first = make_bus()
    first.subscribe("*", FlakyHandler(), id=ID, start_from=1)
    await publish_numbers(first, 1, 2)
    await soon(first.idle())
    await first.shutdown()
    between = await started_after(make_bus(), 3)
    await between.shutdown()
    second, handler = make_bus(), FlakyHandler()
    second.subscribe("*", handler, id=ID, start_from=start_from)
    await second.start()
    await soon(second.subscription(ID).caught_up())

    assert handler.payloads == [3]


async def test_a_start_is_kept_though_nothing_was_processed(make_bus: MakeBus) -> None:
    """Now means the first start: what came while the bus was down is delivered."""
    first = await started_after(make_bus(), 1)
    first.subscribe("*", FlakyHandler(), id=ID, start_from="now")
    await soon(first.subscription(ID).caught_up())
    assert await position_of(first) == 1
    await first.shutdown()
    between = await started_after(make_bus(), 2)
    await between.shutdown()
    second, handler = make_bus(), FlakyHandler()
    second.subscribe("*", handler, id=ID, start_from="now")
    await second.start()
    await soon(second.subscription(ID).caught_up())

    assert handler.payloads == [2]


# Before the first and after the last moment that UTC has a name for.
TOO_EARLY = datetime.min.replace(tzinfo=timezone(timedelta(hours=1)))
TOO_LATE = datetime.max.replace(tzinfo=timezone(timedelta(hours=-1)))


@pytest.mark.parametrize(
    "start_from",
    [
        "end",
        "",
        "NOW",
        -1,
        2**63,
        2**70,
        True,
        1.5,
        None,
        datetime(2026, 1, 1),
        TOO_EARLY,
        TOO_LATE,
        b"now",
        (),
    ],
)
def test_anything_else_is_refused(make_bus: MakeBus, start_from: Any) -> None:
    """With what was found and what is expected; nothing is subscribed."""
    bus = make_bus()
    with pytest.raises(InvalidConfigError, match='"beginning", "now", a global sequence of 0 or more'):
        bus.subscribe("*", FlakyHandler(), id=ID, start_from=start_from)
    bus.subscribe("*", FlakyHandler(), id=ID)


@pytest.mark.parametrize(
    ("start_from", "expected"),
    [
        (datetime.min.replace(tzinfo=UTC), [1, 2]),
        (datetime(383, 1, 1, tzinfo=UTC), [1, 2]),
        (datetime.max.replace(tzinfo=UTC), [2]),
        (2**63 - 1, []),
    ],
)
async def test_the_ends_of_the_calendar_and_of_the_numbers(
    make_bus: MakeBus, start_from: Any, expected: list[int]
) -> None:
    """Of one event and one that is published after the subscriber is live."""
    bus, handler = await started_after(make_bus(), 1), FlakyHandler()
    bus.subscribe("*", handler, id=ID, start_from=start_from)
    await soon(bus.subscription(ID).caught_up())
    await publish_numbers(bus, 2)
    await soon(bus.idle())

    assert handler.payloads == expected


def test_without_an_id_there_is_no_place_to_start_from(make_bus: MakeBus) -> None:
    with pytest.raises(InvalidConfigError, match="an id with it"):
        make_bus().subscribe("*", FlakyHandler(), start_from="now")
