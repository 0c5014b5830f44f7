"""What writers stored and what subscribers got, told by them, in files outside the database."""

import os
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

# A process may be killed in the middle of a line: only a line with its end counts.
_END = "."
_NOTHING = "-"


class Transaction(NamedTuple):
    """One transaction of a writer, or one call of publish."""

    kind: str
    outcome: str
    began_at: float
    ended_at: float
    event_ids: tuple[str, ...]
    """What it has stored, if it was committed."""
    dead: tuple[int, ...]
    """Numbers that it has drawn and that nobody will use, as far as the writer knows them."""


class Delivery(NamedTuple):
    """One event in the hands of a subscriber."""

    life: str
    subscriber_id: str
    number: int
    event_id: str
    stream_id: str | None
    stream_version: int | None
    at: float


class Notes:
    """A file that one process appends to, a line for each thing that happened."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)

    def transaction(self, each: Transaction) -> None:
        """A transaction has ended, and this process knows how."""
        self._write(
            each.kind,
            each.outcome,
            repr(each.began_at),
            repr(each.ended_at),
            ",".join(each.event_ids) or _NOTHING,
            ",".join(map(str, each.dead)) or _NOTHING,
        )

    def delivery(self, subscriber_id: str, number: int, event_id: str, stream: tuple[object, object]) -> None:
        """A handler has got an event."""
        place = (str(_NOTHING if part is None else part) for part in stream)
        self._write(subscriber_id, str(number), event_id, *place, repr(time.monotonic()))

    def _write(self, *words: str) -> None:
        # Past every buffer of this process, which may be killed right after it.
        os.write(self._file, f"\n{' '.join(words)} {_END}".encode())


def read_transactions(folder: Path) -> list[Transaction]:
    """Everything that the writers have told."""
    return [
        Transaction(
            kind,
            outcome,
            float(began_at),
            float(ended_at),
            tuple(_listed(event_ids)),
            tuple(map(int, _listed(dead))),
        )
        for _, (kind, outcome, began_at, ended_at, event_ids, dead) in _lines(folder.glob("writer-*"))
    ]


def read_deliveries(folder: Path) -> list[Delivery]:
    """Everything that the subscribers have told, in the order in which it happened."""
    found = [
        Delivery(
            life,
            subscriber_id,
            int(number),
            event_id,
            None if stream_id == _NOTHING else stream_id,
            None if version == _NOTHING else int(version),
            float(at),
        )
        for life, (subscriber_id, number, event_id, stream_id, version, at) in _lines(folder.glob("life-*"))
    ]
    return sorted(found, key=lambda delivery: delivery.at)


def _lines(paths: Iterable[Path]) -> Iterator[tuple[str, list[str]]]:
    for path in paths:
        for line in path.read_text().splitlines():
            *words, end = line.split() or [""]
            if end == _END:
                yield path.name, words


def _listed(text: str) -> list[str]:
    return [] if text == _NOTHING else text.split(",")
