"""Connections end, sessions are lost, servers restart, networks fall silent: workers go on by themselves."""

import asyncio

import asyncpg

from postbus import Event, PgEventBus, PgEventStore, ReliableDeliveryConfig
from tests.competing.steps import (
    ID,
    Holding,
    MakeBus,
    Noting,
    compete,
    publish_numbers,
    query,
    rows_of,
    until,
    until_rows,
    within,
)
from tests.faults.steps import end_backends
from tests.postgres.proxy import Proxy
from tests.postgres.server import Server


async def end_session(dsn: str, bus: PgEventBus) -> None:
    """End the one connection that locks and members live on, as an administrator would."""
    store = bus.store
    assert isinstance(store, PgEventStore)
    session = store._database.session
    pid = await session.run(lambda connection: connection.fetchval("SELECT pg_backend_pid()"))
    await query(dsn, "SELECT pg_terminate_backend($1)", pid)
    await until(lambda: not session.is_up)


async def test_events_flow_on_while_connections_are_terminated(make_bus: MakeBus, dsn: str) -> None:
    """Every one of both instances, again and again; what was fed is in the outbox once."""
    buses, noting = [make_bus(), make_bus()], Noting()
    for bus in buses:
        compete(bus, noting, retry={"max_retries": 20})
        await bus.start()
    for step in range(6):
        await publish_numbers(buses[0], *range(step * 30, step * 30 + 30))
        await asyncio.sleep(0.03 * step)
        await end_backends(dsn)
        await until(lambda: all(bus.subscription(ID).state != "failed" for bus in buses))
    await until(lambda: set(noting.numbers) == set(range(180)), within=30)
    await until_rows(dsn, lambda rows: rows == [])

    assert (await buses[0].dlq.list()).total == 0


async def test_a_lost_session_stops_new_events_until_it_is_back(make_bus: MakeBus, dsn: str) -> None:
    """Handlers at hand are finished, and their rows are still theirs: nothing comes twice."""
    bus, holding = make_bus(), Holding()
    compete(bus, holding, concurrency=2)
    await publish_numbers(bus, *range(2))
    await until(lambda: holding.running == 2)
    before = {row["worker"] for row in await rows_of(dsn)}
    await end_session(dsn, bus)
    await until_rows(dsn, lambda rows: bool(rows) and before.isdisjoint({row["worker"] for row in rows}))
    await publish_numbers(bus, 2, 3)
    holding.released.set()
    await within(10, bus.subscription(ID).caught_up())

    assert sorted(holding.begun) == [0, 1, 2, 3]


async def test_another_instance_may_take_the_rows_of_a_lost_session(make_bus: MakeBus, dsn: str) -> None:
    """Then what the first one finishes late changes nothing, and nothing is left over."""
    first, holding = make_bus(), Holding()
    compete(first, holding)
    await publish_numbers(first, 1)
    await until(lambda: holding.running == 1)
    # The server keeps nobody as a member whose session it has ended; this one can't come back so soon.
    await query(
        dsn, "UPDATE postbus.event_bus_outbox SET worker = 0, locked_at = locked_at - interval '1 minute'"
    )
    second, noting = make_bus(), Noting()
    compete(second, noting)
    await second.start()
    await until(lambda: len(noting.events) + len(holding.begun) == 2)
    holding.released.set()
    await within(10, second.subscription(ID).caught_up())

    assert await rows_of(dsn) == []


async def test_rows_whose_claim_got_no_answer_come_again(
    make_bus: MakeBus, dsn: str, postgres_proxy: Proxy
) -> None:
    """The worker is alive and knows nothing of them: when their lease is over, they are due again."""
    through = postgres_proxy.through(dsn)
    bus, noting = make_bus(target=through, bus={"session_dsn": dsn}, failover_timeout=1.0), Noting()
    compete(bus, noting)
    await bus.start()
    await until(lambda: bus.subscription(ID).state == "live")
    cut = postgres_proxy.cut_before_answer_of(b"claim_outbox")
    await publish_numbers(bus, 1, 2, 3)
    await within(10, cut.wait())
    await until(lambda: len(noting.events) == 3)
    await within(10, bus.subscription(ID).caught_up())

    assert sorted(noting.numbers) == [1, 2, 3]


