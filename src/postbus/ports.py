"""What delivery needs of the world: small Protocols that the stores fulfil."""

from collections.abc import Callable, Collection, Iterable, Sequence
from datetime import datetime
from typing import Any, Protocol, runtime_checkable

from postbus.errors import StoreError
from postbus.events import (
    BatchOutcome,
    Checkpoint,
    Claimed,
    DeadLetter,
    DeadLetterPage,
    Draft,
    Event,
    EventStatus,
    FencedOwner,
    GlobalSequence,
    Layout,
    LogPage,
    LogPosition,
    OpenWriter,
    Part,
    Progress,
    Reaction,
    SubscriberId,
    SubscriptionRow,
)

# Called in the event loop once the drafts are durable, with one sequence number for each
# (None: an event with this id was there already) and one stream version for each (empty
# if no draft has a stream), or with the error if none was stored.
OnStored = Callable[[Sequence[int | None], Sequence[int | None], StoreError | None], None]


class Clock(Protocol):
    """Time, injected: tests move it by hand."""

    def now(self) -> datetime:
        """The moment, aware, in UTC."""
        ...

    def monotonic(self) -> float:
        """Seconds since some fixed moment; never goes back."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Return after *seconds*."""
        ...

    async def until(self, deadline: float) -> None:
        """Return when monotonic() has reached *deadline*: a limit for others, not a wait of our own."""
        ...


class EventQueue(Protocol):
    """Events on their way through the in-process handlers, by status."""

    def add(self, drafts: Sequence[Draft], on_stored: OnStored) -> None:
        """Store the drafts, all or none, and call *on_stored* when they are durable.

        A call, not a coroutine: what has to happen with a stored event happens
        even when the task that published it is cancelled meanwhile.
        """
        ...

    def finish(self, sequence: GlobalSequence) -> None:
        """Mark a processing event done, soon: losing it in a crash only means redelivery."""
        ...

    async def fail(self, sequence: GlobalSequence, retry_count: int, last_error: str) -> None:
        """Record one more failed attempt of a processing event."""
        ...

    async def bury(self, sequence: GlobalSequence, retry_count: int, last_error: str | None) -> None:
        """Make a processing event a dead letter."""
        ...

    async def release(self, sequences: Sequence[GlobalSequence]) -> None:
        """Put processing events back to pending, their attempts as they are."""
        ...


class Backlog(Protocol):
    """Stored events that no publisher is waiting for."""

    async def recover(self, error: str, error_of_several: str) -> int:
        """Put what an ended process left in processing back to pending, as a failed attempt; how many.

        The error is another one if there are several, of which most have nothing to do with that end.
        """
        ...

    async def pending(self, after: GlobalSequence, limit: int, without: Collection[str] = ()) -> list[Event]:
        """Pending events with a higher sequence number, in order, but none of the types in *without*."""
        ...

    async def pending_count(self, up_to: GlobalSequence) -> int:
        """How many are pending up to this sequence number; takes far less than to read them."""
        ...

    async def claim(self, sequences: Sequence[GlobalSequence]) -> set[GlobalSequence]:
        """Move pending events to processing; those that still were pending."""
        ...

    async def settle_pending(self, sequences: Sequence[GlobalSequence]) -> int:
        """Mark pending events done unseen, because the user says so; how many."""
        ...

    def watch(self, on_change: Callable[[], None] | None) -> None:
        """Call *on_change* in the event loop when events may have become pending, or the owner gone."""
        ...


class DispatchLock(Protocol):
    """One process per store runs the in-process handlers."""

    def try_acquire(self) -> bool:
        """Become or stay the owner, without waiting; whether this process is it."""
        ...

    def release(self) -> None:
        """Let another process become the owner. Idempotent."""
        ...


class SubscriptionTable(Protocol):
    """The subscriptions of the owner, for people who look into the store."""

    async def replace(self, rows: Sequence[SubscriptionRow]) -> None:
        """Make these the only rows."""
        ...

    async def list(self) -> list[SubscriptionRow]:
        """All rows, oldest first."""
        ...


class WantedEvents(Protocol):
    """Which events a reader wants, by their type and, where there are partitions, by the part they are in."""

    @property
    def patterns(self) -> Sequence[str]:
        """As they were given: exact types, and those with "*" for one segment."""
        ...

    @property
    def part(self) -> Part | None:
        """The only part that is wanted; None: every one."""
        ...

    def __call__(self, event_type: str, /) -> bool:
        """Whether this type is wanted."""
        ...


