"""Publish: with and without waiting, many at once, and the same id twice."""

import asyncio
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest

from postbus import DuplicateEventIdError, Event, EventBus, EventStatus, InvalidPayloadError, NewEvent
from tests.delivery.steps import (
    BlockingHandler,
    FlakyHandler,
    MakeBus,
    begin,
    query,
    soon,
    start,
    statuses,
    until,
)


class TestWaitFalse:
    async def test_it_returns_when_the_event_is_durable(self, database: Path, make_bus: MakeBus) -> None:
        """The handler has not finished, and may not have begun."""
        bus, handler = make_bus(), BlockingHandler()
        bus.subscribe(handler)
        event_id = await soon(bus.publish("order.placed", wait=False))
        stored = list(statuses(database))
        handler.released.set()
        await soon(bus.idle())

        assert stored == [event_id]
        assert handler.finish_count == 1
        assert (await bus.store.get(event_id)).status is EventStatus.DONE

    async def test_it_is_retried_and_buried_like_any_other(self, make_bus: MakeBus) -> None:
        """Nobody has to wait for it."""
        bus, handler = make_bus(), FlakyHandler(4)
        bus.subscribe(handler)
        event_id = await bus.publish("order.placed", wait=False)
        await soon(bus.idle())
        event = await bus.store.get(event_id)

        assert (event.status, event.retry_count, len(event.errors)) == (EventStatus.DLQ, 4, 4)

    async def test_without_a_handler_it_is_done_at_once(self, database: Path, make_bus: MakeBus) -> None:
        """As it is when it is waited for."""
        bus = make_bus()
        for wait in (True, False):
            await bus.publish("order.placed", wait=wait)

        assert list(statuses(database).values()) == ["done", "done"]

    async def test_a_slow_handler_delays_nobody_who_waits_for_another(self, make_bus: MakeBus) -> None:
        """What is worked off in the background is in nobody's way."""
        bus, slow, quick = make_bus(), BlockingHandler(), FlakyHandler()
        bus.subscribe("slow.*", slow)
        bus.subscribe("quick.*", quick)
        await bus.publish("slow.one", wait=False)
        await soon(slow.started.wait())
        await soon(bus.publish("quick.one"))
        slow.released.set()

        assert len(quick.events) == 1


