"""0012 on PostgreSQL: events whose transactions commit out of order are never skipped."""

import asyncio

import asyncpg

from postbus import CheckpointMode, Event, PgEventBus
from tests.gaps.steps import ID, INSERT, checkpoint_row, running, soon, writer, written
from tests.stores.postgres_steps import listening


async def test_out_of_order_notify_both_events_processed(postgres_dsn: str) -> None:
    """A draws N and commits after B, which drew N+1: the subscriber gets both."""
    async with running(postgres_dsn) as (_, [seen]), writer(postgres_dsn) as a, writer(postgres_dsn) as b:
        await a.run("BEGIN")
        n = await a.draw()
        later = await b.insert()
        await soon(lambda: seen.numbers == [later])
        await a.insert(n)
        await a.run("COMMIT")
        await soon(lambda: seen.numbers == [later, n])

    assert later == n + 1


async def test_rolled_back_transaction_gap_resolved(postgres_dsn: str) -> None:
    """A number that was rolled back holds nothing up, and the checkpoint passes it."""
    async with running(postgres_dsn, gap_timeout=1.0) as (_, [seen]), writer(postgres_dsn) as a:
        first = await a.insert()
        await a.run("BEGIN")
        await a.draw()
        await a.run("ROLLBACK")
        last = await a.insert()
        await soon(lambda: seen.numbers == [first, last])
        await written(postgres_dsn, last)

    assert last == first + 2


async def test_burst_concurrent_events_all_processed(postgres_dsn: str) -> None:
    """50 events of concurrent tasks, each in a transaction of its own."""

    async def store_one() -> int:
        async with writer(postgres_dsn) as each:
            return await each.insert()

    async with running(postgres_dsn) as (_, [seen]):
        numbers = await asyncio.gather(*[store_one() for _ in range(50)])
        await soon(lambda: len(seen.numbers) == 50)

    assert sorted(seen.numbers) == sorted(numbers)


async def test_multiple_subscribers_out_of_order(postgres_dsn: str) -> None:
    """Two subscribers, events out of order: both get all of them."""
    async with (
        running(postgres_dsn, "mail", "stock") as (_, [mail, stock]),
        writer(postgres_dsn) as a,
        writer(postgres_dsn) as b,
    ):
        await a.run("BEGIN")
        early = [await a.insert() for _ in range(3)]
        late = [await b.insert() for _ in range(3)]
        await soon(lambda: mail.numbers == late and stock.numbers == late)
        await a.run("COMMIT")
        await soon(lambda: mail.numbers == late + early and stock.numbers == late + early)


async def test_catchup_plus_realtime_handoff_no_loss(postgres_dsn: str) -> None:
    """Events before the subscription, while it catches up, and after: all in order, none twice."""
    bus = PgEventBus(postgres_dsn)
    seen: list[object] = []

    async def note(event: Event) -> None:
        seen.append(event.payload)

    async with bus:
        await bus.publish_many([("test.done", number) for number in range(1000)])
        bus.subscribe("test.*", note, id=ID)
        for number in range(1000, 1100):
            await bus.publish("test.done", number)
        await bus.subscription(ID).caught_up(timeout=10)

    assert seen == list(range(1100))


async def test_batched_checkpoint_with_gap_tracking(postgres_dsn: str) -> None:
    """A batched checkpoint is written when it is due, and never beyond an open gap."""
    mode = CheckpointMode.batched(batch_size=10, max_delay=60.0)
    async with (
        running(postgres_dsn, checkpoint_mode=mode) as (_, [seen]),
        writer(postgres_dsn) as a,
        writer(postgres_dsn) as b,
    ):
        before = [await b.insert() for _ in range(3)]
        await a.run("BEGIN")
        gap = await a.insert()
        beyond = [await b.insert() for _ in range(7)]
        await soon(lambda: len(seen.numbers) == 10)
        await written(postgres_dsn, before[-1])
        row = await checkpoint_row(postgres_dsn)

        assert (row["last_global_sequence"], row["head"], row["open_gaps"]) == (
            gap - 1,
            beyond[-1],
            [gap, gap],
        )

        await a.run("COMMIT")
        for _ in range(9):
            await b.insert()
        await soon(lambda: len(seen.numbers) == 20)
        await written(postgres_dsn, beyond[-1] + 9)

    assert sorted(seen.numbers) == list(range(before[0], beyond[-1] + 10))


