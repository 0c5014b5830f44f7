"""Where gaps meet other things: starts, filters, order, a log that is no longer the same."""

import asyncio
from datetime import UTC, datetime, timedelta

from postbus import Event, InstanceMode, PgEventBus, ReliableDeliveryConfig
from tests.gaps.steps import ID, NEXT, checkpoint_row, running, soon, writer


async def test_a_start_from_a_moment_does_not_miss_who_is_at_work(postgres_dsn: str) -> None:
    """Its number was drawn before the first that is visible, and its event happened after the moment."""
    numbers: list[int | None] = []

    async def note(event: Event) -> None:
        numbers.append(event.global_sequence)

    async with PgEventBus(postgres_dsn) as other, writer(postgres_dsn) as a:
        await other.publish("test.done")
        moment = datetime.now(UTC) + timedelta(milliseconds=1)
        await a.run("SELECT pg_sleep(0.01)")
        await a.run("BEGIN")
        gap = await a.insert()
        await other.publish("test.done")
        bus = PgEventBus(postgres_dsn, config=ReliableDeliveryConfig(poll_interval=0.05))
        bus.subscribe("*", note, id=ID, start_from=moment)
        async with bus:
            await soon(lambda: numbers == [gap + 1])
            await a.run("COMMIT")
            await soon(lambda: numbers == [gap + 1, gap])


async def test_global_order_holds_also_for_gaps_that_were_open_at_the_start(postgres_dsn: str) -> None:
    """One that starts from now on gets the late event first, and then what came after it."""
    numbers: list[int | None] = []

    async def note(event: Event) -> None:
        numbers.append(event.global_sequence)

    async with PgEventBus(postgres_dsn) as other, writer(postgres_dsn) as a:
        await a.run("BEGIN")
        gap = await a.insert()
        await other.publish("test.done")
        config = ReliableDeliveryConfig(poll_interval=0.05, ordering="global")
        bus = PgEventBus(postgres_dsn, config=config)
        bus.subscribe("*", note, id=ID, start_from="now")
        async with bus:
            await soon(lambda: bus.subscription(ID).state == "live")
            await other.publish("test.done")
            # Long enough for some looks, none of which may deliver anything.
            await asyncio.sleep(0.3)

            assert numbers == []

            await a.run("COMMIT")
            await soon(lambda: numbers == [gap, gap + 2])


async def test_one_that_starts_from_now_on_gets_nothing_that_others_published_before(
    postgres_dsn: str,
) -> None:
    """Also in a process that had no reason to notice them."""
    types: list[str] = []

    async def note(event: Event) -> None:
        types.append(event.type)

    bus = PgEventBus(postgres_dsn, config=ReliableDeliveryConfig(poll_interval=0.05))
    async with PgEventBus(postgres_dsn, notify="off") as other:
        await bus.store.open()
        for _ in range(30):
            await other.publish("test.before")
        bus.subscribe("*", note, id=ID, start_from="now")
        async with bus:
            await other.publish("test.after")
            await soon(lambda: bool(types))

    assert types == ["test.after"]


async def test_a_number_that_anybody_announces_is_no_news_of_the_log(postgres_dsn: str) -> None:
    """A notification is only a wake-up: one that starts from now on starts at the end of the log."""
    numbers: list[int | None] = []

    async def note(event: Event) -> None:
        numbers.append(event.global_sequence)

    async with running(postgres_dsn) as (bus, [seen]), writer(postgres_dsn) as a:
        await bus.publish("test.done")
        await a.run("NOTIFY \"postbus:postbus\", '1000000'")
        await soon(lambda: len(seen.numbers) == 1)
        bus.subscribe("*", note, id="late", start_from="now")
        await soon(lambda: bus.subscription("late").state == "live")
        await bus.publish("test.done")
        await soon(lambda: numbers == [2])


async def test_a_log_that_was_truncated_stops_the_subscriber_with_the_reason(postgres_dsn: str) -> None:
    """New events would get numbers that it takes for processed; an empty log alone is no fault."""
    async with running(postgres_dsn) as (bus, [seen]), writer(postgres_dsn) as a:
        for _ in range(5):
            await a.insert()
        await soon(lambda: bus.subscription(ID).checkpoint == 5)
        await a.run("DELETE FROM postbus.events")
        await a.run("SELECT pg_sleep(0.2)")

        assert bus.subscription(ID).state == "live"

        await a.run("TRUNCATE postbus.events RESTART IDENTITY")
        await a.insert()
        await soon(lambda: bus.subscription(ID).state == "failed")

        assert "beyond every number" in (bus.subscription(ID).reason or "")
    assert len(seen.numbers) == 5
    assert (await checkpoint_row(postgres_dsn))["last_global_sequence"] == 5


