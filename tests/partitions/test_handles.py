"""The handle of a partitioned subscriber speaks for all its parts, those of other instances too."""

import asyncio
from typing import Any

import pytest

from postbus import (
    Event,
    InvalidConfigError,
    InvalidSubscriberIdError,
    PgEventBus,
    ReliableDeliveryConfig,
    SubscriptionStoppedError,
    WaitsForItselfError,
)
from postbus.policy.partitions import part_of
from tests.partitions.steps import ID, History, check_once, look, make_bus, parts_of, publish, soon


async def test_read_your_own_writes_wherever_they_are_processed(postgres_dsn: str) -> None:
    """wait_for() and caught_up() wait for all parts, from any instance."""
    history = History()
    async with (
        make_bus(postgres_dsn, history.handler("a", 0.002)) as first,
        make_bus(postgres_dsn, history.handler("b", 0.002)) as second,
        parts_of(postgres_dsn) as parts,
    ):
        await parts.until(4, 4)
        for bus in (first, second, first, second):
            numbers = await publish(bus, 10)
            await bus.subscription(ID).wait_for(numbers[-1], timeout=10)
            assert set(numbers) <= set(history.sequences)
            assert bus.subscription(ID).checkpoint == numbers[-1]
        numbers = await publish(first, 50)
        await second.subscription(ID).caught_up(timeout=10)

        assert set(numbers) <= set(history.sequences)
        assert second.subscription(ID).lag == 0


async def test_an_instance_without_a_part_knows_how_far_the_others_are(postgres_dsn: str) -> None:
    """Its handle waits for them as well, and shows their checkpoint and lag."""
    history, gate = History(), asyncio.Event()

    async def handle(event: Event) -> None:
        await gate.wait()
        history.note("a or b", event)

    async with (
        make_bus(postgres_dsn, handle, 2) as first,
        make_bus(postgres_dsn, handle, 2),
        make_bus(postgres_dsn, history.handler("c"), 2) as third,
    ):
        await soon(lambda: third.subscription(ID).state == "standby")
        numbers = await publish(first, 30)
        await soon(lambda: third.subscription(ID).lag > 0)
        gate.set()
        await third.subscription(ID).wait_for(numbers[-1], timeout=10)

        assert third.subscription(ID).checkpoint == numbers[-1]
        assert not history.by("c")
        await third.idle()


async def test_the_checkpoint_is_that_of_the_part_that_is_furthest_behind(postgres_dsn: str) -> None:
    """Everything up to it is processed, whichever part it is in."""
    gate = asyncio.Event()

    async def handle(event: Event) -> None:
        if part_of(event.stream_id or event.id, 4) == 1:
            await gate.wait()

    async with make_bus(postgres_dsn, handle, 4) as bus:
        numbers = await publish(bus, 40)
        blocked = next(number for at, number in enumerate(numbers) if part_of(f"s-{at % 20}", 4) == 1)
        await soon(lambda: bus.store.log.known_head == numbers[-1])
        await soon(lambda: bus.subscription(ID).checkpoint is not None)
        assert (bus.subscription(ID).checkpoint or 0) < blocked
        assert bus.subscription(ID).lag > numbers[-1] - blocked
        with pytest.raises(TimeoutError):
            await bus.subscription(ID).wait_for(blocked, timeout=0.2)
        gate.set()

        await bus.subscription(ID).caught_up(timeout=10)
        assert bus.subscription(ID).checkpoint == numbers[-1]


