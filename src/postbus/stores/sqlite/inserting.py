"""Stores drafts inside a transaction: numbers them, checks their streams, writes their rows."""

import itertools
import sqlite3
from collections.abc import Iterator, Mapping, Sequence

import msgspec

from postbus.errors import WrongExpectedVersionError
from postbus.events import Draft, EventStatus
from postbus.stores.named_queries import load_queries
from postbus.stores.sqlite.jobs import Insert
from postbus.stores.sqlite.rows import draft_to_row, to_json

_QUERIES = load_queries("postbus.stores.sqlite", "queries.sql")

# More payload than this is written event by event: what a statement is given is one more copy of it all,
# and SQLite takes no text of more than a gigabyte.
LARGEST_STATEMENT = 16 * 1024 * 1024
# Fewer events are written one by one: what a group costs beyond its events is more than that.
_SMALLEST_GROUP = 4
_ROWS_AT_ONCE = 100


def _values(name: str, column_count: int, row_count: int) -> str:
    row = f"({', '.join('?' * column_count)})"
    return _QUERIES[name].format(rows=", ".join([row] * row_count))


_INSERT_ONE, _INSERT_ONE_FULL = _values("insert_events", 8, 1), _values("insert_full_events", 14, 1)
_INSERT_MANY = _values("insert_events", 8, _ROWS_AT_ONCE)
_INSERT_MANY_FULL = _values("insert_full_events", 14, _ROWS_AT_ONCE)

# A draft with its number and its version.
_Numbered = tuple[Draft, int, int | None]


def insert_events(connection: sqlite3.Connection, jobs: Sequence[Insert]) -> int:
    """Store the drafts of all jobs; each learns its numbers or its error. The last number in use.

    An error of SQLite concerns all of them: then the transaction has to be undone.
    """
    numbering = _Numbering(connection, [draft for job in jobs for draft in job.drafts])
    for job in jobs:
        numbering.number(job)
    is_plain = all(job.is_plain for job in jobs)
    rows = numbering.plain_rows() if is_plain else numbering.full_rows()
    _insert_rows(connection, rows, jobs, is_plain=is_plain)
    return numbering.last_sequence


class _Numbering:
    """Gives numbers and versions out, in the order of the jobs."""

    def __init__(self, connection: sqlite3.Connection, drafts: Sequence[Draft]) -> None:
        streams = {draft.stream_id for draft in drafts if draft.stream_id is not None}
        given_ids = {draft.id for draft in drafts if draft.is_idempotent}
        question = (to_json(streams), to_json(given_ids))
        found = connection.execute(_QUERIES["read_before_insert"], question).fetchone()
        self.last_sequence: int = found[0]
        self._unrouted_status = EventStatus(found[1])
        self._versions: dict[str, int] = msgspec.json.decode(found[2])
        self._stored_ids: set[str] = set(msgspec.json.decode(found[3]))
        self._has_given_ids = bool(given_ids)
        self._numbered: list[_Numbered] = []

    def number(self, job: Insert) -> None:
        """All drafts of a job, or none if a stream is not where it is expected."""
        job.error, job.sequences, job.versions = None, (), ()
        job.unrouted_status = self._unrouted_status
        if job.is_plain:
            self._number_plain(job)
            return
        try:
            numbered = self._try_to_number(job.drafts)
        except WrongExpectedVersionError as error:
            job.error = error
            return
        job.sequences = [None if each is None else each[1] for each in numbered]
        if job.has_streams:
            job.versions = [None if each is None else each[2] for each in numbered]
        for each in numbered:
            if each is not None:
                self._take(each)

    def plain_rows(self) -> Iterator[tuple[object, ...]]:
        """What is to be inserted, in order, with the columns that all events use."""
        for draft, sequence, _ in self._numbered:
            event_id, event_type, payload, status, metadata, created_at = draft_to_row(draft)
            status = status or self._unrouted_status
            yield sequence, event_id, event_type, payload, status, metadata, created_at, created_at

    def full_rows(self) -> Iterator[tuple[object, ...]]:
        """What is to be inserted, in order, with all columns of a new event."""
        for draft, sequence, version in self._numbered:
            event_id, event_type, payload, status, metadata, created_at = draft_to_row(draft)
            yield (
                sequence, event_id, event_type, payload, status or self._unrouted_status, metadata,
                created_at, created_at, draft.stream_id, version, draft.actor_id, draft.correlation_id,
                draft.causation_id, draft.schema_version,
            )  # fmt: skip

    def _number_plain(self, job: Insert) -> None:
        first = self.last_sequence + 1
        job.sequences = range(first, first + len(job.drafts))
        self._numbered += zip(job.drafts, job.sequences, itertools.repeat(None), strict=False)
        self.last_sequence += len(job.drafts)
        if self._has_given_ids:
            self._stored_ids.update([draft.id for draft in job.drafts])

    def _try_to_number(self, drafts: Sequence[Draft]) -> list[_Numbered | None]:
        numbered: list[_Numbered | None] = []
        versions: dict[str, int] = {}
        new_ids: set[str] = set()
        sequence = self.last_sequence
        for draft in drafts:
            if draft.is_idempotent and (draft.id in self._stored_ids or draft.id in new_ids):
                numbered.append(None)
                continue
            version = None
            if draft.stream_id is not None:
                version = self._next_version(draft, draft.stream_id, versions)
                versions[draft.stream_id] = version
            new_ids.add(draft.id)
            sequence += 1
            numbered.append((draft, sequence, version))
        return numbered

    def _next_version(self, draft: Draft, stream_id: str, versions: Mapping[str, int]) -> int:
        present = versions.get(stream_id, self._versions[stream_id])
        if draft.expected_version is not None and draft.expected_version != present:
            raise WrongExpectedVersionError(stream_id, draft.expected_version, present)
        return present + 1

    def _take(self, numbered: _Numbered) -> None:
        draft, self.last_sequence, version = numbered
        self._numbered.append(numbered)
        if draft.stream_id is not None and version is not None:
            self._versions[draft.stream_id] = version
        if self._has_given_ids:
            self._stored_ids.add(draft.id)


def _insert_rows(
    connection: sqlite3.Connection,
    rows: Iterator[tuple[object, ...]],
    jobs: Sequence[Insert],
    *,
    is_plain: bool,
) -> None:
    one, many, as_json = (
        (_INSERT_ONE, _INSERT_MANY, _QUERIES["insert_events_as_json"])
        if is_plain
        else (_INSERT_ONE_FULL, _INSERT_MANY_FULL, _QUERIES["insert_full_events_as_json"])
    )
    if sum([job.size for job in jobs]) > LARGEST_STATEMENT:
        for row in rows:
            connection.execute(one, row)
        return
    waiting = list(rows)
    for start in range(0, len(waiting) - _ROWS_AT_ONCE + 1, _ROWS_AT_ONCE):
        rows_at_once = waiting[start : start + _ROWS_AT_ONCE]
        connection.execute(many, [value for row in rows_at_once for value in row])
    waiting = waiting[len(waiting) - len(waiting) % _ROWS_AT_ONCE :]
    if len(waiting) >= _SMALLEST_GROUP:
        connection.execute(as_json, (to_json(waiting),))
    else:
        for row in waiting:
            connection.execute(one, row)
