"""Effects of a partitioned subscriber: once in its transaction, one state for each stream, dead letters."""

import asyncio
from collections import Counter
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from postbus import (
    CheckpointMode,
    Event,
    PgEventBus,
    Projection,
    ReliableDeliveryConfig,
    Saga,
    SagaContext,
    StateStore,
)
from postbus.policy.partitions import part_of_event
from tests.gaps.steps import writer
from tests.partitions.processes import Process
from tests.partitions.steps import (
    ID,
    Handled,
    History,
    check_once,
    check_order,
    look,
    make_bus,
    parts_of,
    publish,
    publishing,
    soon,
)
from tests.patience import PATIENCE

_EFFECTS = "CREATE TABLE effects (id bigserial, event_id text, stream text, sequence bigint)"
_INSERT = "INSERT INTO effects (event_id, stream, sequence) VALUES ($1, $2, $3)"
_READ = "SELECT 'all', stream, sequence FROM effects ORDER BY id"


async def write(event: Event, connection: Any) -> None:
    """A transactional handler."""
    await connection.execute(_INSERT, event.id, event.stream_id, event.global_sequence)


@pytest.mark.timeout(180)
async def test_effects_of_transactional_handlers_are_made_once_whoever_is_killed(
    postgres_dsn: str, tmp_path: Path
) -> None:
    """Instances of three layouts are killed: each event has one effect, in the order of its stream."""
    await look(postgres_dsn, _EFFECTS)
    async with PgEventBus(postgres_dsn) as bus, AsyncExitStack() as stack:
        async with publishing(bus) as expected:
            for at, count in enumerate((4, 4, 1, 4, 3, 3)):
                process = Process(postgres_dsn, tmp_path, f"p{at}", count, 0.001, "transactional")
                stack.enter_context(process)
                before = len(await look(postgres_dsn, _READ))
                async with asyncio.timeout(30):
                    while len(await look(postgres_dsn, _READ)) < before + 20:  # noqa: ASYNC110
                        await asyncio.sleep(0.02)
                process.kill()
        async with make_bus(postgres_dsn, write, 8) as last:
            await last.subscription(ID).caught_up(timeout=60)

    effects = [Handled(*row) for row in await look(postgres_dsn, _READ)]
    check_once([each.sequence for each in effects], expected)
    check_order(effects)


class Counts(Projection[int]):
    """How many events each stream has had."""

    subscriber_id = ID
    patterns = ("test.*",)

    async def apply(self, state: int | None, event: Event) -> int:
        await asyncio.sleep(0)
        return (state or 0) + 1


class Answers(Saga[int]):
    """Answers each event once."""

    subscriber_id = ID
    patterns = ("test.*",)

    def saga_id(self, event: Event) -> str | None:
        return event.stream_id

    async def handle(self, state: int | None, event: Event, ctx: SagaContext) -> int:
        await asyncio.sleep(0)
        ctx.publish("answer.given", event.payload, stream_id=f"answer-{event.id}")
        return (state or 0) + 1


def observing(
    dsn: str, observer: type[Counts | Answers], **config: Any
) -> tuple[PgEventBus, StateStore[int]]:
    """A bus with a partitioned observer."""
    bus = PgEventBus(dsn, config=ReliableDeliveryConfig(poll_interval=0.1, **config))
    states = StateStore(bus.store, "counts", int)
    bus.subscribe(observer(states), partitions=8)
    return bus, states


@pytest.mark.parametrize(
    "mode", [CheckpointMode.synchronous(), CheckpointMode.batched(batch_size=7, max_delay=0.2)]
)
@pytest.mark.parametrize("observer", [Counts, Answers])
async def test_states_are_kept_by_stream_while_parts_move(
    postgres_dsn: str, observer: type[Counts | Answers], mode: Any
) -> None:
    """No part overwrites what another has counted, however many instances there are."""
    first, states = observing(postgres_dsn, observer, checkpoint_mode=mode)
    async with first:
        expected = await publish(first, 100)
        second, _ = observing(postgres_dsn, observer, checkpoint_mode=mode)
        async with second, parts_of(postgres_dsn) as parts:
            await parts.until(4, 4)
            expected += await publish(second, 100)
        expected += await publish(first, 100)
        await first.subscription(ID).wait_for(expected[-1], timeout=20)

        assert [state async for _, state in states.items()] == [15] * 20
        assert (await first.dlq.list()).total == 0
    answers = await look(
        postgres_dsn, "SELECT data::text FROM postbus.events WHERE event_type = 'answer.given'"
    )
    expected_answers = Counter(list(range(100)) * 3) if observer is Answers else Counter()
    assert Counter(int(answer[0]) for answer in answers) == expected_answers


