"""0002, section 13: several instances that process the events of one subscriber at the same time."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from postbus import Event, PgEventBus, ReliableDeliveryConfig
from tests.faults.steps import query, until
from tests.gaps.steps import ID, Seen, checkpoint_row, soon, writer, written

CONFIG = ReliableDeliveryConfig(poll_interval=0.05, max_retries=0)
COLUMNS = """
SELECT attname, format_type(atttypid, atttypmod), attnotnull FROM pg_attribute
WHERE attrelid = 'postbus.event_bus_outbox'::regclass AND attnum > 0
"""
# Where the specification says UUID, an id may be any text.
SPECIFIED = {
    "id": ("bigint", True),
    "subscriber_pool": ("character varying(255)", True),
    "global_sequence": ("bigint", True),
    "event_id": ("text", True),
    "status": ("character varying(20)", True),
    "locked_by": ("character varying(255)", False),
    "locked_at": ("timestamp with time zone", False),
    "created_at": ("timestamp with time zone", True),
}
OUTBOX = "SELECT count(*) FROM postbus.event_bus_outbox"
UNIQUE = """
SELECT pg_get_constraintdef(oid) FROM pg_constraint
WHERE conrelid = 'postbus.event_bus_outbox'::regclass AND contype = 'u'
"""


class Observer:
    """The user's code: the same before and after. Fails for one payload."""

    subscriber_id = ID

    def __init__(self, poison: object = None) -> None:
        self.seen, self._poison = Seen(), poison

    async def on_event(self, event: Event) -> None:
        await self.seen(event)
        if event.payload == self._poison:
            raise ValueError("poison")

    @property
    def payloads(self) -> list[Any]:
        return [event.payload for event in self.seen.events]


def count_of(observers: list[Observer]) -> int:
    """How many events they have got."""
    return sum(len(observer.payloads) for observer in observers)


@asynccontextmanager
async def instance(dsn: str, observer: Observer, mode: Any) -> AsyncIterator[PgEventBus]:
    """One instance of an application."""
    bus = PgEventBus(dsn, config=CONFIG)
    bus.subscribe(observer, mode=mode)
    async with bus:
        yield bus


async def run(dsn: str, observer: Observer, mode: Any, *numbers: int) -> None:
    """An instance that publishes these and processes them."""
    async with instance(dsn, observer, mode) as bus:
        await bus.publish_many([("test.done", number) for number in numbers])
        await asyncio.wait_for(bus.idle(), 20)


class TestSolution:
    """Section 13.2."""

    async def test_new_schema(self, postgres_dsn: str) -> None:
        """The outbox has the columns of the specification, and each event once for a pool."""
        async with PgEventBus(postgres_dsn):
            pass
        columns = {name: tuple(rest) for name, *rest in await query(postgres_dsn, COLUMNS)}

        assert SPECIFIED.items() <= columns.items()
        assert ("UNIQUE (subscriber_pool, global_sequence)",) in await query(postgres_dsn, UNIQUE)

    async def test_worker_claim_logic_only_one_worker_gets_each_event(self, postgres_dsn: str) -> None:
        """Three workers at the same time, each of which takes what no other one holds."""
        observers, number = [Observer() for _ in range(3)], 0
        async with (
            instance(postgres_dsn, observers[0], "competing") as bus,
            instance(postgres_dsn, observers[1], "competing"),
            instance(postgres_dsn, observers[2], "competing"),
        ):
            while not all(observer.payloads for observer in observers):
                await bus.publish_many([("test.done", number + each) for each in range(30)])
                number += 30
                await soon(lambda count=number: count_of(observers) >= count)  # type: ignore[misc]
            await asyncio.wait_for(bus.idle(), 20)

        assert sorted(payload for each in observers for payload in each.payloads) == list(range(number))

    async def test_worker_claim_logic_passes_over_what_another_worker_holds(self, postgres_dsn: str) -> None:
        """SKIP LOCKED: it takes the next ones instead of waiting, and the first when that is free."""
        observer = Observer()
        async with instance(postgres_dsn, observer, "competing") as bus, writer(postgres_dsn) as other:
            await bus.subscription(ID).pause()
            await bus.publish_many([("test.done", number) for number in range(5)])
            await until(lambda: query(postgres_dsn, OUTBOX), lambda rows: rows == [(5,)])
            await other.run("BEGIN")
            await other.run("SELECT FROM postbus.event_bus_outbox ORDER BY id LIMIT 1 FOR UPDATE")
            await bus.subscription(ID).resume()
            await soon(lambda: sorted(observer.payloads) == [1, 2, 3, 4])
            await other.run("COMMIT")
            await soon(lambda: sorted(observer.payloads) == [0, 1, 2, 3, 4])


class TestMigrationPath:
    """Section 13.3: one observer, first with one active instance, then with competing ones."""

    async def test_event_observer_and_user_code_need_no_change(self, postgres_dsn: str) -> None:
        """The same object goes on under the other mode."""
        observer = Observer()
        await run(postgres_dsn, observer, "ordered", 1, 2, 3)
        await run(postgres_dsn, observer, "competing", 4, 5, 6)

        assert observer.payloads[:3] == [1, 2, 3]
        assert sorted(observer.payloads[3:]) == [4, 5, 6]

    @pytest.mark.parametrize("modes", [("ordered", "competing"), ("competing", "ordered")])
    async def test_subscriber_id_and_checkpoint_table_mean_the_same(
        self, postgres_dsn: str, modes: tuple[str, str]
    ) -> None:
        """One row under the same id, from which the other mode goes on; there and back."""
        before, after = Observer(), Observer()
        await run(postgres_dsn, before, modes[0], 1, 2, 3)
        await written(postgres_dsn, 3)
        await run(postgres_dsn, after, modes[1], 4)
        rows = await query(postgres_dsn, "SELECT subscriber_id FROM postbus.event_bus_checkpoints")

        assert (sorted(before.payloads), after.payloads) == ([1, 2, 3], [4])
        assert rows == [(ID,)]
        assert (await checkpoint_row(postgres_dsn))["last_global_sequence"] == 4

    async def test_dlq_table_means_the_same(self, postgres_dsn: str) -> None:
        """A dead letter of the one mode is listed and retried in the other, and both look alike."""
        await run(postgres_dsn, Observer(poison=1), "ordered", 1)
        observer = Observer(poison=2)
        await run(postgres_dsn, observer, "competing", 2)
        async with instance(postgres_dsn, healed := Observer(), "competing") as bus:
            letters = (await bus.dlq.list(subscriber_id=ID)).events
            await bus.dlq.retry_all(subscriber_id=ID)
            await soon(lambda: sorted(healed.payloads) == [1, 2])

        assert [(each.payload, each.errors) for each in letters] == [
            (2, ["ValueError: poison"]),
            (1, ["ValueError: poison"]),
        ]
