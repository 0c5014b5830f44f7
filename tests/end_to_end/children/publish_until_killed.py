"""Recovers, then publishes as fast as it can until somebody ends it.

Arguments: the database, the history, and "forks" for one process after the other. Lines in: "publish" or
"finish". Lines out: "recovered", "acknowledged" after the first publish, "interrupted" after SIGINT. What a
fork says is between the number of its process and its exit code.
"""

import asyncio
import functools
import itertools
import logging
import os
import sys
from pathlib import Path

from postbus import EventBus
from tests.end_to_end.children.handlers import make_bus
from tests.end_to_end.forks import run_in_fork, tell
from tests.end_to_end.history import ACKNOWLEDGED, History

PUBLISHER_COUNT = 20
BATCH = ("ok.batch", "flaky.batch", "ok.batch", "poison.batch", "ok.batch")


class Acknowledgements:
    """Writes down each event whose publish returned, and tells the parent of the first."""

    def __init__(self, history: History) -> None:
        self._history = history
        self._is_first = True

    def add(self, *event_ids: str) -> None:
        self._history.note(ACKNOWLEDGED, *event_ids)
        if self._is_first:
            self._is_first = False
            tell("acknowledged")


async def publish_endlessly(bus: EventBus, acknowledged: Acknowledgements, publisher: int) -> None:
    for number in itertools.count():
        match (publisher + number) % 8:
            case 0 | 1 | 2:
                acknowledged.add(await bus.publish("ok.waited", number))
            case 3:
                acknowledged.add(await bus.publish("plain.waited", number))
            case 4:
                acknowledged.add(await bus.publish("flaky.waited", number))
            case 5:
                acknowledged.add(await bus.publish("poison.waited", number))
            case 6:
                acknowledged.add(await bus.publish("ok.unwaited", number, wait=False))
            case _:
                batch = {"batch": f"{os.getpid()}-{publisher}-{number}", "size": len(BATCH)}
                acknowledged.add(*await bus.publish_many([(type, batch) for type in BATCH]))


async def main(path: str, history: History, *, is_last: bool) -> None:
    async with make_bus(path, history) as bus:
        await bus.idle()
        await bus.dlq.list(limit=0)  # a reader sees what is done only once it is written
        tell("recovered")
        if not is_last:
            acknowledged = Acknowledgements(history)
            async with asyncio.TaskGroup() as publishers:
                for publisher in range(PUBLISHER_COUNT):
                    publishers.create_task(publish_endlessly(bus, acknowledged, publisher))


def run(command: str, path: str, history: str) -> None:
    try:
        asyncio.run(main(path, History(Path(history)), is_last=command == "finish"))
    except KeyboardInterrupt:
        tell("interrupted")


if __name__ == "__main__":
    logging.getLogger("postbus").setLevel(logging.CRITICAL)
    for line in sys.stdin:
        live = functools.partial(run, line.strip(), sys.argv[1], sys.argv[2])
        if sys.argv[3:] == ["forks"]:
            tell(run_in_fork(live, on_fork=tell))
        else:
            live()
            break