class Totals(Counts):
    """One state for all streams."""

    def state_key(self, event: Event) -> str | None:
        return None if event.type == "test.ignored" else "all"


async def test_a_state_that_parts_would_share_is_refused(postgres_dsn: str) -> None:
    """Loudly, and nothing is overwritten: the event is a dead letter that says what to do."""
    bus = PgEventBus(postgres_dsn, config=ReliableDeliveryConfig(max_retries=0))
    states = StateStore(bus.store, "counts", int)
    bus.subscribe(Totals(states), partitions=8)
    async with bus:
        await bus.publish("test.done", 1, stream_id="s")
        await bus.publish("test.ignored", 1, stream_id="s")
        await bus.subscription(ID).caught_up(timeout=10)

        (letter,) = (await bus.dlq.list()).events
        assert "not the id of the event's stream" in letter.errors[0]
        assert "partitions=1" in letter.errors[0]
        assert [key async for key, _ in states.items()] == []


async def test_dead_letters_are_those_of_the_subscriber(postgres_dsn: str) -> None:
    """Whichever part gave up; a retry is made by the part that has the stream, and no other event waits."""
    history, broken = History(), True

    async def handle(event: Event) -> None:
        if broken and event.payload % 10 in (0, 3):
            raise ValueError("no")
        history.note("a", event)

    async with (
        make_bus(postgres_dsn, handle, max_retries=1, initial_retry_delay=0.01) as bus,
        make_bus(postgres_dsn, handle, max_retries=1, initial_retry_delay=0.01),
        parts_of(postgres_dsn) as parts,
    ):
        await parts.until(4, 4)
        numbers = await publish(bus, 40)
        await bus.subscription(ID).caught_up(timeout=10)
        page = await bus.dlq.list(subscriber_id=ID)
        assert (page.total, {letter.subscriber_id for letter in page.events}) == (8, {ID})
        assert {len(letter.errors) for letter in page.events} == {2}
        assert len({part_of_event(letter, 8) for letter in page.events}) > 1
        broken = False
        assert await bus.dlq.retry_all(subscriber_id=ID) == 8
        await soon(lambda: len(history.handled) == 40)

        async with asyncio.timeout(PATIENCE):
            while (await bus.dlq.list()).total:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        check_once(history.sequences, numbers)


async def test_a_retry_of_a_transactional_part_takes_effect_once(postgres_dsn: str) -> None:
    """The dead letter is resolved with its effect, by the subscriber."""
    await look(postgres_dsn, _EFFECTS)
    broken = True

    async def fragile(event: Event, connection: Any) -> None:
        if broken:
            raise ValueError("no")
        await write(event, connection)

    async with make_bus(postgres_dsn, fragile, max_retries=0) as bus:
        await publish(bus, 10)
        await bus.subscription(ID).caught_up(timeout=10)
        assert (await bus.dlq.list(subscriber_id=ID)).total == 10
        broken = False
        await bus.dlq.retry_all()
        async with asyncio.timeout(PATIENCE):
            while (await bus.dlq.list()).total:  # noqa: ASYNC110
                await asyncio.sleep(0.01)

    assert Counter(row[2] for row in await look(postgres_dsn, _READ)) == Counter(range(1, 11))


async def test_numbers_given_up_by_the_clock_are_given_up_by_every_part(postgres_dsn: str) -> None:
    """An event that comes after all is one dead letter, not eight."""
    history = History()
    async with (
        make_bus(postgres_dsn, history.handler("a"), gap_policy="timeout", gap_timeout=0.2) as bus,
        writer(postgres_dsn) as slow,
    ):
        await slow.run("BEGIN")
        late = await slow.draw()
        numbers = await publish(bus, 10)
        async with asyncio.timeout(10):
            while (bus.subscription(ID).checkpoint or 0) < numbers[-1]:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        await slow.insert(late)
        await slow.run("COMMIT")
        async with asyncio.timeout(10):
            while not (await bus.dlq.list()).total:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        await asyncio.sleep(0.5)

        (letter,) = (await bus.dlq.list()).events
        assert (letter.global_sequence, letter.subscriber_id) == (late, ID)
        check_once(history.sequences, numbers)