class DeadLetterStore(Protocol):
    """Events that used up their attempts, with the in-process handlers or with a durable subscriber."""

    async def page(self, limit: int, offset: int, subscriber_id: SubscriberId | None) -> DeadLetterPage:
        """The unresolved ones of both kinds, or of one subscriber, newest first."""
        ...

    async def get(self, dead_letter_id: str) -> DeadLetter:
        """One, resolved or not. EventNotFoundError, NotADeadLetterError (an event that is none)."""
        ...

    async def revive(self, dead_letter_id: str) -> None:
        """Give it another chance.

        Of the in-process handlers: back to pending with no attempts and no errors. Of a durable
        subscriber: mark it for one more attempt by that subscriber. An event's id stands for all
        dead letters of that event. EventNotFoundError, NotADeadLetterError.
        """
        ...

    async def revive_all(self, event_type: str | None, subscriber_id: SubscriberId | None) -> int:
        """Revive every unresolved dead letter, or those of one type, of one subscriber; how many."""
        ...

    async def resolve(self, dead_letter_id: str, by: str, notes: str | None) -> None:
        """Somebody has seen to it: it leaves the list and stays on record.

        EventNotFoundError, NotADeadLetterError.
        """
        ...

    async def purge(self, cutoff: datetime) -> int:
        """Delete dead letters with created_at <= cutoff, resolved ones too; how many.

        Of a durable subscriber only its dead letter goes, by the date on which it became one; the event
        stays in the log. One of the in-process handlers is deleted, unless it belongs to a stream or a
        durable subscriber has not come to it yet: then it only ceases to be a dead letter.
        """
        ...

    async def wanted_retries(
        self, subscriber_id: SubscriberId, limit: int, part: Part | None = None
    ) -> list[DeadLetter]:
        """Dead letters of this subscriber that are marked for one more attempt, oldest first.

        With *part* only those whose events are in it.
        """
        ...

    async def bury_late(
        self, subscriber_id: SubscriberId, wanted: WantedEvents | None, error: str, owner: FencedOwner
    ) -> list[Event]:
        """Make dead letters of the events that appeared at numbers which the subscriber had given up.

        Those that are wanted, each once; the events. A number that a part gave up counts for its events only.
        SubscriberFencedError, and nothing is written, unless *owner* is the present one.
        """
        ...


class EventLog(Protocol):
    """All events in the order of their global sequence, and in streams."""

    async def append(self, drafts: Sequence[Draft]) -> list[Event]:
        """Store the drafts, all or none, in one transaction; the stored events, in order.

        For a given id that is there already the event that is stored. WrongExpectedVersionError.
        """
        ...

    async def store(self, drafts: Sequence[Draft]) -> None:
        """As append, for whoever does not need the events."""
        ...

    async def append_within(self, connection: Any, drafts: Sequence[Draft]) -> list[Event]:
        """As append, inside the caller's own transaction: the events exist exactly when it commits.

        StoreError where the store knows no such connections.
        """
        ...

    async def read(
        self, after: LogPosition, limit: int, wanted: WantedEvents | None, *, with_sample: bool = False
    ) -> LogPage:
        """The events in the open gaps of a position and at most *limit* after its head, in order.

        Only those that are wanted; None: all are. Looks through a bounded part of the log, so the
        page may be empty although there is more: then it goes on after *up_to*, which equals the head of
        *after* only at the end of the log. All of it is seen at one moment: of a stream no event comes
        before one that was appended earlier. *with_sample*: first see who can still fill a gap.
        """
        ...

    async def now(self, head: GlobalSequence) -> LogPosition:
        """Everything up to *head* that is visible at this moment: what can still appear below is open."""
        ...

    async def open_writers(self) -> list[OpenWriter]:
        """The transactions that may still fill a gap, the oldest first."""
        ...

    async def read_stream(self, stream_id: str, from_version: int, to_version: int | None) -> list[Event]:
        """The events of a stream in the order of their versions, both bounds included."""
        ...

    async def get(self, event_id: str) -> Event:
        """The event with this id. EventNotFoundError."""
        ...

    async def head(self) -> GlobalSequence:
        """The highest number in the log that is durable; 0 if there is none."""
        ...

    async def position_at(self, moment: datetime) -> GlobalSequence:
        """The number just before the first event whose created_at is *moment* or later; else the head."""
        ...

    async def purge(self, event_id: str, purger_id: str) -> None:
        """Take the payload away, also from its dead letters; the event stays. EventNotFoundError.

        Who purges it again changes nothing: the first purger_id and purged_at stay.
        """
        ...

    @property
    def known_head(self) -> GlobalSequence:
        """The head as far as this process has noticed, without asking the database."""
        ...

    def watch(self, on_append: Callable[[], None]) -> None:
        """Call this in the event loop when the log may have grown, or a retry may be wanted.

        It carries no data and may come too often, from other processes too. Several may watch.
        """
        ...

    def unwatch(self, on_append: Callable[[], None]) -> None:
        """Do not call it any more. Idempotent."""
        ...


