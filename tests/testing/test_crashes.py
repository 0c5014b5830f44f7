"""Crash points: a bus dies at each of them, a fresh one goes on, and a test sees what came of it."""

import asyncio
import logging
import sqlite3
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from postbus.bus import EventBus
from postbus.config import CheckpointMode, ReliableDeliveryConfig
from postbus.errors import InvalidConfigError
from postbus.events import Event, SubscriberId
from postbus.observers import Projection, Saga, SagaContext, StateStore
from postbus.ports import Store
from postbus.state_stores import InMemoryStateStore, SQLiteStateStore
from postbus.stores.memory import InMemoryStore
from postbus.stores.sqlite import SQLiteStore
from postbus.testing import (
    CRASH_POINTS,
    Crash,
    CrashPoint,
    SimulatedCrashError,
    assert_published,
    every_crash,
    published,
)

ORDERS = ("order-1", "order-2", "order-3")
# The last time that a point is asked for it is not reached any more.
EACH_POINT_FOR_EACH_ORDER = [f"{point}-{nth}" for point in CRASH_POINTS for nth in range(1, len(ORDERS) + 2)]
MAIL = SubscriberId("mail")
MODES = [CheckpointMode.synchronous(), CheckpointMode.batched(batch_size=2, max_delay=60.0)]

Target = Callable[[Crash], "str | Store"]


@pytest.fixture(params=["memory", "sqlite"])
def target(request: pytest.FixtureRequest, tmp_path: Path) -> Target:
    """Where the bus of a crash has its events."""
    if request.param == "memory":
        return lambda _: "memory:"
    # No power cut is simulated here, so nobody has to wait for the disk.
    return lambda crash: SQLiteStore(tmp_path / f"{crash}.db", synchronous="NORMAL")


@pytest.fixture(params=MODES, ids=["synchronous", "batched"])
def config(request: pytest.FixtureRequest) -> ReliableDeliveryConfig:
    return ReliableDeliveryConfig(checkpoint_mode=request.param)


async def place_orders(bus: EventBus) -> None:
    for order in ORDERS:
        await bus.publish("order.placed", {"total": 10}, event_id=order, stream_id="orders")


class OrderTotal(Projection[int]):
    """The sum of all orders."""

    subscriber_id = "projection:total"

    def apply(self, state: int | None, event: Event) -> int:
        return (state or 0) + int(event.payload["total"])


class Confirmation(Saga[int]):
    """Confirms every order once."""

    subscriber_id = "saga:confirmation"
    patterns = ("order.placed",)

    def saga_id(self, event: Event) -> str:
        return "all"

    async def handle(self, state: int | None, event: Event, ctx: SagaContext) -> int:
        ctx.publish("order.confirmed", {"order": event.id})
        return (state or 0) + 1