async def test_graceful_shutdown_flushes_subscriber_states(postgres_dsn: str) -> None:
    """What is written at the end is the contiguous position, and the next start repeats nothing."""
    mode = CheckpointMode.batched(batch_size=1000, max_delay=60.0)
    async with writer(postgres_dsn) as a, writer(postgres_dsn) as b:
        async with running(postgres_dsn, checkpoint_mode=mode) as (_, [seen]):
            first = await b.insert()
            await a.run("BEGIN")
            gap = await a.insert()
            last = await b.insert()
            await soon(lambda: seen.numbers == [first, last])

        assert (await checkpoint_row(postgres_dsn))["last_global_sequence"] == first

        await a.run("COMMIT")
        async with running(postgres_dsn, checkpoint_mode=mode) as (_, [seen]):
            await soon(lambda: seen.numbers == [gap])

    assert (await checkpoint_row(postgres_dsn))["last_global_sequence"] == last


async def test_undeserializable_event_advances_past(postgres_dsn: str) -> None:
    """A payload that can't be read becomes a dead letter, and the checkpoint goes on."""
    async with running(postgres_dsn) as (bus, [seen]), writer(postgres_dsn) as a:
        bad = await a.draw()
        await a.run(INSERT, bad, "bad", "1e999")
        good = await a.insert()
        await soon(lambda: seen.numbers == [good])
        await written(postgres_dsn, good)
        page = await bus.dlq.list(subscriber_id=ID)

    assert [letter.id for letter in page.events] == ["bad"]


async def test_subscribe_and_event_propagation(postgres_dsn: str) -> None:
    """What one bus publishes another one gets."""
    async with running(postgres_dsn) as (_, [seen]), PgEventBus(postgres_dsn) as other:
        event_id = await other.publish("test.done", {"number": 1})
        await soon(lambda: [event.id for event in seen.events] == [event_id])

    assert seen.events[0].payload == {"number": 1}


async def test_multiple_subscribers(postgres_dsn: str) -> None:
    """Each of them gets every event."""
    async with running(postgres_dsn, "a", "b", "c") as (bus, all_seen):
        ids = [await bus.publish("test.done", number) for number in range(5)]
        await soon(lambda: all(len(seen.events) == 5 for seen in all_seen))

    assert [[event.id for event in seen.events] for seen in all_seen] == [ids] * 3


async def test_event_bus_notification_includes_global_sequence(postgres_dsn: str) -> None:
    """A notification carries the number of the event, and nothing else."""
    heard: list[object] = []
    async with PgEventBus(postgres_dsn) as bus:
        listener = await asyncpg.connect(postgres_dsn)
        await listener.add_listener("postbus:postbus", lambda *heard_now: heard.append(heard_now[-1]))
        await bus.publish("test.done", "x" * 300_000)
        number = await bus.store.head()
        await soon(lambda: str(number) in heard)
        await listener.close()


async def test_checkpoint_updated_after_successful_event_processing(postgres_dsn: str) -> None:
    """The checkpoint is the number of the last event, with its id."""
    async with running(postgres_dsn) as (bus, [seen]):
        event_id = await bus.publish("test.done")
        await soon(lambda: len(seen.events) == 1)
        await bus.subscription(ID).caught_up(timeout=10)

    row = await checkpoint_row(postgres_dsn)
    assert (row["last_global_sequence"], row["last_event_id"]) == (seen.numbers[0], event_id)


async def test_periodic_timer_catches_missed_notifies(postgres_dsn: str) -> None:
    """A writer that notifies nobody is noticed all the same, and so is one that commits late."""
    async with (
        running(postgres_dsn) as (_, [seen]),
        writer(postgres_dsn) as a,
        writer(postgres_dsn) as b,
        listening(postgres_dsn, "postbus:postbus") as ear,
    ):
        await a.run("BEGIN")
        late = await a.insert()
        early = await b.insert()
        await soon(lambda: seen.numbers == [early])
        await a.run("COMMIT")
        await soon(lambda: seen.numbers == [early, late])

        assert ear.heard == []


async def test_existing_checkpoint_data_is_compatible(postgres_dsn: str) -> None:
    """A row with nothing but the columns of 0002 is where the subscriber goes on."""
    async with PgEventBus(postgres_dsn) as bus:
        await bus.publish_many([("test.done", number) for number in range(5)])
    async with writer(postgres_dsn) as a:
        await a.run(
            "INSERT INTO postbus.event_bus_checkpoints (subscriber_id, last_global_sequence, updated_at) "
            "VALUES ($1, 3, now())",
            ID,
        )
    async with running(postgres_dsn) as (_, [seen]):
        await soon(lambda: len(seen.numbers) >= 2)
        await written(postgres_dsn, 5)

    assert seen.numbers == [4, 5]
