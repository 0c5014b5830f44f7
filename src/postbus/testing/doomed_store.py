"""A store whose bus is going to die: passes the crash points, and after the last one does nothing more."""

import contextlib
import functools
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from typing import Any

from postbus.errors import StoreError
from postbus.events import (
    BatchOutcome,
    Claimed,
    Draft,
    Event,
    GlobalSequence,
    LogPosition,
    Progress,
    SubscriberId,
)
from postbus.ports import (
    Backlog,
    CheckpointStore,
    DeadLetterStore,
    DispatchLock,
    EventLog,
    EventQueue,
    Members,
    OnStored,
    Outbox,
    Store,
    SubscriberLocks,
    SubscriptionTable,
)
from postbus.testing.doom import Doom


class DoomedInTransaction(BaseException):
    """Undoes the transaction in which the life ended."""


class _Doomed:
    """Whatever the real one does, for as long as its bus lives."""

    def __init__(self, real: object, doom: Doom) -> None:
        self._real, self._doom = real, doom

    def __getattr__(self, name: str) -> Any:
        member = getattr(self._real, name)
        if not inspect.iscoroutinefunction(member):
            return member

        @functools.wraps(member)
        async def call(*args: object, **options: object) -> object:
            await self._doom.check_alive()
            return await member(*args, **options)

        return call

    @contextlib.asynccontextmanager
    async def _publishing(self) -> AsyncIterator[None]:
        await self._doom.pass_by("before_publish")
        yield
        await self._doom.pass_by("after_publish")

    @contextlib.asynccontextmanager
    async def _remembering(self) -> AsyncIterator[None]:
        await self._doom.pass_by("before_checkpoint")
        yield
        await self._doom.pass_by("after_checkpoint")


class _DoomedQueue(_Doomed):
    _real: EventQueue

    def add(self, drafts: Sequence[Draft], on_stored: OnStored) -> None:
        if self._doom.is_dead:
            on_stored((), (), self._doom.error)
        elif self._doom.is_reached("before_publish"):
            self._doom.leave_unanswered(on_stored)
        else:
            self._real.add(drafts, functools.partial(self._note_stored, on_stored))

    def finish(self, sequence: GlobalSequence) -> None:
        if not self._doom.is_dead and not self._doom.is_reached("before_checkpoint"):
            self._real.finish(sequence)
            self._doom.is_reached("after_checkpoint")

    async def fail(self, sequence: GlobalSequence, retry_count: int, last_error: str) -> None:
        async with self._remembering():
            await self._real.fail(sequence, retry_count, last_error)

    async def bury(self, sequence: GlobalSequence, retry_count: int, last_error: str | None) -> None:
        async with self._remembering():
            await self._real.bury(sequence, retry_count, last_error)

    def _note_stored(
        self,
        on_stored: OnStored,
        sequences: Sequence[int | None],
        stream_versions: Sequence[int | None],
        error: StoreError | None,
    ) -> None:
        if self._doom.is_dead or (error is None and self._doom.is_reached("after_publish")):
            self._doom.leave_unanswered(on_stored)
        else:
            on_stored(sequences, stream_versions, error)


class _DoomedLog(_Doomed):
    _real: EventLog

    async def append(self, drafts: Sequence[Draft]) -> list[Event]:
        async with self._publishing():
            return await self._real.append(drafts)


class _DoomedCheckpoints(_Doomed):
    _real: CheckpointStore

    async def save(self, progress: Progress) -> None:
        async with self._remembering():
            await self._real.save(progress)

    async def process(
        self,
        subscriber_id: SubscriberId,
        epoch: int,
        events: Sequence[Event],
        handle: Callable[[Event, Any], Any],
        reached: Callable[[int], LogPosition],
        *,
        timeout: float,
        time_budget: float,
        retried: str | None = None,
        server: str | None = None,
        dead_letters_of: SubscriberId | None = None,
    ) -> BatchOutcome:
        doom = self._doom
        await doom.check_alive()
        # One by one: how many fit into a batch depends on the time they take, and what is undone by the
        # end are the effects of its own event only.
        outcome = await self._real.process(
            subscriber_id,
            epoch,
            events[:1],
            _watched(handle, doom),
            reached,
            timeout=timeout,
            time_budget=time_budget,
            retried=retried,
            server=server,
            dead_letters_of=dead_letters_of,
        )
        if outcome.done_count:
            await doom.pass_by("after_checkpoint")
        await doom.check_alive()
        return outcome