class TestSubscribers:
    async def test_a_subscriber_that_counts_twice_is_caught(self, target: Target) -> None:
        """At some point its event comes again: a test that expects each effect once fails there."""
        repeated = set()
        for crash in every_crash():
            sent: list[str] = []
            async with crash.survivor(bus_with(mail_into(sent)), place_orders, target=target(crash)):
                if sorted(sent) != sorted(ORDERS):
                    repeated.add(crash.point)

        assert repeated == {"after_handler", "before_checkpoint"}

    async def test_nothing_is_lost_at_any_point(self, target: Target, config: ReliableDeliveryConfig) -> None:
        """However often an event comes, it comes, and first in the order of the log."""
        for crash in every_crash():
            sent: list[str] = []
            async with crash.survivor(bus_with(mail_into(sent), config), place_orders, target=target(crash)):
                assert list(dict.fromkeys(sent)) == list(ORDERS)

    async def test_an_event_comes_again_only_if_its_handler_ended_unwritten(self) -> None:
        """The crash is where its name says."""
        sent_by: dict[str, list[str]] = {}
        for crash in every_crash():
            sent: list[str] = []
            async with crash.survivor(bus_with(mail_into(sent)), place_orders):
                sent_by[str(crash)] = sent

        once = list(ORDERS)
        assert sent_by["before_handler-2"] == once
        assert sent_by["after_handler-2"] == [ORDERS[0], ORDERS[1], ORDERS[1], ORDERS[2]]
        assert sent_by["before_checkpoint-2"] == [ORDERS[0], ORDERS[1], ORDERS[1], ORDERS[2]]
        assert sent_by["after_checkpoint-2"] == once
        assert list(sent_by) == EACH_POINT_FOR_EACH_ORDER

    async def test_of_a_batch_all_that_was_not_written_comes_again(self) -> None:
        sent: list[str] = []
        config = ReliableDeliveryConfig(checkpoint_mode=CheckpointMode.batched(batch_size=3, max_delay=60.0))
        crash = Crash("after_handler", 2)
        async with crash.survivor(bus_with(mail_into(sent), config), place_orders):
            assert sent == [ORDERS[0], ORDERS[1], *ORDERS]

    async def test_a_plain_function_dies_as_well(self) -> None:
        """Whatever thread it runs in."""
        for crash in every_crash():
            sent: list[str] = []

            def make_bus(store: Store, sent: list[str] = sent) -> EventBus:
                bus = EventBus(store)
                bus.subscribe("order.*", lambda event: sent.append(event.id), id="mail")
                return bus

            async with crash.survivor(make_bus, place_orders):
                assert set(sent) == set(ORDERS)

    async def test_a_handler_without_an_id_dies_as_well(self, target: Target) -> None:
        """Async or plain; what remembers its delivery is the status of the event."""
        reached: dict[str, int] = {}
        for crash in every_crash():
            seen: list[str] = []

            def make_bus(store: Store, seen: list[str] = seen) -> EventBus:
                bus = EventBus(store)

                @bus.on("order.*")
                async def audit(event: Event) -> None:
                    seen.append(event.id)

                @bus.on("order.*")
                def count(event: Event) -> None:
                    seen.append(event.id)

                return bus

            async with crash.survivor(make_bus, place_orders, target=target(crash)) as bus:
                reached[crash.point] = crash.nth - 1
                assert set(seen) == set(ORDERS)
                assert {stored.status for stored in await published(bus)} == {"done"}

        assert reached == {point: 6 if point.endswith("handler") else 3 for point in CRASH_POINTS}

    async def test_one_subscriber_dies_with_the_other(self, target: Target) -> None:
        """A process has several, and ends with all of them."""
        for crash in every_crash():
            first: list[str] = []
            second: list[str] = []

            def make_bus(store: Store, first: list[str] = first, second: list[str] = second) -> EventBus:
                bus = EventBus(store)
                mail_into(first)(bus)
                mail_into(second, "copy")(bus)
                return bus

            async with crash.survivor(make_bus, place_orders, target=target(crash)) as bus:
                assert set(first) == set(second) == set(ORDERS)
                assert [cp.position for cp in await bus.store.checkpoints.list()] == [3, 3]


class TestExactlyOnce:
    async def test_a_projection_counts_every_event_once(
        self, target: Target, config: ReliableDeliveryConfig
    ) -> None:
        """Its state is written with its checkpoint, or not at all."""
        for crash in every_crash():

            def make_bus(store: Store) -> EventBus:
                bus = EventBus(store, config=config)
                bus.subscribe(OrderTotal(StateStore(store, "totals", int)))
                return bus

            async with crash.survivor(make_bus, place_orders, target=target(crash)) as bus:
                assert await StateStore(bus.store, "totals", int).get("orders") == 30

    async def test_a_saga_publishes_once(self, target: Target, config: ReliableDeliveryConfig) -> None:
        """Its state, its checkpoint and what it publishes are written together."""
        for crash in every_crash():

            def make_bus(store: Store) -> EventBus:
                bus = EventBus(store, config=config)
                bus.subscribe(Confirmation(StateStore(store, "sagas", int)))
                return bus

            async with crash.survivor(make_bus, place_orders, target=target(crash)) as bus:
                await assert_published(bus, "order.confirmed", count=3)
                assert await StateStore(bus.store, "sagas", int).get("all") == 3

    async def test_a_transactional_subscriber_has_its_effects_once(self, target: Target) -> None:
        """They are in the transaction of its checkpoint; the handler itself may run twice."""
        call_counts: dict[str, int] = {}
        for crash in every_crash():
            calls: list[str] = []

            def make_bus(store: Store, calls: list[str] = calls) -> EventBus:
                bus = EventBus(store)

                @bus.on("order.placed", id="ledger")
                def book(event: Event, transaction: sqlite3.Connection) -> None:
                    calls.append(event.id)
                    transaction.execute("CREATE TABLE IF NOT EXISTS ledger (id, total)")
                    transaction.execute(
                        "INSERT INTO ledger VALUES (?, ?)", (event.id, event.payload["total"])
                    )

                return bus

            async with crash.survivor(make_bus, place_orders, target=target(crash)) as bus:
                call_counts[str(crash)] = len(calls)
                assert ledger_of(bus.store) == [(order, 10) for order in ORDERS]

        assert list(call_counts) == EACH_POINT_FOR_EACH_ORDER
        assert call_counts["before_checkpoint-3"] == len(ORDERS) + 1

    async def test_state_stores_may_be_of_the_kind_of_the_database(self, target: Target) -> None:
        """The store of a bus that is going to die passes for a real one."""
        for crash in every_crash(["before_checkpoint"]):

            def make_bus(store: Store) -> EventBus:
                kind = SQLiteStateStore if isinstance(store, SQLiteStore) else InMemoryStateStore
                bus = EventBus(store)
                bus.subscribe(OrderTotal(kind(store, "totals", int)))
                return bus

            async with crash.survivor(make_bus, place_orders, target=target(crash)) as bus:
                assert await StateStore(bus.store, "totals", int).get("orders") == 30


