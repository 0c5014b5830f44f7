"""Connections end, servers stop and networks fall silent: a bus goes on by itself, and nothing is lost."""

import asyncio

import pytest

from postbus import Event, PgEventBus, PgStateStore, ReliableDeliveryConfig, Saga, SagaContext
from postbus.errors import StoreBusyError, StoreUnavailableError
from tests.faults.steps import (
    check_nothing_lost,
    end_backends,
    flowing,
    limit_statements,
    payloads,
    query,
    until,
    until_live,
)
from tests.gaps.steps import ID, checkpoint_row, running, soon, writer, written
from tests.postgres.proxy import Proxy
from tests.postgres.server import Server
from tests.postgres.steps import Session

# A bus goes on within so many seconds after the server is ready again.
GOES_ON = 5.0
# A network that swallows everything is noticed within so many seconds.
NOTICED = 15.0


class Doubling(Saga[int]):
    """Answers each order with a bill, and counts."""

    subscriber_id = ID
    patterns = ("order.placed",)

    def saga_id(self, event: Event) -> str:
        return "count"

    async def handle(self, state: int | None, event: Event, ctx: SagaContext) -> int:
        ctx.publish("bill.written", event.payload)
        return (state or 0) + 1


class TestConnections:
    async def test_events_flow_on_while_every_connection_is_terminated_again_and_again(
        self, postgres_dsn: str
    ) -> None:
        """Publishers and subscribers, at any moment of what they do."""
        async with running(postgres_dsn, ID, "stock") as (bus, [mail, stock]):
            async with flowing(bus, ID, "stock") as flow:
                for _ in range(5):
                    await flow.more()
                    assert await end_backends(postgres_dsn) > 1
                await flow.more()
            await check_nothing_lost(postgres_dsn, flow, mail, stock)
            await until_live(bus, ID, "stock")

    async def test_effects_of_a_transactional_subscriber_are_there_once_whatever_is_terminated(
        self, postgres_dsn: str
    ) -> None:
        """The effect and the checkpoint live and die together."""
        await query(postgres_dsn, "CREATE TABLE effects (number int)")
        bus = PgEventBus(postgres_dsn, config=ReliableDeliveryConfig(poll_interval=0.05))

        @bus.on("*", id=ID)
        async def insert(event: Event, transaction: Session) -> None:
            await transaction.execute("INSERT INTO effects VALUES ($1)", event.payload)

        async with bus:
            async with flowing(bus) as flow:
                for _ in range(5):
                    await flow.more()
                    await end_backends(postgres_dsn)
                await flow.more()
            await until_live(bus)
            await bus.subscription(ID).caught_up(timeout=20)

        assert await query(postgres_dsn, "SELECT number FROM effects ORDER BY number") == [
            (number,) for number in sorted(await payloads(postgres_dsn))
        ]
        assert len(await bus_letters(postgres_dsn)) == 0

    async def test_a_listener_that_went_silent_is_replaced_and_others_are_heard_again(
        self, postgres_dsn: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        """Its connection answers all the time; only its notifications do not come any more."""
        async with (
            running(postgres_dsn, poll_interval=600.0) as (bus, [seen]),
            PgEventBus(postgres_dsn) as other,
        ):
            session = bus.store._database.session  # type: ignore[attr-defined]
            await soon(lambda: session._is_proven)
            await session.run(lambda connection: connection.execute("UNLISTEN *"))
            unheard = await other.publish("test.done")
            await soon(lambda: [event.id for event in seen.events] == [unheard], within=20)
            heard = await other.publish("test.done")
            await soon(lambda: [event.id for event in seen.events] == [unheard, heard])

        assert "its listener went silent" in caplog.text
        # That is said of a session that never heard anything.
        assert "LISTEN has no effect" not in caplog.text


async def bus_letters(dsn: str) -> list[tuple[object, ...]]:
    """All dead letters."""
    return await query(dsn, "SELECT event_id, error_message FROM postbus.event_bus_dlq")


class TestServers:
    @pytest.mark.parametrize("end", [Server.stop, Server.kill], ids=["stopped", "killed"])
    async def test_a_server_that_is_away_makes_a_subscriber_fail_with_the_reason_and_it_comes_back(
        self, own_postgres: Server, end: object
    ) -> None:
        """Stopped in good order or by kill -9: "failed" meanwhile, "live" soon after the server is ready."""
        dsn = own_postgres.dsn()
        async with running(dsn, ID, "stock") as (bus, [mail, stock]):
            async with flowing(bus, ID, "stock") as flow:
                await flow.more()
                await asyncio.to_thread(end, own_postgres)  # type: ignore[arg-type]
                handle = bus.subscription(ID)
                # The first reason may be what the driver says of the connection that broke.
                await soon(lambda: handle.state == "failed" and "127.0.0.1" in (handle.reason or ""))
                await asyncio.to_thread(own_postgres.start)
                seconds = await until_live(bus, ID, "stock")
                await flow.more()
            await check_nothing_lost(dsn, flow, mail, stock)

        assert seconds < GOES_ON
        assert handle.reason is None

    async def test_a_publish_during_an_outage_succeeds_after_it_or_says_so_and_is_stored_at_most_once(
        self, own_postgres: Server
    ) -> None:
        """Many at once, some of which were on their way when the server died."""
        dsn = own_postgres.dsn()
        async with running(dsn) as (bus, [seen]):

            async def publish(number: int) -> bool:
                try:
                    await bus.publish("test.done", number)
                except (StoreUnavailableError, StoreBusyError):
                    return False
                return True

            before = [asyncio.ensure_future(publish(number)) for number in range(50)]
            await asyncio.sleep(0)
            own_postgres.kill()
            during = [asyncio.ensure_future(publish(number)) for number in range(50, 100)]
            await soon(lambda: bus.subscription(ID).state == "failed")
            await asyncio.to_thread(own_postgres.start)
            outcomes = await asyncio.gather(*before, *during)
            stored = await payloads(dsn)
            await soon(lambda: {event.payload for event in seen.events} == set(stored))

        assert len(stored) == len(set(stored))
        assert {number for number, is_acknowledged in enumerate(outcomes) if is_acknowledged} <= set(stored)

    async def test_an_event_published_again_with_its_id_after_an_outage_is_stored_once(
        self, own_postgres: Server
    ) -> None:
        """So does whoever was told that the outcome is uncertain."""
        dsn = own_postgres.dsn()
        async with PgEventBus(dsn) as bus:
            await bus.publish("test.done", 0)
            first = asyncio.ensure_future(bus.publish("test.done", 1, event_id="mine"))
            await asyncio.sleep(0)
            await asyncio.to_thread(own_postgres.kill)
            await asyncio.to_thread(own_postgres.start)
            await asyncio.gather(first, return_exceptions=True)
            await until(lambda: publish_mine(bus), lambda is_stored: is_stored)

        assert await payloads(dsn) == [0, 1]


async def publish_mine(bus: PgEventBus) -> bool:
    try:
        await bus.publish("test.done", 1, event_id="mine")
    except StoreUnavailableError:
        return False
    return True


class TestNetworks:
    async def test_a_half_open_network_is_noticed_and_when_it_is_back_all_goes_on(
        self, postgres_dsn: str, postgres_proxy: Proxy
    ) -> None:
        """Nothing comes and nothing is closed: the state says so in time, and the events are not lost."""
        async with (
            running(postgres_proxy.through(postgres_dsn), ID, "stock") as (bus, [mail, stock]),
            writer(postgres_dsn) as other,
        ):
            await other.insert()
            await soon(lambda: len(mail.events) == len(stock.events) == 1)
            postgres_proxy.swallow()
            handle = bus.subscription(ID)
            noticed_after = await soon(lambda: handle.state == "failed", within=30)
            await other.insert()
            # What was held back is of connections that nobody waits for any more.
            postgres_proxy.cut()
            postgres_proxy.resume()
            await until_live(bus, ID, "stock")
            await soon(lambda: len(mail.events) == len(stock.events) == 2)

        assert noticed_after < NOTICED

    async def test_a_publish_into_a_half_open_network_is_stored_once_or_refused(
        self, postgres_dsn: str, postgres_proxy: Proxy, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """One that was sent is asked for by new connections; one that found no connection is refused."""
        limit_statements(monkeypatch, 2.0)
        async with running(postgres_proxy.through(postgres_dsn)) as (bus, [seen]):
            await bus.publish("test.done", 0)
            postgres_proxy.swallow()
            async with flowing(bus) as flow:
                await soon(lambda: bus.subscription(ID).state == "failed", within=30)
                postgres_proxy.resume()
                await flow.more(1, within=30)
            await until_live(bus)
            flow.acknowledged.append(0)
            await check_nothing_lost(postgres_dsn, flow, seen)


class TestLostAnswers:
    async def test_a_publish_whose_commit_was_not_answered_succeeds_and_is_stored_once(
        self, postgres_dsn: str, postgres_proxy: Proxy
    ) -> None:
        """Its id tells that it is there already."""
        async with running(postgres_proxy.through(postgres_dsn)) as (bus, [seen]):
            executed = postgres_proxy.cut_before_answer_of(b'CALL "postbus".insert_and_notify')
            event_id = await bus.publish("test.done", 1)
            await soon(lambda: [event.id for event in seen.events] == [event_id])

        assert executed.is_set()
        assert await payloads(postgres_dsn) == [1]

    async def test_a_checkpoint_write_that_was_not_answered_repeats_nothing(
        self, postgres_dsn: str, postgres_proxy: Proxy
    ) -> None:
        """The write is made again, and the event is not delivered again."""
        async with (
            running(postgres_proxy.through(postgres_dsn)) as (bus, [seen]),
            writer(postgres_dsn) as other,
        ):
            executed = postgres_proxy.cut_before_answer_of(b"SET last_global_sequence")
            first = await other.insert()
            await written(postgres_dsn, first)
            await soon(executed.is_set)
            second = await other.insert()
            await soon(lambda: bus.subscription(ID).checkpoint == second)

        assert seen.numbers == [first, second]
        assert (await checkpoint_row(postgres_dsn))["last_global_sequence"] == second

    async def test_a_sagas_write_that_was_not_answered_publishes_once(
        self, postgres_dsn: str, postgres_proxy: Proxy
    ) -> None:
        """State, checkpoint and what it published are one commit, made once."""
        bus = PgEventBus(
            postgres_proxy.through(postgres_dsn), config=ReliableDeliveryConfig(poll_interval=0.05)
        )
        saga = Doubling(PgStateStore(bus.store, "counts", int))
        bus.subscribe(saga)
        async with bus:
            await until_live(bus)
            executed = postgres_proxy.cut_before_answer_of(b"COMMIT;")
            async with PgEventBus(postgres_dsn) as other:
                await other.publish("order.placed", 1)
                await soon(executed.is_set)
                await other.publish("order.placed", 2)
            await until_live(bus)
            await bus.subscription(ID).caught_up(timeout=20)
            count = await saga.states.get("count")

        bills = await query(
            postgres_dsn, "SELECT data::text FROM postbus.events WHERE event_type = 'bill.written'"
        )
        assert bills == [("1",), ("2",)]
        assert count == 2

    async def test_a_transactional_batch_whose_commit_was_not_answered_is_not_processed_again(
        self, postgres_dsn: str, postgres_proxy: Proxy
    ) -> None:
        """The checkpoint that was committed with it tells."""
        await query(postgres_dsn, "CREATE TABLE effects (number int)")
        bus = PgEventBus(
            postgres_proxy.through(postgres_dsn), config=ReliableDeliveryConfig(poll_interval=0.05)
        )

        @bus.on("*", id=ID)
        async def insert(event: Event, transaction: Session) -> None:
            await transaction.execute("INSERT INTO effects VALUES ($1)", event.payload)

        async with bus, PgEventBus(postgres_dsn) as other:
            await until_live(bus)
            executed = postgres_proxy.cut_before_answer_of(b"COMMIT;")
            await other.publish("test.done", 1)
            await soon(executed.is_set)
            await other.publish("test.done", 2)
            await until_live(bus)
            await bus.subscription(ID).caught_up(timeout=20)

        assert await query(postgres_dsn, "SELECT number FROM effects") == [(1,), (2,)]
