"""Recovery: what an ended process left behind is delivered, in order, to whoever is there for it."""

from pathlib import Path

import pytest

from postbus import EventStatus, RetryPolicy
from postbus.delivery.interrupted import INTERRUPTED, INTERRUPTED_AMONG_OTHERS
from tests.delivery.steps import ALWAYS, FlakyHandler, MakeBus, leave_behind, soon, statuses, until


async def test_pending_and_processing_events_are_taken_up(database: Path, make_bus: MakeBus) -> None:
    """In the order of their publishing, each with its attempts so far."""
    await leave_behind(database, "a", "processing", payload=1)
    await leave_behind(database, "b", "pending", payload=2)
    await leave_behind(database, "c", "processing", payload=3, retry_count=2, errors=["x", "y"])
    bus, handler = make_bus(), FlakyHandler()
    bus.subscribe(handler)
    await bus.start()
    await soon(bus.idle())

    assert [(event.payload, event.retry_count) for event in handler.events] == [(1, 1), (2, 0), (3, 3)]
    assert handler.events[2].errors == ["x", "y", INTERRUPTED_AMONG_OTHERS]


async def test_the_whole_event_comes_back(database: Path, make_bus: MakeBus) -> None:
    """Payload, metadata and moment survive, and are in the dead letter too."""
    await leave_behind(database, "a", "processing", payload={"n": [1, "é"]}, metadata={"source": "web"})
    bus, handler = make_bus(retry=RetryPolicy(max_retries=1)), FlakyHandler(ALWAYS)
    bus.subscribe(handler)
    await bus.start()
    await soon(bus.idle())
    dead = await bus.dlq.get("a")

    for event in (handler.events[0], dead):
        assert (event.payload, event.metadata) == ({"n": [1, "é"]}, {"source": "web"})
        assert event.created_at.isoformat() == "2026-01-01T12:00:00+00:00"


async def leave_many_behind(make_bus: MakeBus, *types_and_counts: tuple[str, int]) -> None:
    """Publish so many of each type that stay pending, as nobody has a handler for them."""
    owner, standby = make_bus(), make_bus()
    for bus in (owner, standby):
        bus.subscribe("some.other", FlakyHandler())
        await bus.start()
    for type, count in types_and_counts:
        await standby.publish_many([(type, number) for number in range(count)])
    await standby.shutdown()
    await owner.shutdown()


async def test_more_than_one_batch_is_taken_up_in_order(make_bus: MakeBus) -> None:
    """A thousand, read in pieces."""
    await leave_many_behind(make_bus, ("order.placed", 1000))
    bus, handler = make_bus(), FlakyHandler()
    bus.subscribe(handler)
    await bus.start()
    await soon(bus.idle())

    assert handler.payloads == list(range(1000))


class TestLateHandlers:
    async def test_an_event_without_a_handler_stays_pending_until_one_is_subscribed(
        self, database: Path, make_bus: MakeBus
    ) -> None:
        """Nobody has seen it yet, so it is not done."""
        await leave_behind(database, "a", "processing")
        await leave_behind(database, "b", "pending")
        bus, handler = make_bus(), FlakyHandler()
        bus.subscribe("user.*", FlakyHandler())
        await bus.start()
        await soon(bus.idle())
        before = statuses(database)
        bus.subscribe("order.*", handler)
        await soon(bus.idle())

        assert before == {"a": "pending", "b": "pending"}
        assert [event.id for event in handler.events] == ["a", "b"]
        assert (await bus.store.get("b")).status is EventStatus.DONE

    async def test_it_stays_pending_through_a_restart(self, database: Path, make_bus: MakeBus) -> None:
        """And its attempts are not counted up by that."""
        await leave_behind(database, "a", "pending")
        for _ in range(3):
            bus = make_bus()
            await bus.start()
            await soon(bus.idle())
            await bus.shutdown()
        bus, handler = make_bus(), FlakyHandler()
        bus.subscribe(handler)
        await bus.start()
        await soon(bus.idle())

        assert [event.retry_count for event in handler.events] == [0]

    async def test_those_behind_it_are_delivered(self, make_bus: MakeBus) -> None:
        """Thousands that nobody wants are in nobody's way."""
        await leave_many_behind(make_bus, ("nobody.cares", 2500), ("order.placed", 1))
        bus, handler = make_bus(), FlakyHandler()
        bus.subscribe("order.*", handler)
        await bus.start()
        await soon(bus.idle())
        await bus.publish("order.placed", "new", wait=False)
        await soon(bus.idle())

        assert handler.payloads == [0, "new"]

    @pytest.mark.parametrize("unhandled_count", [10, 1500])
    async def test_a_retried_dead_letter_is_found_among_them(
        self, database: Path, make_bus: MakeBus, unhandled_count: int
    ) -> None:
        """It has a lower number than all of them."""
        await leave_behind(database, "dead", "dlq")
        await leave_many_behind(make_bus, ("nobody.cares", unhandled_count))
        bus, handler = make_bus(), FlakyHandler()
        bus.subscribe("order.*", handler)
        await bus.start()
        await soon(bus.idle())
        await bus.dlq.retry("dead")
        await until(lambda: bool(handler.events))

        assert [event.id for event in handler.events] == ["dead"]


