"""Frozen values: the event as handlers see it, and as publishers give it."""

import enum
from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any, Generic, NamedTuple, NewType

import msgspec

if TYPE_CHECKING:
    # So that a plain Event means Event[Any]; type checkers know it, older Pythons do not.
    from typing_extensions import TypeVar

    T = TypeVar("T", default=Any)
else:
    from typing import TypeVar

    T = TypeVar("T")

GlobalSequence = NewType("GlobalSequence", int)
# Aware, also where events are decoded from JSON.
Moment = Annotated[datetime, msgspec.Meta(tz=True)]
SubscriberId = NewType("SubscriberId", str)


class EventStatus(enum.StrEnum):
    """Where an event stands with the in-process handlers."""

    PENDING = "pending"
    PROCESSING = "processing"
    DONE = "done"
    DLQ = "dlq"


# The garbage collector does not look at events: it would go through whole pages of them, again and again,
# which costs a fifth of catching up.
class Event(msgspec.Struct, Generic[T], frozen=True, kw_only=True, gc=False):
    """One thing that happened. *last_error* is a JSON array, one string per failed attempt.

    Plain data: a payload into which somebody puts its own event would never be freed.
    """

    id: str
    type: str
    payload: T = None  # type: ignore[assignment]
    created_at: Moment
    status: EventStatus = EventStatus.PENDING
    retry_count: int = 0
    last_error: str | None = None
    metadata: dict[str, str] | None = None
    stream_id: str | None = None
    stream_version: int | None = None
    global_sequence: GlobalSequence | None = None
    actor_id: str | None = None
    purger_id: str | None = None
    purged_at: Moment | None = None
    dlq_at: Moment | None = None
    correlation_id: str | None = None
    causation_id: str | None = None
    schema_version: int | None = None

    @property
    def errors(self) -> list[str]:
        """The message of every failed attempt, oldest first."""
        if self.last_error is None:
            return []
        try:
            return msgspec.json.decode(self.last_error, type=list[str])
        except msgspec.MsgspecError:
            return [self.last_error]  # another program wrote it


class UndecodablePayload(msgspec.Struct, frozen=True):
    """Stands for a stored payload that is not JSON, such as one that another program wrote."""

    text: str
    reason: str


class NewEvent(msgspec.Struct, frozen=True):
    """One item of publish_many or append, with all of publish's options.

    *expected_version* is the version at which its stream must be: 0 for a stream that must not exist yet.

    >>> NewEvent("order.placed", {"order": 42}, event_id="order-42-placed").type
    'order.placed'
    """

    type: str
    payload: Any = None
    metadata: dict[str, str] | None = None
    event_id: str | None = None
    stream_id: str | None = None
    expected_version: int | None = None
    actor_id: str | None = None
    correlation_id: str | None = None
    causation_id: str | None = None
    schema_version: int | None = None


class Draft(msgspec.Struct, frozen=True, gc=False):
    """An event that was checked and encoded and is about to be stored."""

    id: str
    type: str
    payload_json: bytes
    metadata: dict[str, str] | None
    created_at: datetime
    # None: pending if the store has subscriptions, even of a process that is down; done if it has none.
    status: EventStatus | None
    # The publisher chose the id: storing it a second time is a success that stores nothing.
    is_idempotent: bool
    stream_id: str | None = None
    # Where the stream must be just before this draft, drafts before it in the same call included.
    expected_version: int | None = None
    actor_id: str | None = None
    correlation_id: str | None = None
    causation_id: str | None = None
    schema_version: int | None = None


class Gap(NamedTuple):
    """Numbers from *first* to *last*, both included, that are neither delivered nor dead.

    >>> Gap(6, 7)
    Gap(first=6, last=7)
    """

    first: int
    last: int