class TestPublishMany:
    async def test_items_are_tuples_or_new_events(self, make_bus: MakeBus) -> None:
        """With all of publish's options; the ids come back in order."""
        bus, handler = make_bus(), FlakyHandler()
        bus.subscribe(handler)
        ids = await bus.publish_many(
            [
                ("order.a",),
                ("order.b", 2),
                ("order.c", 3, {"source": "web"}),
                NewEvent("order.d", 4, {"source": "app"}, "given"),
            ]
        )

        assert [(event.type, event.payload, event.metadata) for event in handler.events] == [
            ("order.a", None, None),
            ("order.b", 2, None),
            ("order.c", 3, {"source": "web"}),
            ("order.d", 4, {"source": "app"}),
        ]
        assert ids == [event.id for event in handler.events]
        assert ids[3] == "given"

    async def test_they_are_stored_in_one_transaction(self, database: Path, make_bus: MakeBus) -> None:
        """The first handler finds all of them in the file."""
        bus = make_bus()
        seen: list[int] = []

        @bus.on("order.*")
        async def count(_: Event) -> None:
            seen.extend(number for (number,) in query(database, "SELECT count(*) FROM events"))

        await bus.publish_many([("order.placed", number) for number in range(50)])

        assert seen == [50] * 50

    async def test_one_bad_item_keeps_all_from_being_stored(self, database: Path, make_bus: MakeBus) -> None:
        """The last one too is checked before the first one is stored."""
        bus, handler = make_bus(), FlakyHandler()
        bus.subscribe(handler)
        with pytest.raises(InvalidPayloadError):
            await bus.publish_many([("order.placed", 1), ("order.placed", {1, 2})])

        assert query(database, "SELECT id FROM events") == []
        assert handler.events == []

    async def test_one_id_that_is_taken_keeps_all_from_being_stored(
        self, database: Path, make_bus: MakeBus
    ) -> None:
        """What the store refuses it refuses whole."""
        ids = iter(["first", "second", "first", "third"])
        bus, handler = make_bus(id_factory=lambda: next(ids)), FlakyHandler()
        bus.subscribe(handler)
        await bus.publish("order.placed", 1)
        with pytest.raises(DuplicateEventIdError):
            await bus.publish_many([("order.placed", number) for number in (2, 3, 4)])

        assert list(statuses(database)) == ["first"]
        assert handler.payloads == [1]

    async def test_they_are_delivered_in_order(self, make_bus: MakeBus) -> None:
        """One after another, whether they are waited for or not."""
        bus = make_bus()
        begun: list[int] = []

        @bus.on("order.*")
        async def hesitate(event: Event) -> None:
            for _ in range(event.payload % 7):
                await asyncio.sleep(0)
            begun.append(event.payload)

        await bus.publish_many([("order.placed", number) for number in range(40)])
        await bus.publish_many([("order.placed", number) for number in range(40, 80)], wait=False)
        await soon(bus.idle())

        assert begun == list(range(80))

    async def test_a_failing_one_delays_no_other(self, make_bus: MakeBus) -> None:
        """Its retries happen beside the first attempts of the others; all of it is waited for."""
        bus = make_bus()
        begun: list[tuple[int, int]] = []

        @bus.on("order.*")
        async def fail_first(event: Event) -> None:
            begun.append((event.payload, event.retry_count))
            if event.payload == 0 and event.retry_count < 2:
                raise ValueError("boom")

        ids = await bus.publish_many([("order.placed", number) for number in range(3)])
        events = [await bus.store.get(event_id) for event_id in ids]

        assert begun[0] == (0, 0)
        assert sorted(begun) == [(0, 0), (0, 1), (0, 2), (1, 0), (2, 0)]
        assert {event.status for event in events} == {EventStatus.DONE}

    async def test_some_without_a_handler_are_done_at_once(self, database: Path, make_bus: MakeBus) -> None:
        """Beside others that have one."""
        bus, handler = make_bus(), FlakyHandler()
        bus.subscribe("order.*", handler)
        await bus.publish_many([("user.created", 1), ("order.placed", 2), ("user.deleted", 3)])
        await bus.shutdown()

        assert handler.payloads == [2]
        assert list(statuses(database).values()) == ["done"] * 3

    async def test_nothing_to_publish_is_no_error(self, make_bus: MakeBus) -> None:
        """An empty list has no ids."""
        assert await make_bus().publish_many([]) == []

    async def test_any_iterable_will_do(self, make_bus: MakeBus) -> None:
        """A generator, for example."""
        bus, handler = make_bus(), FlakyHandler()
        bus.subscribe(handler)
        await bus.publish_many(("order.placed", number) for number in range(3))

        assert handler.payloads == [0, 1, 2]

    async def test_more_than_fit_into_one_statement(self, make_bus: MakeBus) -> None:
        """A thousand, each with its own number and in order."""
        bus, handler = make_bus(), FlakyHandler()
        bus.subscribe(handler)
        await bus.publish_many([("order.placed", number) for number in range(1000)])

        assert handler.payloads == list(range(1000))
        assert [event.global_sequence for event in handler.events] == list(range(1, 1001))


