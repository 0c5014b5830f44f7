"""An application for `postbus worker`: subscribers that write down what they do, and hold when told to.

WORKER_TARGET names the store, WORKER_FOLDER a folder with the journal and the file "hold".
"""

import asyncio
import os
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from postbus import Event, EventBus

# With defaults, because whoever looks for doctests imports it as well.
FOLDER = Path(os.environ.get("WORKER_FOLDER", "."))
TARGET = os.environ.get("WORKER_TARGET", "memory:")
SHUTDOWN_TIMEOUT = float(os.environ.get("WORKER_SHUTDOWN_TIMEOUT", "30"))


def note(line: str) -> None:
    with (FOLDER / "journal").open("a") as journal:
        journal.write(f"{os.getpid()} {line}\n")


async def while_held() -> None:
    while (FOLDER / "hold").exists():  # noqa: ASYNC110
        await asyncio.sleep(0.005)


def handler_of(subscriber_id: str) -> Callable[[Event], Awaitable[None]]:
    async def handle(event: Event) -> None:
        note(f"{subscriber_id} begin {event.payload}")
        if event.payload == "hang":
            time.sleep(3600)  # noqa: ASYNC251
        if event.payload == "shut down":
            await bus.shutdown()
        await while_held()
        note(f"{subscriber_id} end {event.payload}")

    return handle


bus = EventBus(TARGET, handler_timeout=3600, shutdown_timeout=SHUTDOWN_TIMEOUT)
for name in os.environ.get("WORKER_SUBSCRIBERS", "mail").split():
    bus.subscribe("*", handler_of(name), id=name)


class Factories:
    """Attributes of an attribute."""

    @staticmethod
    def make() -> EventBus:
        note("made")
        return bus

    @staticmethod
    async def make_slowly() -> EventBus:
        note("begin to make")
        await while_held()
        return bus


async def make_never() -> EventBus:
    note("begin to make")
    await asyncio.Event().wait()
    return bus