class TestSettleUnhandled:
    async def test_events_without_a_handler_are_done_when_the_user_says_so(
        self, database: Path, make_bus: MakeBus
    ) -> None:
        """Those that match the pattern, and how many they were."""
        await leave_behind(database, "a", "pending", type="old.one")
        await leave_behind(database, "b", "pending", type="old.two")
        await leave_behind(database, "c", "pending", type="new.one")
        bus = make_bus()
        await bus.start()
        settled = await bus.settle_unhandled("old.*")

        assert settled == 2
        assert statuses(database) == {"a": "done", "b": "done", "c": "pending"}

    async def test_by_default_it_means_all_of_them(self, database: Path, make_bus: MakeBus) -> None:
        """Whatever their type."""
        for number in range(300):
            await leave_behind(database, str(number), "pending", type=f"old.{number}")
        bus = make_bus()

        assert await bus.settle_unhandled() == 300
        assert set(statuses(database).values()) == {"done"}

    async def test_events_with_a_handler_are_left_to_it(self, database: Path, make_bus: MakeBus) -> None:
        """And dead letters are left alone."""
        await leave_behind(database, "handled", "pending", type="order.placed")
        await leave_behind(database, "dead", "dlq", type="old.one")
        bus, handler = make_bus(), FlakyHandler()
        bus.subscribe("order.*", handler)
        settled = await bus.settle_unhandled()
        await soon(bus.idle())

        assert settled == 0
        assert [event.id for event in handler.events] == ["handled"]
        assert statuses(database)["dead"] == "dlq"


class TestUsedUpAttempts:
    async def test_an_event_that_used_them_up_by_crashes_is_a_dead_letter_unseen(
        self, database: Path, make_bus: MakeBus
    ) -> None:
        """The handler that ends the process is not called once more; the story tells of the crashes."""
        errors = [INTERRUPTED] * 3
        await leave_behind(database, "poison", "processing", retry_count=3, errors=errors)
        bus, handler = make_bus(), FlakyHandler()
        bus.subscribe(handler)
        await bus.start()
        await soon(bus.idle())
        event = await bus.dlq.get("poison")

        assert handler.events == []
        assert (event.retry_count, event.errors) == (4, [INTERRUPTED] * 4)
        assert event.dlq_at is not None

    async def test_one_attempt_that_is_left_is_made(self, database: Path, make_bus: MakeBus) -> None:
        """Three of four were used up."""
        await leave_behind(database, "a", "processing", retry_count=2)
        bus, handler = make_bus(), FlakyHandler()
        bus.subscribe(handler)
        await bus.start()
        await soon(bus.idle())

        assert [event.retry_count for event in handler.events] == [3]

    async def test_on_its_last_attempt_an_event_is_in_processing_alone(
        self, database: Path, make_bus: MakeBus
    ) -> None:
        """So that a crash during it counts against nobody else."""
        for event_id in "abc":
            await leave_behind(database, event_id, "processing", retry_count=2)
        bus = make_bus()
        seen: list[dict[str, str]] = []

        @bus.on("order.*")
        async def look(_: object) -> None:
            seen.append(statuses(database))

        await bus.start()
        await soon(bus.idle())

        assert seen == [
            {"a": "processing", "b": "pending", "c": "pending"},
            {"a": "done", "b": "processing", "c": "pending"},
            {"a": "done", "b": "done", "c": "processing"},
        ]
