"""Pending events that no handler matches are read once, however many they are, until there is one."""

import asyncio
import sqlite3
from collections.abc import Awaitable, Callable, Collection
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from postbus import DLQInspector, Event, EventBus, EventStatus, InMemoryStore, RetryPolicy, SQLiteStore
from postbus.errors import StoreBusyError
from postbus.events import GlobalSequence
from postbus.ports import Backlog, EventQueue, Store
from postbus.testing import ManualClock
from tests.contracts.steps import add, add_dead_letter, make_draft
from tests.delivery.steps import (
    ALWAYS,
    BlockingHandler,
    FlakyHandler,
    MakeBus,
    leave_behind,
    soon,
    start,
    until,
)

ONE_ATTEMPT = RetryPolicy(max_retries=0)
# More than are read at a time, and than are read anew each time.
MANY = 1_000


class CountingBacklog:
    """The backlog of a real store; knows which events it has handed out, and may be busy."""

    def __init__(self, real: Backlog) -> None:
        self._real = real
        self.read_types: list[str] = []
        self.most_left_out = self.busy_count = 0
        self.on_counted: Callable[[], Awaitable[object]] | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    async def pending(self, after: GlobalSequence, limit: int, without: Collection[str] = ()) -> list[Event]:
        self.most_left_out = max(self.most_left_out, len(without))
        if self.busy_count:
            self.busy_count -= 1
            raise StoreBusyError("another process holds the file")
        events: list[Event] = await self._real.pending(after, limit, without)
        self.read_types += [event.type for event in events]
        return events

    async def pending_count(self, up_to: GlobalSequence) -> int:
        count: int = await self._real.pending_count(up_to)
        on_counted, self.on_counted = self.on_counted, None
        if on_counted is not None:
            await on_counted()
        return count

    @property
    def unwanted_count(self) -> int:
        """How many events it has handed out that only mean to be in the way."""
        return sum(event_type.startswith("nobody") for event_type in self.read_types)


class SlowQueue:
    """The queue of a real store; tells late that it has buried something."""

    def __init__(self, real: EventQueue) -> None:
        self._real = real
        self.is_written, self.may_go_on = asyncio.Event(), asyncio.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    async def bury(self, sequence: GlobalSequence, retry_count: int, last_error: str | None) -> None:
        await self._real.bury(sequence, retry_count, last_error)
        self.is_written.set()
        await self.may_go_on.wait()


@pytest.fixture(params=["sqlite", "memory"])
async def store(request: pytest.FixtureRequest, database: Path) -> Store:
    """Closed by the bus that is made on it."""
    store: Store = SQLiteStore(database) if request.param == "sqlite" else InMemoryStore()
    await store.open()
    return store


@pytest.fixture
def backlog(store: Store) -> CountingBacklog:
    """That of the store, for the bus that is made on it."""
    counting = CountingBacklog(store.backlog)
    store.backlog = counting  # type: ignore[misc]
    return counting


async def add_unwanted(store: Store, count: int = MANY, event_type: str = "nobody.cares") -> None:
    """As a process leaves them that has no handlers."""
    drafts = [
        make_draft(event_type.format(number), number, status=EventStatus.PENDING) for number in range(count)
    ]
    await add(store, *drafts)


async def start_among_many(make_bus: MakeBus, store: Store, handler: FlakyHandler) -> EventBus:
    """A bus that has passed many events, and has looked back once to be sure."""
    await add_unwanted(store)
    bus = make_bus(target=store, retry=ONE_ATTEMPT)
    bus.subscribe("order.*", handler)
    await bus.start()
    await soon(bus.idle())
    await bus.publish("order.placed", "first", wait=False)
    await until(lambda: bool(handler.events))
    await soon(bus.idle())
    return bus


async def until_checked(bus: EventBus, backlog: CountingBacklog) -> None:
    """Have the lane look twice more: it does not ask each time whether somebody has retried something."""
    for _ in range(2):
        before = len(backlog.read_types)
        await bus.publish("order.placed", "another", wait=False)
        await until(lambda before=before: len(backlog.read_types) > before)  # type: ignore[misc]
        await soon(bus.idle())