class _DoomedOutbox(_Doomed):
    _real: Outbox

    async def finish(self, pool: SubscriberId, claimed: Sequence[Claimed], *, is_repeatable: bool) -> None:
        async with self._remembering():
            await self._real.finish(pool, claimed, is_repeatable=is_repeatable)

    async def put_off(
        self, pool: SubscriberId, claimed: Claimed, errors: Sequence[str], delay: float
    ) -> None:
        async with self._remembering():
            await self._real.put_off(pool, claimed, errors, delay)

    async def bury(self, pool: SubscriberId, claimed: Claimed, errors: Sequence[str]) -> None:
        async with self._remembering():
            await self._real.bury(pool, claimed, errors)

    async def process(
        self, pool: SubscriberId, claimed: Claimed, handle: Callable[[Event, Any], Any], *, timeout: float
    ) -> BatchOutcome:
        doom = self._doom
        await doom.check_alive()
        outcome = await self._real.process(pool, claimed, _watched(handle, doom), timeout=timeout)
        if outcome.done_count:
            await doom.pass_by("after_checkpoint")
        await doom.check_alive()
        return outcome

    def leave(self, pool: SubscriberId) -> None:
        # By then it may be the next life that is a worker.
        if not self._doom.is_dead:
            self._real.leave(pool)


class _DoomedMembers(_Doomed):
    _real: Members

    def leave(self, group: str) -> None:
        if not self._doom.is_dead:
            self._real.leave(group)


def _watched(handle: Callable[[Event, Any], Any], doom: Doom) -> Callable[[Event, Any], Any]:
    """The handler of a transaction, which is undone if the life ends in it."""

    def watched(event: Event, transaction: Any) -> Any:
        if doom.is_dead or doom.is_reached("before_handler"):
            raise DoomedInTransaction
        result = handle(event, transaction)
        if inspect.isawaitable(result):
            return watched_to_its_end(result)
        return survived(result)

    async def watched_to_its_end(running: Awaitable[object]) -> object:
        return survived(await running)

    def survived(result: object) -> object:
        if doom.is_reached("after_handler") or doom.is_reached("before_checkpoint"):
            raise DoomedInTransaction
        return result

    return watched


class _DoomedDispatchLock(_Doomed):
    _real: DispatchLock

    def try_acquire(self) -> bool:
        return not self._doom.is_dead and self._real.try_acquire()

    def release(self) -> None:
        # By then it may be the next life that holds it.
        if not self._doom.is_dead:
            self._real.release()


class _DoomedSubscriberLocks(_Doomed):
    _real: SubscriberLocks

    async def try_acquire(self, subscriber_id: SubscriberId) -> bool:
        return not self._doom.is_dead and await self._real.try_acquire(subscriber_id)

    def release(self, subscriber_id: SubscriberId) -> None:
        if not self._doom.is_dead:
            self._real.release(subscriber_id)


class DoomedStore(_Doomed):
    """Fulfils ports.Store on top of a real one, and passes for one of its kind."""

    _real: Store

    def __init__(self, real: Store, doom: Doom) -> None:
        super().__init__(real, doom)
        self.queue: EventQueue = _DoomedQueue(real.queue, doom)
        self.backlog: Backlog = _Doomed(real.backlog, doom)
        self.dispatch_lock: DispatchLock = _DoomedDispatchLock(real.dispatch_lock, doom)
        self.subscriptions: SubscriptionTable = _Doomed(real.subscriptions, doom)
        self.dead_letters: DeadLetterStore = _Doomed(real.dead_letters, doom)
        self.log: EventLog = _DoomedLog(real.log, doom)
        self.checkpoints: CheckpointStore = _DoomedCheckpoints(real.checkpoints, doom)
        self.subscriber_locks: SubscriberLocks = _DoomedSubscriberLocks(real.subscriber_locks, doom)
        self.members: Members | None = None if real.members is None else _DoomedMembers(real.members, doom)
        self.outbox: Outbox | None = None if real.outbox is None else _DoomedOutbox(real.outbox, doom)
        # The very table: state stores that were made on the real store are in the same database.
        self.states = real.states

    @property
    def __class__(self) -> Any:
        # A SQLiteStateStore asks for a SQLiteStore, and this is one as far as it is concerned.
        return type(self._real)

    @__class__.setter
    def __class__(self, kind: Any) -> None:
        raise TypeError(f"a doomed store can't become a {kind}")

    async def append(
        self,
        stream_id: str,
        events: Iterable[object],
        *,
        expected_version: int | None = None,
        connection: Any = None,
    ) -> list[Event]:
        """As the real one, which knows nothing of the doomed log."""
        async with self._publishing():
            return await self._real.append(
                stream_id, events, expected_version=expected_version, connection=connection
            )

    async def close(self) -> None:
        """Close the real one, unless the bus has died: a dead process does not even do that."""
        if not self._doom.is_dead:
            await self._real.close()
