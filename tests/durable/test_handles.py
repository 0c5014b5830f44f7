"""bus.subscription(id): what a durable subscriber is doing, and a word with it."""

import asyncio
from typing import Any

import pytest

from postbus import (
    CheckpointMode,
    Event,
    EventBus,
    InvalidConfigError,
    InvalidPageError,
    RetryPolicy,
    StoreBusyError,
    SubscriptionNotFoundError,
    SubscriptionStoppedError,
)
from postbus.events import SubscriberId
from postbus.testing import ManualClock
from tests.contracts.steps import after
from tests.delivery.steps import ALWAYS, BlockingHandler, FlakyHandler, begin, soon, start, until
from tests.durable.steps import (
    ID,
    Database,
    MakeBus,
    faulty,
    on_embedded,
    position_of,
    publish_numbers,
    try_again,
)


async def blocked(bus: EventBus, *numbers: int) -> BlockingHandler:
    """A subscriber in the middle of the first of these events."""
    handler = BlockingHandler()
    bus.subscribe("*", handler, id=ID)
    await publish_numbers(bus, *numbers)
    await soon(handler.started.wait())
    return handler


class TestState:
    async def test_from_start_to_end(self, make_bus: MakeBus) -> None:
        bus = make_bus()
        bus.subscribe("*", FlakyHandler(), id=ID)
        handle = bus.subscription(ID)
        assert (handle.id, handle.state, handle.checkpoint, handle.reason) == (ID, "starting", None, None)

        await bus.start()
        await soon(handle.caught_up())
        await until(lambda: handle.state == "live")
        await soon(handle.pause())
        states = [handle.state]
        await handle.resume()
        await until(lambda: handle.state == "live")
        await bus.shutdown()
        assert [*states, handle.state] == ["paused", "stopped"]

    async def test_it_is_catching_up_until_it_is_at_the_end(self, make_bus: MakeBus) -> None:
        bus = make_bus()
        await publish_numbers(bus, 1, 2)
        handler = BlockingHandler()
        bus.subscribe("*", handler, id=ID)
        await soon(handler.started.wait())
        assert bus.subscription(ID).state == "catching_up"

        handler.released.set()
        await until(lambda: bus.subscription(ID).state == "live")

    async def test_a_live_one_stays_live_for_a_few_events(self, make_bus: MakeBus) -> None:
        """And is catching up again when it lags by more than a page."""
        bus, handler = make_bus(), BlockingHandler()
        bus.subscribe("*", handler, id=ID)
        await bus.start()
        await until(lambda: bus.subscription(ID).state == "live")
        await publish_numbers(bus, 1)
        await soon(handler.started.wait())
        assert bus.subscription(ID).state == "live"

        await publish_numbers(bus, *range(150))
        handler.started.clear()
        first, handler.released = handler.released, asyncio.Event()
        first.set()
        await soon(handler.started.wait())
        await until(lambda: bus.subscription(ID).state == "catching_up")
        handler.released.set()
        await until(lambda: bus.subscription(ID).state == "live")

    async def test_it_stands_by_while_another_is_active(
        self, database: Database, make_bus: MakeBus, clock: ManualClock
    ) -> None:
        """And takes over within a fifth of a second."""
        store, handler = database.new_store(), FlakyHandler()
        await store.open()
        assert await store.subscriber_locks.try_acquire(SubscriberId(ID))
        bus = make_bus(store)
        bus.subscribe("*", handler, id=ID)
        await publish_numbers(bus, 1)
        await soon(clock.wait_for_sleepers(1))
        assert bus.subscription(ID).state == "standby"
        assert handler.events == []

        store.subscriber_locks.release(SubscriberId(ID))
        await clock.advance(0.2)
        await soon(bus.subscription(ID).caught_up())
        assert handler.payloads == [1]

    async def test_a_bus_that_never_started_stops_its_subscribers(self, make_bus: MakeBus) -> None:
        bus = make_bus()
        bus.subscribe("*", FlakyHandler(), id=ID)
        handle = bus.subscription(ID)
        waiting = await begin(handle.wait_for(1))
        await bus.shutdown()

        assert handle.state == "stopped"
        with pytest.raises(SubscriptionStoppedError):
            await soon(waiting)


