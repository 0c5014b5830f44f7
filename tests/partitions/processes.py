"""Instances of a partitioned subscriber in processes of their own, which a test ends, kills or halts."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.partitions.steps import Handled

ROOT = Path(__file__).parents[2]


class Process:
    """An instance in a process of its own, which notes in a file what it begins and what it has done."""

    def __init__(
        self,
        dsn: str,
        folder: Path,
        name: str,
        partitions: int,
        seconds: float = 0.002,
        kind: str = "plain",
        failover_timeout: float = 10.0,
    ) -> None:
        self._file = folder / f"{name}.history"
        self.name = name
        self._is_ending = False
        self._process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "tests.partitions.child",
                dsn,
                str(self._file),
                str(partitions),
                str(seconds),
                kind,
                str(failover_timeout),
            ],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )

    @property
    def done(self) -> list[tuple[float, Handled]]:
        """When it has processed what."""
        return [(at, handled) for what, at, handled in self._lines() if what == "done"]

    def kill(self) -> None:
        """SIGKILL, and wait until it is gone."""
        self._process.kill()
        self._process.wait()

    def stand_still(self) -> None:
        """SIGSTOP, until go_on()."""
        self._process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        """SIGCONT."""
        self._process.send_signal(signal.SIGCONT)

    def end(self) -> None:
        """SIGTERM: it shuts its bus down. Idempotent."""
        if not self._is_ending:
            self._is_ending = True
            self._process.send_signal(signal.SIGTERM)

    def wait(self) -> None:
        """Until it has ended in good order."""
        assert self._process.wait(timeout=30) == 0

    def _lines(self) -> Iterable[tuple[str, float, Handled]]:
        with suppress(FileNotFoundError):
            for line in self._file.read_text().splitlines():
                words = line.split(" ")
                # The last one may be cut short by a kill.
                if len(words) == 5:
                    what, at, stream, sequence, _ = words
                    yield what, float(at), Handled(self.name, stream, int(sequence))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.kill()
        if self._process.stdin is not None:
            self._process.stdin.close()


def all_done(*processes: Process) -> list[Handled]:
    """What all of them have processed, in the order of time: they share a clock."""
    done = sorted((each for process in processes for each in process.done), key=lambda each: each[0])
    return [handled for _, handled in done]


async def until_done(
    processes: Sequence[Process], expected: Iterable[int], stalls_after: float = 30.0
) -> list[Handled]:
    """Wait until all of these are processed, for as long as the processes go on; what they have processed.

    How many events there are depends on how fast the machine was until now, how long they take on how busy
    it is from now on.
    """
    loop = asyncio.get_running_loop()
    count, since = 0, loop.time()
    while True:
        done = all_done(*processes)
        missing = set(expected) - {each.sequence for each in done}
        if not missing:
            return done
        if len(done) > count:
            count, since = len(done), loop.time()
        if loop.time() > since + stalls_after:
            raise AssertionError(
                f"nothing was processed for {stalls_after} s; {count} events are done and {len(missing)} are "
                f"not: {sorted(missing)[:10]}"
            )
        await asyncio.sleep(0.05)