class TestDeath:
    async def test_everything_of_the_dead_bus_ends_at_once(self) -> None:
        """Tasks of its handlers too, in the middle of what they wait for; those of others go on."""
        reached: list[str] = []
        has_begun = asyncio.Event()
        bystander = asyncio.create_task(asyncio.sleep(3600))

        def make_bus(store: Store) -> EventBus:
            bus = EventBus(store)

            @bus.on("order.placed", id="slow")
            async def slow(event: Event) -> None:
                reached.append("slow began")
                has_begun.set()
                if reached.count("slow began") == 1:
                    await asyncio.sleep(3600)
                reached.append("slow ended")

            @bus.on("order.placed", id="quick")
            async def quick(event: Event) -> None:
                await has_begun.wait()

            return bus

        async def place_one(bus: EventBus) -> None:
            await bus.publish("order.placed", event_id="order-1")

        tasks_before = asyncio.all_tasks()
        async with Crash("after_handler").survivor(make_bus, place_one):
            assert reached == ["slow began", "slow began", "slow ended"]
        assert not bystander.done()
        assert asyncio.all_tasks() == tasks_before
        bystander.cancel()

    async def test_what_a_dead_bus_still_does_changes_nothing(self, target: Target) -> None:
        """A handler that goes on in spite of its cancellation gets an error, and so does whoever asks."""
        lives: list[EventBus] = []
        errors: list[BaseException] = []

        def make_bus(store: Store) -> EventBus:
            bus = EventBus(store)
            lives.append(bus)

            @bus.on("order.placed", id="stubborn")
            async def stubborn(event: Event) -> None:
                if len(lives) == 2:
                    return
                try:
                    await asyncio.sleep(3600)
                except asyncio.CancelledError:
                    try:
                        await bus.publish("order.cancelled")
                    except BaseException as error:
                        errors.append(error)

            mail_into([])(bus)
            return bus

        crash = Crash("after_checkpoint")
        async with crash.survivor(make_bus, place_orders, target=target(crash)) as bus:
            for write in (
                lives[0].store.checkpoints.release(MAIL, 1),
                lives[0].store.append("orders", [("order.lost",)]),
                lives[0].store.log.append([]),
            ):
                with pytest.raises(SimulatedCrashError, match="died at the crash point 'after_checkpoint'"):
                    await write
            assert not await lives[0].store.subscriber_locks.try_acquire(SubscriberId("free"))
            assert not lives[0].store.dispatch_lock.try_acquire()
            assert [event.id for event in await published(bus)] == list(ORDERS)

        assert [type(error) for error in errors] == [SimulatedCrashError]

    @pytest.mark.parametrize("point", ["before_publish", "after_publish"])
    async def test_whoever_outlives_the_bus_gets_an_error(self, point: CrashPoint) -> None:
        """A task that was there before goes on, and must not wait for ever for a dead bus."""
        lives: list[EventBus] = []
        is_alive = asyncio.Event()

        async def publish_from_outside() -> None:
            await is_alive.wait()
            await lives[0].publish("order.placed", event_id="order-0")

        bystander = asyncio.create_task(publish_from_outside())
        await asyncio.sleep(0)

        def make_bus(store: Store) -> EventBus:
            lives.append(bus_with(mail_into([]))(store))
            return lives[-1]

        async def wait_for_it(bus: EventBus) -> None:
            is_alive.set()
            if bus is lives[0]:
                await asyncio.wait([bystander])

        async with Crash(point).survivor(make_bus, wait_for_it) as bus:
            with pytest.raises(SimulatedCrashError):
                await bystander
            assert len(await published(bus)) == (point == "after_publish")

    async def test_the_locks_of_the_dead_bus_are_free(
        self, target: Target, caplog: pytest.LogCaptureFixture
    ) -> None:
        """The next one never stands by."""
        caplog.set_level(logging.INFO, "postbus")
        for crash in every_crash(["before_checkpoint"]):
            async with crash.survivor(bus_with(mail_into([])), place_orders, target=target(crash)):
                pass

        assert "active from" in caplog.text
        assert "standing by" not in caplog.text

    async def test_the_next_owner_knows_that_the_last_one_did_not_let_go(self, target: Target) -> None:
        """As after a real crash: from then on attempts are written down before they begin."""
        begun: list[tuple[int, int | None]] = []

        def make_bus(store: Store) -> EventBus:
            bus = EventBus(store)

            @bus.on("order.placed", id=MAIL)
            async def note_attempt(event: Event) -> None:
                checkpoint = await store.checkpoints.load(MAIL)
                assert checkpoint is not None
                begun.append((checkpoint.epoch, checkpoint.attempt_sequence))

            return bus

        crash = Crash("before_handler", 2)
        async with crash.survivor(make_bus, place_orders, target=target(crash)):
            assert begun == [(1, None), (2, 2), (2, 3)]

    async def test_no_thread_is_left_behind(self, target: Target) -> None:
        """Hundreds of lives leave nothing in the process of the test."""

        def make_bus(store: Store) -> EventBus:
            bus = EventBus(store)
            bus.subscribe("order.*", lambda event: None, id="plain")
            return bus

        threads_before = set(threading.enumerate())
        for crash in every_crash(["after_handler", "after_publish"]):
            async with crash.survivor(make_bus, place_orders, target=target(crash)):
                pass
        left = [each for each in set(threading.enumerate()) - threads_before if "postbus" in each.name]
        for thread in left:
            thread.join(5.0)

        assert not [thread.name for thread in left if thread.is_alive()]