class CheckpointStore(Protocol):
    """How far each durable subscriber has come. A checkpoint only moves forward."""

    async def load(self, subscriber_id: SubscriberId) -> Checkpoint | None:
        """Its checkpoint, if it has one."""
        ...

    async def list(self) -> list[Checkpoint]:
        """All, by subscriber id."""
        ...

    async def claim(self, subscriber_id: SubscriberId, start: LogPosition) -> Checkpoint:
        """Become the owner under a new, higher epoch; *start* counts if there is no checkpoint yet.

        was_interrupted tells whether the owner before did not release it.
        """
        ...

    async def save(self, progress: Progress) -> None:
        """Write all of it in one transaction.

        SubscriberFencedError (nothing is written) unless its epoch is the present one, and its server too.
        WrongExpectedVersionError or DuplicateEventIdError for its drafts: nothing is written either.
        """
        ...

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
        """Call handle(event, transaction) for one event after the other and move the checkpoint along,
        all in one transaction; effects of an event that raises are undone and end the batch.

        What handle returns is awaited where transactions are async. *reached* tells where the checkpoint
        is to be after the first so many of the events.

        After *time_budget* seconds the batch ends early, after at least one event. A statement that
        runs beyond *timeout* seconds after its handler began is interrupted. With *retried*, the id of
        the dead letter that the only event is retried for, that is resolved and the checkpoint stays; it is
        one of *dead_letters_of*, if the checkpoint is that of a part.
        SubscriberFencedError (also if *server* is not the one that answers): no handler was called.
        """
        ...

    async def release(self, subscriber_id: SubscriberId, epoch: int, server: str | None = None) -> None:
        """Let go in good order. Nothing happens if epoch or server are not the present ones."""
        ...


class SubscriberLocks(Protocol):
    """A durable subscriber is active in one process: locks that end with their process."""

    async def try_acquire(self, subscriber_id: SubscriberId) -> bool:
        """Become the holder without waiting for it; False if anybody is, this process included."""
        ...

    def release(self, subscriber_id: SubscriberId) -> None:
        """Let another become the holder, at once or as soon as it can be done. Idempotent."""
        ...

    def watch(
        self,
        on_lost: Callable[[], None] | None,
        on_free: Callable[[], None] | None,
        failover_timeout: float,
    ) -> None:
        """Call *on_lost* in the event loop when all locks are lost, and the server may be another one;
        *on_free*, where it can be known, when somebody has released one.

        Where locks do not end with their process, those of a holder that gives no sign of life are
        another's within *failover_timeout* seconds.
        """
        ...


class Layouts(Protocol):
    """Into how many parts each durable subscriber is split; each has a checkpoint and a lock of its own."""

    async def load(self, subscriber_id: SubscriberId) -> Layout | None:
        """The present layout, and how far its parts have come; None: the subscriber has no checkpoint yet."""
        ...

    async def claim(self, part_id: SubscriberId) -> Checkpoint:
        """Become the owner of a part, as CheckpointStore.claim. LayoutChangedError: there is none."""
        ...

    async def switch(self, subscriber_id: SubscriberId, found: int, wanted: int) -> bool:
        """Split it into *wanted* parts instead of *found* in one transaction; False: not all are equally far.

        Who owned a part before can write nothing any more. Nothing happens if it is done already.
        LayoutChangedError: there are as many as neither of them.
        """
        ...


class Members(Protocol):
    """Which instances take part in what, for as long as they live."""

    @property
    def number(self) -> int | None:
        """What this instance is listed as; None while it has no session."""
        ...

    async def join(self, group: str) -> None:
        """Be listed in this group, also after the session was lost and replaced. Idempotent."""
        ...

    def leave(self, group: str) -> None:
        """Be listed no more, at once or as soon as it can be done. Idempotent."""
        ...

    async def holders(self, subscriber_ids: Sequence[SubscriberId]) -> list[int | None]:
        """The number of the instance that has the lock of each of them; None: it is free."""
        ...

    async def list(self, group: str) -> list[int]:
        """The numbers of all instances in the group, sorted."""
        ...