class TestReading:
    async def test_what_nobody_wants_is_read_once(
        self, make_bus: MakeBus, store: Store, backlog: CountingBacklog
    ) -> None:
        """However often something is published that somebody wants."""
        handler = FlakyHandler()
        bus = await start_among_many(make_bus, store, handler)
        for number in range(10):
            await bus.publish("order.placed", number, wait=False)
            await until(lambda number=number: handler.payloads[-1] == number)  # type: ignore[misc]

        assert backlog.unwanted_count == MANY
        assert handler.payloads == ["first", *range(10)]

    async def test_what_comes_meanwhile_is_read_once_too(
        self, make_bus: MakeBus, store: Store, backlog: CountingBacklog
    ) -> None:
        """Each time only the new ones."""
        handler = FlakyHandler()
        bus = await start_among_many(make_bus, store, handler)
        for number in range(5):
            await add_unwanted(store, 300)
            await bus.publish("order.placed", number, wait=False)
            await until(lambda number=number: handler.payloads[-1] == number)  # type: ignore[misc]
        await soon(bus.idle())

        assert backlog.unwanted_count == MANY + 5 * 300

    async def test_any_number_of_types_is_read_once_and_once_more_when_something_was_set_back(
        self, make_bus: MakeBus, store: Store, backlog: CountingBacklog
    ) -> None:
        """Those with ids inside: the memory keeps some of them."""
        handler = FlakyHandler()
        await add_dead_letter(store, make_draft(id="dead", payload="dead"))
        await add_unwanted(store, 2 * MANY, "nobody.cares.{}")
        bus = await start_among_many(make_bus, store, handler)
        assert backlog.unwanted_count == 3 * MANY
        await bus.dlq.retry("dead")
        await soon(bus.idle())

        assert handler.payloads[-1] == "dead"
        assert backlog.most_left_out == 500
        assert backlog.unwanted_count == 3 * MANY + 3 * MANY - 500

    async def test_a_dead_letter_that_is_made_has_nothing_read_again(
        self, make_bus: MakeBus, store: Store, backlog: CountingBacklog
    ) -> None:
        """Failing handlers are no reason to look back."""
        handler = FlakyHandler()
        bus = await start_among_many(make_bus, store, handler)
        handler.failure_count = ALWAYS
        looked_back = backlog.read_types.count("order.placed")
        for _ in range(5):
            await bus.publish("order.placed", wait=False)
            await until_checked(bus, backlog)

        assert backlog.unwanted_count == MANY
        assert backlog.read_types.count("order.placed") == looked_back + 15

    async def test_what_has_no_place_is_read_again_when_there_is_one(
        self, make_bus: MakeBus, store: Store, backlog: CountingBacklog
    ) -> None:
        """Not with everything else that comes, and then no further than there are places."""
        clock, fine, count = ManualClock(), FlakyHandler(), 10 * MANY
        bus = make_bus(target=store, clock=clock, retry=RetryPolicy(base_delay=60.0))
        sent, failed = set[object](), set[object]()

        @bus.on("mail.*")
        async def send(event: Event) -> None:
            # Every second one: more would open the circuit breaker.
            if event.payload % 2 and event.payload not in failed:
                failed.add(event.payload)
                raise ConnectionError("the mail server is busy")
            sent.add(event.payload)

        bus.subscribe("order.*", fine)
        await add_unwanted(store, count, "mail.queued")
        await bus.start()
        for number in range(20):
            await bus.publish("order.placed", number, wait=False)
            await until(lambda number=number: fine.payloads[-1:] == [number])  # type: ignore[misc]
        read_before = len(backlog.read_types)

        async def go_on() -> None:
            while len(sent) < count:
                await clock.advance(60.0)

        await soon(go_on())

        assert read_before <= count + 100
        assert len(backlog.read_types) <= 3 * count


