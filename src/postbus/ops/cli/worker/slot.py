"""One place among the instances: a process, and the one that follows when it ends."""

import asyncio
import contextlib
import logging
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from io import FileIO
from typing import Any

import msgspec

from postbus.config import DEFAULT_SHUTDOWN_TIMEOUT
from postbus.ops.cli.worker.leash import GRACE_SECONDS
from postbus.ops.cli.worker.loading import BadAppError
from postbus.ops.cli.worker.status import InstanceStatus

logger = logging.getLogger("postbus.worker")

_FIRST_DELAY, _LONGEST_DELAY = 0.1, 10.0
# A process that ran for so long began well: its successor does not wait.
_LONG_ENOUGH = 10.0
# It reports every second.
_SILENT_SECONDS = 5.0
_LONGEST_REPORT = 64 * 1_048_576


class Slot:
    """Keeps one instance running, and knows how it is."""

    def __init__(self, number: int, arguments: Sequence[str], on_change: Callable[[], None]) -> None:
        self._number, self._arguments, self._on_change = number, arguments, on_change
        self._process: asyncio.subprocess.Process | None = None
        self._heard_at = 0.0
        self._has_ever_started = False
        self.status: InstanceStatus | None = None
        """What the process has last reported; None before it did, and after its end."""
        self.is_bad_app = False
        """Whether the app can't be loaded and never could."""
        self.was_killed = False
        """Whether a process had to be ended by force."""

    @property
    def is_silent(self) -> bool:
        """Whether its event loop seems to hang."""
        return self.status is not None and _now() - self._heard_at >= _SILENT_SECONDS

    def describe(self) -> dict[str, object]:
        """How its process is, for JSON."""
        if self.status is None:
            pid = None if self._process is None else self._process.pid
            return {"is_ready": False, "pid": pid, "phase": "starting", "subscriptions": []}
        return {**self.status.describe(), "is_ready": self.status.is_ready and not self.is_silent}

    async def keep(self, stop: asyncio.Event) -> None:
        """Start it, again and again if need be, until *stop* or until it turns out to be a bad app."""
        delay = 0.0
        while not stop.is_set():
            began_at = _now()
            try:
                code = await self._run(stop)
            except OSError as error:
                end = f"could not be started: {error}"
            else:
                end = f"ended with {name_end(code)}"
                self.is_bad_app = code == BadAppError.exit_code and not self._has_ever_started
            if stop.is_set() or self.is_bad_app:
                return
            delay = next_delay(delay, _now() - began_at)
            logger.warning("instance %d %s; starting it again in %g s", self._number, end, delay)
            await _wait(stop.wait(), delay)

    def kill(self) -> None:
        """End the process at once."""
        if self._process is not None and self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()

    async def _run(self, stop: asyncio.Event) -> int:
        """One process from its start to its end; its exit code."""
        async with _report_pipe() as (reader, pipe):
            self._process = process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "postbus.ops.cli.worker.child", *self._arguments, str(pipe.fileno())),
                stdin=asyncio.subprocess.PIPE,
                pass_fds=(pipe.fileno(),),
            )
            pipe.close()
            listening = asyncio.create_task(self._listen(reader))
            try:
                await _first(process.wait(), stop.wait())
                if process.returncode is None:
                    await self._let_go(process)
                return await process.wait()
            finally:
                listening.cancel()
                self.status = None
                self._on_change()

    async def _let_go(self, process: asyncio.subprocess.Process) -> None:
        """Ask it to shut down, and see that it ends."""
        assert process.stdin is not None, "it has a pipe"
        process.stdin.close()
        timeout = DEFAULT_SHUTDOWN_TIMEOUT if self.status is None else self.status.shutdown_timeout
        await _wait(process.wait(), timeout + GRACE_SECONDS)
        if process.returncode is None:
            logger.error("instance %d (pid %d) does not end: killed", self._number, process.pid)
            self.was_killed = True
            self.kill()

    async def _listen(self, reader: asyncio.StreamReader) -> None:
        # The last line of a process that was killed may be half a line.
        while (line := await reader.readline()).endswith(b"\n"):
            self.status = msgspec.json.decode(line, type=InstanceStatus)
            self._heard_at = _now()
            self._has_ever_started |= self.status.phase == "started"
            self._on_change()


def next_delay(delay: float, seconds_run: float) -> float:
    """How long to wait after a process ended, if the one before it was followed after *delay*.

    >>> next_delay(0.0, 0.5), next_delay(0.4, 0.5), next_delay(10.0, 0.5), next_delay(10.0, 60.0)
    (0.1, 0.8, 10.0, 0.1)
    """
    if seconds_run >= _LONG_ENOUGH:
        return _FIRST_DELAY
    return min(max(2 * delay, _FIRST_DELAY), _LONGEST_DELAY)


def name_end(code: int) -> str:
    """How a process ended.

    >>> name_end(1), name_end(-9)
    ('exit code 1', 'SIGKILL')
    """
    try:
        return f"exit code {code}" if code >= 0 else signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"


@contextlib.asynccontextmanager
async def _report_pipe() -> AsyncIterator[tuple[asyncio.StreamReader, FileIO]]:
    """Our end of a new pipe, and that of the process."""
    ours, theirs = os.pipe()
    with FileIO(theirs, "w") as pipe:
        reader = asyncio.StreamReader(limit=_LONGEST_REPORT)
        transport, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), FileIO(ours)
        )
        try:
            yield reader, pipe
        finally:
            transport.close()


async def _first(*waits: Coroutine[Any, Any, object]) -> None:
    """Return when one of them does."""
    tasks = [asyncio.ensure_future(each) for each in waits]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()


async def _wait(wait: Coroutine[Any, Any, object], seconds: float) -> None:
    """Return when it does, or after so many seconds."""
    await _first(wait, asyncio.sleep(seconds))


def _now() -> float:
    return asyncio.get_running_loop().time()
