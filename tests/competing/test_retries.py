"""A failed attempt waits out its back-off in its row, and the last one makes a dead letter."""

import json
import logging
from dataclasses import dataclass

import pytest

from postbus import Event, RetryPolicy, StoreUnavailableError
from tests.competing.steps import (
    ID,
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
from tests.delivery.exits import raise_later, wait_for_a_task

NO_DELAY = RetryPolicy(max_retries=3, base_delay=0.0)


async def test_an_event_is_tried_again_until_it_succeeds(make_bus: MakeBus, dsn: str) -> None:
    """Only that one, and the others do not wait for it."""
    bus, noting = make_bus(), Noting(failure_count=2)
    compete(bus, noting, retry=NO_DELAY)
    await publish_numbers(bus, 1, 2, 3)
    await within(10, bus.idle())

    assert sorted(noting.numbers) == [1, 1, 1, 2, 2, 2, 3, 3, 3]
    assert await rows_of(dsn) == []
    assert (await bus.dlq.list()).total == 0


@pytest.mark.parametrize("closes_task", [False, True])
@pytest.mark.parametrize("is_transactional", [False, True])
async def test_generator_exit_is_a_failed_attempt(
    make_bus: MakeBus, is_transactional: bool, closes_task: bool
) -> None:
    """Of the handler itself, or of something that it waits for; it ends no worker."""
    bus, calls = make_bus(), list[int]()

    async def leave(event: Event) -> None:
        calls.append(event.payload)
        if event.payload == 2:
            await (wait_for_a_task(event) if closes_task else raise_later(event))

    async def leave_transaction(event: Event, _: object) -> None:
        await leave(event)

    compete(bus, leave_transaction if is_transactional else leave, retry=NO_DELAY)
    await publish_numbers(bus, 1, 2, 3)
    await within(10, bus.idle())
    (letter,) = (await bus.dlq.list()).events

    assert sorted(calls) == [1, 2, 2, 2, 2, 3]
    assert letter.errors == ["GeneratorExit"] * 4


async def test_the_back_off_is_in_the_row_and_survives_a_restart(make_bus: MakeBus, dsn: str) -> None:
    """Attempts and errors too: another instance goes on counting where the first was."""
    first, noting = make_bus(), Noting(failure_count=100)
    compete(first, noting, retry=RetryPolicy(max_retries=2, base_delay=1.0, jitter=0.0))
    await publish_numbers(first, 7)
    (row,) = await until_rows(dsn, lambda rows: len(rows) == 1 and rows[0]["attempt_count"] == 1)
    await first.shutdown()
    waiting = await query(dsn, "SELECT available_at > now() + '0.3s' FROM postbus.event_bus_outbox")
    second, again = make_bus(), Noting(failure_count=100)
    compete(second, again, retry=RetryPolicy(max_retries=2, base_delay=0.0))
    await second.start()
    await until(lambda: len(again.events) == 2)
    await within(10, second.idle())

    assert (row["status"], json.loads(row["errors"]), row["locked_by"]) == (
        "pending",
        ["ValueError: no 1"],
        None,
    )
    assert waiting == [(True,)]
    (letter,) = (await second.dlq.list()).events
    assert letter.errors == ["ValueError: no 1", "ValueError: no 1", "ValueError: no 2"]


async def test_a_retry_comes_when_its_back_off_is_over(make_bus: MakeBus) -> None:
    """Not before, and no later than that although nobody polls."""
    bus, noting = make_bus(poll_interval=60.0), Noting(failure_count=1)
    compete(bus, noting, retry=RetryPolicy(max_retries=1, base_delay=0.4, jitter=0.0))
    await publish_numbers(bus, 1)
    await until(lambda: len(noting.events) == 1)
    seconds = await until(lambda: len(noting.events) == 2)

    assert 0.35 < seconds < 5.0


async def test_used_up_attempts_make_a_dead_letter_with_the_whole_story(
    make_bus: MakeBus, dsn: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Row and letter change places in one transaction; every failed attempt is logged."""
    bus, noting = make_bus(), Noting(failure_count=100)
    compete(bus, noting, retry=NO_DELAY)
    with caplog.at_level(logging.WARNING, "postbus"):
        await publish_numbers(bus, 7)
        await within(10, bus.idle())

    (letter,) = (await bus.dlq.list()).events
    assert (letter.subscriber_id, letter.payload, letter.retry_count) == (ID, 7, 4)
    assert letter.errors == [f"ValueError: no {attempt}" for attempt in (1, 2, 3, 4)]
    assert await rows_of(dsn) == []
    told = [record for record in caplog.records if record.getMessage().startswith("attempt ")]
    assert [(record.attempt, record.max_attempts) for record in told] == [(n, 4) for n in (1, 2, 3, 4)]  # type: ignore[attr-defined]


async def test_an_undecodable_payload_is_a_dead_letter_at_once(make_bus: MakeBus, dsn: str) -> None:
    """The handler never sees it."""
    bus, noting = make_bus(), Noting()
    await bus.start()
    # JSON for PostgreSQL alone.
    await query(
        dsn, "INSERT INTO postbus.events (id, event_type, data) VALUES ('odd', 'order.placed', '1e999999')"
    )
    compete(bus, noting)
    await publish_numbers(bus, 1)
    await within(10, bus.idle())

    (letter,) = (await bus.dlq.list()).events
    assert letter.id == "odd"
    assert "not JSON" in letter.errors[0]
    assert noting.numbers == [1]


async def test_a_payload_of_the_wrong_type_is_a_dead_letter_at_once(make_bus: MakeBus) -> None:
    """Another attempt could only fail in the same way; what fits is decoded."""

    @dataclass
    class Order:
        number: int

    seen: list[Order] = []

    async def handle(event: Event[Order]) -> None:
        seen.append(event.payload)

    bus = make_bus()
    compete(bus, handle)
    await bus.publish("order.placed", {"number": 1})
    await bus.publish("order.placed", {"colour": "red"})
    await within(10, bus.idle())

    assert seen == [Order(1)]
    (letter,) = (await bus.dlq.list()).events
    assert (letter.payload, letter.retry_count) == ({"colour": "red"}, 1)


async def test_old_versions_are_brought_up_to_date(make_bus: MakeBus) -> None:
    """As for any other subscriber."""
    bus, noting = make_bus(), Noting()
    bus.upcaster("order.placed", from_version=1)(lambda payload: payload * 10)
    compete(bus, noting)
    await publish_numbers(bus, 1, 2)
    await within(10, bus.idle())

    assert sorted(noting.numbers) == [10, 20]


async def test_plain_functions_run_in_threads(make_bus: MakeBus) -> None:
    """Several at once, as async handlers do."""
    import threading

    bus, barrier = make_bus(), threading.Barrier(4, timeout=5)
    compete(bus, lambda _: barrier.wait() and None, concurrency=4)
    await publish_numbers(bus, *range(8))
    await within(10, bus.idle())

    assert (await bus.dlq.list()).total == 0


async def test_a_store_that_fails_the_handler_costs_no_attempt(make_bus: MakeBus) -> None:
    """The state says why nothing goes on; as soon as the store works, so does the handler."""
    bus, seen = make_bus(), Noting()
    is_down = True

    async def handle(event: Event) -> None:
        if is_down:
            raise StoreUnavailableError("the other database is down")
        await seen(event)

    compete(bus, handle, retry=RetryPolicy(max_retries=0))
    await publish_numbers(bus, 1, 2)
    await until(lambda: bus.subscription(ID).state == "failed")
    reason = bus.subscription(ID).reason
    is_down = False
    await until(lambda: len(seen.events) == 2)
    await within(10, bus.subscription(ID).caught_up())
    await until(lambda: bus.subscription(ID).state == "live")

    assert reason == "StoreUnavailableError: the other database is down"
    assert (await bus.dlq.list()).total == 0


async def test_a_retried_dead_letter_is_processed_by_a_worker(make_bus: MakeBus, dsn: str) -> None:
    """Success resolves it, and its row goes with it."""
    bus, noting = make_bus(), Noting(failure_count=1)
    compete(bus, noting, retry=RetryPolicy(max_retries=0))
    await publish_numbers(bus, 1, 2)
    await within(10, bus.idle())
    letters = (await bus.dlq.list()).events
    for letter in letters:
        await bus.dlq.retry(letter.dead_letter_id)
    await until(lambda: len(noting.events) == 4)
    await until_rows(dsn, lambda rows: rows == [])

    assert len(letters) == 2
    assert (await bus.dlq.list()).total == 0
    resolved = await query(dsn, "SELECT resolved_by, retry_wanted_at FROM postbus.event_bus_dlq")
    assert resolved == [(ID, None)] * 2


async def test_a_retry_that_fails_adds_its_error_to_the_letter(make_bus: MakeBus, dsn: str) -> None:
    """It has one attempt, whatever the policy says."""
    bus, noting = make_bus(), Noting(failure_count=100)
    compete(bus, noting, retry=RetryPolicy(max_retries=1, base_delay=0.0))
    await publish_numbers(bus, 1)
    await within(10, bus.idle())
    (letter,) = (await bus.dlq.list()).events
    await bus.dlq.retry(letter.dead_letter_id)
    await until(lambda: len(noting.events) == 3)
    await until_rows(dsn, lambda rows: rows == [])

    (letter,) = (await bus.dlq.list()).events
    assert letter.errors == ["ValueError: no 1", "ValueError: no 2", "ValueError: no 3"]
    assert noting.numbers == [1, 1, 1]


async def test_a_retry_needs_no_event_in_the_log(make_bus: MakeBus, dsn: str) -> None:
    """A dead letter outlives its event."""
    bus, noting = make_bus(), Noting(failure_count=1)
    compete(bus, noting, retry=RetryPolicy(max_retries=0))
    await publish_numbers(bus, 5)
    await within(10, bus.idle())
    await query(dsn, "DELETE FROM postbus.events")
    (letter,) = (await bus.dlq.list()).events
    await bus.dlq.retry(letter.dead_letter_id)
    await until(lambda: len(noting.events) == 2)
    await until_rows(dsn, lambda rows: rows == [])

    assert noting.numbers == [5, 5]
    assert (await bus.dlq.list()).total == 0