class TestRetrying:
    async def test_a_retried_dead_letter_is_found_below_them(
        self, make_bus: MakeBus, store: Store, backlog: CountingBacklog
    ) -> None:
        """And of those that nobody wants none is read again for that."""
        await add_dead_letter(store, make_draft(id="dead", payload="dead"))
        handler = FlakyHandler()
        bus = await start_among_many(make_bus, store, handler)
        await bus.dlq.retry("dead")
        await until(lambda: "dead" in handler.payloads)
        await soon(bus.idle())

        assert (await store.get("dead")).status is EventStatus.DONE
        assert backlog.unwanted_count == MANY

    async def test_each_of_several_retries_is_found(
        self, make_bus: MakeBus, store: Store, backlog: CountingBacklog
    ) -> None:
        """Also those that come while it looks back."""
        for number in range(20):
            await add_dead_letter(store, make_draft(id=f"dead-{number}", payload=f"dead-{number}"))
        handler = FlakyHandler()
        bus = await start_among_many(make_bus, store, handler)
        for number in range(20):
            await bus.dlq.retry(f"dead-{number}")
        await until(lambda: len(handler.events) == 21)

        assert sorted(map(str, handler.payloads[1:])) == sorted(f"dead-{number}" for number in range(20))
        assert backlog.unwanted_count == MANY

    async def test_it_is_found_although_another_one_dies_at_the_same_time(
        self, make_bus: MakeBus, store: Store, backlog: CountingBacklog
    ) -> None:
        """When as many come as go, their number stays as it is."""
        for number in range(5):
            await add_dead_letter(store, make_draft(id=f"dead-{number}", payload=f"dead-{number}"))
        handler, failing = FlakyHandler(), FlakyHandler(ALWAYS)
        bus = await start_among_many(make_bus, store, handler)
        bus.subscribe("bill.*", failing)
        await soon(bus.idle())
        await until_checked(bus, backlog)
        for number in range(5):
            # It returns when the event is a dead letter, and does not wake the lane.
            await bus.publish("bill.sent")
            await store.dead_letters.revive(f"dead-{number}")
            await until(lambda number=number: f"dead-{number}" in handler.payloads)  # type: ignore[misc]

        assert len(failing.events) == 5

    async def test_it_is_found_although_another_burial_has_not_ended(
        self, make_bus: MakeBus, store: Store, backlog: CountingBacklog
    ) -> None:
        """What is made meanwhile says nothing of what has left."""
        await add_dead_letter(store, make_draft(id="dead", payload="dead"))
        slow = SlowQueue(store.queue)
        store.queue = slow  # type: ignore[misc]
        handler = FlakyHandler()
        bus = await start_among_many(make_bus, store, handler)
        bus.subscribe("bill.*", FlakyHandler(ALWAYS))
        await soon(bus.idle())
        await until_checked(bus, backlog)
        publishing = start(bus.publish("bill.sent"))
        await soon(slow.is_written.wait())
        await store.dead_letters.revive("dead")
        await until(lambda: "dead" in handler.payloads)
        slow.may_go_on.set()
        await soon(publishing)

        assert handler.payloads == ["first", "another", "another", "dead"]

    async def test_it_is_found_although_another_one_died_while_they_were_counted(
        self, make_bus: MakeBus, store: Store, backlog: CountingBacklog
    ) -> None:
        """What came after counting must not stand for one that goes later."""
        await add_dead_letter(store, make_draft(id="dead", payload="dead"))
        handler, failing = FlakyHandler(), FlakyHandler(ALWAYS)
        bus = await start_among_many(make_bus, store, handler)
        bus.subscribe("bill.*", failing)
        await soon(bus.idle())
        await until_checked(bus, backlog)
        backlog.on_counted = lambda: bus.publish("bill.sent")
        await until_checked(bus, backlog)
        await until_checked(bus, backlog)
        await store.dead_letters.revive("dead")
        await until(lambda: "dead" in handler.payloads)

        assert len(failing.events) == 1

    async def test_it_is_found_although_its_type_was_not_wanted_once(
        self, make_bus: MakeBus, store: Store, backlog: CountingBacklog
    ) -> None:
        """What is left out is what nobody wants now."""
        bus = await start_among_many(make_bus, store, FlakyHandler())
        late = FlakyHandler()
        bus.subscribe("nobody.cares", late)
        await until(lambda: len(late.events) == MANY)
        late.failure_count = ALWAYS
        dead = await bus.publish("nobody.cares", "dead")
        late.failure_count = 0
        await add_unwanted(store, MANY, "nobody.else")
        await until_checked(bus, backlog)
        await bus.dlq.retry(dead)
        await until(lambda: len(late.events) == MANY + 2)

        assert late.payloads[-2:] == ["dead", "dead"]

    async def test_it_is_found_by_the_next_look_if_the_store_was_busy(
        self, make_bus: MakeBus, store: Store, backlog: CountingBacklog
    ) -> None:
        """What was counted and not read counts for nothing."""
        await add_dead_letter(store, make_draft(id="dead", payload="dead"))
        handler = FlakyHandler()
        bus = await start_among_many(make_bus, store, handler)
        backlog.busy_count = 2
        await bus.dlq.retry("dead")
        await until(lambda: "dead" in handler.payloads)

        assert backlog.busy_count == 0

    async def test_one_that_nobody_wants_stays_pending(
        self, make_bus: MakeBus, store: Store, backlog: CountingBacklog
    ) -> None:
        """Until there is a handler for it."""
        await add_dead_letter(store, make_draft("nobody.wants.this", id="dead", payload="dead"))
        bus = await start_among_many(make_bus, store, FlakyHandler())
        await bus.dlq.retry("dead")
        await until_checked(bus, backlog)
        status = (await store.get("dead")).status
        late = FlakyHandler()
        bus.subscribe("nobody.wants.this", late)
        await soon(bus.idle())

        assert status is EventStatus.PENDING
        assert late.payloads == ["dead"]


