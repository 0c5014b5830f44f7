"""Processes with subscribers that come and go: each is killed at a random moment."""

import os
import random
import signal
import time
from contextlib import suppress

from tests.end_to_end.processes import Child

# A life is short, so that it ends at its start, or long, so that it ends at the head of the log.
_SHORT_LIFE, _LONG_LIFE = 1.0, 12.0


class Slot:
    """A place for processes with subscribers: one lives in it, is killed, and the next one comes."""

    def __init__(self, child: Child, chance: random.Random, name: str, longest_pause: float) -> None:
        self._child, self._chance, self._name = child, chance, name
        self._longest_pause = longest_pause
        self._process: int | None = None
        self._next_at = 0.0
        self.life_count = self.kill_count = 0

    def tick(self) -> None:
        """Begin or end a life if it is time to."""
        if time.monotonic() < self._next_at:
            return
        if self._process is None:
            self.begin()
            longest = self._chance.choice((_SHORT_LIFE, _LONG_LIFE))
            self._next_at = time.monotonic() + self._chance.uniform(0.05, longest)
        else:
            self.end()
            self._next_at = time.monotonic() + self._chance.uniform(0.0, self._longest_pause)

    def begin(self) -> None:
        """A new process, unless one lives."""
        if self._process is None:
            self.life_count += 1
            self._child.say(f"{self._name}{self.life_count}")
            self._process = int(self._child.hear())

    def end(self) -> None:
        """SIGKILL, and wait until it is gone."""
        assert self._process is not None, "nobody lives here"
        self._kill(self._process)
        while (heard := self._child.hear()) != str(-signal.SIGKILL):
            assert heard == "begun", f"it ended by itself: {heard}\n{self._child.errors()}"
        self._process = None
        self.kill_count += 1

    def close(self) -> None:
        """Leave nobody behind."""
        if self._process is not None:
            self._kill(self._process)

    @staticmethod
    def _kill(process: int) -> None:
        # One that has ended by itself is found out by its exit code.
        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)