class TestAllOfThem:
    async def test_the_bus_lists_its_durable_subscribers_in_their_order(self, make_bus: MakeBus) -> None:
        """Those that are there now, before the start and after it."""
        bus = make_bus()
        assert list(bus.subscriptions) == []
        for name in ("mail", "audit", "stock"):
            bus.subscribe("*", FlakyHandler(), id=name)
        assert [handle.id for handle in bus.subscriptions] == ["mail", "audit", "stock"]

        await publish_numbers(bus, 1)
        bus.unsubscribe("audit")
        for handle in bus.subscriptions:
            await soon(handle.caught_up())
        assert [(handle.id, handle.checkpoint) for handle in bus.subscriptions] == [("mail", 1), ("stock", 1)]

    @on_embedded
    async def test_a_handler_without_an_id_is_not_among_them(self, make_bus: MakeBus) -> None:
        bus = make_bus()
        bus.subscribe("*", FlakyHandler())

        assert list(bus.subscriptions) == []


class TestCheckpointAndLag:
    async def test_they_follow_the_events(self, make_bus: MakeBus) -> None:
        bus = make_bus()
        handler = await blocked(bus, 1, 2, 3)
        handle = bus.subscription(ID)
        assert (handle.checkpoint, handle.lag) == (0, 3)

        handler.released.set()
        await soon(handle.caught_up())
        assert (handle.checkpoint, handle.lag) == (3, 0)

    async def test_lag_counts_what_is_not_processed_and_checkpoint_what_is_written(
        self, make_bus: MakeBus
    ) -> None:
        bus = make_bus()
        bus.subscribe("*", FlakyHandler(), id=ID, checkpoint_mode=CheckpointMode.batched(100, 3600))
        await publish_numbers(bus, 1, 2, 3)
        await soon(bus.idle())
        handle = bus.subscription(ID)

        assert (handle.checkpoint, handle.lag) == (0, 0)

    async def test_a_stopped_one_keeps_its_last(self, make_bus: MakeBus) -> None:
        bus = make_bus()
        bus.subscribe("*", FlakyHandler(), id=ID)
        await publish_numbers(bus, 1, 2)
        await soon(bus.subscription(ID).caught_up())
        handle = bus.subscription(ID)
        bus.unsubscribe(ID)
        await until(lambda: handle.state == "stopped")

        assert handle.checkpoint == 2


