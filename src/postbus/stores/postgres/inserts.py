"""The statements that store drafts."""

import contextlib
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager

import msgspec

from postbus.events import Draft
from postbus.stores.postgres.answers import Answer, read_answers, stored
from postbus.stores.postgres.pool import Connection
from postbus.stores.postgres.translation import DRIVER_ERRORS

# So much goes into one statement; a message to the server must stay far below a gigabyte, and its time below
# the driver's limit. In bytes.
LARGEST_STATEMENT = 8 * 1024 * 1024
# What an event costs beside its payload.
_SIZE_OF_THE_REST = 500

_encode = msgspec.json.Encoder().encode


def size_of(drafts: Sequence[Draft]) -> int:
    """About how many bytes they are."""
    return sum([len(draft.payload_json) for draft in drafts]) + _SIZE_OF_THE_REST * len(drafts)


def parts_of(drafts: Sequence[Draft]) -> Iterator[Sequence[Draft]]:
    """The drafts in their order, in parts that each fit into a statement."""
    start, room = 0, LARGEST_STATEMENT
    for place, draft in enumerate(drafts):
        room -= len(draft.payload_json) + _SIZE_OF_THE_REST
        if room < 0 and place > start:
            yield drafts[start:place]
            start, room = place, LARGEST_STATEMENT - len(draft.payload_json) - _SIZE_OF_THE_REST
    yield drafts[start:]


class _RefusedError(Exception):
    """A part was refused: the parts before it have to go too."""

    def __init__(self, answer: Answer) -> None:
        super().__init__()
        self.answer = answer


class Inserts:
    """Stores drafts on a given connection; raises what asyncpg raises."""

    def __init__(self, queries: Mapping[str, str]) -> None:
        self._insert_event = queries["insert_event"]
        self._insert_and_notify = queries["insert_and_notify"]
        self._insert_events = queries["insert_events"]
        self._insert_full_events = queries["insert_full_events"]
        self._append_events = queries["append_events"]
        self._begin_parts = queries["begin_parts"]
        self._undo_parts = queries["undo_parts"]
        self._end_parts = queries["end_parts"]

    async def insert(self, connection: Connection, drafts: Sequence[Draft]) -> list[int]:
        """Store drafts without streams and given ids in one statement, all or none; their numbers, in order.

        A UniqueViolationError concerns all of them; append() can tell which one is to blame.
        """
        if not are_plain(drafts):
            columns = (*_common_columns(drafts), *_rare_columns(drafts))
            rows = await connection.fetch(self._insert_full_events, *columns)
        elif len(drafts) > 1:
            columns = _common_columns(drafts)
            rows = await connection.fetch(self._insert_events, *columns)
        else:
            return [await connection.fetchval(self._insert_event, *_values(drafts[0]))]
        return sorted([row[0] for row in rows])

    async def insert_and_notify(self, connection: Connection, draft: Draft, channel: str) -> int:
        """Store one plain draft and notify of it; its number. After an error it may be stored."""
        values = (*_values(draft), channel)
        number: int = await connection.fetchval(self._insert_and_notify, *values)
        return number

    async def append(
        self,
        connection: Connection,
        calls: Sequence[Sequence[Draft]],
        *,
        is_repeated: bool = False,
        patience: str | None = None,
    ) -> list[Answer]:
        """Store the drafts of every call, each call whole or not at all.

        *is_repeated*: they were sent before, and the answer got lost: they may be there. *patience*: how
        long to wait for others who hold a stream or a given id; None: as long as the session's settings say.
        """
        ends: list[int] = []
        for call in calls:
            ends.append(len(call) + (ends[-1] if ends else 0))
        drafts = [draft for call in calls for draft in call]
        rows = await connection.fetch(
            self._append_events,
            ends,
            *_common_columns(drafts),
            *_rare_columns(drafts),
            [draft.is_idempotent for draft in drafts],
            [draft.stream_id for draft in drafts],
            [draft.expected_version for draft in drafts],
            is_repeated,
            patience,
        )
        return list(read_answers(calls, rows))

    async def append_whole(
        self,
        connection: Connection,
        drafts: Sequence[Draft],
        *,
        is_repeated: bool = False,
        patience: str | None = None,
    ) -> Answer:
        """As append, for one call of any size."""
        parts = list(parts_of(drafts))
        if len(parts) == 1:
            (answer,) = await self.append(connection, parts, is_repeated=is_repeated, patience=patience)
            return answer
        sequences: list[int | None] = []
        versions: list[int | None] = []
        try:
            async with self._all_or_none(connection):
                for part in parts:
                    (answer,) = await self.append(
                        connection, [part], is_repeated=is_repeated, patience=patience
                    )
                    if answer.error is not None or answer.held is not None:
                        raise _RefusedError(answer)
                    sequences += answer.sequences
                    versions += answer.stream_versions or [None] * len(part)
        except _RefusedError as refused:
            return refused.answer
        return stored(drafts, sequences, versions)

    @asynccontextmanager
    async def _all_or_none(self, connection: Connection) -> AsyncIterator[None]:
        if not connection.is_in_transaction():
            async with connection.transaction():
                yield
            return
        # Not with the driver's own object, which it refuses to whoever began with execute("BEGIN").
        await connection.execute(self._begin_parts)
        try:
            yield
        except BaseException:
            # Of a connection that is gone the first error says more.
            with contextlib.suppress(*DRIVER_ERRORS):
                await connection.execute(self._undo_parts)
            raise
        await connection.execute(self._end_parts)


def _values(draft: Draft) -> tuple[object, ...]:
    return draft.id, draft.type, draft.payload_json.decode(), draft.created_at


def _common_columns(drafts: Sequence[Draft]) -> tuple[list[object], ...]:
    return (
        [draft.id for draft in drafts],
        [draft.type for draft in drafts],
        [draft.payload_json.decode() for draft in drafts],
        [draft.created_at for draft in drafts],
    )


def _rare_columns(drafts: Sequence[Draft]) -> tuple[list[object], ...]:
    return (
        [None if draft.metadata is None else _encode(draft.metadata).decode() for draft in drafts],
        [draft.actor_id for draft in drafts],
        [draft.correlation_id for draft in drafts],
        [draft.causation_id for draft in drafts],
        [draft.schema_version for draft in drafts],
    )


def are_plain(drafts: Sequence[Draft]) -> bool:
    """Whether they have nothing in the rare columns."""
    for draft in drafts:
        if (
            draft.metadata is not None
            or draft.actor_id is not None
            or draft.correlation_id is not None
            or draft.causation_id is not None
            or draft.schema_version is not None
        ):
            return False
    return True
