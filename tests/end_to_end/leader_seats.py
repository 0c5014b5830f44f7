"""Seats for instances: one lives in each, is disturbed, and followed by another when it was killed."""

import os
import signal
from contextlib import suppress

from tests.end_to_end.processes import Child


class Seat:
    """A place for instances, one after the other."""

    def __init__(self, child: Child, letter: str) -> None:
        self._child, self._letter = child, letter
        self._process = 0
        self._life_count = 0

    @property
    def name(self) -> str:
        """Of the instance that lives here, and of its connections."""
        return f"{self._letter}{self._life_count}"

    def begin(self) -> None:
        """A new instance."""
        self._life_count += 1
        self._child.say(self.name)
        self._process = int(self._child.hear())

    def kill(self) -> None:
        """SIGKILL, and the next one begins at once."""
        os.kill(self._process, signal.SIGKILL)
        heard = self._child.hear()
        assert heard == str(-signal.SIGKILL), f"{self.name} ended by itself: {heard}\n{self._child.errors()}"
        self.begin()

    def stand_still(self) -> None:
        """SIGSTOP."""
        os.kill(self._process, signal.SIGSTOP)

    def go_on(self) -> None:
        """SIGCONT."""
        os.kill(self._process, signal.SIGCONT)

    def close(self) -> None:
        """Leave nobody behind."""
        with suppress(ProcessLookupError):
            os.kill(self._process, signal.SIGKILL)