async def test_a_pause_is_one_of_this_instance(postgres_dsn: str) -> None:
    """Its parts stay with it and wait; those of the other go on."""
    history = History()
    async with (
        make_bus(postgres_dsn, history.handler("a", 0.001)) as first,
        make_bus(postgres_dsn, history.handler("b", 0.001)) as second,
        parts_of(postgres_dsn) as parts,
    ):
        await parts.until(4, 4)
        await soon(lambda: first.subscription(ID).state == "live")
        await first.subscription(ID).pause()
        assert first.subscription(ID).state == "paused"
        numbers = await publish(second, 100)
        await soon(lambda: second.subscription(ID).state == "live" and len(history.by("b")) > 30)
        await second.idle()
        assert not history.by("a")
        assert await parts.spread() == [4, 4]
        with pytest.raises(TimeoutError, match="did not get to"):
            await second.subscription(ID).wait_for(numbers[-1], timeout=0.3)
        await first.subscription(ID).resume()

        await second.subscription(ID).wait_for(numbers[-1], timeout=10)
        check_once(history.sequences, numbers)
        history.check_order()


async def test_a_paused_instance_that_gets_more_parts_pauses_them_too(postgres_dsn: str) -> None:
    """And one that is paused before it starts delivers nothing."""
    history = History()
    other = make_bus(postgres_dsn, history.handler("b"))
    await other.start()
    bus = make_bus(postgres_dsn, history.handler("a"))
    await bus.subscription(ID).pause()
    async with bus, parts_of(postgres_dsn) as parts:
        await parts.until(4, 4)
        await other.shutdown()
        await parts.until(8)
        numbers = await publish(bus, 40)
        await soon(lambda: bus.subscription(ID).state == "paused")
        assert not history.handled
        await bus.subscription(ID).resume()

        await bus.subscription(ID).caught_up(timeout=10)
        check_once(history.sequences, numbers)


async def test_idle_waits_for_the_parts_of_this_instance(postgres_dsn: str) -> None:
    """From the first moment on."""
    history = History()
    async with PgEventBus(postgres_dsn) as publisher:
        numbers = await publish(publisher, 100)
    async with make_bus(postgres_dsn, history.handler("a", 0.001)) as bus:
        await bus.idle()

        check_once(history.sequences, numbers)


async def test_a_failing_store_shows(postgres_dsn: str) -> None:
    """ "failed", with the reason, until the store works again; then it goes on."""
    history = History()
    async with make_bus(postgres_dsn, history.handler("a"), 2) as bus:
        await bus.idle()
        await look(postgres_dsn, "ALTER TABLE postbus.event_bus_checkpoints RENAME TO hidden")
        numbers = await publish(bus, 10)
        await soon(lambda: bus.subscription(ID).state == "failed")
        assert "event_bus_checkpoints" in (bus.subscription(ID).reason or "")
        await look(postgres_dsn, "ALTER TABLE postbus.hidden RENAME TO event_bus_checkpoints")

        await bus.subscription(ID).caught_up(timeout=15)
        await soon(lambda: bus.subscription(ID).state == "live")
        assert bus.subscription(ID).reason is None
        check_once(history.sequences, numbers)


async def test_a_shutdown_lets_every_part_finish_its_event(postgres_dsn: str) -> None:
    """Nothing that was begun comes again."""
    history, begun = History(), 0

    async def handle(event: Event) -> None:
        nonlocal begun
        begun += 1
        await asyncio.sleep(0.1)
        history.note("a", event)

    bus = make_bus(postgres_dsn, handle)
    await bus.start()
    numbers = await publish(bus, 60)
    await soon(lambda: begun >= 8)
    handle_of = bus.subscription(ID)
    await bus.shutdown()

    assert len(history.handled) == begun < 60
    assert handle_of.state == "stopped"
    with pytest.raises(SubscriptionStoppedError):
        await handle_of.wait_for(numbers[-1])
    async with make_bus(postgres_dsn, history.handler("b")) as bus:
        await bus.subscription(ID).caught_up(timeout=10)
        check_once(history.sequences, numbers)