class TestPause:
    async def test_it_waits_for_the_event_at_hand_and_no_other_is_delivered(self, make_bus: MakeBus) -> None:
        bus = make_bus()
        handler = await blocked(bus, 1, 2, 3)
        pausing = start(bus.subscription(ID).pause())
        await asyncio.sleep(0.01)
        assert not pausing.done()

        handler.released.set()
        await soon(pausing)
        await publish_numbers(bus, 4)
        assert [event.payload for event in handler.events] == [1]
        assert await position_of(bus) == 1
        assert bus.subscription(ID).lag == 3
        await bus.subscription(ID).resume()
        await soon(bus.idle())
        assert [event.payload for event in handler.events] == [1, 2, 3, 4]

    async def test_a_pause_in_the_middle_of_a_page_loses_and_repeats_nothing(self, make_bus: MakeBus) -> None:
        bus, seen = make_bus(), list[int]()
        bus.subscribe("*", lambda event: seen.append(event.payload), id=ID)
        publishing = start(publish_numbers(bus, *range(300)))
        for _ in range(10):
            await soon(bus.subscription(ID).pause())
            await bus.subscription(ID).resume()
            await asyncio.sleep(0.002)
        await soon(publishing)
        await soon(bus.subscription(ID).caught_up())

        assert seen == list(range(300))

    async def test_before_the_start_it_returns_at_once_and_holds(self, make_bus: MakeBus) -> None:
        """Nothing is delivered until resume()."""
        bus, handler = make_bus(), FlakyHandler()
        bus.subscribe("*", handler, id=ID)
        await soon(bus.subscription(ID).pause())
        await publish_numbers(bus, 1)
        await until(lambda: bus.subscription(ID).state == "paused")
        assert handler.events == []

        await bus.subscription(ID).resume()
        await soon(bus.idle())
        assert handler.payloads == [1]

    async def test_twice_is_once(self, make_bus: MakeBus) -> None:
        bus, handler = make_bus(), FlakyHandler()
        bus.subscribe("*", handler, id=ID)
        await bus.start()
        handle = bus.subscription(ID)
        await soon(handle.pause())
        await soon(handle.pause())
        await handle.resume()
        await handle.resume()
        await publish_numbers(bus, 1)
        await soon(bus.idle())

        assert handler.payloads == [1]

    async def test_a_resume_before_the_pause_was_complete_ends_both(self, make_bus: MakeBus) -> None:
        """Nobody waits for a pause that will not come."""
        bus = make_bus()
        handler = await blocked(bus, 1, 2)
        pausing = await begin(bus.subscription(ID).pause())
        await bus.subscription(ID).resume()
        await soon(pausing)
        handler.released.set()
        await soon(bus.idle())

        assert len(handler.events) == 2

    async def test_a_stopped_one_is_paused_at_once(self, make_bus: MakeBus) -> None:
        bus = make_bus()
        bus.subscribe("*", FlakyHandler(), id=ID)
        await bus.start()
        handle = bus.subscription(ID)
        await bus.shutdown()
        await soon(handle.pause())

        assert handle.state == "stopped"

    async def test_a_handler_that_fails_on_its_store_is_not_called_while_paused(
        self, make_bus: MakeBus, clock: ManualClock
    ) -> None:
        """Failed or not: paused is paused. The event is delivered after resume()."""
        bus = make_bus()
        calls: list[int] = []

        @bus.on("*", id=ID)
        async def look_up(event: Event) -> None:
            calls.append(event.payload)
            if len(calls) < 3:
                raise StoreBusyError("busy")

        await publish_numbers(bus, 1)
        await soon(clock.wait_for_sleepers(1))
        await soon(bus.subscription(ID).pause())
        for _ in range(5):
            await clock.advance(5)
        assert calls == [1]
        assert bus.subscription(ID).state == "paused"

        await bus.subscription(ID).resume()
        await soon(try_again(clock))
        await soon(bus.idle())
        assert calls == [1, 1, 1]

    async def test_it_is_complete_when_a_handler_that_failed_on_its_store_ends(
        self, make_bus: MakeBus, clock: ManualClock
    ) -> None:
        """Not while it runs again."""
        bus, released = make_bus(), asyncio.Event()
        calls: list[int] = []

        @bus.on("*", id=ID)
        async def look_up(event: Event) -> None:
            calls.append(event.payload)
            if len(calls) == 1:
                raise StoreBusyError("busy")
            await released.wait()

        await publish_numbers(bus, 1)
        await soon(try_again(clock))
        await until(lambda: len(calls) == 2)
        pausing = await begin(bus.subscription(ID).pause())
        await asyncio.sleep(0.01)
        assert not pausing.done()
        released.set()
        await soon(pausing)

        assert bus.subscription(ID).state == "paused"

    async def test_a_subscriber_whose_checkpoint_cannot_be_written_can_be_paused(
        self, database: Database, make_bus: MakeBus, clock: ManualClock
    ) -> None:
        """It says that it fails, and delivers nothing when it goes on."""
        store, handler = faulty(database), FlakyHandler()
        bus = make_bus(store)
        bus.subscribe("*", handler, id=ID)
        await bus.start()
        await until(lambda: bus.subscription(ID).state == "live")
        store.checkpoints.fail("save", StoreBusyError("busy"), 1)
        await publish_numbers(bus, 1, 2)
        await soon(clock.wait_for_sleepers(1))
        await soon(bus.subscription(ID).pause())
        assert bus.subscription(ID).state == "failed"

        await soon(try_again(clock))
        await until(lambda: bus.subscription(ID).state == "paused")
        assert handler.payloads == [1]
        assert await position_of(bus) == 1

    async def test_an_idle_bus_does_not_wait_for_a_paused_subscriber(self, make_bus: MakeBus) -> None:
        bus = make_bus()
        bus.subscribe("*", FlakyHandler(), id=ID)
        await bus.start()
        await soon(bus.subscription(ID).pause())
        await publish_numbers(bus, 1)
        await soon(bus.idle())

        assert bus.subscription(ID).lag == 1

    async def test_the_others_go_on(self, make_bus: MakeBus) -> None:
        bus, other = make_bus(), FlakyHandler()
        bus.subscribe("*", FlakyHandler(), id=ID)
        bus.subscribe("*", other, id="other")
        await bus.start()
        await soon(bus.subscription(ID).pause())
        await publish_numbers(bus, 1)
        await soon(bus.subscription("other").caught_up())

        assert other.payloads == [1]


