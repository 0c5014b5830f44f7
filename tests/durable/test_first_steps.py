"""What a new user does first, and gets wrong first."""

import asyncio
import logging

import pytest

from postbus import Event, EventBus, InvalidHandlerError, Projection
from tests.delivery.steps import soon


class Orders(Projection[int]):
    subscriber_id = "orders"

    def apply(self, state: int | None, event: Event) -> int:
        return (state or 0) + 1


async def test_waiting_for_a_subscriber_starts_the_bus() -> None:
    """As publishing does: a forgotten start must not be waited for in vain."""
    bus = EventBus("memory:")
    bus.subscribe(lambda event: None, id="mail")

    await soon(bus.subscription("mail").caught_up())
    await bus.shutdown()


async def test_a_class_is_no_observer() -> None:
    bus = EventBus("memory:")

    with pytest.raises(InvalidHandlerError, match=r"Orders is a class; expected an instance"):
        bus.subscribe(Orders)


async def test_a_start_beyond_the_end_of_the_log_is_told(caplog: pytest.LogCaptureFixture) -> None:
    """It is what was asked for, and hardly what was meant."""
    bus = EventBus("memory:")
    bus.subscribe(lambda event: None, id="mail", start_from=1000)
    with caplog.at_level(logging.WARNING, "postbus"):
        async with bus:
            await soon(bus.subscription("mail").caught_up())

    assert "is to start after 1000 and the log is at 0" in caplog.text


async def test_a_retry_that_fails_is_told(caplog: pytest.LogCaptureFixture) -> None:
    bus = EventBus("memory:")

    @bus.on("order.placed", id="mail", retry={"max_retries": 0})
    async def fail(event: Event) -> None:
        raise ValueError("no")

    async with bus:
        await bus.publish("order.placed")
        await soon(bus.subscription("mail").caught_up())
        (letter,) = (await bus.dlq.list()).events
        caplog.clear()
        await bus.dlq.retry(letter.dead_letter_id)
        while (await bus.dlq.get(letter.dead_letter_id)).retry_count == letter.retry_count:  # noqa: ASYNC110
            await asyncio.sleep(0)

    assert f"the retry of dead letter {letter.dead_letter_id} of mail failed: ValueError: no" in caplog.text
