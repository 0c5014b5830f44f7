"""A handler with a second parameter shares the transaction of its checkpoint: effects exactly once."""

import asyncio
import sqlite3
from collections.abc import Callable
from typing import Any

import pytest

from postbus import (
    DurableIdRequiredError,
    Event,
    EventBus,
    InvalidHandlerError,
    ReliableDeliveryConfig,
    RetryPolicy,
    StoreBusyError,
    StoreClosedError,
)
from postbus.testing import ManualClock
from tests.contracts.effects import Hand
from tests.delivery.steps import FlakyHandler, soon, until
from tests.durable.steps import (
    ID,
    Database,
    MakeBus,
    crash,
    faulty,
    letters_of,
    on_embedded,
    on_postgres,
    opened,
    pass_time,
    position_of,
    publish_numbers,
    try_again,
)

ONCE = RetryPolicy(max_retries=0)


class RudeError(BaseException):
    """Not even an Exception."""


class Ledger:
    """Writes the number of every event into a table; fails for some, after it has written.

    The events before one that fails may be called again: PostgreSQL undoes a whole transaction.
    """

    def __init__(self, *poison: int, error: BaseException | None = None) -> None:
        self.calls: list[int] = []
        self.poison = set(poison)
        self._error = error or ValueError("poison")

    async def __call__(self, event: Event, hand: Hand) -> None:
        self.calls.append(event.payload)
        await enter(event.payload, hand)
        if event.payload in self.poison:
            raise self._error


async def enter(number: int, hand: Hand) -> None:
    """Write a number into the table."""
    await hand.execute(f"CREATE TABLE IF NOT EXISTS ledger (line {hand.serial}, number INTEGER)")
    await hand.execute("INSERT INTO ledger (number) VALUES ($1)", number)


async def entries(database: Database) -> list[int]:
    """What is in the table."""
    return [number for (number,) in await database.query("SELECT number FROM ledger ORDER BY line")]


async def fill(database: Database, count: int) -> None:
    async with opened(database) as store:
        await store.append("s", [("a", number) for number in range(1, count + 1)])


async def test_effects_and_checkpoint_are_there_together(database: Database, make_bus: MakeBus) -> None:
    bus, ledger = make_bus(), Ledger()
    bus.subscribe("*", database.transactional(ledger), id=ID)
    await publish_numbers(bus, *range(1, 51))
    await soon(bus.idle())

    assert await entries(database) == list(range(1, 51))
    assert await position_of(bus) == 50


async def test_an_event_that_raises_leaves_no_effects_and_those_before_it_keep_theirs(
    database: Database, make_bus: MakeBus, clock: ManualClock
) -> None:
    await fill(database, 5)
    bus, ledger = make_bus(), Ledger(3)
    bus.subscribe("*", database.transactional(ledger), id=ID)
    await bus.start()
    await soon(clock.wait_for_sleepers(1))

    assert await entries(database) == [1, 2]
    assert await position_of(bus) == 2


async def test_it_is_retried_and_then_a_dead_letter_and_the_others_go_on(
    database: Database, make_bus: MakeBus, clock: ManualClock
) -> None:
    """As many calls as attempts, wherever in its batch it is."""
    await fill(database, 5)
    bus, ledger = make_bus(), Ledger(3)
    bus.subscribe("*", database.transactional(ledger), id=ID, retry=RetryPolicy(max_retries=2, base_delay=1))
    await bus.start()
    await soon(pass_time(clock, 1))
    await soon(pass_time(clock, 2))
    await soon(bus.idle())
    (letter,) = await letters_of(bus)

    assert await entries(database) == [1, 2, 4, 5]
    assert [number for number in ledger.calls if number > 2] == [3, 3, 3, 4, 5]
    assert letter.errors == ["ValueError: poison"] * 3
    assert await position_of(bus) == 5


@pytest.mark.parametrize("error", [GeneratorExit("over"), RudeError("over"), asyncio.CancelledError("over")])
async def test_whatever_it_raises_is_a_failed_attempt(
    database: Database, make_bus: MakeBus, error: BaseException
) -> None:
    """Also what is no Exception: the others go on."""
    await fill(database, 5)
    bus, ledger = make_bus(), Ledger(3, error=error)
    bus.subscribe("*", database.transactional(ledger), id=ID, retry=ONCE)
    await bus.start()
    await soon(bus.idle())
    (letter,) = await letters_of(bus)

    assert await entries(database) == [1, 2, 4, 5]
    assert letter.errors == [f"{type(error).__name__}: over"]


async def test_one_that_gets_well_takes_effect_once(
    database: Database, make_bus: MakeBus, clock: ManualClock
) -> None:
    await fill(database, 3)
    bus, ledger = make_bus(), Ledger(2)
    bus.subscribe("*", database.transactional(ledger), id=ID)
    await bus.start()
    await soon(clock.wait_for_sleepers(1))
    ledger.poison.clear()
    await soon(pass_time(clock, 1))
    await soon(bus.idle())

    assert await entries(database) == [1, 2, 3]
    assert await letters_of(bus) == []