async def test_a_deletion_without_an_answer_is_asked_for_again(
    make_bus: MakeBus, dsn: str, postgres_proxy: Proxy
) -> None:
    """The row is gone, and its event does not come again."""
    bus, noting = make_bus(target=postgres_proxy.through(dsn), bus={"session_dsn": dsn}), Noting()
    compete(bus, noting)
    await bus.start()
    await until(lambda: bus.subscription(ID).state == "live")
    cut = postgres_proxy.cut_before_answer_of(b"finish_outbox")
    await publish_numbers(bus, 1, 2)
    await within(10, cut.wait())
    await within(10, bus.subscription(ID).caught_up())

    assert sorted(noting.numbers) == [1, 2]


async def test_a_feed_without_an_answer_is_in_the_outbox_once(
    make_bus: MakeBus, dsn: str, postgres_proxy: Proxy
) -> None:
    """The checkpoint says whether this very write has happened."""
    bus, noting = make_bus(target=postgres_proxy.through(dsn), bus={"session_dsn": dsn}), Noting()
    compete(bus, noting)
    await bus.start()
    await until(lambda: bus.subscription(ID).state == "live")
    cut = postgres_proxy.cut_before_answer_of(b'INSERT INTO "postbus".event_bus_outbox')
    await publish_numbers(bus, 1, 2, 3)
    await within(10, cut.wait())
    await within(10, bus.subscription(ID).caught_up())

    assert sorted(noting.numbers) == [1, 2, 3]


async def test_a_transaction_whose_commit_got_no_answer_takes_effect_once(
    make_bus: MakeBus, dsn: str, postgres_proxy: Proxy
) -> None:
    """The row is gone with it, so nobody handles the event again."""
    await query(dsn, "CREATE TABLE effects (number int)")
    bus, calls = make_bus(target=postgres_proxy.through(dsn), bus={"session_dsn": dsn}), []

    async def handle(event: Event, connection: "asyncpg.Connection[asyncpg.Record]") -> None:
        calls.append(event.payload)
        await connection.execute("INSERT INTO effects VALUES ($1)", event.payload)
        if event.payload == 1:
            cuts.append(postgres_proxy.cut_before_answer_of(b"COMMIT"))

    cuts: list[asyncio.Event] = []
    compete(bus, handle)
    await publish_numbers(bus, 1)
    await until(lambda: bool(cuts) and cuts[0].is_set())
    await publish_numbers(bus, 2)
    await within(20, bus.subscription(ID).caught_up())

    assert sorted(await query(dsn, "SELECT number FROM effects")) == [(1,), (2,)]
    assert calls == [1, 2]


async def test_workers_go_on_after_the_server_was_killed(own_postgres: Server) -> None:
    """What was processed may come again, and nothing is lost."""
    config = ReliableDeliveryConfig(poll_interval=0.2, max_retries=20)
    bus, noting = PgEventBus(own_postgres.dsn(), config=config), Noting()

    async def handle(event: Event) -> None:
        await asyncio.sleep(0.005)
        await noting(event)

    compete(bus, handle)
    async with bus:
        await publish_numbers(bus, *range(200))
        await until(lambda: len(noting.events) > 20)
        own_postgres.kill()
        own_postgres.start()
        await until(lambda: set(noting.numbers) == set(range(200)), within=40)
        await within(20, bus.subscription(ID).caught_up())

        assert (await bus.dlq.list()).total == 0


async def test_a_silent_network_is_noticed_and_the_rows_are_taken_over(
    make_bus: MakeBus, dsn: str, postgres_proxy: Proxy
) -> None:
    """Within failover_timeout another instance has them; the first comes back by itself."""
    first, holding = make_bus(target=postgres_proxy.through(dsn), failover_timeout=2.0), Holding()
    compete(first, holding)
    await publish_numbers(first, 1)
    await until(lambda: holding.running == 1)
    second, noting = make_bus(failover_timeout=2.0), Noting()
    compete(second, noting)
    await second.start()
    await until(lambda: second.subscription(ID).state == "live")
    postgres_proxy.swallow()
    seconds = await until(lambda: noting.numbers == [1])
    postgres_proxy.resume()
    postgres_proxy.cut()
    holding.released.set()
    await publish_numbers(second, 2)
    await within(20, first.subscription(ID).caught_up())

    assert seconds < 4.0
    assert await rows_of(dsn) == []