class OutboxRows(Protocol):
    """Rows of a pool that a worker claims, and what becomes of them.

    Every write names its claim: one whose lease was lost changes nothing. Time is the database's.
    """

    @property
    def most_transactions(self) -> int:
        """How many handlers of process() there can be at once in this instance; others wait for them."""
        ...

    async def claim(self, pool: SubscriberId, limit: int, *, with_suspect: bool) -> list[Claimed]:
        """Take at most *limit* rows that are due and that nobody has, oldest first, and perhaps one suspect.

        Whoever does is a worker of the pool until it leaves, or ends.
        """
        ...

    async def begin_attempt(self, claimed: Claimed) -> bool:
        """Count the attempt that begins, of a suspect: should it end the process; False: the row is lost."""
        ...

    async def finish(self, pool: SubscriberId, claimed: Sequence[Claimed], *, is_repeatable: bool) -> None:
        """They were processed: delete them, and resolve the dead letters that they were retries of."""
        ...

    async def put_off(
        self, pool: SubscriberId, claimed: Claimed, errors: Sequence[str], delay: float
    ) -> None:
        """An attempt has failed: keep the errors of all, and make it due again after so many seconds."""
        ...

    async def bury(self, pool: SubscriberId, claimed: Claimed, errors: Sequence[str]) -> None:
        """Make it a dead letter and delete it, in one transaction.

        A retry of a dead letter is deleted, and its last error added to the letter.
        """
        ...

    async def give_back(self, pool: SubscriberId, claimed: Sequence[Claimed]) -> None:
        """They were not begun, or not ended for no fault of theirs: due at once, no attempt counted."""
        ...

    async def process(
        self, pool: SubscriberId, claimed: Claimed, handle: Callable[[Event, Any], Any], *, timeout: float
    ) -> BatchOutcome:
        """Call handle(event, transaction) in the transaction in which the row is deleted.

        done_count is 0 without an error if the claim was lost: then nothing that the handler did counts.
        """
        ...


class OutboxWorkers(Protocol):
    """Who works for a pool, and for how long."""

    async def workers(self, pool: SubscriberId) -> tuple[int | None, list[int]]:
        """The number of this instance, None while it has no session, and those of all workers."""
        ...

    def leave(self, pool: SubscriberId) -> None:
        """Be no worker of the pool any more. Idempotent."""
        ...

    async def renew(self, pool: SubscriberId, claimed: Sequence[Claimed]) -> None:
        """Begin their leases anew."""
        ...

    async def reap(self, pool: SubscriberId, lease: float) -> int:
        """Take rows from workers that are gone, or silent for *lease* seconds: suspects; how many."""
        ...

    def watch(self, pool: SubscriberId, on_work: Callable[[], None]) -> None:
        """Call this in the event loop when there may be rows to claim. It may come too often."""
        ...

    def unwatch(self, pool: SubscriberId, on_work: Callable[[], None]) -> None:
        """Do not call it any more. Idempotent."""
        ...


class OutboxContents(Protocol):
    """How much of a pool's work is left."""

    async def oldest(self, pool: SubscriberId, after: GlobalSequence) -> GlobalSequence | None:
        """The lowest number after this one that has a row, retries of dead letters left out."""
        ...

    async def has_retries(self, pool: SubscriberId) -> bool:
        """Whether there is a row for the retry of a dead letter."""
        ...

    async def has_room(self, pool: SubscriberId, most: int) -> bool:
        """Whether fewer than so many rows wait for a worker, as far as this instance knows."""
        ...

    async def is_empty(self, pool: SubscriberId) -> bool:
        """Whether no row is left."""
        ...


class Outbox(OutboxRows, OutboxWorkers, OutboxContents, Protocol):
    """Events on their way through the workers of a pool; those that were processed are gone."""


class StateTable(Protocol):
    """JSON states by the name of their state store and key."""

    async def get(self, store_name: str, key: str) -> bytes | None:
        """The state, as JSON."""
        ...

    async def put(self, store_name: str, key: str, state_json: bytes | None) -> None:
        """Replace it; None deletes it."""
        ...

    async def items(self, store_name: str, after: str, limit: int) -> list[tuple[str, bytes]]:
        """At most *limit* keys above *after* with their states, in the order of the keys."""
        ...


@runtime_checkable
class EventObserver(Protocol):
    """A durable subscriber as an object; *patterns*, if it has any, say which events it wants."""

    @property
    def subscriber_id(self) -> str:
        """Who it is: unique, and the same from start to start."""
        ...

    async def on_event(self, event: Event) -> None:
        """Process one event. It may come again after a crash."""
        ...


class TypedStates(Protocol):
    """A state store, as delivery sees it."""

    @property
    def name(self) -> str:
        """Sets its keys apart from those of other state stores in the same table."""
        ...

    @property
    def table(self) -> StateTable:
        """Where its states are."""
        ...

    def encode(self, state: Any) -> bytes:
        """A state as JSON."""
        ...

    def decode(self, state_json: bytes) -> Any:
        """JSON as a state."""
        ...


