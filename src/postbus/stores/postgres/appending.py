"""Appends to the log: concurrent publishers share a statement and a commit, and never a fate."""

import asyncio
import itertools
from collections import Counter
from collections.abc import Sequence
from typing import Protocol

import asyncpg

from postbus.errors import InvalidConfigError, StoreBusyError, StoreError, StoreUnavailableError
from postbus.events import Draft
from postbus.ports import OnStored
from postbus.stores.postgres.answers import Answer, Stored
from postbus.stores.postgres.database import Database
from postbus.stores.postgres.drawn_numbers import DrawnNumbers
from postbus.stores.postgres.groups import Groups
from postbus.stores.postgres.inserts import LARGEST_STATEMENT, Inserts, are_plain, size_of
from postbus.stores.postgres.insisting import Insisting, are_all_new, tell_collision
from postbus.stores.postgres.jobs import Job
from postbus.stores.postgres.pool import Connection
from postbus.stores.postgres.translation import translated

# While one group is on its way the next can be put together.
_GROUPS_AT_ONCE = 2
# How long a group waits for a stream that somebody else holds, and how long one of those who want it.
_PATIENCE, _MORE_PATIENCE = "50ms", "250ms"
_BUSY_SECONDS = 15.0
# How long a group waits for one who came before it without a group.
_SECONDS_BEHIND = 0.1


class Announcing(Protocol):
    """Wakes whoever waits for new events."""

    @property
    def channel_of_next(self) -> str | None:
        """Where the statement that makes the next commit may notify by itself; None: it must not."""
        ...

    def announce(self, sequence: int, first: int | None = None) -> None:
        """This number is committed; *first*: the lowest one of the same commit, if there are several."""
        ...

    def note_notified(self, sequence: int) -> None:
        """This number is committed, and the other processes were notified of it."""
        ...