async def test_a_crash_repeats_no_effect(database: Database, make_bus: MakeBus) -> None:
    """What is committed is behind the checkpoint; what is not was undone."""
    await fill(database, 3)
    first = make_bus(faulty(database))
    first.subscribe("*", database.transactional(Ledger()), id=ID)
    await first.start()
    await soon(first.idle())
    await crash(first)
    second = make_bus()
    second.subscribe("*", database.transactional(Ledger()), id=ID)
    await publish_numbers(second, 4)
    await soon(second.subscription(ID).caught_up())

    assert await entries(database) == [1, 2, 3, 4]


@on_embedded
@pytest.mark.parametrize("ending", ["commit", "rollback", "COMMIT", "BEGIN"])
async def test_a_handler_that_ends_the_transaction_in_any_way_has_failed(
    database: Database, make_bus: MakeBus, ending: str
) -> None:
    """SQLite knows many, and none of them commits anything."""
    await _fails_after(ending, database, make_bus)


async def test_a_handler_that_ends_the_transaction_has_failed(database: Database, make_bus: MakeBus) -> None:
    """It is not its own: effects and checkpoint stay together."""
    await _fails_after("ROLLBACK", database, make_bus)


async def _fails_after(ending: str, database: Database, make_bus: MakeBus) -> None:
    bus = make_bus()

    async def meddle(event: Event, hand: Hand) -> None:
        await enter(event.payload, hand)
        if event.payload == 2:
            getattr(hand.connection, ending)() if ending.islower() else await hand.execute(ending)

    bus.subscribe("*", database.transactional(meddle), id=ID, retry=ONCE)
    await publish_numbers(bus, 1, 2, 3)
    await soon(bus.idle())
    (letter,) = await letters_of(bus)

    assert letter.errors[0].startswith("TransactionEndedError: the handler of 'mail' ended the transaction")
    assert await entries(database) == [1, 3]


async def test_what_only_a_store_spoils_is_not_an_attempt(
    database: Database, make_bus: MakeBus, clock: ManualClock
) -> None:
    await fill(database, 2)
    bus, ledger = make_bus(), Ledger(2, error=StoreBusyError("another database is busy"))
    bus.subscribe("*", database.transactional(ledger), id=ID, retry=ONCE)
    await bus.start()
    await soon(clock.wait_for_sleepers(1))
    handle = bus.subscription(ID)
    assert (handle.state, handle.reason) == ("failed", "StoreBusyError: another database is busy")

    await soon(try_again(clock, 5))
    await soon(clock.wait_for_sleepers(1))
    ledger.poison.clear()
    await soon(try_again(clock))
    await soon(handle.caught_up())
    assert await entries(database) == [1, 2]
    assert await letters_of(bus) == []


async def test_a_handler_whose_own_store_is_closed_does_not_end_its_subscriber(
    database: Database, make_bus: MakeBus, clock: ManualClock
) -> None:
    bus, ledger = make_bus(), Ledger(1, error=StoreClosedError("not ours"))
    bus.subscribe("*", database.transactional(ledger), id=ID)
    await publish_numbers(bus, 1)
    await soon(clock.wait_for_sleepers(1))
    assert bus.subscription(ID).state == "failed"

    ledger.poison.clear()
    await soon(try_again(clock))
    await soon(bus.subscription(ID).caught_up())
    assert await entries(database) == [1]


async def test_a_pause_holds_one_that_fails_on_a_store(
    database: Database, make_bus: MakeBus, clock: ManualClock
) -> None:
    bus, ledger = make_bus(), Ledger(1, error=StoreBusyError("busy"))
    bus.subscribe("*", database.transactional(ledger), id=ID)
    await publish_numbers(bus, 1)
    await soon(clock.wait_for_sleepers(1))
    await soon(bus.subscription(ID).pause())
    await clock.advance(30)
    await until(lambda: bus.subscription(ID).state == "paused")
    assert ledger.calls == [1]

    ledger.poison.clear()
    await bus.subscription(ID).resume()
    await soon(bus.subscription(ID).caught_up())
    assert await entries(database) == [1]


async def test_a_store_that_fails_the_whole_batch_is_waited_for(
    database: Database, make_bus: MakeBus, clock: ManualClock
) -> None:
    await fill(database, 2)
    store, ledger = faulty(database), Ledger()
    store.checkpoints.fail("process", StoreBusyError("busy"), 3)
    bus = make_bus(store)
    bus.subscribe("*", database.transactional(ledger), id=ID)
    await bus.start()
    await soon(try_again(clock, 3))
    await soon(bus.subscription(ID).caught_up())

    assert await entries(database) == [1, 2]


@on_embedded
async def test_typed_payloads_come_here_as_well(database: Database, make_bus: MakeBus) -> None:
    def add(number: int, transaction: sqlite3.Connection) -> None:
        transaction.execute("CREATE TABLE IF NOT EXISTS ledger (line INTEGER PRIMARY KEY, number INTEGER)")
        transaction.execute("INSERT INTO ledger (number) VALUES (?)", (number,))

    await _takes_numbers(database, make_bus(), add)