class TestGivenId:
    async def test_the_same_id_is_stored_and_delivered_once(self, database: Path, make_bus: MakeBus) -> None:
        """The second is a success, and what was stored first stays."""
        bus, handler = make_bus(), FlakyHandler()
        bus.subscribe(handler)
        ids = [await bus.publish("order.placed", number, event_id="order-42") for number in (1, 2)]

        assert ids == ["order-42", "order-42"]
        assert handler.payloads == [1]
        assert query(database, "SELECT id, payload FROM events") == [("order-42", "1")]

    async def test_the_same_id_at_once_is_delivered_once(self, make_bus: MakeBus) -> None:
        """However many publish it in the same moment."""
        bus, handler = make_bus(), FlakyHandler()
        bus.subscribe(handler)
        ids = await soon(
            asyncio.gather(*(bus.publish("order.placed", n, event_id="order-42") for n in range(20)))
        )

        assert (set(ids), len(handler.events)) == ({"order-42"}, 1)

    async def test_everybody_who_publishes_it_at_once_waits_for_its_handlers(self, make_bus: MakeBus) -> None:
        """The first and those whose event is not stored because of the first."""
        bus, handler = make_bus(), BlockingHandler()
        bus.subscribe("order.*", handler)
        await bus.start()
        publishing = [await begin(bus.publish("order.placed", event_id="order-42")) for _ in range(5)]
        await soon(handler.started.wait())
        # Stored later than those: whoever would not wait is done.
        await bus.publish("user.created")
        done_before = [task.done() for task in publishing]
        handler.released.set()
        await soon(asyncio.gather(*publishing))

        assert done_before == [False] * 5
        assert handler.finish_count == 1

    async def test_who_publishes_it_later_waits_for_its_handlers(self, make_bus: MakeBus) -> None:
        """While the first one's handler is at work."""
        bus, handler = make_bus(), BlockingHandler()
        bus.subscribe("order.*", handler)
        first = start(bus.publish("order.placed", event_id="order-42"))
        await soon(handler.started.wait())
        second = await begin(bus.publish("order.placed", event_id="order-42"))
        await bus.publish("user.created")
        was_done = second.done()
        handler.released.set()
        await soon(asyncio.gather(first, second))

        assert not was_done

    async def test_it_is_waited_for_when_the_first_publisher_was_cancelled(self, make_bus: MakeBus) -> None:
        """The handler is at work all the same."""
        bus, handler = make_bus(), BlockingHandler()
        bus.subscribe("order.*", handler)
        first = start(bus.publish("order.placed", event_id="order-42"))
        await soon(handler.started.wait())
        first.cancel()
        second = await begin(bus.publish("order.placed", event_id="order-42"))
        await bus.publish("user.created")
        was_done = second.done()
        handler.released.set()
        await soon(second)

        assert not was_done
        assert handler.finish_count == 1

    async def test_it_is_stored_once_within_publish_many(self, make_bus: MakeBus) -> None:
        """Twice in one list, and once more in another."""
        bus, handler = make_bus(), FlakyHandler()
        bus.subscribe(handler)
        once, twice = NewEvent("order.placed", 1, None, "a"), NewEvent("order.placed", 2, None, "a")
        ids = await soon(bus.publish_many([once, twice, NewEvent("order.placed", 3, None, "b")]))
        await soon(bus.publish_many([twice, NewEvent("order.placed", 4, None, "c")]))

        assert ids == ["a", "a", "b"]
        assert handler.payloads == [1, 3, 4]

    async def test_many_with_an_id_in_flight_hold_nobody_up(self, make_bus: MakeBus) -> None:
        """Who waits for that id already still hears of its end."""
        bus, handler, quick = make_bus(), BlockingHandler(), FlakyHandler()
        bus.subscribe("slow.*", handler)
        bus.subscribe("quick.*", quick)
        first = start(bus.publish("slow.one", event_id="a"))
        await soon(handler.started.wait())
        second = await begin(bus.publish("slow.one", event_id="a"))
        many = await begin(bus.publish_many([NewEvent("slow.one", event_id="a"), ("quick.one", 2)]))
        await until(lambda: bool(quick.events))
        handler.released.set()
        await soon(asyncio.gather(first, second, many))

        assert (len(handler.events), quick.payloads) == (1, [2])

    async def test_it_may_be_a_uuid(self, make_bus: MakeBus) -> None:
        """Given as an object, kept as its text."""
        event_id = uuid.uuid4()

        assert await make_bus().publish("order.placed", event_id=event_id) == str(event_id)

    async def test_it_is_known_after_a_restart(self, make_bus: MakeBus) -> None:
        """The file remembers it, not the bus."""
        first = make_bus()
        await first.publish("order.placed", 1, event_id="order-42")
        await first.shutdown()
        second, handler = make_bus(), FlakyHandler()
        second.subscribe(handler)
        await second.publish("order.placed", 2, event_id="order-42")

        assert handler.events == []
        assert (await second.store.get("order-42")).payload == 1