class TestUse:
    async def test_work_that_was_cut_off_is_done_again(self) -> None:
        """The caller got no answer, so it tries again, under the same ids."""
        runs: list[str] = []

        async def work(bus: EventBus) -> None:
            runs.append("begun")
            await place_orders(bus)

        async with Crash("after_publish", 2).survivor(bus_with(mail_into([])), work) as bus:
            assert runs == ["begun", "begun"]
            assert [event.id for event in await published(bus)] == list(ORDERS)

    async def test_an_append_to_the_store_is_a_publish(self) -> None:
        """Whichever way an event is stored, a crash before it leaves none and one after it leaves it."""
        found = []
        for crash in every_crash(["before_publish", "after_publish"]):
            heads: list[int] = []

            async def work(bus: EventBus, heads: list[int] = heads) -> None:
                heads.append(await bus.store.head())
                await bus.store.append("orders", [("order.placed", {})])

            async with crash.survivor(bus_with(mail_into([])), work):
                found.append((str(crash), heads))

        assert found == [
            ("before_publish-1", [0, 0]),
            ("before_publish-2", [0]),
            ("after_publish-1", [0, 1]),
            ("after_publish-2", [0]),
        ]

    async def test_a_failed_check_tells_the_crash_before_it(self) -> None:
        with pytest.raises(AssertionError) as caught:
            async with Crash("after_handler", 3).survivor(bus_with(mail_into([])), place_orders):
                raise AssertionError("wrong total")

        assert caught.value.__notes__ == ["after a crash at 'after_handler', reached for time number 3"]

    async def test_an_error_of_the_work_is_not_hidden(self) -> None:
        async def work(bus: EventBus) -> None:
            raise ValueError("out of paper")

        with pytest.raises(ValueError, match="out of paper") as caught:
            async with Crash("after_handler").survivor(bus_with(mail_into([])), work):
                pass

        assert caught.value.__notes__ == ["without a crash at 'after_handler', reached for time number 1"]

    async def test_a_point_that_is_never_reached_is_an_error(self) -> None:
        """A test that tests nothing must not be green."""
        crashes = every_crash(["before_handler"])
        async with next(crashes).survivor(EventBus, place_orders):
            pass

        with pytest.raises(AssertionError, match="'before_handler' was never reached"):
            next(crashes)

    def test_a_crash_that_nobody_lets_happen_is_an_error(self) -> None:
        with pytest.raises(AssertionError, match=r"enter crash\.survivor"):
            list(every_crash())

    def test_an_unknown_point_is_refused(self) -> None:
        with pytest.raises(InvalidConfigError, match="expected one of before_publish, after_publish"):
            next(every_crash(["after_lunch"]))  # type: ignore[list-item]

    def test_a_text_is_no_list_of_points(self) -> None:
        """Its letters would be taken for points."""
        with pytest.raises(InvalidConfigError, match="expected a list of crash points"):
            next(every_crash("after_handler"))  # type: ignore[arg-type]

    async def test_a_single_crash_that_does_not_happen_fails_the_test(self) -> None:
        """It would have tested nothing."""
        with pytest.raises(AssertionError, match="was not reached that often"):
            async with Crash("after_handler", 99).survivor(EventBus, place_orders):
                pass

    def test_a_crash_happens_the_first_time_at_the_earliest(self) -> None:
        with pytest.raises(InvalidConfigError, match="nth is 0"):
            Crash("after_handler", 0)

    async def test_a_bus_that_never_comes_to_rest_is_an_error(self) -> None:
        """It says which subscriber is stuck."""

        def make_bus(store: Store) -> EventBus:
            bus = EventBus(store)

            @bus.on("order.placed", id="stuck")
            async def stuck(event: Event) -> None:
                await asyncio.sleep(3600)

            return bus

        crash = Crash("after_handler")
        with pytest.raises(TimeoutError, match=r"within 0\.05 s: stuck is catching_up at 0"):
            async with crash.survivor(make_bus, place_orders, timeout=0.05):
                pass

    async def test_a_path_is_opened_anew_in_each_life(self, tmp_path: Path) -> None:
        """As two processes would do it."""
        stores: list[Store] = []
        sent: list[str] = []

        def make_bus(store: Store) -> EventBus:
            stores.append(store)
            return bus_with(mail_into(sent))(store)

        async with Crash("after_handler").survivor(make_bus, place_orders, target=tmp_path / "events.db"):
            assert sent == [ORDERS[0], *ORDERS]

        assert [isinstance(store, SQLiteStore) for store in stores] == [True, True]
        assert len({id(store.subscriber_locks) for store in stores}) == 2

    async def test_events_may_be_there_before(self) -> None:
        """A store of one's own is used for both lives."""
        store = InMemoryStore()
        await store.append("orders", [("order.placed", {"total": 10})])
        sent: list[str] = []

        async def nothing(bus: EventBus) -> None:
            pass

        async with Crash("after_handler").survivor(bus_with(mail_into(sent)), nothing, target=store):
            assert len(sent) == 2


def mail_into(sent: list[str], subscriber_id: str = "mail") -> Callable[[EventBus], None]:
    """A subscriber with an effect outside of the database."""

    def subscribe(bus: EventBus) -> None:
        @bus.on("order.placed", id=subscriber_id)
        async def mail(event: Event) -> None:
            sent.append(event.id)

    return subscribe


def bus_with(
    subscribe: Callable[[EventBus], None], config: ReliableDeliveryConfig | None = None
) -> Callable[[Store], EventBus]:
    def make_bus(store: Store) -> EventBus:
        bus = EventBus(store, config=config)
        subscribe(bus)
        return bus

    return make_bus


def ledger_of(store: Store) -> list[tuple[str, int]]:
    def read(connection: sqlite3.Connection) -> Iterator[tuple[str, int]]:
        yield from connection.execute("SELECT id, total FROM ledger ORDER BY id")

    if isinstance(store, InMemoryStore):
        return list(read(store.connection))
    assert isinstance(store, SQLiteStore)
    connection = sqlite3.connect(store.path)
    try:
        return list(read(connection))
    finally:
        connection.close()
