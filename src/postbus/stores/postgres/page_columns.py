"""A page of the log as it comes: what is not needed to ask for the next page is looked at later."""

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any, NamedTuple, TypeVar

import msgspec

from postbus.events import Event, GlobalSequence
from postbus.stores.postgres.rows import Columns, decode_payloads, make_events

# Stands between two payloads, in the statement as well. No JSON has it: in strings it has to be escaped.
_BETWEEN = "\x1e"

_decode_list = msgspec.json.Decoder(list[int]).decode
_decode_versions = msgspec.json.Decoder(list[int | None]).decode
_decode_moments = msgspec.json.Decoder(list[datetime]).decode

T = TypeVar("T")


class PageColumns(NamedTuple):
    """A row of page_columns. Where streams or more have numbers, only events of these have them."""

    numbers: Sequence[GlobalSequence]
    ids: Sequence[str]
    types: Sequence[str]
    payloads: str
    moments: str
    streams: Sequence[str | None] | None
    versions: str | None
    in_streams: str | None
    more: Sequence[str] | None
    having_more: str | None

    def split(self) -> Columns:
        """Each payload for itself."""
        return self.with_payloads(self.payloads.split(_BETWEEN))

    def with_payloads(self, payloads: Sequence[str]) -> Columns:
        """Everything but the payloads is theirs."""
        # As PostgreSQL writes moments without a time zone: they are in UTC.
        in_utc = self.moments[:-2].replace('",', 'Z",') + 'Z"]'
        versions = None if self.versions is None else _decode_versions(self.versions)
        return Columns(
            self.numbers,
            self.ids,
            self.types,
            payloads,
            _decode_moments(in_utc),
            self._spread(self.streams, self.in_streams),
            self._spread(versions, self.in_streams),
            self._spread(self.more, self.having_more),
        )

    def _spread(self, values: Sequence[T] | None, at: str | None) -> Sequence[T | None]:
        """The values in their places: all of them have one, or those at these numbers."""
        if values is None:
            return [None] * len(self.numbers)
        if at is None:
            return values
        return list(map(dict(zip(decode_numbers(at), values, strict=True)).get, self.numbers))


def decode_pieces(pieces: Sequence[PageColumns]) -> list[Event]:
    """Their events."""
    texts = _BETWEEN.join(piece.payloads for piece in pieces)
    payloads = decode_payloads(texts.replace(_BETWEEN, ","))
    if payloads is None:
        return [event for piece in pieces for event in piece.split().decode()]
    events: list[Event] = []
    for piece in pieces:
        start = len(events)
        events += make_events(piece.with_payloads(()), payloads[start : start + len(piece.ids)])
    return events


def join_numbers(pieces: Sequence[PageColumns]) -> Sequence[GlobalSequence]:
    """Those of all pieces, in order."""
    numbers: list[Any] = [piece.numbers for piece in pieces]
    # Before the next page can be asked for: where no number is missing, the first and the last tell all.
    if pieces and all(type(each) is range for each in numbers):
        return range(numbers[0].start, numbers[-1].stop)  # type: ignore[return-value]
    return [number for each in numbers for number in each]


def decode_numbers(text: str | None) -> Sequence[GlobalSequence]:
    """Numbers that come as JSON; none if there is no text."""
    return () if text is None else _decode_list(text)  # type: ignore[return-value]


def page_columns(rows: Iterable[Sequence[Any]], after: GlobalSequence) -> list[PageColumns]:
    """What page_columns has read, in order; where no numbers are told, they go on *after* the ones before."""
    pieces = []
    for numbers, ids, *others in rows:
        if ids is None:
            continue
        if numbers is None:
            known: Sequence[Any] = range(after + 1, after + 1 + len(ids))
            after = known[-1]
        else:
            known = decode_numbers(numbers)
        pieces.append(PageColumns(known, ids, *others))
    return pieces
