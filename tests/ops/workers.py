"""Real workers, in processes of their own, and what they leave behind."""

import asyncio
import contextlib
import http.client
import json
import os
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path
from signal import SIGKILL, SIGTERM, Signals
from types import TracebackType
from typing import Any, Self

from postbus import EventBus
from tests.end_to_end.processes import ROOT, wait_until
from tests.ops.commands import POSTBUS
from tests.patience import PATIENCE

APP = "tests.ops.children.worker_app"


class Worker:
    """A running `postbus worker`, alone in its process group."""

    def __init__(
        self,
        *arguments: object,
        folder: Path,
        target: object,
        app: str = APP,
        cwd: Path = ROOT,
        **settings: object,
    ) -> None:
        self._log = folder / "worker.log"
        environment = {f"WORKER_{name.upper()}": str(value) for name, value in settings.items()}
        environment |= {"WORKER_FOLDER": str(folder), "WORKER_TARGET": str(target)}
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(
                [*POSTBUS, "worker", app, *map(str, arguments)],
                cwd=cwd,
                env={**os.environ, **environment},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
            )

    def wait_until_ready(self) -> Self:
        """Return when it says so."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line.startswith(b"postbus worker is ready"), f"it said {line!r}\n{self.log()}"
        return self

    def signal(self, number: Signals) -> None:
        self.process.send_signal(number)

    def signal_until_it_ends(self, number: Signals) -> int:
        """Press Ctrl-C again and again; the exit code."""

        def has_ended() -> bool:
            self.signal(number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(0.02)
            return self.process.returncode is not None

        wait_until(has_ended, "it ended")
        return self.process.returncode

    def signal_group(self, number: Signals) -> None:
        os.killpg(self.process.pid, number)

    def wait(self, timeout: float = PATIENCE) -> int:
        """Its exit code, once it ends by itself."""
        try:
            return self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"it did not end within {timeout:g} s\n{self.log()}") from None

    def end(self) -> int:
        self.signal(SIGTERM)
        return self.wait()

    def log(self) -> str:
        """What it and its instances have logged."""
        return self._log.read_text()

    def wait_for_log(self, pattern: str) -> "re.Match[str]":
        def found() -> "re.Match[str] | None":
            assert self.process.poll() is None or re.search(pattern, self.log()), self.log()
            return re.search(pattern, self.log())

        match = wait_until(found, f"the log has {pattern}")
        assert match is not None
        return match

    def ask(self, path: str, method: str = "GET") -> tuple[int, Any]:
        """What the worker answers on the port that it has logged last."""
        self.wait_for_log(r"health: http://127\.0\.0\.1:\d+")
        port = int(re.findall(r"health: http://127\.0\.0\.1:(\d+)", self.log())[-1])
        return ask(port, path, method)

    def instances(self) -> list[dict[str, Any]]:
        instances: list[dict[str, Any]] = self.ask("/ready")[1]["instances"]
        return instances

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        with contextlib.suppress(ProcessLookupError):
            self.signal_group(SIGKILL)
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()


def ask(port: int, path: str, method: str = "GET") -> tuple[int, Any]:
    """Status and JSON of an answer; None for an answer without a body."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
    try:
        connection.request(method, path)
        response = connection.getresponse()
        body = response.read()
        return response.status, json.loads(body) if body else None
    finally:
        connection.close()


def publish(target: object, *payloads: object) -> None:
    """Store events from outside."""

    async def run() -> None:
        async with EventBus(str(target)) as bus:
            await bus.publish_many([("order.placed", payload) for payload in payloads])

    asyncio.run(run())


def journal(folder: Path) -> list[str]:
    """What the subscribers wrote down, without their process ids."""
    return [line.partition(" ")[2] for line in _lines(folder)]


def pids_in_journal(folder: Path) -> set[int]:
    return {int(line.partition(" ")[0]) for line in _lines(folder)}


def wait_for_journal(folder: Path, lines: Sequence[str]) -> None:
    wait_until(lambda: set(lines) <= set(journal(folder)), f"the journal has {lines}")


def _lines(folder: Path) -> list[str]:
    path = folder / "journal"
    return path.read_text().splitlines() if path.exists() else []
