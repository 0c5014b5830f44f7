"""Stores drafts for certain: what collides is tried again, a lost answer is asked for again."""

import asyncio
import itertools
from collections.abc import Sequence

import asyncpg

from postbus.errors import (
    StoreBusyError,
    StoreClosedError,
    StoreError,
    StoreUnavailableError,
    UnsoundLogError,
)
from postbus.events import Draft
from postbus.stores.postgres.answers import Answer, duplicate_id
from postbus.stores.postgres.database import Database
from postbus.stores.postgres.inserts import LARGEST_STATEMENT, Inserts
from postbus.stores.postgres.jobs import Job
from postbus.stores.postgres.pool import Connection

# How long a lost answer is asked for again.
_LOST_SECONDS = 15.0
_SHORTEST_PAUSE, _LONGEST_PAUSE = 0.02, 1.0
_MOST_COLLISIONS = 10
_UNIQUE_IDS, _UNIQUE_VERSIONS, _UNIQUE_NUMBERS = "events_id_key", "idx_events_stream", "events_pkey"


class Insisting:
    """Stores jobs on connections of the pool."""

    def __init__(self, database: Database, inserts: Inserts) -> None:
        self._database, self._inserts = database, inserts

    async def store(self, jobs: Sequence[Job], patience: str) -> list[Answer]:
        """Store each job whole or not at all; an error that is raised concerns all of them.

        Where it is not known whether they are stored, that is found out by doing it again: their ids tell.
        """
        give_up_at: float | None = None
        is_sent, collision_count, pause = _may_be_stored(jobs), 0, 0.0
        while True:
            try:
                async with self._database.connection() as connection:
                    is_sent = True
                    return await self._send(connection, jobs, patience, is_first=not collision_count)
            except StoreUnavailableError as error:
                if not is_sent:
                    raise
                for job in jobs:
                    job.may_be_stored = True
                now = asyncio.get_running_loop().time()
                give_up_at = give_up_at or now + _LOST_SECONDS
                if now >= give_up_at:
                    raise _lost(error) from error
            except StoreClosedError as error:
                if not _may_be_stored(jobs):
                    raise
                raise _lost(error) from error
            except StoreError as error:
                collision_count += 1
                if not _is_collision(error.__cause__) or collision_count == _MOST_COLLISIONS:
                    raise (tell_collision(error.__cause__) or error) from error.__cause__
            await asyncio.sleep(pause)
            pause = min(max(2 * pause, _SHORTEST_PAUSE), _LONGEST_PAUSE)

    async def _send(
        self, connection: Connection, jobs: Sequence[Job], patience: str, *, is_first: bool
    ) -> list[Answer]:
        calls = [job.drafts for job in jobs]
        drafts = calls[0] if len(calls) == 1 else [draft for call in calls for draft in call]
        is_repeated = _may_be_stored(jobs)
        if is_first and not is_repeated and jobs[0].size <= LARGEST_STATEMENT and are_all_new(drafts):
            return _share(calls, await self._inserts.insert(connection, drafts))
        if len(calls) == 1:
            answer = await self._inserts.append_whole(
                connection, drafts, is_repeated=is_repeated, patience=patience
            )
            return [answer]
        return await self._inserts.append(connection, calls, is_repeated=is_repeated, patience=patience)


def are_all_new(drafts: Sequence[Draft]) -> bool:
    """Whether nothing has to be looked at before they are stored."""
    # No generator, which takes twice as long: this is asked of every event.
    return True not in [draft.stream_id is not None or draft.is_idempotent for draft in drafts]


def _may_be_stored(jobs: Sequence[Job]) -> bool:
    return True in [job.may_be_stored for job in jobs]


def _share(calls: Sequence[Sequence[Draft]], numbers: Sequence[int]) -> list[Answer]:
    """To each call the numbers of its drafts."""
    if len(calls) == 1:
        return [Answer(numbers)]
    rest = iter(numbers)
    return [Answer(list(itertools.islice(rest, len(call)))) for call in calls]


def tell_collision(error: BaseException | None) -> StoreError | None:
    """What a caller is told of two events that want the same id, version or number; None: they do not."""
    if not isinstance(error, asyncpg.UniqueViolationError):
        return None
    if error.constraint_name == _UNIQUE_IDS:
        return duplicate_id(f"an event id is taken: {error.detail}")
    if error.constraint_name == _UNIQUE_VERSIONS:
        return StoreBusyError(
            f"another writer has appended to the stream: {error.detail}; nothing was stored; run the "
            "transaction again (REPEATABLE READ and SERIALIZABLE show the stream as it was when it began)"
        )
    if error.constraint_name == _UNIQUE_NUMBERS:
        return UnsoundLogError(
            f"the sequence has given a number a second time: {error.detail}; nothing was stored; it was set "
            "back, and what it gives now may be numbers that subscribers have passed: stop every bus on this "
            "log and start one again, which says how to repair it"
        )
    return None


def _is_collision(error: BaseException | None) -> bool:
    if isinstance(error, asyncpg.UniqueViolationError):
        return error.constraint_name in (_UNIQUE_IDS, _UNIQUE_VERSIONS)
    return isinstance(error, asyncpg.DeadlockDetectedError | asyncpg.SerializationError)


def _lost(error: StoreError) -> StoreUnavailableError:
    return StoreUnavailableError(
        f"the answer of the database got lost, and so the events may or may not have been stored: {error}; "
        "an event with an event_id of its own can be published again: it is stored once"
    )
