"""A bus that does what its parent says: one JSON command a line, one JSON answer a line.

Arguments: the database, the history, options as JSON: "name" of this process in the history,
"bus" for EventBus, "handlers" as pattern → kind.
"""

import asyncio
import json
import logging
import os
import resource
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from postbus import DLQInspector, Event, EventBus, RetryPolicy
from tests.end_to_end import database
from tests.end_to_end.history import ACKNOWLEDGED, DELIVERED, History

BEGAN = "began"
NOBODY = 65534


class ErrorLog(logging.Handler):
    """What the bus has to complain about."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(record.getMessage())


class Remote:
    """One method for each command."""

    def __init__(self, path: Path, history: History, options: dict[str, Any]) -> None:
        self._path, self._history = path, history
        self._name = options.get("name", "")
        self._released = asyncio.Event()
        self._log = ErrorLog()
        logging.getLogger("postbus").addHandler(self._log)
        self._ballast = path.parent / "ballast"
        retry = RetryPolicy(max_retries=1, base_delay=0.01)
        self._bus = EventBus(path, retry=retry, **options.get("bus", {}))
        for pattern, kind in options.get("handlers", {}).items():
            self._bus.subscribe(pattern, getattr(self, f"_handle_{kind}"))

    async def start(self) -> None:
        await self._bus.start()

    async def shutdown(self) -> None:
        await self._bus.shutdown()

    async def idle(self) -> None:
        await self._bus.idle()

    async def publish(self, type: str, payload: object = None, wait: bool = True) -> str:
        event_id = await self._bus.publish(type, payload, wait=wait)
        self._history.note(ACKNOWLEDGED, event_id)
        return event_id

    async def publish_many(self, types: list[str]) -> list[str]:
        batch = {"batch": f"{os.getpid()}-{id(types)}", "size": len(types)}
        event_ids = await self._bus.publish_many([(type, batch) for type in types])
        self._history.note(ACKNOWLEDGED, *event_ids)
        return event_ids

    async def event(self, event_id: str) -> dict[str, Any]:
        event = await self._bus.store.get(event_id)
        return {"status": event.status, "retry_count": event.retry_count, "errors": event.errors}

    async def dead_letters(self) -> list[str]:
        page = await DLQInspector(self._bus.store).list()
        assert page.total == len(page.events)
        return [event.id for event in page.events]

    async def retry(self, event_id: str) -> None:
        await DLQInspector(self._bus.store).retry(event_id)

    async def release(self) -> None:
        """Let the slow handlers end, and poison be cured."""
        self._released.set()

    async def drop_privileges(self) -> None:
        """Root may write everything: become somebody who may not."""
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)

    async def limit_file_size(self, size: int | None) -> None:
        """No file of this process may become larger."""
        _, most = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (most if size is None else size, most))

    async def fill_disk(self) -> None:
        """Leave no room beside the database."""
        with self._ballast.open("ab", buffering=0) as ballast:
            for size in (65536, 4096, 1):
                try:
                    while ballast.write(b"x" * size):
                        pass
                except OSError:
                    continue

    async def make_room(self) -> None:
        self._ballast.unlink()

    async def complaints(self) -> list[str]:
        """The errors it has logged."""
        return self._log.messages

    async def log_size(self) -> int:
        return os.stat(f"{self._path}-wal").st_size  # noqa: PTH116 (the file is there)

    async def statuses(self) -> dict[str, str]:
        """A look past the bus: a mount of this process is seen by no other."""
        return database.statuses(self._path)

    async def check_database(self) -> None:
        database.check_integrity(self._path)
        database.check_batches_are_whole(self._path)

    async def _handle_ok(self, event: Event) -> None:
        self._history.note(DELIVERED + self._name, event.id)

    async def _handle_flaky(self, event: Event) -> None:
        if event.retry_count == 0:
            raise ConnectionError("the first attempt always fails")
        self._history.note(DELIVERED + self._name, event.id)

    async def _handle_poison(self, event: Event) -> None:
        if not self._released.is_set():
            raise ValueError("nobody can process this")
        self._history.note(DELIVERED + self._name, event.id)

    async def _handle_slow_poison(self, event: Event) -> None:
        self._history.note(BEGAN + self._name, event.id)
        await self._released.wait()
        raise ValueError("nobody can process this")

    async def _handle_slow(self, event: Event) -> None:
        self._history.note(BEGAN + self._name, event.id)
        await self._released.wait()
        self._history.note(DELIVERED + self._name, event.id)


async def serve(remote: Remote) -> None:
    """Do what the lines of the standard input say, each in a task, until there are no more."""
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), sys.stdin
    )
    tasks = set()
    while line := await reader.readline():
        command = json.loads(line)
        method = getattr(remote, command["command"])
        tasks.add(asyncio.create_task(answer(command["number"], method, command["arguments"])))


async def answer(number: int, method: Callable[..., Awaitable[object]], arguments: dict[str, Any]) -> None:
    try:
        said: dict[str, object] = {"result": await method(**arguments)}
    except Exception as error:
        said = {"error": type(error).__name__, "message": str(error)}
    print(json.dumps({"number": number, **said}), flush=True)


async def main(path: Path, history: History, options: dict[str, Any]) -> None:
    await serve(Remote(path, history, options))


if __name__ == "__main__":
    logging.getLogger("postbus").propagate = False
    asyncio.run(main(Path(sys.argv[1]), History(Path(sys.argv[2])), json.loads(sys.argv[3])))