class Appending:
    """Group commit; *wake_ups* are told of what has become durable."""

    def __init__(self, database: Database, wake_ups: Announcing) -> None:
        self._database, self._wake_ups = database, wake_ups
        self._inserts = Inserts(database.queries("appending.sql"))
        self._insisting = Insisting(database, self._inserts)
        self._drawn = DrawnNumbers(database)
        self._groups: Groups[Job] = Groups(
            self._flush, self._refuse, at_once=_GROUPS_AT_ONCE, size_of=_size, largest=LARGEST_STATEMENT
        )
        # What somebody else's transaction holds up waits here, and holds nobody else up; so does what may be
        # stored although its answer got lost.
        self._held_up: Groups[Job] = Groups(
            self._flush_patiently, self._refuse, size_of=_size, largest=LARGEST_STATEMENT
        )
        self._held_names: Counter[str] = Counter()
        # There as long as a caller appends without a group, and done when it has its answer.
        self._lone: asyncio.Future[None] | None = None

    def add(self, drafts: Sequence[Draft], on_stored: OnStored) -> None:
        """Store the drafts, all or none, and call *on_stored* when they are durable."""
        if not drafts:
            asyncio.get_running_loop().call_soon(on_stored, (), (), None)
            return
        self._submit(Job(drafts, on_stored))

    async def append(self, drafts: Sequence[Draft]) -> list[Stored]:
        """Store the drafts, all or none; they are stored even if the caller is cancelled meanwhile."""
        answer = await self.store(drafts)
        return _pair(answer.sequences, answer.stream_versions)

    async def store(self, drafts: Sequence[Draft]) -> Answer:
        """As append, for whoever does not need every number; the answer has no error."""
        # Whether there is nobody to share a commit with, and nothing to look at before they are stored.
        is_free = self._lone is None and self._groups.is_idle
        if is_free and drafts and are_all_new(drafts) and size_of(drafts) <= LARGEST_STATEMENT:
            return await self._store_at_once(drafts)
        return await self._store_in_group(drafts)

    async def insert_within(self, connection: Connection, drafts: Sequence[Draft]) -> list[Stored]:
        """Store the drafts, all or none, in the transaction that the connection is in.

        After WrongExpectedVersionError and DuplicateEventIdError the transaction can go on.
        """
        if not isinstance(connection, asyncpg.Connection):
            raise InvalidConfigError(
                "connection",
                connection,
                "a connection of asyncpg; with another driver call the SQL function publish(type, payload, …)"
                f" of the schema {self._database.schema!r} in your transaction; nothing was stored",
            )
        if not drafts:
            return []
        with translated():
            try:
                answer = await self._inserts.append_whole(connection, drafts)
            except asyncpg.UniqueViolationError as error:
                if (collision := tell_collision(error)) is None:
                    raise
                raise collision from error
        if answer.error is not None:
            raise answer.error
        return _pair(answer.sequences, answer.stream_versions)

    async def drain(self) -> None:
        """Return when nothing is on its way any more."""
        if self._lone is not None:
            # Once: whoever has the answer may append again before we are woken, and so on without end.
            await asyncio.wait([self._lone])
        await self._groups.drain()
        await self._held_up.drain()

    async def _store_at_once(self, drafts: Sequence[Draft]) -> Answer:
        """In the caller's own task: a group and its task cost a fifth of a single append."""
        is_sent, drawn_before = False, self._drawn.highest
        channel = self._wake_ups.channel_of_next if len(drafts) == 1 and are_plain(drafts) else None
        self._lone = lone = asyncio.get_running_loop().create_future()
        try:
            try:
                async with self._database.statement() as connection:
                    is_sent = True
                    if channel is None:
                        numbers = await self._inserts.insert(connection, drafts)
                    else:
                        numbers = [await self._inserts.insert_and_notify(connection, drafts[0], channel)]
            finally:
                # Before anything else is done: a group would wait for it.
                self._lone = None
                lone.set_result(None)
        except asyncio.CancelledError:
            # With its caller the answer is lost, as it is with a connection: a group asks for it again.
            self._submit(Job(drafts, _tell_nobody, may_be_stored=True))
            raise
        except StoreError as error:
            if not is_sent:
                raise
            # If it was only the notification that was refused, a group finds it stored.
            is_lost = channel is not None or isinstance(error, StoreUnavailableError)
            return await self._store_in_group(drafts, may_be_stored=is_lost)
        except Exception as error:
            raise _unknown(error) from error
        if channel is None:
            self._wake_ups.announce(numbers[-1], numbers[0])
        else:
            self._wake_ups.note_notified(numbers[0])
        if numbers[0] <= drawn_before and (fault := await self._drawn.find_fault(numbers)) is not None:
            raise fault
        self._drawn.note(numbers[-1])
        return Answer(numbers)

    async def _store_in_group(self, drafts: Sequence[Draft], *, may_be_stored: bool = False) -> Answer:
        stored: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()

        def on_stored(
            sequences: Sequence[int | None], versions: Sequence[int | None], error: StoreError | None
        ) -> None:
            if stored.done():
                return
            if error is None:
                stored.set_result(Answer(sequences, versions))
            else:
                stored.set_exception(error)

        if drafts:
            self._submit(Job(drafts, on_stored, may_be_stored=may_be_stored))
        else:
            stored.set_result(Answer())
        return await stored

    def _submit(self, job: Job) -> None:
        is_held_up = self._held_names and any(name in self._held_names for name in job.names())
        (self._held_up if is_held_up or job.may_be_stored else self._groups).submit(job)

    async def _flush(self, group: list[Job]) -> None:
        if self._lone is not None:
            # Calls of one turn are numbered in their order, and the first of them did not wait for a group.
            # If its connection is dead it must not hold up the others.
            await asyncio.wait([self._lone], timeout=_SECONDS_BEHIND)
        await self._store(group, _PATIENCE)

    async def _flush_patiently(self, group: list[Job]) -> None:
        await self._store(group, _MORE_PATIENCE)

    async def _store(self, group: list[Job], patience: str) -> None:
        drawn_before = self._drawn.highest
        answers: Sequence[Answer]
        try:
            answers = await self._insisting.store(group, patience)
        except StoreError as error:
            # A plain one is about something that was sent; all others would be the same for each job.
            if len(group) == 1 or type(error) is not StoreError:
                raise
            for job in group:
                await self._store_alone(job, patience)
            return
        numbers = [number for answer in answers for number in answer.sequences if number]
        # What was sent twice may have been stored by the first time, with numbers of then.
        if numbers and min(numbers) <= drawn_before and not any(job.may_be_stored for job in group):
            answers = await self._refuse_passed(answers, drawn_before)
        for job, answer in zip(group, answers, strict=True):
            self._settle(job, answer)
        if numbers:
            self._drawn.note(max(numbers))
            self._wake_ups.announce(max(numbers), min(numbers))

    async def _refuse_passed(self, answers: Sequence[Answer], drawn_before: int) -> Sequence[Answer]:
        """Let those hear of it whose events subscribers may have passed."""
        passed = [[number for number in answer.sequences if number] for answer in answers]
        fault = await self._drawn.find_fault([number for numbers in passed for number in numbers])
        if fault is None:
            return answers
        return [
            Answer(error=fault) if numbers and min(numbers) <= drawn_before else answer
            for answer, numbers in zip(answers, passed, strict=True)
        ]

    async def _store_alone(self, job: Job, patience: str) -> None:
        try:
            await self._store([job], patience)
        except StoreError as error:
            self._settle(job, Answer(error=error))

    def _settle(self, job: Job, answer: Answer) -> None:
        if job.is_settled:
            return
        if answer.held is not None:
            if not self._is_given_up(job):
                self._held_up.submit(job)
                return
            answer = Answer(error=_busy(answer.held))
        job.is_settled = True
        if job.give_up_at is not None:
            self._held_names -= Counter(job.names())
        if answer.error is None:
            job.on_stored(answer.sequences, answer.stream_versions, None)
        else:
            job.on_stored((), (), answer.error)

    def _is_given_up(self, job: Job) -> bool:
        now = asyncio.get_running_loop().time()
        if job.give_up_at is None:
            job.give_up_at = now + _BUSY_SECONDS
            self._held_names.update(job.names())
        return now >= job.give_up_at

    def _refuse(self, job: Job, error: BaseException) -> None:
        self._settle(job, Answer(error=error if isinstance(error, StoreError) else _unknown(error)))


def _size(job: Job) -> int:
    return job.size


def _pair(sequences: Sequence[int | None], versions: Sequence[int | None]) -> list[Stored]:
    return list(map(Stored, sequences, versions or itertools.repeat(None)))


def _tell_nobody(*_: object) -> None:
    """Whoever wanted to know was cancelled."""


def _unknown(cause: BaseException) -> StoreError:
    error = StoreError(f"the events may or may not have been stored: {cause!r}")
    error.__cause__ = cause
    return error


def _busy(held: str) -> StoreBusyError:
    return StoreBusyError(
        f"{held} could not be locked for {_BUSY_SECONDS:g} s: another transaction holds it, or one that "
        "shares its lock, as a call with very many streams or ids does; nothing was stored; end that "
        "transaction, or try again"
    )
