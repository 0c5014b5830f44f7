"""An instance on PostgreSQL that does what its parent says, as remote_bus does.

Arguments: the DSN, the history, options as JSON: "name" of this process in the history, "config" for
ReliableDeliveryConfig, "subscribers" as id → options of subscribe and "kind" ("ok", "slow", "transactional",
"poison": ends the process at an event whose payload is "poison").
"""

import asyncio
import json
import logging
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from postbus import Event, PgEventBus, ReliableDeliveryConfig
from postbus.config import CheckpointMode
from tests.end_to_end.children.remote_bus import serve
from tests.end_to_end.history import ACKNOWLEDGED, History

BEGAN = "began"


class CompetingRemote:
    """One method for each command."""

    def __init__(self, dsn: str, history: History, options: dict[str, Any]) -> None:
        self._history, self._options = history, options
        config = dict(options.get("config", {}))
        if "batched" in config:
            config["checkpoint_mode"] = CheckpointMode.batched(**config.pop("batched"))
        self._bus = PgEventBus(dsn, config=ReliableDeliveryConfig(**config))
        self._released = asyncio.Event()
        for subscriber_id, subscription in options["subscribers"].items():
            self._subscribe(subscriber_id, **subscription)

    async def start(self) -> None:
        await self._bus.start()

    async def shutdown(self) -> None:
        await self._bus.shutdown()

    async def publish(self, count: int = 1, payload: object = None) -> list[str]:
        events = [("order.placed", number if payload is None else payload) for number in range(count)]
        event_ids = await self._bus.publish_many(events)
        self._history.note(ACKNOWLEDGED, *event_ids)
        return event_ids

    async def state(self, id: str) -> str:
        return self._bus.subscription(id).state

    async def caught_up(self, id: str) -> None:
        await self._bus.subscription(id).caught_up(timeout=25)

    async def release(self) -> None:
        """Let the handlers end that wait."""
        self._released.set()

    def _subscribe(self, subscriber_id: str, kind: str, pause: float = 0.0, **options: Any) -> None:
        who = f"{subscriber_id}-by-{self._options['name']}"

        async def note(event: Event) -> None:
            await asyncio.sleep(pause)
            self._history.note(who, event.id)

        async def wait(event: Event) -> None:
            self._history.note(f"{BEGAN}-{who}", event.id)
            await self._released.wait()
            self._history.note(who, event.id)

        async def insert(event: Event, connection: Any) -> None:
            await connection.execute(
                "INSERT INTO effects (event_id, instance) VALUES ($1, $2)", event.id, self._options["name"]
            )
            self._history.note(f"{BEGAN}-{who}", event.id)
            await asyncio.sleep(pause)

        async def hold(event: Event, connection: Any) -> None:
            await insert(event, connection)
            await self._released.wait()

        async def die(event: Event) -> None:
            await asyncio.sleep(pause)
            if event.payload == "poison":
                os.kill(os.getpid(), signal.SIGKILL)
            self._history.note(who, event.id)

        kinds: dict[str, Callable[..., object]] = {
            "ok": note,
            "slow": wait,
            "transactional": insert,
            "held": hold,
            "poison": die,
        }
        self._bus.subscribe("order.*", kinds[kind], id=subscriber_id, **options)


async def main(dsn: str, history: History, options: dict[str, Any]) -> None:
    await serve(CompetingRemote(dsn, history, options))  # type: ignore[arg-type]


if __name__ == "__main__":
    logging.getLogger("postbus").propagate = False
    asyncio.run(main(sys.argv[1], History(Path(sys.argv[2])), json.loads(sys.argv[3])))
