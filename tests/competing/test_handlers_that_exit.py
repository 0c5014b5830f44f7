"""Handlers that end the program, on PostgreSQL: not for ever by the same event."""

import asyncio
from typing import Any

import pytest

from postbus import DeadLetter, Event, PgEventBus, ReliableDeliveryConfig
from tests.patience import PATIENCE

# More starts than any event needs to become a dead letter.
_MOST_STARTS = 6


@pytest.mark.parametrize("options", [{}, {"partitions": 2}, {"mode": "competing"}], ids=str)
@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt])
def test_an_event_whose_handler_ends_the_program_becomes_a_dead_letter(
    dsn: str, options: dict[str, Any], error: type[BaseException]
) -> None:
    """Each time counts as an attempt, however orderly the program ends then; the others are delivered."""
    good = set[str]()

    async def handle(event: Event) -> None:
        await asyncio.sleep(0)
        if event.payload == "bad":
            raise error
        good.add(event.id)

    async def run() -> list[DeadLetter]:
        config = ReliableDeliveryConfig(max_retries=1, initial_retry_delay=0)
        # asyncio.run() cancels the tasks of the bus as well, and not all of them end then before this.
        bus = PgEventBus(dsn, config=config, shutdown_timeout=3.0)
        bus.subscribe("*", handle, id="mail", **options)
        async with bus:
            for name in ("first", "second", "third"):
                payload = "bad" if name == "second" else "good"
                await bus.publish("order.placed", payload, event_id=name)
            await asyncio.wait_for(bus.idle(), PATIENCE)
            return list((await bus.dlq.list()).events)

    dead: list[DeadLetter] = []
    end_count = 0
    for _ in range(_MOST_STARTS):
        try:
            dead = asyncio.run(run())
            break
        except error:
            end_count += 1

    assert [letter.id for letter in dead] == ["second"]
    assert 1 <= end_count <= 3
    assert good == {"first", "third"}
