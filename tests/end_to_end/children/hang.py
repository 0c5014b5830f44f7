"""A bus with a handler that never ends, and others that do.

Arguments: the database, the history, the kind of hanging, the handler's timeout in seconds.
Lines out: "others <seconds>" after events of other types were published and delivered, "handed over" after
one that nobody waits for was, "shut down <seconds>".
"""

import asyncio
import logging
import sys
import threading
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from postbus import Event, EventBus, RetryPolicy
from tests.end_to_end.history import ACKNOWLEDGED, DELIVERED, History

SHUTDOWN_TIMEOUT = 1.0
# More than there are threads for plain functions.
HANGING_COUNT = 40
# As many as there are: the others wait for one.
LEAST_BEGUN = 32
OTHERS_COUNT = 50

began: list[str] = []


def block(event: Event) -> None:
    began.append(event.id)
    threading.Event().wait()


async def sleep(event: Event) -> None:
    began.append(event.id)
    await asyncio.Event().wait()


async def resist(event: Event) -> None:
    """Sleep on, whoever cancels it how often."""
    began.append(event.id)
    while True:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            continue


KINDS: dict[str, Callable[[Event], object]] = {"block": block, "sleep": sleep, "resist": resist}


async def main(path: str, history: History, kind: str, timeout: float) -> None:
    bus = EventBus(path, shutdown_timeout=SHUTDOWN_TIMEOUT, retry=RetryPolicy(max_retries=0))
    bus.subscribe("hang.*", KINDS[kind], timeout=timeout)
    # Apart, because the circuit breaker of the other will be open.
    bus.subscribe("stuck.*", KINDS[kind], timeout=timeout)

    @bus.on("ok.*")
    async def succeed(event: Event) -> None:
        history.note(DELIVERED, event.id)

    @bus.on("plain.*")
    def succeed_in_a_thread(event: Event) -> None:
        history.note(DELIVERED, event.id)

    await bus.start()
    hanging = [asyncio.create_task(bus.publish("hang.event")) for _ in range(HANGING_COUNT)]
    while len(began) < LEAST_BEGUN:  # noqa: ASYNC110 (threads count too)
        await asyncio.sleep(0.001)
    began_at = time.monotonic()
    others = ["ok.event", "plain.event"] if kind != "block" or timeout < 10 else ["ok.event"]
    for event_type in others * OTHERS_COUNT:
        history.note(ACKNOWLEDGED, await bus.publish(event_type))
    print(f"others {time.monotonic() - began_at}", flush=True)
    if timeout < 10:
        history.note(ACKNOWLEDGED, *await asyncio.gather(*hanging))
        await bus.publish("stuck.event", wait=False)
        history.note(ACKNOWLEDGED, await bus.publish("ok.event", wait=False))
        await bus.idle()
        print("handed over", flush=True)
    began_at = time.monotonic()
    await bus.shutdown()
    print(f"shut down {time.monotonic() - began_at}", flush=True)


def run(program: Coroutine[Any, Any, None]) -> None:
    """As asyncio.run, which would wait for ever for a task that resists its cancellation."""
    asyncio.new_event_loop().run_until_complete(program)


if __name__ == "__main__":
    logging.getLogger("postbus").setLevel(logging.CRITICAL)
    start = run if sys.argv[3] == "resist" else asyncio.run
    start(main(sys.argv[1], History(Path(sys.argv[2])), sys.argv[3], float(sys.argv[4])))
