"""A process that forks while its bus is running, as a server with preloaded workers does.

Arguments: the database, the history, a file. The child uses what it has inherited, tells what came
of it, and ends once the file is there. The parent then publishes what its standard input asks for.
Lines out: "child <pid>", "<use>: <outcome>" for each use of the inherited bus, "used", and "published"
for each line in.
"""

import asyncio
import os
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from postbus import DLQInspector, Event, EventBus
from tests.end_to_end.history import ACKNOWLEDGED, DELIVERED, History


def use(name: str, call: Callable[[], Awaitable[object]]) -> None:
    """Try it in an event loop of the child's own, and say what came of it."""

    async def within_limits() -> object:
        async with asyncio.timeout(5):
            return await call()

    try:
        outcome = repr(asyncio.run(within_limits()))
    except Exception as error:
        outcome = type(error).__name__
    print(f"{name}: {outcome}", flush=True)


def live_as_child(bus: EventBus, event_id: str, end: Path) -> None:
    print(f"child {os.getpid()}", flush=True)
    use("publish", lambda: bus.publish("ok.event"))
    use("publish_many", lambda: bus.publish_many([("ok.event",)]))
    use("idle", bus.idle)
    use("get", lambda: bus.store.get(event_id))
    use("list", lambda: DLQInspector(bus.store).list())
    use("retry", lambda: DLQInspector(bus.store).retry(event_id))
    use("close", bus.store.close)
    print("used", flush=True)
    deadline = time.monotonic() + 60
    while not end.exists() and time.monotonic() < deadline:
        time.sleep(0.01)


async def start(bus: EventBus, history: History) -> str:
    """Start, and have a reading connection too, for the child to inherit."""
    await bus.start()
    event_id = await bus.publish("ok.event")
    history.note(ACKNOWLEDGED, event_id)
    await bus.dlq.list()
    return event_id


async def publish_as_parent(bus: EventBus, history: History) -> None:
    while await asyncio.to_thread(sys.stdin.readline):
        for _ in range(20):
            history.note(ACKNOWLEDGED, await bus.publish("ok.event"))
        print("published", flush=True)
    await bus.shutdown()


def main(path: str, history: History, end: Path) -> None:
    bus = EventBus(path)

    @bus.on("*")
    async def succeed(event: Event) -> None:
        history.note(DELIVERED, event.id)

    runner = asyncio.Runner()
    event_id = runner.run(start(bus, history))
    if os.fork() == 0:
        # It ends as programs end, with everything that runs at exit.
        live_as_child(bus, event_id, end)
    else:
        runner.run(publish_as_parent(bus, history))
        runner.close()


if __name__ == "__main__":
    main(sys.argv[1], History(Path(sys.argv[2])), Path(sys.argv[3]))
