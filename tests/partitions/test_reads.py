"""Parts do not read what is not theirs: the server leaves it out, and at the head they share one read."""

import pytest

from postbus import CheckpointMode, Event, PgEventBus
from postbus.policy.partitions import part_of_event
from tests.faults.test_shared_reads import Reads
from tests.partitions.steps import ID, History, check_once, make_bus, parts_of, soon


async def publish_many(dsn: str, count: int) -> None:
    async with PgEventBus(dsn) as bus:
        for start in range(0, count, 1000):
            await bus.publish_many(
                [("test.done", number) for number in range(start, min(start + 1000, count))]
            )


async def test_parts_that_are_behind_read_their_own_events_only(
    postgres_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of them together read the log about once, not each of them all of it."""
    await publish_many(postgres_dsn, 10_000)
    history = History()
    bus = make_bus(postgres_dsn, history.handler("a"), checkpoint_mode=CheckpointMode.batched())
    reads = Reads(bus, monkeypatch)
    async with bus:
        await bus.subscription(ID).caught_up(timeout=60)

    check_once(history.sequences, range(1, 10_001))
    # The last thousand are read by those who come near to the head as a whole.
    assert reads.event_count < 10_000 + 8 * 2_000
    for _, page in reads.pages:
        assert len({part_of_event(event, 8) for event in page.events}) == 1 or page.up_to > 8_000


async def test_at_the_head_all_parts_of_an_instance_share_one_read(
    postgres_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each event is read once, and not eight times."""
    history = History()
    bus = make_bus(postgres_dsn, history.handler("a"), poll_interval=600.0)
    async with bus:
        # One that begins later than the others is not woken with them.
        await soon(lambda: bus.subscription(ID).state == "live")
        reads = Reads(bus, monkeypatch)
        for at in range(20):
            await bus.publish("test.done", at, stream_id=f"s-{at}")
            await soon(lambda at=at: len(history.handled) == at + 1)  # type: ignore[misc]
            await bus.idle()

    # Once more for nothing, if another wake-up comes.
    assert reads.count <= 2 * 20
    assert reads.event_count == 20


async def test_a_part_that_is_far_behind_does_not_slow_the_others(postgres_dsn: str) -> None:
    """They are at the end of the log long before it is."""
    history = History()

    def seconds(event: Event) -> float:
        return 0.05 if part_of_event(event, 8) == 3 else 0.0

    async with make_bus(postgres_dsn, history.handler("a", seconds)) as bus, parts_of(postgres_dsn) as parts:
        await parts.until(8)
        await publish_many(postgres_dsn, 1_000)
        events = await bus.store.read_all(limit=1_000)
        slow = {event.global_sequence for event in events if part_of_event(event, 8) == 3}
        await soon(lambda: set(range(1, 1_001)) - slow <= set(history.sequences))

        assert len(slow & set(history.sequences)) < len(slow) / 2
        assert (bus.subscription(ID).checkpoint or 0) < 500