class TestWaiting:
    async def test_one_can_read_ones_own_writes(self, make_bus: MakeBus) -> None:
        bus, handler = make_bus(), FlakyHandler()
        bus.subscribe("*", handler, id=ID)
        event_id = await bus.publish("a", 1)
        event = await bus.store.get(event_id)
        assert event.global_sequence is not None
        await soon(bus.subscription(ID).wait_for(event.global_sequence, timeout=5))

        assert handler.payloads == [1]

    async def test_a_dead_letter_counts_as_processed(self, make_bus: MakeBus) -> None:
        bus = make_bus()
        bus.subscribe("*", FlakyHandler(ALWAYS), id=ID, retry=RetryPolicy(max_retries=0))
        await publish_numbers(bus, 1)

        await soon(bus.subscription(ID).wait_for(1))

    async def test_what_is_not_wanted_is_waited_for_as_well(self, make_bus: MakeBus) -> None:
        bus = make_bus()
        bus.subscribe("order.*", FlakyHandler(), id=ID)
        await publish_numbers(bus, 1, type="user.seen")

        await soon(bus.subscription(ID).wait_for(1))
        assert await position_of(bus) == 1

    async def test_it_gives_up_after_its_timeout(self, make_bus: MakeBus, clock: ManualClock) -> None:
        """And says where the subscriber is."""
        bus = make_bus()
        handler = await blocked(bus, 1)
        waiting = start(bus.subscription(ID).wait_for(1, timeout=3))
        await clock.advance(2.9)
        assert not waiting.done()
        await clock.advance(0.1)
        with pytest.raises(TimeoutError, match=r"'mail' is at 0 \(catching_up\) and did not get to 1 within"):
            await soon(waiting)
        handler.released.set()

    async def test_a_timeout_of_nothing_only_looks(self, make_bus: MakeBus) -> None:
        bus = make_bus()
        handler = await blocked(bus, 1)
        with pytest.raises(TimeoutError):
            await soon(bus.subscription(ID).wait_for(1, timeout=0))
        handler.released.set()
        await soon(bus.subscription(ID).caught_up())

        await soon(bus.subscription(ID).wait_for(1, timeout=0))

    async def test_an_event_that_is_not_there_yet_can_be_waited_for(self, make_bus: MakeBus) -> None:
        bus = make_bus()
        bus.subscribe("*", FlakyHandler(), id=ID)
        await bus.start()
        waiting = start(bus.subscription(ID).wait_for(2))
        await publish_numbers(bus, 1)
        await soon(bus.subscription(ID).caught_up())
        assert not waiting.done()

        await publish_numbers(bus, 2)
        await soon(waiting)

    async def test_many_may_wait(self, make_bus: MakeBus) -> None:
        bus = make_bus()
        handler = await blocked(bus, 1, 2, 3)
        waiting = [start(bus.subscription(ID).wait_for(number)) for number in (3, 1, 2, 3)]
        handler.released.set()

        await soon(asyncio.gather(*waiting))

    @pytest.mark.parametrize("mode", [CheckpointMode.synchronous(), CheckpointMode.batched(100, 3600)])
    async def test_it_does_not_wait_for_the_end_of_the_log(self, make_bus: MakeBus, mode: Any) -> None:
        """Who waits for an early event of a long log gets an answer when that one is processed."""
        bus, seen, released = make_bus(), list[int](), asyncio.Event()

        @bus.on("*", id=ID, checkpoint_mode=mode)
        async def take(event: Event) -> None:
            seen.append(event.payload)
            if event.payload == 1500:
                await released.wait()

        await bus.start()
        await bus.subscription(ID).pause()
        await publish_numbers(bus, *range(2000))
        waiting = start(bus.subscription(ID).wait_for(10))
        await bus.subscription(ID).resume()
        await soon(waiting)

        assert len(seen) <= 1501
        released.set()
        await soon(bus.idle())

    async def test_a_stopped_one_is_not_waited_for(self, make_bus: MakeBus) -> None:
        bus = make_bus()
        handler = await blocked(bus, 1, 2)
        handle = bus.subscription(ID)
        waiting = start(handle.wait_for(2))
        bus.unsubscribe(ID)
        handler.released.set()

        with pytest.raises(SubscriptionStoppedError, match="'mail' was stopped before it got there"):
            await soon(waiting)
        with pytest.raises(SubscriptionStoppedError):
            await soon(handle.wait_for(2))
        await soon(handle.wait_for(1))

    async def test_a_shut_down_bus_is_not_waited_for(self, make_bus: MakeBus) -> None:
        bus = make_bus()
        bus.subscribe("*", FlakyHandler(), id=ID)
        await bus.start()
        handle = bus.subscription(ID)
        waiting = start(handle.wait_for(9))
        await asyncio.sleep(0)
        await bus.shutdown()

        with pytest.raises(SubscriptionStoppedError):
            await soon(waiting)
        with pytest.raises(SubscriptionStoppedError):
            await soon(handle.caught_up())

    async def test_a_standby_sees_how_far_the_active_one_has_come(
        self, database: Database, make_bus: MakeBus, clock: ManualClock
    ) -> None:
        store = database.new_store()
        await store.open()
        await store.subscriber_locks.try_acquire(SubscriberId(ID))
        bus = make_bus(store)
        bus.subscribe("*", FlakyHandler(), id=ID)
        await publish_numbers(bus, 1, 2)
        await soon(clock.wait_for_sleepers(1))
        waiting = start(bus.subscription(ID).wait_for(2))
        claimed = await store.checkpoints.claim(SubscriberId(ID), after(2))
        assert claimed.position == 2
        async with asyncio.timeout(10):
            while not waiting.done():
                await try_again(clock)
        await waiting

        assert bus.subscription(ID).checkpoint == 2
        assert bus.subscription(ID).state == "standby"

    @pytest.mark.parametrize("sequence", [-1, 1.5, "1", True, None, 2**63, 2**70])
    async def test_a_number_that_is_none_is_refused(self, make_bus: MakeBus, sequence: Any) -> None:
        bus = make_bus()
        bus.subscribe("*", FlakyHandler(), id=ID)
        with pytest.raises(InvalidPageError, match="global_sequence"):
            await bus.subscription(ID).wait_for(sequence)

    @pytest.mark.parametrize("timeout", [-1, "5", True, float("nan"), float("inf"), 10**400])
    async def test_a_timeout_that_is_none_is_refused(self, make_bus: MakeBus, timeout: Any) -> None:
        bus = make_bus()
        bus.subscribe("*", FlakyHandler(), id=ID)
        await bus.start()
        with pytest.raises(InvalidConfigError, match="timeout"):
            await bus.subscription(ID).wait_for(1, timeout)
        with pytest.raises(InvalidConfigError, match="timeout"):
            await bus.subscription(ID).caught_up(timeout)