@on_postgres
async def test_typed_payloads_come_to_a_coroutine_function(database: Database, make_bus: MakeBus) -> None:
    async def add(number: int, connection: Any) -> None:
        await connection.execute("CREATE TABLE IF NOT EXISTS ledger (line bigserial, number integer)")
        await connection.execute("INSERT INTO ledger (number) VALUES ($1)", number)

    await _takes_numbers(database, make_bus(), add)


async def _takes_numbers(database: Database, bus: EventBus, add: Callable[[int, Any], Any]) -> None:
    bus.subscribe("*", add, id=ID)
    await bus.publish_many([("a", 1), ("a", "two"), ("a", 3)])
    await soon(bus.idle())
    (letter,) = await letters_of(bus)

    assert await entries(database) == [1, 3]
    assert letter.errors[0].startswith("PayloadTypeError")
    assert len(letter.errors) == 1


async def test_unwanted_events_are_passed(database: Database, make_bus: MakeBus) -> None:
    bus, ledger = make_bus(), Ledger()
    bus.subscribe("order.*", database.transactional(ledger), id=ID)
    await bus.publish_many([("order.placed", 1), ("user.seen", 2), ("order.placed", 3), ("user.seen", 4)])
    await soon(bus.subscription(ID).caught_up())

    assert await entries(database) == [1, 3]
    assert await position_of(bus) == 4


async def test_many_pages_in_batches(database: Database, make_bus: MakeBus) -> None:
    await fill(database, 1200)
    bus, ledger = make_bus(config=ReliableDeliveryConfig(catch_up_batch_size=7)), Ledger(500, 1100)
    bus.subscribe("*", database.transactional(ledger), id=ID, retry=ONCE)
    await bus.start()
    await soon(bus.idle())

    assert await entries(database) == [number for number in range(1, 1201) if number not in (500, 1100)]
    assert (ledger.calls.count(500), ledger.calls.count(1100)) == (1, 1)


def an_observer(on_event: Any) -> Any:
    return type("Observer", (), {"subscriber_id": ID, "on_event": staticmethod(on_event)})()


@on_postgres
class TestWhatIsRefusedWhereTransactionsAreAsync:
    def test_a_plain_function(self, make_bus: MakeBus) -> None:
        """It could not use the connection."""

        def handler(event: Event, connection: Any) -> None: ...

        bus, refusal = make_bus(), "is a plain function.*expected async def"
        with pytest.raises(InvalidHandlerError, match=refusal):
            bus.subscribe("*", handler, id=ID)
        with pytest.raises(InvalidHandlerError, match=refusal):
            bus.subscribe(an_observer(handler))

    def test_no_id(self, make_bus: MakeBus) -> None:
        async def handler(event: Event, connection: Any) -> None: ...

        with pytest.raises(DurableIdRequiredError, match="give it an id"):
            make_bus().subscribe("*", handler)


@on_embedded
class TestWhatIsRefused:
    def test_an_async_function(self, make_bus: MakeBus) -> None:
        async def handler(event: Event, transaction: sqlite3.Connection) -> None: ...

        bus, refusal = make_bus(), r"expected a plain function \(def, not async def\)"
        with pytest.raises(InvalidHandlerError, match=refusal):
            bus.subscribe("*", handler, id=ID)
        with pytest.raises(InvalidHandlerError, match=refusal):
            bus.subscribe(an_observer(handler))

    def test_a_generator(self, make_bus: MakeBus) -> None:
        """Its body would never run, and its events be behind it."""

        def handler(event: Event, transaction: sqlite3.Connection) -> Any:
            yield transaction

        with pytest.raises(InvalidHandlerError, match="is a generator, whose body never runs"):
            make_bus().subscribe("*", handler, id=ID)

    def test_no_id(self, make_bus: MakeBus) -> None:
        bus: EventBus = make_bus()
        with pytest.raises(InvalidHandlerError, match="only a durable subscriber has; give it an id"):
            bus.subscribe("*", lambda event, transaction: None)

    def test_more_than_two_parameters(self, make_bus: MakeBus) -> None:
        with pytest.raises(InvalidHandlerError, match="can't take an event"):
            make_bus().subscribe("*", lambda event, transaction, more: None, id=ID)  # type: ignore[arg-type]

    async def test_a_coroutine_that_nobody_would_await(self, make_bus: MakeBus) -> None:
        """It can only be seen when it is there: the attempt has failed and the event is a dead letter."""
        bus, handler = make_bus(), FlakyHandler()
        bus.subscribe("*", lambda event, _: handler(event), id=ID, retry=ONCE)
        await publish_numbers(bus, 1)
        await soon(bus.idle())
        (letter,) = await letters_of(bus)

        assert "InvalidHandlerError" in letter.errors[0]
        assert handler.events == []

    async def test_a_default_for_the_second_parameter_makes_a_plain_handler(self, make_bus: MakeBus) -> None:
        bus, got = make_bus(), list[Any]()
        bus.subscribe("*", lambda event, more=None: got.append(more), id=ID)
        await publish_numbers(bus, 1)
        await soon(bus.idle())

        assert got == [None]