class LogPosition(msgspec.Struct, frozen=True):
    """How far the log was read: up to *head*, but for the gaps below it that may still be filled."""

    head: GlobalSequence
    # In order, disjoint.
    open: tuple[Gap, ...] = ()

    @property
    def contiguous(self) -> GlobalSequence:
        """The highest number up to which there is no gap."""
        return GlobalSequence(self.open[0].first - 1) if self.open else self.head

    def has_passed(self, sequence: int) -> bool:
        """Whether this number is neither beyond the head nor in an open gap.

        >>> position = LogPosition(9, (Gap(6, 7),))
        >>> [position.has_passed(number) for number in (5, 6, 8, 10)]
        [True, False, True, False]
        """
        return sequence <= self.head and not any(gap.first <= sequence <= gap.last for gap in self.open)


class WriterSample(msgspec.Struct, frozen=True):
    """Who can still publish a number that was already handed out, at one moment; see policy.horizon."""

    # Names one start of one server: what is remembered of another means nothing.
    server: str
    # The highest number that was visible before the holders were looked up.
    high: int
    holders: tuple[str, ...]


class OpenWriter(msgspec.Struct, frozen=True):
    """A transaction that has drawn a number and has not ended: what a gap waits for."""

    # None: it is prepared (PREPARE TRANSACTION) and belongs to no session.
    pid: int | None
    application_name: str | None
    # The name of a prepared transaction.
    gid: str | None
    # None: our role may not see it.
    age_seconds: float | None


class LogPage(msgspec.Struct, frozen=True):
    """Events of the log in order, and how far the log was looked through for them."""

    events: Sequence[Event]
    # Every number after the position and up to this one is in the page, was not wanted, will never be
    # used, or is missing.
    up_to: GlobalSequence
    # Numbers above the position that are not visible yet and may never be.
    missing: tuple[Gap, ...] = ()
    # Which start of which server answered; None where numbers commit in order.
    server: str | None = None
    # Taken just before the page was read, on the same connection.
    sample: WriterSample | None = None
    # There are more events in the open gaps of the position than fit: of what was not found there,
    # nothing is known.
    is_cut: bool = False
    # The position is beyond every number that was ever drawn: the log is not the one it was.
    is_beyond: bool = False
    # Whether somebody wants a dead letter retried, as far as was looked.
    may_have_retries: bool = True


class Checkpoint(msgspec.Struct, frozen=True, kw_only=True):
    """How far a durable subscriber has come, and who may move it on."""

    subscriber_id: SubscriberId
    position: GlobalSequence
    event_id: str | None = None
    updated_at: datetime
    # Every ownership has a higher epoch than the last: a write with an older one changes nothing.
    epoch: int = 0
    # Whether the last owner ended without letting go, so that an event may have ended it.
    was_interrupted: bool = False
    # The event whose attempts were written down before they began, and how many have begun.
    attempt_sequence: GlobalSequence | None = None
    attempt_count: int = 0
    # What is processed beyond the position: up to head, but for the open gaps.
    head: GlobalSequence | None = None
    open: tuple[Gap, ...] = ()
    # Which start of which server it is of; see LogPage.
    server: str | None = None


class Part(msgspec.Struct, frozen=True):
    """One of the parts of a partitioned subscriber: which, of how many. A stream is always in the same one.

    >>> Part(3, 8)
    Part(index=3, count=8)
    """

    index: int
    count: int


class Layout(msgspec.Struct, frozen=True):
    """Into how many parts a durable subscriber is split, and how far each of them has come, in order."""

    partitions: int
    # Of one part it is the checkpoint of the subscriber itself.
    parts: list[Checkpoint]


class StateWrite(msgspec.Struct, frozen=True):
    """The new state under a key of a state store; None deletes it."""

    store_name: str
    key: str
    state_json: bytes | None


class Burial(msgspec.Struct, frozen=True):
    """An event that becomes a dead letter of a durable subscriber."""

    event: Event
    errors: list[str]


class RetryOutcome(msgspec.Struct, frozen=True):
    """What became of the retry of a dead letter: resolved, or one error more."""

    dead_letter_id: str
    error: str | None


