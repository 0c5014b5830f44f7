"""Instances in processes of their own, which a test kills and stops."""

import asyncio
import itertools
import json
import time
from pathlib import Path
from typing import Any

from postbus import PgEventBus
from tests.competing.steps import ID
from tests.end_to_end.processes import Child, RemoteBus, wait_until
from tests.patience import PATIENCE


class Instance(RemoteBus):
    """Its handlers tell the history "<subscriber>-by-<name>"."""

    def __init__(
        self, dsn: str, folder: Path, name: str, *, config: dict[str, Any] | None = None, **subscriber: Any
    ) -> None:
        config = {"poll_interval": 0.2, "initial_retry_delay": 0.05, **(config or {})}
        subscribers = subscriber.pop("subscribers", None) or {
            ID: {"kind": "ok", "mode": "competing", **subscriber}
        }
        options = {"name": name, "config": config, "subscribers": subscribers}
        Child.__init__(
            self, "competing_instance", dsn, folder / "history", json.dumps(options), folder=folder
        )
        self._answers, self._commands = {}, itertools.count(1)
        self.name = name

    def wait_for_state(self, *states: str, timeout: float = PATIENCE) -> float:
        """Ask until its subscriber is in one of the states; how many seconds that took."""
        began_at = time.monotonic()
        wait_until(lambda: self.ask("state", id=ID) in states, f"{ID} is {' or '.join(states)}", timeout)
        return time.monotonic() - began_at


def publish(dsn: str, *payloads: object) -> set[str]:
    """Events that nobody processes yet; their ids."""

    async def publish_all() -> set[str]:
        async with PgEventBus(dsn) as bus:
            return set(await bus.publish_many([("order.placed", payload) for payload in payloads]))

    return asyncio.run(publish_all())
