"""What becomes of drafts that are to be stored."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import asyncpg

from postbus.errors import DuplicateEventIdError, StoreError, WrongExpectedVersionError
from postbus.events import Draft


class Stored(NamedTuple):
    """Where a draft is stored; both None for a given id that was there already."""

    sequence: int | None
    stream_version: int | None


class Answer(NamedTuple):
    """What became of the drafts of one call: numbers and versions, or why none was stored."""

    sequences: Sequence[int | None] = ()
    # Empty if no draft has a stream.
    stream_versions: Sequence[int | None] = ()
    error: StoreError | None = None
    # The stream or given id that could not be locked, since somebody else's transaction holds it: try again.
    held: str | None = None


def read_answers(calls: Sequence[Sequence[Draft]], rows: Sequence[asyncpg.Record]) -> Iterator[Answer]:
    """For each call what the SQL function append_events says of it."""
    if len(rows) == len(calls):
        for call, row in zip(calls, rows, strict=True):
            yield _answer(call, row)
        return
    # One row for all.
    (row,) = rows
    start = 0
    for call in calls:
        end = start + len(call)
        yield stored(call, row["numbers"][start:end], row["versions"][start:end])
        start = end


def _answer(call: Sequence[Draft], row: asyncpg.Record) -> Answer:
    refusal = row["refusal"]
    if refusal is None:
        return stored(call, row["numbers"], row["versions"])
    draft = call[row["refused_place"] - 1]
    if refusal == "busy stream":
        return Answer(held=f"stream {draft.stream_id!r}")
    if refusal == "busy event id":
        return Answer(held=f"event id {draft.id!r}")
    if refusal == "duplicate":
        return Answer(error=duplicate_id(f"the event id {draft.id!r} is taken, or comes twice in this call"))
    assert draft.stream_id is not None
    assert draft.expected_version is not None
    return Answer(
        error=WrongExpectedVersionError(draft.stream_id, draft.expected_version, row["actual_version"])
    )


def stored(call: Sequence[Draft], numbers: Sequence[int | None], versions: Sequence[int | None]) -> Answer:
    """All of a call's drafts are there."""
    has_streams = any(draft.stream_id is not None for draft in call)
    return Answer(numbers, versions if has_streams else ())


def duplicate_id(found: str) -> DuplicateEventIdError:
    """The error for an id that was made and is taken."""
    return DuplicateEventIdError(
        f"{found}, and nothing was stored; let the id factory give unique ids, or give event_id= to store an "
        "event once"
    )