class TestUnsubscribing:
    async def test_it_ends_after_the_event_at_hand(self, make_bus: MakeBus) -> None:
        bus = make_bus()
        handler = await blocked(bus, 1, 2)
        handle = bus.subscription(ID)
        bus.unsubscribe(ID)
        bus.unsubscribe(ID)
        handler.released.set()
        await until(lambda: handle.state == "stopped")

        assert handler.finish_count == 1
        assert await position_of(bus) == 1
        with pytest.raises(SubscriptionNotFoundError, match="no durable subscriber with the id 'mail'"):
            bus.subscription(ID)

    async def test_the_same_id_may_be_subscribed_again_and_goes_on(
        self, make_bus: MakeBus, clock: ManualClock
    ) -> None:
        """The new one waits until the old one has let go."""
        bus = make_bus()
        old, new = await blocked(bus, 1, 2), FlakyHandler()
        leaving = bus.subscription(ID)
        bus.unsubscribe(ID)
        bus.subscribe("*", new, id=ID)
        await soon(clock.wait_for_sleepers(1))
        assert bus.subscription(ID).state == "standby"
        assert new.events == []

        old.released.set()
        await until(lambda: leaving.state == "stopped")
        await clock.advance(0.2)
        await soon(bus.subscription(ID).caught_up())
        assert (len(old.events), new.payloads) == (1, [2])

    async def test_an_idle_one_can_be_replaced_at_once(self, make_bus: MakeBus, clock: ManualClock) -> None:
        bus, old, new = make_bus(), FlakyHandler(), FlakyHandler()
        bus.subscribe("*", old, id=ID)
        await publish_numbers(bus, 1)
        await soon(bus.idle())
        handle = bus.subscription(ID)
        bus.unsubscribe(ID)
        await until(lambda: handle.state == "stopped")
        bus.subscribe("*", new, id=ID)
        await publish_numbers(bus, 2)
        await soon(bus.subscription(ID).caught_up())

        assert (old.payloads, new.payloads) == ([1], [2])

    async def test_a_handler_may_unsubscribe_itself(self, make_bus: MakeBus) -> None:
        bus, seen = make_bus(), list[int]()

        @bus.on("*", id=ID)
        async def once(event: Event) -> None:
            seen.append(event.payload)
            bus.unsubscribe(ID)

        handle = bus.subscription(ID)
        await publish_numbers(bus, 1, 2)
        await until(lambda: handle.state == "stopped")

        assert seen == [1]
        assert await position_of(bus) == 1

    @pytest.mark.parametrize("unknown", ["nobody", "", "x" * 1000])
    async def test_an_unknown_id_has_no_handle(self, make_bus: MakeBus, unknown: str) -> None:
        bus = make_bus()
        bus.unsubscribe(unknown)
        with pytest.raises(SubscriptionNotFoundError):
            bus.subscription(unknown)

    @on_embedded
    async def test_a_handler_without_an_id_has_no_handle(self, make_bus: MakeBus) -> None:
        bus = make_bus()
        subscription_id = bus.subscribe("*", FlakyHandler())
        with pytest.raises(SubscriptionNotFoundError, match="only subscriptions that were made with id="):
            bus.subscription(subscription_id)