@runtime_checkable
class StatefulObserver(Protocol):
    """A durable subscriber whose state, published events and checkpoint commit together."""

    @property
    def subscriber_id(self) -> str:
        """Who it is: unique, and the same from start to start."""
        ...

    @property
    def patterns(self) -> Sequence[str]:
        """Which events it wants."""
        ...

    @property
    def states(self) -> TypedStates:
        """Where its state is kept."""
        ...

    def state_key(self, event: Event) -> str | None:
        """Which state the event belongs to; None: the event is none of its business."""
        ...

    async def react(self, state: Any, event: Event) -> Reaction:
        """The new state and what to publish; *state* is None if there is none yet."""
        ...


class EventStore(Protocol):
    """The log as users see it: bus.store."""

    async def append(
        self,
        stream_id: str,
        events: Iterable[object],
        *,
        expected_version: int | None = None,
        connection: Any = None,
    ) -> list[Event]:
        """Store events in one stream, all or none; the stored events.

        An item is (type, payload), (type, payload, metadata) or a NewEvent. *expected_version*: None for
        any, 0 for a stream that must not exist, n for one that must be at n; WrongExpectedVersionError.
        *connection*: inside the caller's own transaction, so that they exist exactly when it commits.
        """
        ...

    async def read_stream(
        self, stream_id: str, from_version: int = 1, to_version: int | None = None
    ) -> list[Event]:
        """The events of a stream in the order of their versions, both bounds included."""
        ...

    async def read_all(self, after: int = 0, limit: int = 100) -> list[Event]:
        """At most *limit* events with a higher number, in the order of the log."""
        ...

    async def get(self, event_id: str) -> Event:
        """The event with this id. EventNotFoundError."""
        ...

    async def head(self) -> GlobalSequence:
        """The highest number in the log; 0 if there is none."""
        ...

    async def purge(self, event_id: str, purger_id: str) -> None:
        """Take the payload away for good; the fact that it happened stays. EventNotFoundError."""
        ...


class StatusFor(Protocol):
    """The status with which an event of this type is stored."""

    def __call__(self, event_type: str, *, wait: bool) -> EventStatus | None:
        """The status; None: the store finds out."""
        ...


class DraftStream(Protocol):
    """Checks and encodes what is appended to a stream; raises before anything is stored."""

    def __call__(
        self, stream_id: str, items: Iterable[object], expected_version: int | None, /
    ) -> list[Draft]:
        """One draft for each item, in order."""
        ...


class Store(EventStore, Protocol):
    """One database, seen through its ports."""

    def append_as(self, draft: DraftStream | None) -> None:
        """Append events as the bus that uses the store drafts them: with its limits. None: no bus."""
        ...

    @property
    def has_handlers(self) -> bool:
        """Whether handlers without an id can be run on it: if not, every subscription needs one."""
        ...

    @property
    def has_async_transactions(self) -> bool:
        """Whether a transactional handler is a coroutine function, or else a plain one."""
        ...

    @property
    def queue(self) -> EventQueue:
        """Events on their way through the handlers."""
        ...

    @property
    def backlog(self) -> Backlog:
        """Events that no publisher is waiting for."""
        ...

    @property
    def dispatch_lock(self) -> DispatchLock:
        """Who runs the handlers."""
        ...

    @property
    def subscriptions(self) -> SubscriptionTable:
        """Which handlers there are."""
        ...

    @property
    def dead_letters(self) -> DeadLetterStore:
        """Events that used up their attempts."""
        ...

    @property
    def log(self) -> EventLog:
        """All events in order."""
        ...

    @property
    def checkpoints(self) -> CheckpointStore:
        """How far each durable subscriber has come."""
        ...

    @property
    def subscriber_locks(self) -> SubscriberLocks:
        """Who runs which durable subscriber."""
        ...

    @property
    def states(self) -> StateTable:
        """States of projections and sagas."""
        ...

    @property
    def layouts(self) -> Layouts | None:
        """How subscribers are split into parts; None where they can't be."""
        ...

    @property
    def members(self) -> Members | None:
        """Which instances there are; None where a subscriber can't be spread over several."""
        ...

    @property
    def outbox(self) -> Outbox | None:
        """What competing workers share; None where there are none."""
        ...

    async def open(self) -> None:
        """Open or create the database and bring its schema up to date. Idempotent."""
        ...

    async def close(self) -> None:
        """Write what is waiting and close. Idempotent."""
        ...