class FencedOwner(NamedTuple):
    """A checkpoint and the epoch under which somebody may write for it."""

    checkpoint_id: SubscriberId
    epoch: int


class OutboxEntry(msgspec.Struct, frozen=True):
    """An event for the workers of a pool; *dead_letter_id*: it is the retry of that dead letter."""

    sequence: GlobalSequence
    event_id: str
    dead_letter_id: str | None = None


class Claimed(msgspec.Struct, frozen=True, kw_only=True):
    """A row of the outbox that a worker has for as long as its lease lasts."""

    row_id: int
    # Goes up with every claim of the row: who names another one has lost it.
    claim: int
    # None: it is not in the log any more.
    event: Event | None
    sequence: GlobalSequence
    # Attempts before this one; those without an error ended the process.
    attempt_count: int
    errors: list[str]
    # A worker ended while it had the row, perhaps because of it: an attempt is counted when it begins.
    is_suspect: bool
    dead_letter_id: str | None


class Progress(msgspec.Struct, frozen=True, kw_only=True):
    """What a durable subscriber writes in one transaction, or not at all."""

    subscriber_id: SubscriberId
    epoch: int
    # Where the checkpoint moves to; a position behind the present one leaves it where it is.
    position: GlobalSequence
    event_id: str | None = None
    # What is processed beyond the position: up to head, but for the open gaps. None: nothing.
    head: GlobalSequence | None = None
    open: tuple[Gap, ...] = ()
    # Numbers that gap_policy="timeout" gave up: put on record.
    given_up: tuple[Gap, ...] = ()
    # Where the subscriber was claimed: what was read there may not be written to another server, such as one
    # that has lost the last commits. None: there is only one.
    server: str | None = None
    # The same for every try of one write: one that was written without our getting to know is not repeated.
    write_id: str | None = None
    # The attempt that begins after this transaction, and which one of its event it is.
    attempt_sequence: GlobalSequence | None = None
    attempt_count: int = 0
    burials: Sequence[Burial] = ()
    retries: Sequence[RetryOutcome] = ()
    states: Sequence[StateWrite] = ()
    drafts: Sequence[Draft] = ()
    # Events that the workers of the subscriber's pool get.
    outbox: Sequence[OutboxEntry] = ()
    # Whose dead letters these are, if the checkpoint is that of a part; and which part that is.
    dead_letters_of: SubscriberId | None = None
    part: Part | None = None
    # To lose it in a power cut would only mean that events are delivered again: no need to wait for the disk.
    is_repeatable: bool = False


class BatchOutcome(msgspec.Struct, frozen=True):
    """How many events of a batch took effect, and why the next one did not."""

    done_count: int
    error: BaseException | None = None


class Reaction(msgspec.Struct, frozen=True):
    """What a stateful observer makes of an event: the new state (None deletes it), and events to publish."""

    state: Any
    publish: Sequence[NewEvent] = ()


class SubscriptionRow(msgspec.Struct, frozen=True):
    """What a store keeps of a subscription; its handler lives with the process."""

    id: str
    event_type: str
    created_at: datetime


class DeadLetter(Event[Any], frozen=True, kw_only=True):
    """An event that somebody could not process, with the whole story of why.

    *subscriber_id* is the durable subscriber that gave up on it, None for the in-process handlers.
    *last_error* and *errors* tell of every attempt, *dlq_at* when it was given up.
    """

    dead_letter_id: str
    """What get, retry and resolve take; for the in-process handlers it is the event's id."""
    subscriber_id: SubscriberId | None = None
    last_retry_at: datetime | None = None
    resolved_at: datetime | None = None
    resolved_by: str | None = None
    notes: str | None = None


class DeadLetterPage(msgspec.Struct, frozen=True):
    """One page of dead letters, newest first, and how many there are in all."""

    events: list[DeadLetter]
    total: int
