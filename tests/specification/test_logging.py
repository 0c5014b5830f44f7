"""0002, section 8.1: every line that it wants to see in the log, at its level, on PostgreSQL."""

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from postbus import PgEventBus, ReliableDeliveryConfig
from tests.delivery.steps import ALWAYS, FlakyHandler
from tests.faults.steps import end_backends
from tests.gaps.steps import ID, soon

CONFIG = ReliableDeliveryConfig(poll_interval=0.05, max_retries=1, initial_retry_delay=0.01)


@pytest.fixture(autouse=True)
def _everything(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "postbus")


@asynccontextmanager
async def running(dsn: str, failure_count: int = 0) -> AsyncIterator[PgEventBus]:
    """A bus with a subscriber that fails so many times."""
    bus = PgEventBus(dsn, config=CONFIG)
    bus.subscribe("*", FlakyHandler(failure_count), id=ID)
    async with bus:
        yield bus


async def leave_log(dsn: str, count: int) -> None:
    """So many events, and nobody who has processed them."""
    async with PgEventBus(dsn) as bus:
        await bus.publish_many([("test.done", number) for number in range(count)])


def lines(caplog: pytest.LogCaptureFixture, level: int) -> list[str]:
    """What was logged at this level about subscribers."""
    return [
        record.getMessage()
        for record in caplog.records
        if record.name == "postbus" and record.levelno == level
    ]


async def test_info_catch_up_started_and_completed_with_event_count(
    postgres_dsn: str, caplog: pytest.LogCaptureFixture
) -> None:
    """From where it starts, and after how many events it is through."""
    await leave_log(postgres_dsn, 7)
    async with running(postgres_dsn) as bus:
        await soon(lambda: bus.subscription(ID).state == "live")
        told = lines(caplog, logging.INFO)

    assert told == [f"subscriber {ID} is active from 0 on", f"subscriber {ID} has caught up after 7 events"]


async def test_info_subscriber_registered_with_checkpoint_position(
    postgres_dsn: str, caplog: pytest.LogCaptureFixture
) -> None:
    """That of the run before; as a field of the record too."""
    await leave_log(postgres_dsn, 7)
    async with running(postgres_dsn) as bus:
        await bus.subscription(ID).caught_up(timeout=10)
    caplog.clear()
    async with running(postgres_dsn) as bus:
        await soon(lambda: bus.subscription(ID).state == "live")
    record = next(record for record in caplog.records if "is active" in record.getMessage())

    assert (record.levelno, record.getMessage()) == (logging.INFO, f"subscriber {ID} is active from 7 on")
    assert (record.__dict__["subscriber_id"], record.__dict__["position"]) == (ID, 7)


async def test_info_advisory_lock_acquired_for_subscriber(
    postgres_dsn: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Whoever gets it becomes the active one and says so: the first, and the next when that has ended."""
    async with running(postgres_dsn) as first:
        await soon(lambda: first.subscription(ID).state == "live")
        async with running(postgres_dsn) as second:
            await soon(lambda: second.subscription(ID).state == "standby")
            before = lines(caplog, logging.INFO).count(f"subscriber {ID} is active from 0 on")
            await first.shutdown()
            await soon(lambda: second.subscription(ID).state == "live")
            after = lines(caplog, logging.INFO).count(f"subscriber {ID} is active from 0 on")

    assert (before, after) == (1, 2)


async def test_info_advisory_lock_not_acquired_for_subscriber(
    postgres_dsn: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Another instance is active."""
    async with running(postgres_dsn) as first:
        await soon(lambda: first.subscription(ID).state == "live")
        async with running(postgres_dsn) as second:
            await soon(lambda: second.subscription(ID).state == "standby")
            await soon(
                lambda: f"subscriber {ID} is active elsewhere; standing by" in lines(caplog, logging.INFO)
            )


async def test_info_advisory_lock_released_on_shutdown(
    postgres_dsn: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Once, and not by one who never had it."""
    async with running(postgres_dsn) as first:
        await soon(lambda: first.subscription(ID).state == "live")
        async with running(postgres_dsn) as second:
            await soon(lambda: second.subscription(ID).state == "standby")
        before = lines(caplog, logging.INFO).count(f"subscriber {ID} is active here no more")
    after = lines(caplog, logging.INFO).count(f"subscriber {ID} is active here no more")

    assert (before, after) == (0, 1)


async def test_advisory_lock_released_on_failover(
    postgres_dsn: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The server lets the locks of an ended session go; that is a warning, as nobody has asked for it."""
    async with running(postgres_dsn) as bus:
        await soon(lambda: bus.subscription(ID).state == "live")
        await end_backends(postgres_dsn)
        lost = f"subscriber {ID} has lost the store; it takes over again"
        await soon(lambda: lost in lines(caplog, logging.WARNING))


async def test_warn_event_processing_retry_attempt(
    postgres_dsn: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Which attempt of how many, of which event, and why."""
    async with running(postgres_dsn, failure_count=1) as bus:
        event_id = await bus.publish("test.done")
        await bus.subscription(ID).caught_up(timeout=10)

    assert lines(caplog, logging.WARNING) == [
        f"attempt 1 of 2 failed for event {event_id} (test.done) with {ID}: ValueError: boom 1"
    ]


async def test_error_event_sent_to_dlq(postgres_dsn: str, caplog: pytest.LogCaptureFixture) -> None:
    """Once, after its last attempt."""
    async with running(postgres_dsn, failure_count=ALWAYS) as bus:
        event_id = await bus.publish("test.done")
        await bus.subscription(ID).caught_up(timeout=10)

    assert lines(caplog, logging.ERROR) == [
        f"event {event_id} (test.done) is a dead letter of {ID} after 2 attempts"
    ]


async def test_debug_checkpoint_updated(postgres_dsn: str, caplog: pytest.LogCaptureFixture) -> None:
    """For every one that is written."""
    async with running(postgres_dsn) as bus:
        for _ in range(3):
            await bus.publish("test.done")
            await bus.subscription(ID).caught_up(timeout=10)
    told = [line for line in lines(caplog, logging.DEBUG) if line.startswith("checkpoint")]

    assert told == [f"checkpoint of {ID} is at {position}" for position in (1, 2, 3)]
