"""EventStore.append on the store of a bus: what the bus was told about events holds for them as well."""

import uuid

import pytest

from postbus import EventBus, InvalidPayloadError
from postbus.config import DEFAULT_MAX_PAYLOAD_BYTES
from postbus.testing import ManualClock
from tests.contracts.backends import Backend, open_store

LONG = "x" * 200


async def test_it_refuses_the_payloads_that_the_bus_refuses(backend: Backend, clock: ManualClock) -> None:
    """And stores nothing of them."""
    async with backend.new_store(clock) as store, EventBus(store, max_payload_bytes=100) as bus:
        with pytest.raises(InvalidPayloadError, match="100 bytes"):
            await bus.store.append("order-1", [("order.placed", "short"), ("order.paid", LONG)])

        assert await bus.store.read_stream("order-1") == []


async def test_it_takes_the_payloads_that_the_bus_takes(backend: Backend, clock: ManualClock) -> None:
    """Larger ones than a store alone would."""
    payload = "x" * DEFAULT_MAX_PAYLOAD_BYTES
    async with (
        backend.new_store(clock) as store,
        EventBus(store, max_payload_bytes=2 * DEFAULT_MAX_PAYLOAD_BYTES) as bus,
    ):
        (event,) = await bus.store.append("order-1", [("order.placed", payload)])

        assert event.payload == payload


async def test_its_events_get_the_ids_that_the_bus_makes(backend: Backend, clock: ManualClock) -> None:
    """From its id_factory, one for each that has none of its own."""
    ids = iter(["first", "second"])
    async with backend.new_store(clock) as store, EventBus(store, id_factory=ids.__next__) as bus:
        events = await bus.store.append("order-1", [("order.placed", 1), ("order.paid", 2)])

        assert [event.id for event in events] == ["first", "second"]


async def test_a_store_without_a_bus_has_defaults(backend: Backend, clock: ManualClock) -> None:
    """Also one whose bus is gone."""
    async with backend.new_store(clock) as store:
        bus = EventBus(store, max_payload_bytes=100, id_factory=lambda: "from the bus")
        await bus.start()
        await bus.shutdown()
    async with open_store(backend, clock) as store:
        (event,) = await store.append("order-1", [("order.placed", LONG)])

        assert event.payload == LONG
        assert uuid.UUID(event.id).version == 7