class TestConcurrentPublishers:
    async def test_everybody_gets_its_own_event_delivered(self, make_bus: MakeBus) -> None:
        """Five hundred at once share commits and nothing else."""
        bus, handler = make_bus(), FlakyHandler()
        bus.subscribe(handler)
        ids = await soon(asyncio.gather(*(bus.publish("order.placed", n) for n in range(500))))

        assert sorted(event.payload for event in handler.events) == list(range(500))
        assert {event.id for event in handler.events} == set(ids)
        assert [handler.events[n].id for n in range(500)] == sorted(ids)

    async def test_one_id_that_is_taken_spoils_no_other_publish(
        self, database: Path, make_bus: MakeBus
    ) -> None:
        """Also when they share a commit."""
        given = iter(["taken", *map(str, range(5)), "taken", *map(str, range(5, 10))])
        bus = make_bus(id_factory=lambda: next(given))
        await bus.publish("order.placed")
        results = await soon(
            asyncio.gather(*(bus.publish("order.placed") for _ in range(11)), return_exceptions=True)
        )

        assert [type(result) for result in results].count(DuplicateEventIdError) == 1
        assert sorted(statuses(database)) == sorted(["taken", *map(str, range(10))])


class TestOpening:
    async def test_publish_opens_the_bus_on_first_use(self, make_bus: MakeBus) -> None:
        """Also when many do it at once."""
        bus, handler = make_bus(), FlakyHandler()
        bus.subscribe(handler)
        await soon(asyncio.gather(*(bus.publish("order.placed", number) for number in range(10))))

        assert sorted(event.payload for event in handler.events) == list(range(10))

    async def test_starting_twice_changes_nothing(self, make_bus: MakeBus) -> None:
        """Idempotent, also at the same moment."""
        bus, handler = make_bus(), FlakyHandler()
        bus.subscribe(handler)
        await asyncio.gather(bus.start(), bus.start())
        await bus.publish("order.placed", wait=False)
        await bus.start()
        await soon(bus.idle())

        assert len(handler.events) == 1

    async def test_a_handler_subscribed_after_the_start_is_waited_for(self, make_bus: MakeBus) -> None:
        """From the very next publish on."""
        bus, handler = make_bus(), FlakyHandler(1)
        await bus.start()
        bus.subscribe(handler)
        await soon(bus.publish("order.placed"))

        assert [event.retry_count for event in handler.events] == [0, 1]

    def test_making_a_bus_opens_nothing(self, database: Path) -> None:
        """Nor does subscribing: no event loop, no file."""
        bus = EventBus(database)
        bus.subscribe(FlakyHandler())

        assert not database.exists()

    @pytest.mark.parametrize(
        "target", [lambda path: str(path), lambda path: path, lambda path: f"sqlite:///{path}"]
    )
    async def test_a_target_is_a_path_or_a_url(
        self, database: Path, make_bus: MakeBus, target: Callable[[Path], object]
    ) -> None:
        """All three name the same file."""
        await make_bus(target=target(database)).publish("order.placed", event_id="here")

        assert list(statuses(database)) == ["here"]