@pytest.mark.parametrize("count", [150, MANY])
async def test_who_retries_and_waits_finds_it_done(make_bus: MakeBus, store: Store, count: int) -> None:
    """However often: idle() waits for a look that is still owed."""
    for number in range(20):
        await add_dead_letter(store, make_draft(id=f"dead-{number}", payload=number))
    await add_unwanted(store, count)
    handler = FlakyHandler()
    bus = make_bus(target=store)
    bus.subscribe("order.*", handler)
    await bus.start()
    await soon(bus.idle())
    for number in range(20):
        await bus.dlq.retry(f"dead-{number}")
        await soon(bus.idle())
        assert handler.payloads == [*range(number + 1)]


async def test_who_waits_waits_for_a_look_that_is_owed(
    make_bus: MakeBus, store: Store, backlog: CountingBacklog
) -> None:
    """Looking back takes a tenth of the time at most: where it takes long, the next one comes later."""
    clock, handler = ManualClock(), FlakyHandler()
    await add_dead_letter(store, make_draft(id="dead", payload="dead"))
    await add_unwanted(store)
    bus = make_bus(target=store, clock=clock)
    bus.subscribe("order.*", handler)
    await bus.start()
    await soon(bus.idle())
    backlog.on_counted = lambda: clock.advance(1.0)
    await bus.publish("order.placed", "first", wait=False)
    await soon(bus.idle())
    await bus.dlq.retry("dead")
    waiting = start(bus.idle())
    await until(lambda: bus._lane._is_look_owed)
    seen_before, was_waiting = list(handler.payloads), not waiting.done()
    await clock.advance(10.0)
    await soon(waiting)

    assert (seen_before, was_waiting) == (["first"], True)
    assert handler.payloads == ["first", "dead"]


async def test_what_is_set_back_by_sql_is_found(database: Path, make_bus: MakeBus) -> None:
    """Somebody may want an event once more that is done, again and again."""
    store = SQLiteStore(database)
    await store.open()
    handler = FlakyHandler()
    await start_among_many(make_bus, store, handler)
    for count in range(2, 5):
        with closing(sqlite3.connect(database)) as connection, connection:
            connection.execute("UPDATE events SET status = 'pending' WHERE type = 'order.placed'")
        await until(lambda count=count: len(handler.events) == count)  # type: ignore[misc]

    assert handler.payloads == ["first"] * 4


async def test_another_process_may_retry_it(database: Path, make_bus: MakeBus) -> None:
    """The command line does so, through a store of its own."""
    store = SQLiteStore(database)
    await store.open()
    await add_dead_letter(store, make_draft(id="dead", payload="dead"))
    handler = FlakyHandler()
    await start_among_many(make_bus, store, handler)
    async with SQLiteStore(database) as another:
        await DLQInspector(another).retry("dead")
    await until(lambda: "dead" in handler.payloads)

    assert handler.payloads == ["first", "dead"]


async def test_dead_letters_may_come_from_elsewhere(database: Path, make_bus: MakeBus) -> None:
    """Whoever makes some by hand hides none that go later."""
    store = SQLiteStore(database)
    await store.open()
    await add_dead_letter(store, make_draft(id="dead", payload="dead"))
    backlog = CountingBacklog(store.backlog)
    store.backlog = backlog  # type: ignore[assignment]
    handler = FlakyHandler()
    bus = await start_among_many(make_bus, store, handler)
    await until_checked(bus, backlog)
    await leave_behind(database, "foreign", "dlq")
    await until_checked(bus, backlog)
    await bus.dlq.retry("dead")
    await until(lambda: "dead" in handler.payloads)

    assert (await bus.dlq.list()).total == 1


async def test_another_process_may_publish_what_is_wanted_among_what_is_not(
    database: Path, make_bus: MakeBus
) -> None:
    """In the order of its publishing, to the last one."""
    handler = FlakyHandler()
    store = SQLiteStore(database)
    await store.open()
    await start_among_many(make_bus, store, handler)
    publisher = make_bus()
    for number in range(30):
        await publisher.publish_many([("nobody.cares", number)] * 20 + [("order.placed", number)])
    await until(lambda: len(handler.events) == 31)

    assert handler.payloads == ["first", *range(30)]


