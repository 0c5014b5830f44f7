"""What really happened, told by the processes themselves and kept outside the database."""

import os
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

ACKNOWLEDGED = "acknowledged"
DELIVERED = "delivered"
# A process may be killed in the middle of a line: only a line with its end counts.
_END = "."


class History:
    """A file that any number of processes append to, a line for each thing that happened."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: int | None = None

    def note(self, what: str, *event_ids: str) -> None:
        """Write it down at once, past every buffer of this process."""
        if self._file is None:
            self._file = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
        os.write(self._file, "".join(f"\n{what} {event_id} {_END}" for event_id in event_ids).encode())

    def close(self) -> None:
        """Open no file any more, until the next note."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def lines(self) -> list[tuple[str, str]]:
        """Everything that was written down whole."""
        if not self.path.exists():
            return []
        words = (line.split() for line in self.path.read_text().splitlines())
        return [(word[0], word[1]) for word in words if len(word) == 3 and word[2] == _END]

    def of(self, what: str) -> Counter[str]:
        """How often it happened to each event."""
        return Counter(event_id for found, event_id in self.lines() if found == what)

    def acknowledged(self) -> set[str]:
        """Events whose publish returned."""
        return set(self.of(ACKNOWLEDGED))

    def delivered(self) -> set[str]:
        """Events that the handler of any process has seen through."""
        return {event_id for what, event_id in self.lines() if what.startswith(DELIVERED)}

    def story(self, event_ids: Iterable[str]) -> str:
        """The lines about these events, for the message of a failure."""
        wanted = set(event_ids)
        told = [f"  {what} {event_id}" for what, event_id in self.lines() if event_id in wanted]
        return "\n".join([f"history of {len(wanted)} events ({self.path}):", *told[:200]])
