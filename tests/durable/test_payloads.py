"""What handlers and subscribers get: today's version, of the type they ask for, or None if it was purged."""

import asyncio
import sqlite3
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest
from pydantic import BaseModel

from postbus import DLQInspector, Event, EventBus, SQLiteStore
from postbus.ports import Store
from postbus.testing import ManualClock
from tests.delivery.steps import FlakyHandler, soon, until
from tests.durable.steps import (
    ID,
    MakeBus,
    let_others_run,
    letters_of,
    on_embedded,
    position_of,
    publish_numbers,
)


@dataclass
class Placed:
    total: int
    currency: str = "EUR"


class PlacedStruct(msgspec.Struct):
    total: int
    currency: str = "EUR"


class PlacedModel(BaseModel):
    total: int
    currency: str = "EUR"


TYPES: list[Any] = [Placed, PlacedStruct, PlacedModel]


@pytest.mark.parametrize("kind", TYPES)
async def test_the_annotation_of_the_handler_says_what_it_gets(make_bus: MakeBus, kind: Any) -> None:
    """The payload itself or the event with it, async and plain."""
    await _gets_what_it_says(make_bus(), kind, ID)


@on_embedded
@pytest.mark.parametrize("kind", TYPES)
async def test_the_annotation_of_a_handler_without_an_id_says_what_it_gets(
    make_bus: MakeBus, kind: Any
) -> None:
    """Alike."""
    await _gets_what_it_says(make_bus(), kind, None)


async def _gets_what_it_says(bus: EventBus, kind: Any, id: str | None) -> None:
    got = list[Any]()

    async def take(payload: Any) -> None:
        got.append(payload)

    def take_event(event: Any) -> None:
        got.append(event.payload)

    take.__annotations__["payload"] = kind
    take_event.__annotations__["event"] = Event[kind]
    bus.subscribe("order.*", take, id=id)
    bus.subscribe("order.*", take_event, id=None if id is None else "second")
    await bus.publish("order.placed", kind(total=7))
    await soon(bus.idle())

    assert got == [kind(total=7)] * 2


async def test_old_payloads_come_in_todays_version(make_bus: MakeBus) -> None:
    """Step by step; what is stored stays as it is."""
    await _old_payload_comes_in_todays_version(make_bus(), ID)


@on_embedded
async def test_old_payloads_come_in_todays_version_to_handlers_without_an_id(make_bus: MakeBus) -> None:
    """They go through the same steps."""
    await _old_payload_comes_in_todays_version(make_bus(), None)


async def _old_payload_comes_in_todays_version(bus: EventBus, id: str | None) -> None:
    got = list[Any]()

    @bus.upcaster("order.placed", from_version=1)
    def name_total(payload: Any) -> Any:
        return {"total": payload}

    @bus.upcaster("order.placed", from_version=2)
    def add_currency(payload: Any) -> Any:
        return {**payload, "currency": "CHF"}

    async def take(event: Event[Placed]) -> None:
        got.append((event.payload, event.schema_version))

    take.__annotations__["event"] = Event[Placed]
    bus.subscribe("order.*", take, id=id)
    event_id = await bus.publish("order.placed", 7)
    await bus.publish("order.placed", {"total": 8}, schema_version=2)
    await bus.publish("order.placed", {"total": 9, "currency": "USD"}, schema_version=3)
    await soon(bus.idle())

    assert got == [(Placed(7, "CHF"), 3), (Placed(8, "CHF"), 3), (Placed(9, "USD"), 3)]
    assert (await bus.store.get(event_id)).payload == 7


async def test_a_purged_event_is_delivered_without_its_payload(make_bus: MakeBus, clock: ManualClock) -> None:
    """It happened; also for those who ask for a type, and through upcasters."""
    bus, got, typed = make_bus(), FlakyHandler(), list[Any]()

    @bus.upcaster("order.placed", from_version=1)
    def fail(payload: Any) -> Any:
        raise ValueError(payload)

    async def take(event: Event[Placed]) -> None:
        typed.append(event.payload)

    take.__annotations__["event"] = Event[Placed]
    event_id = await bus.publish("order.placed", {"total": 7})
    store: Any = bus.store
    await store.purge(event_id, "privacy")
    bus.subscribe("*", got, id=ID)
    bus.subscribe("*", take, id="typed")
    await soon(bus.idle())
    (event,) = got.events

    assert (event.payload, event.purger_id, event.purged_at) == (None, "privacy", clock.now())
    assert typed == [None]
    assert await letters_of(bus) == []


