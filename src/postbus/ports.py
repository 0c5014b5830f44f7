"""What delivery needs of the world: small Protocols that the stores fulfil."""

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Protocol

from postbus.errors import StoreError
from postbus.events import DeadLetterPage, Draft, Event, GlobalSequence, SubscriptionRow

# Called in the event loop once the drafts are durable, with one sequence number for each
# (None: an event with this id was there already), or with the error if none was stored.
OnStored = Callable[[Sequence[int | None], StoreError | None], None]


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

    async def recover(self, error: str) -> int:
        """Put what an ended process left in processing back to pending, as a failed attempt; how many."""
        ...

    async def pending(self, after: GlobalSequence, limit: int) -> list[Event]:
        """Pending events with a higher sequence number, in order."""
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


class DeadLetterStore(Protocol):
    """Events that used up their attempts."""

    async def page(self, limit: int, offset: int) -> DeadLetterPage:
        """The newest first."""
        ...

    async def revive(self, event_id: str) -> None:
        """Back to pending with no attempts and no errors. EventNotFoundError, NotADeadLetterError."""
        ...

    async def revive_all(self, event_type: str | None) -> int:
        """Revive every dead letter, or those of one type; how many."""
        ...

    async def purge(self, cutoff: datetime) -> int:
        """Delete dead letters with created_at <= cutoff; how many."""
        ...


class Store(Protocol):
    """One database, seen through its ports."""

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

    async def open(self) -> None:
        """Open or create the database and bring its schema up to date. Idempotent."""
        ...

    async def close(self) -> None:
        """Write what is waiting and close. Idempotent."""
        ...

    async def get(self, event_id: str) -> Event:
        """The event with this id. EventNotFoundError."""
        ...
