"""What the demonstration's bus has promised, in a file outside its database.

One short line per fact, appended by the child and followed by its parent. A line is in
the file once write(2) has returned, so it outlives the SIGKILL of its writer.
"""

import os
import time
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Counts:
    """The bus's own counters, for the display while it runs."""

    retry_count: int = 0
    dead_letter_count: int = 0

    def __add__(self, other: "Counts") -> "Counts":
        return Counts(
            self.retry_count + other.retry_count,
            self.dead_letter_count + other.dead_letter_count,
        )


class ReceiptWriter:
    """Appends facts; used by the child."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def start(self) -> None:
        """The bus of this process is open."""
        self._write("started", os.getpid(), time.monotonic())

    def acknowledge(self, event_id: str) -> None:
        """Publish has returned: from now on the event must not get lost."""
        self._write("acknowledged", event_id, time.monotonic())

    def recover(self, event_id: str) -> None:
        """A handler was given an event that a killed process had in hand."""
        self._write("recovered", event_id)

    def count(self, counts: Counts) -> None:
        """How far this process is."""
        self._write("counted", counts.retry_count, counts.dead_letter_count)

    def _write(self, *words: object) -> None:
        os.write(self._file, f"{' '.join(map(str, words))}\n".encode())


class Receipts:
    """Follows the file; used by the parent, and by a child that goes on after another."""

    def __init__(self, path: Path) -> None:
        self.acknowledged: dict[str, None] = {}
        self.recovered: set[str] = set()
        self.busy_seconds = 0.0
        self._path, self._offset = path, 0
        self._earlier, self._current = Counts(), Counts()
        self._latest_at = 0.0

    @property
    def counts(self) -> Counts:
        """The counters of every process so far."""
        return self._earlier + self._current

    def read(self) -> None:
        """Take in what was written since the last time; a line without its end is left for later."""
        if not self._path.exists():
            return
        with self._path.open("rb") as file:
            file.seek(self._offset)
            lines, _, _ = file.read().rpartition(b"\n")
        if lines:
            self._offset += len(lines) + 1
            for line in lines.decode().split("\n"):
                self._take(line.split(" "))

    def _take(self, words: list[str]) -> None:
        match words:
            case ["started", _, moment]:
                self._earlier, self._current = self.counts, Counts()
                self._latest_at = float(moment)
            case ["acknowledged", event_id, moment]:
                self.acknowledged[event_id] = None
                # The clock of all processes on one machine; the time between two processes counts for none.
                self.busy_seconds += float(moment) - self._latest_at
                self._latest_at = float(moment)
            case ["recovered", event_id]:
                self.recovered.add(event_id)
            case ["counted", retry_count, dead_letter_count]:
                self._current = Counts(int(retry_count), int(dead_letter_count))