async def test_a_handler_may_shut_the_bus_down(postgres_dsn: str) -> None:
    """It is not waited for; the other parts finish their events all the same."""
    history, done = History(), asyncio.Event()

    async def handle(event: Event) -> None:
        if event.payload == 5:
            await bus.shutdown()
            done.set()
        else:
            await asyncio.sleep(0.05)
            history.note("a", event)

    async with PgEventBus(postgres_dsn) as publisher:
        numbers = await publish(publisher, 40)
    bus = make_bus(postgres_dsn, handle, 4)
    await bus.start()
    async with asyncio.timeout(10):
        await done.wait()
    async with make_bus(postgres_dsn, history.handler("b"), 4) as bus:
        await bus.subscription(ID).caught_up(timeout=10)

        check_once(history.sequences, numbers)


async def test_handlers_that_do_not_end_are_cut_off_with_the_bus(postgres_dsn: str) -> None:
    """After shutdown_timeout; their events come to the next instance, which has all parts at once."""
    history = History()

    async def hang(_: Event) -> None:
        await asyncio.Event().wait()

    bus = PgEventBus(postgres_dsn, config=ReliableDeliveryConfig(poll_interval=0.1), shutdown_timeout=0.3)
    bus.subscribe("*", hang, id=ID, partitions=4)
    await bus.start()
    numbers = await publish(bus, 20)
    await asyncio.sleep(0.2)
    await bus.shutdown()
    async with make_bus(postgres_dsn, history.handler("b"), 4) as bus:
        await bus.subscription(ID).caught_up(timeout=10)

        check_once(history.sequences, numbers)


async def test_a_handler_that_waits_for_its_own_subscriber_is_told_so(postgres_dsn: str) -> None:
    """It would wait for ever; under the id that the user knows."""
    errors: list[BaseException] = []

    async def handle(_: Event) -> None:
        try:
            await bus.subscription(ID).caught_up()
        except WaitsForItselfError as error:
            errors.append(error)

    bus = make_bus(postgres_dsn, handle, 2)
    async with bus:
        await publish(bus, 1)
        await soon(lambda: bool(errors))

        assert "'mail'" in str(errors[0])


async def test_new_subscribers_start_where_they_are_told(postgres_dsn: str) -> None:
    """All parts of them; only a new one asks."""
    history = History()
    async with PgEventBus(postgres_dsn) as publisher:
        await publish(publisher, 10)
    async with make_bus(postgres_dsn, history.handler("now"), 4, options={"start_from": "now"}) as bus:
        first = await publish(bus, 10)
        await bus.subscription(ID).caught_up(timeout=10)
        check_once(history.sequences, first)
        assert min(history.sequences) == 11
    async with make_bus(postgres_dsn, history.handler("b"), 4, options={"start_from": "beginning"}) as bus:
        second = await publish(bus, 10)
        await bus.subscription(ID).caught_up(timeout=10)

        check_once(history.sequences, first + second)


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"partitions": 0}, InvalidConfigError, "1 or more"),
        ({"partitions": 1025}, InvalidConfigError, "1024 at most"),
        ({"partitions": 2.5}, InvalidConfigError, "a whole number"),
        ({"partitions": 8, "mode": "competing"}, InvalidConfigError, "no order"),
        ({"partitions": 8, "id": "x" * 250}, InvalidSubscriberIdError, "partitions need"),
        ({"partitions": 1, "id": "mail#3/8"}, InvalidSubscriberIdError, "as the id of a partition"),
    ],
)
async def test_what_can_not_be_split_is_refused(
    postgres_dsn: str, options: dict[str, Any], error: type[Exception], words: str
) -> None:
    """When it is subscribed, with what to do."""
    bus = PgEventBus(postgres_dsn)
    with pytest.raises(error, match=words):
        bus.subscribe("*", History().handler("a"), **{"id": ID, **options})


async def test_many_partitions_work(postgres_dsn: str) -> None:
    """Hundreds of them, in one instance."""
    history = History()
    async with make_bus(postgres_dsn, history.handler("a"), 500, poll_interval=5.0) as bus:
        await bus.publish_many([("test.done", number) for number in range(200)])
        await bus.subscription(ID).caught_up(timeout=60)

        check_once(history.sequences, range(1, 201))