class TestLateHandlers:
    async def test_a_late_handler_gets_all_that_was_passed(
        self, make_bus: MakeBus, store: Store, backlog: CountingBacklog
    ) -> None:
        """In the order of their numbers, those before it and those after."""
        bus = await start_among_many(make_bus, store, FlakyHandler())
        await add_unwanted(store, 300)
        await soon(bus.idle())
        late = FlakyHandler()
        bus.subscribe("nobody.*", late)
        await bus.publish("nobody.cares", "new", wait=False)
        await until(lambda: len(late.events) == MANY + 301)

        assert late.payloads == [*range(MANY), *range(300), "new"]

    async def test_it_gets_them_in_order_although_the_lane_is_at_work(
        self, make_bus: MakeBus, store: Store, backlog: CountingBacklog
    ) -> None:
        """What is further on waits until it has got what was passed."""
        await add_unwanted(store)
        bus, busy, late = make_bus(target=store), BlockingHandler(), FlakyHandler()
        bus.subscribe("order.*", busy)
        await add(store, make_draft(status=EventStatus.PENDING))
        # Behind what the lane has read by the time when the handler begins.
        await add_unwanted(store, 600)
        starting = start(bus.start())
        await soon(busy.started.wait())
        bus.subscribe("nobody.*", late)
        busy.released.set()
        await soon(starting)
        await soon(bus.idle())

        assert late.payloads == [*range(MANY), *range(600)]

    async def test_one_that_is_subscribed_again_gets_what_came_meanwhile(
        self, make_bus: MakeBus, store: Store, backlog: CountingBacklog
    ) -> None:
        """Nothing is lost between the two."""
        handler = FlakyHandler()
        bus = await start_among_many(make_bus, store, handler)
        late = FlakyHandler()
        subscription_id = bus.subscribe("nobody.*", late)
        await soon(bus.idle())
        bus.unsubscribe(subscription_id)
        await add_unwanted(store, 300)
        await until_checked(bus, backlog)
        again = FlakyHandler()
        bus.subscribe("nobody.*", again)
        await soon(bus.idle())

        assert (late.payloads, again.payloads) == ([*range(MANY)], [*range(300)])

    async def test_they_are_pending_until_the_user_says_otherwise(
        self, make_bus: MakeBus, store: Store, backlog: CountingBacklog
    ) -> None:
        """settle_unhandled finds what the lane has passed."""
        bus = await start_among_many(make_bus, store, FlakyHandler())
        pending = await backlog.pending(GlobalSequence(0), 2 * MANY)
        settled = await bus.settle_unhandled("nobody.*")

        assert (len(pending), settled) == (MANY, MANY)
        assert await backlog.pending(GlobalSequence(0), 2 * MANY) == []


async def test_who_takes_over_looks_through_all_of_it(database: Path, make_bus: MakeBus) -> None:
    """It has passed none of it, whoever has."""
    store = SQLiteStore(database)
    await store.open()
    bus = await start_among_many(make_bus, store, FlakyHandler())
    standby, handler = make_bus(), FlakyHandler()
    standby.subscribe("nobody.*", handler)
    await standby.start()
    await soon(bus.shutdown())
    await until(lambda: len(handler.events) == MANY)

    assert handler.payloads == [*range(MANY)]


async def test_who_becomes_the_owner_again_does_so_too(make_bus: MakeBus, store: Store) -> None:
    """Handlers may come and go."""
    await add_dead_letter(store, make_draft(id="dead", payload="dead"))
    bus = make_bus(target=store)
    await add_unwanted(store)
    subscription_id = bus.subscribe("order.*", FlakyHandler())
    await bus.start()
    await soon(bus.idle())
    bus.unsubscribe(subscription_id)
    await soon(bus.idle())
    await bus.dlq.retry("dead")
    handler = FlakyHandler()
    bus.subscribe("order.*", handler)
    await until(lambda: bool(handler.events))

    assert handler.payloads == ["dead"]


async def test_who_becomes_the_owner_again_knows_nothing_of_those_that_died_meanwhile(
    database: Path, make_bus: MakeBus
) -> None:
    """They were another process's, and must not stand for one that goes later."""
    store = SQLiteStore(database)
    await store.open()
    await add_dead_letter(store, make_draft(id="dead", payload="dead"))
    backlog = CountingBacklog(store.backlog)
    store.backlog = backlog  # type: ignore[assignment]
    handler = FlakyHandler()
    bus = await start_among_many(make_bus, store, handler)
    (row,) = await store.subscriptions.list()
    bus.unsubscribe(row.id)
    await until(lambda: not store.dispatch_lock.is_held)
    another = make_bus(retry=ONE_ATTEMPT)
    another.subscribe("bill.*", FlakyHandler(ALWAYS))
    await another.publish("bill.sent")
    await soon(another.shutdown())
    bus.subscribe("order.*", handler)
    await until_checked(bus, backlog)
    await bus.dlq.retry("dead")
    await until(lambda: "dead" in handler.payloads)

    assert (await bus.dlq.list()).total == 1
