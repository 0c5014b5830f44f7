"""eventsourcing: a log with a transcoder as fast as our own. Importing it needs the peer."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from uuid import UUID, uuid4

import msgspec
from eventsourcing.application import Application
from eventsourcing.persistence import Transcoder

from postbus.ops.bench.measuring import PAYLOAD

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode


@dataclass(frozen=True)
class Published:
    """An event that carries our payload."""

    originator_id: UUID
    originator_version: int
    payload: Any


class FastTranscoder(Transcoder):  # type: ignore[misc]
    """In the place of the one that uses the json module."""

    def encode(self, obj: Any) -> bytes:
        """To JSON."""
        return _encode(obj)

    def decode(self, data: bytes) -> Any:
        """From JSON."""
        return _decode(data)


class Log(Application):  # type: ignore[misc]
    """An application whose sequence is the log."""

    def construct_transcoder(self) -> Transcoder:
        """Called by the base class."""
        return FastTranscoder()

    def insert(self, count: int) -> None:
        """So many events of one new aggregate, in one transaction."""
        aggregate_id = uuid4()
        events = [
            self.mapper.to_stored_event(Published(aggregate_id, version, PAYLOAD))
            for version in range(1, count + 1)
        ]
        self.recorder.insert_events(events)


@contextmanager
def open_log(environment: Mapping[str, str]) -> Iterator[Log]:
    """A log that is configured so."""
    with Log(env=dict(environment)) as log:
        yield log