async def test_purging_takes_the_payload_of_its_dead_letters_along(make_bus: MakeBus) -> None:
    """The retry gets None as well."""
    bus, handler = make_bus(), FlakyHandler(1)
    bus.subscribe("*", handler, id=ID, retry={"max_retries": 0})
    event_id = await bus.publish("order.placed", {"secret": 1})
    await soon(bus.idle())
    store: Any = bus.store
    await store.purge(event_id, "privacy")
    await bus.dlq.retry(event_id)
    await until(lambda: len(handler.events) == 2)

    assert handler.payloads == [{"secret": 1}, None]


class TestUndecodable:
    """Another program has written something into the file that is no JSON."""

    @pytest.fixture
    def path(self, tmp_path: Path) -> Path:
        return tmp_path / "broken.db"

    async def break_second(self, path: Path) -> None:
        store: Store = SQLiteStore(path)
        await store.open()
        await store.append("s", [("a", 1), ("a", 2), ("a", 3)])
        await store.close()
        with closing(sqlite3.connect(path)) as connection, connection:
            connection.execute("UPDATE events SET payload = '{broken' WHERE global_sequence = 2")

    @pytest.mark.parametrize("is_transactional", [False, True])
    async def test_it_is_a_dead_letter_at_once_and_the_others_are_delivered(
        self, path: Path, is_transactional: bool
    ) -> None:
        await self.break_second(path)
        clock, seen = ManualClock(), list[int]()
        async with EventBus(path, clock=clock) as bus:
            if is_transactional:
                bus.subscribe("*", lambda event, _: seen.append(event.payload), id=ID)
            else:
                bus.subscribe("*", lambda event: seen.append(event.payload), id=ID)
            await soon(bus.subscription(ID).caught_up())
            (letter,) = await letters_of(bus)

            assert seen == [1, 3]
            assert clock.sleeps == []
            assert letter.global_sequence == 2
            assert len(letter.errors) == 1
            assert letter.errors[0].startswith("the stored payload is not JSON and no handler can get it")
            assert await position_of(bus) == 3

    async def test_its_retry_fails_in_the_same_way(self, path: Path) -> None:
        await self.break_second(path)
        async with EventBus(path, clock=ManualClock()) as bus:
            bus.subscribe("*", FlakyHandler(), id=ID)
            await soon(bus.subscription(ID).caught_up())
            (letter,) = await letters_of(bus)
            await bus.dlq.retry(letter.dead_letter_id)
            async with asyncio.timeout(10):
                while len((await bus.dlq.get(letter.dead_letter_id)).errors) < 2:
                    await let_others_run()

            page = await DLQInspector(bus.store).list()
            assert page.total == 1


async def test_a_handler_that_changes_the_payload_changes_its_own_copy_only(make_bus: MakeBus) -> None:
    """Others get it as it was published, and so does its own next attempt."""
    bus, other = make_bus(), FlakyHandler()
    seen: list[Any] = []

    @bus.on("*", id=ID, retry={"max_retries": 1, "base_delay": 0})
    async def change(event: Event) -> None:
        seen.append(dict(event.payload))
        event.payload.clear()

    bus.subscribe("*", other, id="other")
    await bus.publish("a", {"total": 7})
    await soon(bus.idle())

    assert seen == [{"total": 7}]
    assert other.payloads == [{"total": 7}]


async def test_numbers_come_as_they_went(make_bus: MakeBus) -> None:
    bus, handler = make_bus(), FlakyHandler()
    bus.subscribe("*", handler, id=ID)
    await publish_numbers(bus, 2**53 + 1, 0, -1)
    await soon(bus.idle())

    assert handler.payloads == [2**53 + 1, 0, -1]
