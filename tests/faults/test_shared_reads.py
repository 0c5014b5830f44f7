"""Subscribers at the head of the log cost one read together, and nobody pays for somebody else."""

import asyncio
from typing import Any

import pytest

from postbus import Event, PgEventBus, ReliableDeliveryConfig
from postbus.events import LogPage, LogPosition
from postbus.ports import WantedEvents
from tests.faults.steps import until_live
from tests.gaps.steps import Seen, soon

SUBSCRIBERS = 20


class Reads:
    """Counts what a bus reads from its log, and how many events that were."""

    def __init__(self, bus: PgEventBus, monkeypatch: pytest.MonkeyPatch) -> None:
        self.pages: list[tuple[LogPosition, LogPage]] = []
        self._read = bus.store.log.read
        monkeypatch.setattr(bus.store.log, "read", self._note)

    async def _note(
        self, after: LogPosition, limit: int, wanted: WantedEvents | None, **options: Any
    ) -> LogPage:
        page = await self._read(after, limit, wanted, **options)
        self.pages.append((after, page))
        return page

    @property
    def count(self) -> int:
        """How many reads."""
        return len(self.pages)

    @property
    def event_count(self) -> int:
        """How many events they returned."""
        return sum(len(page.events) for _, page in self.pages)


def make_bus(dsn: str, **settings: Any) -> PgEventBus:
    """It is woken by notifications only."""
    return PgEventBus(dsn, config=ReliableDeliveryConfig(poll_interval=600.0, **settings))


def subscribe(bus: PgEventBus, count: int) -> list[Seen]:
    """So many subscribers to everything."""
    all_seen = [Seen() for _ in range(count)]
    for number, seen in enumerate(all_seen):
        bus.subscribe("*", seen, id=f"subscriber-{number}")
    return all_seen


async def test_subscribers_at_the_head_cost_one_read_together(
    postgres_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For each event one read, and not twenty."""
    bus = make_bus(postgres_dsn)
    all_seen = subscribe(bus, SUBSCRIBERS)
    event_count = 30
    async with bus:
        await until_live(bus, *[f"subscriber-{number}" for number in range(SUBSCRIBERS)])
        reads = Reads(bus, monkeypatch)
        for number in range(1, event_count + 1):
            await bus.publish("test.done", number)
            await soon(lambda number=number: all(len(seen.events) == number for seen in all_seen))  # type: ignore[misc]
            await bus.idle()

    # One for each, unless a wake-up comes in the middle of a round; alone they would be 600.
    assert reads.count <= 4 * event_count
    assert reads.event_count <= 2 * event_count


async def test_a_burst_is_read_together_too(postgres_dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thousand events at once take a few reads, however many want them."""
    bus = make_bus(postgres_dsn)
    all_seen = subscribe(bus, SUBSCRIBERS)
    async with bus:
        await until_live(bus, *[f"subscriber-{number}" for number in range(SUBSCRIBERS)])
        reads = Reads(bus, monkeypatch)
        await bus.publish_many([("test.done", number) for number in range(1000)])
        await soon(lambda: all(len(seen.events) == 1000 for seen in all_seen), within=60)

    # Everybody alone would read 20,000 events.
    assert reads.event_count <= 5000


async def test_a_handler_that_changes_its_payload_changes_only_its_own_copy(postgres_dsn: str) -> None:
    """What is read once is not shared."""
    bus = make_bus(postgres_dsn)
    payloads: list[Any] = []

    async def change(event: Event) -> None:
        payloads.append([*event.payload["lines"]])
        event.payload["lines"].append("mine")
        event.payload.clear()

    for number in range(SUBSCRIBERS):
        bus.subscribe("*", change, id=f"subscriber-{number}")
    async with bus:
        for number in range(5):
            await bus.publish("order.placed", {"lines": [number]})
        await soon(lambda: len(payloads) == 5 * SUBSCRIBERS)

    assert sorted(payloads) == sorted([[number] for number in range(5)] * SUBSCRIBERS)


async def test_a_subscriber_that_stands_still_does_not_delay_the_others(postgres_dsn: str) -> None:
    """They get everything while it is still at its first event."""
    bus, released, held = make_bus(postgres_dsn), asyncio.Event(), list[object]()
    all_seen = subscribe(bus, 3)

    @bus.on("*", id="slow")
    async def wait(event: Event) -> None:
        held.append(event.payload)
        await released.wait()

    async with bus:
        for number in range(200):
            await bus.publish("test.done", number)
        await soon(lambda: all(len(seen.events) == 200 for seen in all_seen), within=30)

        assert held == [0]

        released.set()
        await soon(lambda: held == list(range(200)), within=30)


async def test_a_subscriber_that_lags_behind_costs_the_others_no_read(
    postgres_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It reads the old events for itself; at the head nobody reads any of them."""
    backlog = 3000
    first = make_bus(postgres_dsn)
    all_seen = subscribe(first, 3)
    async with first:
        await first.publish_many([("test.done", number) for number in range(backlog)])
        await soon(lambda: all(len(seen.events) == backlog for seen in all_seen), within=60)
        await until_live(first, *[f"subscriber-{number}" for number in range(3)])
        for number in range(3):
            await first.subscription(f"subscriber-{number}").caught_up(timeout=30)
    bus = make_bus(postgres_dsn)
    all_seen = subscribe(bus, 3)
    released = asyncio.Event()

    @bus.on("*", id="new")
    async def wait(_: Event) -> None:
        await released.wait()

    reads = Reads(bus, monkeypatch)
    async with bus:
        for number in range(20):
            await bus.publish("test.done", number)
        await soon(lambda: all(len(seen.events) == 20 for seen in all_seen))
        released.set()
        await bus.subscription("new").caught_up(timeout=60)

    old = [page for after, page in reads.pages if after.head < backlog]
    assert sum(len(page.events) for page in old) <= backlog + 20


async def test_type_filters_reach_the_database(postgres_dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One of a thousand types: no other event is brought over, however many there are."""
    async with PgEventBus(postgres_dsn) as other:
        for start in range(0, 20_000, 5_000):
            await other.publish_many(
                [(f"type.t{number % 1000}", number) for number in range(start, start + 5000)]
            )
    bus, seen = make_bus(postgres_dsn), Seen()
    bus.subscribe("type.t7", seen, id="one")
    reads = Reads(bus, monkeypatch)
    async with bus:
        await bus.subscription("one").caught_up(timeout=30)

    assert [event.payload for event in seen.events] == list(range(7, 20_000, 1000))
    assert reads.event_count == 20
    # The unwanted ones are looked through in slices.
    assert reads.count <= 20
