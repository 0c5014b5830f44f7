"""A bus with durable subscribers that does what its parent says, as remote_bus does.

Arguments: the database, the history, options as JSON: "name" of this process in the history,
"subscribers" as id → kind ("ok", "slow" or "transactional").
"""

import asyncio
import json
import logging
import sqlite3
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from postbus import Event, EventBus, ReliableDeliveryConfig
from tests.end_to_end.children.remote_bus import serve
from tests.end_to_end.durable_database import INSERT_EFFECT
from tests.end_to_end.history import ACKNOWLEDGED, History

BEGAN = "began"


class DurableRemote:
    """One method for each command."""

    def __init__(self, path: Path, history: History, options: dict[str, Any]) -> None:
        self._history, self._name = history, options["name"]
        self._released = asyncio.Event()
        self._delays: list[float] = []
        self._bus = EventBus(path, config=ReliableDeliveryConfig(initial_retry_delay=0.01))
        for subscriber_id, kind in options["subscribers"].items():
            self._bus.subscribe("order.*", self._handler(subscriber_id, kind), id=subscriber_id)

    async def start(self) -> None:
        await self._bus.start()

    async def shutdown(self) -> None:
        await self._bus.shutdown()

    async def publish(self, count: int = 1) -> list[str]:
        event_ids = await self._bus.publish_many([("order.placed", number) for number in range(count)])
        self._history.note(ACKNOWLEDGED, *event_ids)
        return event_ids

    async def publish_with_time(self) -> None:
        """An event that tells when it was published, on the clock that all processes share."""
        await self._bus.publish("order.placed", time.monotonic())

    async def state(self, id: str) -> str:
        return self._bus.subscription(id).state

    async def caught_up(self, id: str) -> None:
        await self._bus.subscription(id).caught_up(timeout=20)

    async def release(self) -> None:
        """Let the slow handlers end."""
        self._released.set()

    async def take_delays(self) -> list[float]:
        """Seconds from the publishing of each event to its handler."""
        delays, self._delays = self._delays, []
        return delays

    async def processor_time(self, seconds: float) -> float:
        """How long the processor worked for this process in so many seconds."""
        before = time.process_time()
        await asyncio.sleep(seconds)
        return time.process_time() - before

    def _handler(self, subscriber_id: str, kind: str) -> Callable[..., object]:
        # Which process it was, and which subscriber.
        who = f"{subscriber_id}{self._name}"

        async def handle(event: Event) -> None:
            self._history.note(who, event.id)

        async def handle_slowly(event: Event) -> None:
            self._history.note(f"{BEGAN}-{who}", event.id)
            await self._released.wait()
            self._history.note(who, event.id)

        async def measure(event: Event) -> None:
            self._delays.append(time.monotonic() - event.payload)

        def insert(event: Event, transaction: sqlite3.Connection) -> None:
            transaction.execute(INSERT_EFFECT, (event.id, event.global_sequence))
            self._history.note(who, event.id)

        handlers: dict[str, Callable[..., object]] = {
            "ok": handle,
            "slow": handle_slowly,
            "measured": measure,
            "transactional": insert,
        }
        return handlers[kind]


async def main(path: Path, history: History, options: dict[str, Any]) -> None:
    await serve(DurableRemote(path, history, options))  # type: ignore[arg-type]


if __name__ == "__main__":
    logging.getLogger("postbus").setLevel(logging.CRITICAL)
    asyncio.run(main(Path(sys.argv[1]), History(Path(sys.argv[2])), json.loads(sys.argv[3])))