async def test_a_gap_is_given_up_and_told_of_while_a_slow_handler_works_off_a_backlog(
    postgres_dsn: str,
) -> None:
    """The clock of gap_timeout does not wait for the end of the log."""
    bus = PgEventBus(
        postgres_dsn,
        config=ReliableDeliveryConfig(poll_interval=0.05, gap_policy="timeout", gap_timeout=0.2),
    )
    is_enough = asyncio.Event()

    async def take_time(_: Event) -> None:
        if not is_enough.is_set():
            await asyncio.sleep(0.01)

    async with writer(postgres_dsn) as a, writer(postgres_dsn) as b:
        async with PgEventBus(postgres_dsn):
            pass  # makes the schema
        first = await b.insert()
        await a.run("BEGIN")
        gap = await a.insert()
        await b.run(
            "INSERT INTO postbus.events (id, event_type, data) "
            "SELECT 'e' || n, 'test.done', '1' FROM generate_series(1, 2000) n"
        )
        bus.subscribe("*", take_time, id=ID)
        async with bus:
            await soon(lambda: (bus.subscription(ID).checkpoint or 0) > gap)
            assert bus.subscription(ID).lag > 0, "it was at the end of the log: this shows nothing"
            is_enough.set()
        await a.run("ROLLBACK")

    assert first < gap


async def test_many_gaps_at_once_do_not_slow_the_subscriber_down(postgres_dsn: str) -> None:
    """One writer holds 3,000 gaps open; what is beyond them is processed, and they are filled in the end."""
    async with running(postgres_dsn) as (bus, [seen]), writer(postgres_dsn) as a, writer(postgres_dsn) as b:
        await a.run("BEGIN")
        number = await a.insert()
        await b.run(
            f"DO $$ BEGIN FOR i IN 1..3000 LOOP PERFORM {NEXT}; INSERT INTO postbus.events "
            "(id, event_type, data) VALUES (gen_random_uuid(), 'test.done', '1'); END LOOP; END $$"
        )
        await soon(lambda: len(seen.numbers) == 3000, within=60)
        await a.run("COMMIT")
        await soon(lambda: len(seen.numbers) == 3001, within=20)
        await soon(lambda: bus.subscription(ID).checkpoint == number + 6000, within=20)


async def test_nobody_gets_what_it_does_not_want_when_another_one_leaves(postgres_dsn: str) -> None:
    """A page that was read for several is filtered for each, whoever goes meanwhile."""
    types: list[str] = []
    bus = PgEventBus(postgres_dsn)

    async def note(event: Event) -> None:
        types.append(event.type)

    async def ignore(_: Event) -> None:
        pass

    bus.subscribe("a.*", note, id="a")
    bus.subscribe("b.*", ignore, id="b")
    real = bus.store.log.read

    async def read(*args: object, **options: object) -> object:
        page = await real(*args, **options)  # type: ignore[arg-type]
        if page.events:
            bus.unsubscribe("b")
        return page

    bus.store.log.read = read  # type: ignore[method-assign, assignment]
    async with bus:
        await soon(lambda: bus.subscription("a").state == "live")
        await bus.publish_many([("a.x",), ("b.x",), ("c.x",)])
        await bus.subscription("a").caught_up(timeout=10)

    assert types == ["a.x"]


async def test_one_that_is_subscribed_again_begins_when_the_one_before_has_ended(postgres_dsn: str) -> None:
    """Also where nobody looks out for other instances: no two handlers of one id at once."""
    config = ReliableDeliveryConfig(poll_interval=0.05, instance_mode=InstanceMode.SINGLE_INSTANCE)
    bus, at_work, most_at_work, numbers = PgEventBus(postgres_dsn, config=config), 0, 0, []

    async def handle(event: Event) -> None:
        nonlocal at_work, most_at_work
        at_work += 1
        most_at_work = max(most_at_work, at_work)
        await asyncio.sleep(0.1)
        numbers.append(event.global_sequence)
        at_work -= 1

    bus.subscribe("*", handle, id=ID)
    async with bus:
        await bus.publish_many([("test.done",)] * 4)
        await soon(lambda: at_work == 1)
        bus.unsubscribe(ID)
        bus.subscribe("*", handle, id=ID)
        await soon(lambda: len(numbers) >= 4)

    assert (numbers, most_at_work) == ([1, 2, 3, 4], 1)
